"""A picture is whole SVG, says what it shows, and hangs no meaning on a colour alone."""

import re
from xml.etree import ElementTree

import numpy as np
import pytest

from grader.drawings import svg

SVG = "{http://www.w3.org/2000/svg}"
CAUSAL = np.tril(np.ones((8, 8), bool))


def cells(path: str) -> float:
    """The area of a path of rectangles."""
    return sum(float(w) * float(h) for w, h in re.findall(r"h([\d.]+)v([\d.]+)", path))


@pytest.mark.parametrize("shape", [(1, 1), (5, 9), (16, 4)])
def test_an_area_covers_its_cells_and_no_others(shape):
    some = np.random.default_rng(0).random(shape) < 0.5
    assert cells(svg.area(some, 3, 4, 2.0)) == 4 * some.sum()
    assert svg.area(np.zeros(shape, bool), 0, 0, 1) == ""


def test_scattered_cells_are_drawn_on_a_coarser_grid():
    some = np.random.default_rng(0).random((255, 256)) < 0.3
    path = svg.area(some, 0, 0, 1.0)
    assert len(path) < 60_000 and cells(path) >= some.sum()


def layers(keep, *where, **more) -> dict[str, np.ndarray]:
    """The visible pairs, by the first class of their tile."""
    return {kind.split()[0]: keep & cells for kind, cells in svg.kinds(keep, *where, **more)}


def test_a_tile_that_the_mask_cuts_is_told_from_a_whole_one():
    found = layers(CAUSAL, 4)
    assert found["whole"].sum() == 16 and found["whole"][4:, :4].all()
    assert found["cut"].sum() == 20 and not found["sink"].any()


def test_tiles_are_cut_where_their_numbers_say_and_not_where_the_picture_begins():
    # Rows 6 and 7 of the picture are those of the next tile.
    assert layers(CAUSAL, 4, first=(2, 0))["whole"].sum() == 8


def test_a_tile_past_the_last_key_is_cut_and_one_past_the_last_query_not():
    found = layers(np.ones((8, 6), bool), 4)
    assert found["whole"][:, :4].all() and found["cut"][:, 4:].all()
    assert found["whole"].sum() == 32 and found["cut"].sum() == 16
    assert layers(np.ones((6, 8), bool), 4)["whole"].all()


def test_a_tile_that_shows_only_sinks_is_told_from_one_that_the_mask_cuts():
    window = np.eye(8, dtype=bool)
    window[:, 0] = True
    found = layers(window, 4, sinks=1)
    assert found["sink"][4:, 0].all() and found["sink"].sum() == 4
    assert not (found["cut"] & found["sink"]).any()


def test_a_picture_says_what_it_shows_and_lets_no_markup_through():
    drawn = ElementTree.fromstring(svg.draw.bars("<b>", [('"&"', 2)]))
    assert drawn.get("role") == "img"
    assert drawn.find(SVG + "title").text == "<b>"
    assert drawn.find(SVG + "desc").text == '"&" 2 ms.'


def test_a_point_lies_as_far_below_its_roof_as_it_is_slower():
    drawn = ElementTree.fromstring(svg.roofline(1000, [("yours", 80.0), ("naive", 8.0)], 800, 4))
    (x, yours), (same, naive) = ((float(one.get("cx")), float(one.get("cy")))
                                 for one in drawn.iter(SVG + "circle"))
    [dashed] = [one.get("d") for one in drawn.iter(SVG + "path") if one.get("class") == "tile-line"]
    left, bottom, roof = map(float, re.findall(r"[\d.]+", dashed))
    assert x == same == left and bottom == svg.HIGH
    assert yours - roof == pytest.approx(naive - yours, abs=0.2)  # ten times each


@pytest.mark.parametrize("x, rates, memory", [
    (1, (2.5, 0.4), 2.8), (100, (280, 279, 278), 2.8), (1400, (900, 0.01), 2.8), (3, (0.1,), 0.02)])
def test_all_of_a_roofline_is_inside_of_its_picture_and_no_word_on_another(x, rates, memory):
    text = svg.roofline(x, [(f"name {rate}", rate) for rate in rates], 747, memory)
    drawn = ElementTree.fromstring(text)
    places = [(float(one.get("cx")), float(one.get("cy"))) for one in drawn.iter(SVG + "circle")]
    assert all(0 <= x <= svg.WIDE - 100 and 0 <= y <= svg.HIGH for x, y in places)
    slope, = (one.get("transform") for one in drawn.iter(SVG + "text") if one.text[-6:] == "memory")
    left, top, turned = map(float, re.findall(r"-?[\d.]+", slope))
    assert left < 60 and top + 130 * np.sin(np.radians(turned)) > -18  # it is 130 pixels long
    words = [float(one.get("y")) for one in drawn.iter(SVG + "text") if one.text[:4] == "name"]
    assert len(words) == len(rates)
    assert all(b - a >= 13 for a, b in zip(words, words[1:], strict=False))


def test_three_panels_show_a_mask_and_what_is_wrong_with_it():
    wrong = {"seen": np.triu(np.ones((8, 8), bool), 1), "unseen": np.zeros((8, 8), bool)}
    panels, key = svg.mask(CAUSAL, np.ones((8, 8), bool), wrong, 4)
    names, drawn = zip(*(panel[:2] for panel in panels), strict=True)
    assert key[-1] == ("wrong", "a hidden key is seen") and len(key) == 4
    assert names == ("expected", "yours", "difference: 28")
    assert 'class="wrong"' in drawn[2] and 'class="missing"' not in drawn[2]
    assert "28 pairs: a hidden key is seen." in drawn[2]
    ElementTree.fromstring(svg.draw.file("t", "s", panels, [("", "a & b")], "").strip())


def test_too_much_weight_is_drawn_with_more_than_too_little():
    much, little = (svg.mask(CAUSAL, CAUSAL, {name: CAUSAL}, 4)[1][-1]
                    for name in ("much", "little"))
    assert much == ("behind-wrong more", "too much weight")
    assert little == ("behind-wrong", "too little weight")


def test_every_class_has_a_look_in_both_themes():
    wrong = {name: np.ones((8, 8), bool) for name in svg.DIFFERENCES}
    _, said = svg.mask(CAUSAL, CAUSAL, wrong, 4)
    assert len(said) == 3 + len(wrong)
    for one in " ".join([kind for kind, _ in (*said, *svg.VERBS.values())]).split():
        assert f".{one} {{" in svg.STYLE
    assert svg.COLOURS["light"].keys() == svg.COLOURS["dark"].keys() >= {"whole", "cut", "sink"}
