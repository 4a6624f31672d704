"""Masks: which pairs must be right, and a sign for each kind of pair in a wrong one."""

import numpy as np
import pytest

from grader.step_checks import masks
from grader.step_checks.examples import Observed

SEES = {3: masks.all_keys, 4: masks.causal, 6: masks.window, 7: masks.sinks, 8: masks.either,
        9: masks.sinks_or_all}


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


def test_the_signs_of_a_drawn_mask_are_those_of_its_legend():
    wanted = np.array([[True, False], [True, True], [True, True]])
    got = np.array([[True, True], [False, True], [False, False]])
    exists = np.array([[True, True], [True, True], [False, False]])
    legend, *rows = masks._drawn(got, wanted, exists, turned=False)
    assert rows == ["x!", "?x", "  "]
    assert "! wrongly visible" in legend and "? wrongly hidden" in legend
    assert masks._drawn(got.T, wanted.T, exists.T, turned=True)[1:] == tuple(rows)
