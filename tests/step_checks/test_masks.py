"""Masks: which pairs must be right, and a sign for each kind of pair in a wrong one."""

import numpy as np
import pytest

from grader.step_checks import masks
from grader.step_checks.examples import Observed
from reference import keep_mask

SEES = {3: masks.all_keys, 4: masks.causal, 6: masks.window, 7: masks.sinks, 8: masks.either,
        9: masks.sinks_or_all}


@pytest.mark.parametrize("is_causal", [False, True])
def test_the_right_masks_are_the_references(is_causal):
    place, given = np.arange(70), dict(N=70, CAUSAL=is_causal, window_size=9, sink_size=4)
    for sees, mask in {
            masks.either: {}, masks.sinks_or_all: dict(window_size=9, sink_size=4),
            **({masks.causal: {}, masks.window: dict(window_size=9)} if is_causal else {})}.items():
        want = keep_mask(70, 70, is_causal, **mask if is_causal else {})
        assert np.array_equal(sees(place[:, None], place, given), want), sees.__name__


@pytest.mark.parametrize("keep, said", [
    (np.ones((16, 32)), "float64"), (np.ones((16, 31), bool), "want booleans that broadcast to"),
    (np.ones((9, 16, 32), bool), "query and key have two axes each already")])
def test_what_is_no_mask_of_the_tile_is_told_by_its_form(keep, said):
    one = next(iter(masks.MASKS[4].examples()))
    text = " ".join(one.check(Observed([{"keep": keep}], [], {})).lines)
    assert said in text and ("two axes" in text) == (keep.ndim > 2)


@pytest.mark.parametrize("stage", masks.MASKS)
def test_a_query_that_exists_must_see_its_keys_and_no_others(stage):
    for example in masks.MASKS[stage].examples():
        given = example.given
        query, key = given["query"], given["key"]
        keep = SEES[stage](query, key, given)
        exists = np.broadcast_to(query < given.get("N", 1 << 30), keep.shape)
        assert example.check(Observed([{"keep": keep}], [], {})) is None, example.words
        # Rows past the end may hold anything.
        past = Observed([{"keep": np.where(exists, keep, ~keep)}], [], {})
        assert example.check(past) is None, example.words
        for i, j in np.argwhere(exists)[::37]:
            one = keep.copy()
            one[i, j] ^= True
            assert "(1 of 512 pairs" in example.check(Observed([{"keep": one}], [], {})).lines[0]


@pytest.mark.parametrize("stage, sees", [
    *((3, sees) for sees in (
        lambda query, key, g: key <= g["N"], lambda query, key, g: key < g["N"] - 1,
        lambda query, key, g: (key < g["N"]) & (key <= query))),
    *((stage, sees) for stage in (4, 6, 7) for sees in (
        lambda query, key, g: key < query, lambda query, key, g: key >= query,
        lambda query, key, g: key - key.min() <= query - query.min(),
        lambda query, key, g: key == key)),
    *((stage, sees) for stage in (6, 7) for sees in (
        masks.causal, lambda query, key, g: query - key < g["window_size"],
        lambda query, key, g: masks.window(query + 1, key, g),
        lambda query, key, g: (key <= query) & (query - key <= g["window_size"]),
        lambda query, key, g: abs(query - key) < g["window_size"])),
    *((7, sees) for sees in (
        masks.window, lambda query, key, g: (key <= query) & (key < g["sink_size"]),
        lambda query, key, g: masks.window(query, key, g) | (key < g["sink_size"]),
        lambda query, key, g: masks.sinks(query, key, g | {"sink_size": g["sink_size"] + 1}),
        lambda query, key, g: masks.sinks(query, key, g | {"sink_size": max(g["sink_size"], 1)}),
        lambda query, key, g: masks.sinks(query, key, g | {"sink_size": min(g["sink_size"], 32)}),
    )),
    (8, masks.all_keys), (8, masks.causal), (9, masks.all_keys), (9, masks.sinks),
    (9, lambda query, key, g: masks.sinks(query, key, g) if g["CAUSAL"] else key == key)])
def test_a_wrong_mask_is_noticed(stage, sees):
    assert any(one.check(Observed([{"keep": sees(one.given["query"], one.given["key"], one.given)}],
                                  [], {})) for one in masks.MASKS[stage].examples())


def test_a_mask_whose_axes_are_taken_for_granted_is_noticed():
    for stage, causal in ((8, masks.causal), (9, masks.sinks)):
        def keep(query, key, g, causal=causal):
            query, key = query.reshape(-1, 1), key.reshape(1, -1)
            return (causal if g["CAUSAL"] else masks.all_keys)(query, key, g)

        found = [one.check(Observed([{"keep": keep(
            one.given["query"], one.given["key"], one.given)}], [], {})) is None
            for one in masks.MASKS[stage].examples()]
        assert any(found) and not all(found)


def test_the_signs_of_a_drawn_mask_are_those_of_its_legend():
    wanted = np.array([[True, False], [True, True], [True, True]])
    got = np.array([[True, True], [False, True], [False, False]])
    exists = np.array([[True, True], [True, True], [False, False]])
    legend, *rows = masks._drawn(got, wanted, exists, turned=False)
    assert rows == ["x!", "?x", "  "]
    assert "! wrongly visible" in legend and "? wrongly hidden" in legend
    assert masks._drawn(got.T, wanted.T, exists.T, turned=True)[1:] == tuple(rows)
