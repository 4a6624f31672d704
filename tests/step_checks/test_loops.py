"""Which tiles a loop must visit, and with which mask: what its visits are told."""

import numpy as np
import pytest

from grader.step_checks.loops import Loop

OWN = np.arange(16, 32)


def everything(own, other):
    return np.ones(np.broadcast_shapes(own.shape, other.shape), bool)


def causal(own, other):
    return other <= own


def window(own, other):
    return (other <= own) & (other > own - 4)


def said(sees, *visits, first_sees=True) -> str:
    """What is said first; a star is MASKED: "0", "16*"."""
    wrong = Loop(OWN, 40, 16, sees, first_sees=first_sees).judge(
        [(int(visit.rstrip("*")), visit.endswith("*")) for visit in visits])
    return wrong.lines[0] if wrong else ""


@pytest.mark.parametrize("sees, visits", [
    (everything, ("0", "16", "32*")), (everything, ("32*", "0", "16")),
    (causal, ("0", "16*")), (causal, ("16*", "0")), (window, ("16*", "0*"))])
def test_each_tile_once_and_masked_where_something_is_hidden_is_right(sees, visits):
    assert said(sees, *visits) == ""
    loop = Loop(OWN, 40, 16, sees)
    assert {f"{begin}{'*' * masked}" for begin, masked in loop.wanted()} == {*visits}


@pytest.mark.parametrize("sees, visits, words", [
    (everything, ("0", "16", "32"), "The tile at 32 has rows past N - 1, but MASKED is False."),
    (causal, ("0", "16"), "The tile at 16 has hidden pairs, but MASKED is False."),
    (everything, ("0", "16"), "Query 16 never reaches key 32; it should, once."),
    (everything, ("0", "8", "24", "32*"), "Query 16 reaches key 8 twice; it should once."),
    (everything, ("0", "16", "0", "32*"),
     "The tile at 0 is visited twice; it should be visited once."),
    (everything, ("-16*", "0", "16", "32*"), "A tile begins at -16, before the first row."),
    (window, ("0*", "16*"), "The tile at 0 comes first, and query 19 sees nothing in it: "
                            "-inf - (-inf) is NaN."),
    (causal, ("0", "16*", "32*"), "no query sees a key in the tile at 32: "),
    (causal, ("0*", "16*"), "the tile at 0 needs no mask, and MASKED=False is faster there"),
    (causal, (), "Query 16 never reaches key 0; it should, once.")])
def test_the_first_tile_that_is_wrong_is_named_with_what_is_wrong_with_it(sees, visits, words):
    assert said(sees, *visits).startswith(words)


def test_where_a_first_tile_may_be_blind_it_is_right():
    assert said(window, "0*", "16*", first_sees=False) == ""


def test_a_tile_too_many_and_a_mask_too_many_are_notes_and_no_mistakes():
    loop = Loop(OWN, 40, 16, causal)
    assert loop.judge([(0, False), (16, True), (32, True)]).note
    assert loop.judge([(0, True), (16, True)]).note
    assert not loop.judge([(0, False), (16, False)]).note


def test_rows_of_the_program_past_the_end_want_nothing():
    loop = Loop(np.arange(32, 48), 40, 16, causal)
    assert loop.wanted() == [(0, False), (16, False), (32, True)]
    assert loop.judge([(0, False), (16, False), (32, True)]) is None
