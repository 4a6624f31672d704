"""A wrong mask is drawn with a sign for each kind of pair."""

import numpy as np

from grader.step_checks import masks


def test_the_signs_of_a_drawn_mask_are_those_of_its_legend():
    wanted = np.array([[True, False], [True, True], [True, True]])
    got = np.array([[True, True], [False, True], [False, False]])
    exists = np.array([[True, True], [True, True], [False, False]])
    legend, *rows = masks._drawn(got, wanted, exists, turned=False)
    assert rows == ["x!", "?x", "  "]
    assert "! wrongly visible" in legend and "? wrongly hidden" in legend
    assert masks._drawn(got.T, wanted.T, exists.T, turned=True)[1:] == tuple(rows)
