"""What colours say, every reader can see; what is written can be read."""

import ast
import re

import pytest

from guide.colours import BLINDNESS, THEMES, contrast, difference
from guide.excerpts import ROOT

BOTH = pytest.mark.parametrize("theme", THEMES)


def test_the_scales_are_the_usual_ones():
    assert contrast("#000000", "#ffffff") == pytest.approx(21)
    assert contrast("#777777", "#ffffff") == pytest.approx(4.48, abs=0.01)
    assert difference("#ffffff", "#000000") == pytest.approx(100, abs=0.1)
    # Red and olive are one colour to a reader without red cones, and red and blue are not.
    assert difference("#cc0000", "#4a4000", "protanopia") < 15
    assert difference("#cc0000", "#0000cc", "protanopia") > 60


@BOTH
@pytest.mark.parametrize("blindness", [None, *BLINDNESS])
def test_wrong_and_right_are_told_apart(theme, blindness):
    colours = THEMES[theme]
    assert difference(colours["wrong"], colours["right"], blindness) > 25
    assert difference(colours["behind-wrong"], colours["behind-right"], blindness) > 8


@BOTH
def test_the_words_of_a_box_can_be_read(theme):
    colours = THEMES[theme]
    for name in ("wrong", "right"):
        assert contrast(colours[name], colours["paper"]) >= 4.5
        assert contrast(colours["ink"], colours[f"behind-{name}"]) >= 7


@BOTH
def test_grey_words_and_lines_can_be_read(theme):
    colours = THEMES[theme]
    for name in ("faint", "ink"):
        assert contrast(colours[name], colours["paper"]) >= 4.5
    for name in "abcde":  # lines and marks
        assert contrast(colours[name], colours["paper"]) >= 3


def test_what_a_mask_makes_of_a_tile_is_hatched_differently():
    """Read from the source: matplotlib is not imported here."""
    source = (ROOT / "guide/figures/pen.py").read_text("utf-8")
    hatches = ast.literal_eval(re.search(r"^HATCHES = (\{.*?\})", source, re.MULTILINE)[1])
    drawn = {kind: hatches.get(kind, "") for kind in ("whole", "cut", "sink")}
    assert len(set(drawn.values())) == 3


def test_curves_of_one_plot_have_different_lines_and_marks():
    source = (ROOT / "guide/figures/plots.py").read_text("utf-8")
    for function in ("_sweep", "error"):
        body = source.split(f"def {function}(")[1].split("\ndef ")[0]
        styles = re.findall(r'"([ox^s][-.:]+)"', body)
        assert len(styles) >= 3
        assert len({s[0] for s in styles}) == len({s[1:] for s in styles}) == len(styles)
