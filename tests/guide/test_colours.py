"""What colours say, every reader can see; what is written can be read."""

import pytest

from guide.colours import BLINDNESS, THEMES, contrast, difference

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
