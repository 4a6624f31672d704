"""Which tiles a loop must visit, and with which mask: what its visits are told."""

import numpy as np
import pytest

from grader.step_checks import loops, masks
from grader.step_checks.examples import LOG2E, Example, Observed
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


# ----------------------------------------------------------- what a loop hands on
STEPS = {3: loops.key_loop(masks.all_keys, loops.LENGTHS),
         4: loops.key_loop(masks.causal, loops.CAUSAL),
         6: loops.key_loop(masks.window, loops.WINDOWS, first_sees=False),
         7: loops.key_loop(masks.sinks, loops.SINKS, first_sees=False)}
SEES = {3: masks.all_keys, 4: masks.causal, 6: masks.window, 7: masks.sinks}
STATE = ("acc", "l_i", "m_i")


def right(stage: int, example: Example) -> list[tuple[int, bool]]:
    """The visits of a right loop."""
    given = example.given
    return Loop(given["query"], given["N"], given["BLOCK_N"],
                lambda i, j: SEES[stage](i, j, given)).wanted()


def made(example: Example, visits, at: int = 0, dropped: bool = False, **changes) -> Observed:
    """What a loop with these visits leaves.  changes: of the arguments of the call numbered at."""
    given = example.given | {"scale_log2e": loops.SCALE * LOG2E}
    now, calls = {name: given[name] for name in STATE}, []
    for number, (first, masked) in enumerate(visits):
        more = {name: value(now[name]) if callable(value) else value
                for name, value in changes.items()} if number == at else {}
        calls.append(("_attend", given | now | {"start_n": first, "MASKED": masked} | more))
        now = {name: np.full(np.shape(given[name]), 3.0 * number + i + 1)
               for i, name in enumerate(STATE)}
    return Observed([given if dropped else given | now], calls, {})


@pytest.mark.parametrize("stage", STEPS)
def test_a_loop_of_any_length_that_visits_what_is_visible_is_right(stage):
    for example in STEPS[stage].examples():
        assert example.check(made(example, right(stage, example))) is None, example.words
        found = example.check(made(example, right(stage, example), dropped=True))
        assert found.id == "result-dropped"


LONG = STEPS[4].examples()[0]  # tiles at 0, 16, 32, 48, 64, 80
VISITS = right(4, LONG)


@pytest.mark.parametrize("at, changes, id, said", [
    (0, {"acc": lambda x: 0 * x}, "begins-again",
     "gets acc = 0. It should get acc with what it held before the loop."),
    (2, {"l_i": lambda x: 0 * x}, "begins-again", "It should get l_i as call 2 returned it."),
    (2, {"l_i": LONG.given["m_i"]}, "handed-wrongly",
     "want l_i, as the call before returned it; got m_i"),
    (2, {"l_i": LONG.given["l_i"]}, "handed-wrongly", "got l_i as it was before the loop"),
    (0, {"q": LONG.given["acc"]}, "handed-wrongly", "want q; got acc"),
    (1, {"N": 99}, "handed-wrongly", "Call 2 of _attend, for the tile at 16: want N"),
    (0, {"scale_log2e": loops.SCALE}, "handed-wrongly",
     "want scale * LOG2E, 0.43281 for a scale of 0.3; got 0.3"),
    (0, {"scale_log2e": (1, 2)}, "handed-wrongly", "got something else"),
    (0, {"start_n": LONG.given["q"]}, None, "start_n: want one number"),
    (0, {"start_n": None}, None, "start_n: want one number")])
def test_what_a_call_is_handed_wrongly_is_told_with_what_it_got(at, changes, id, said):
    found = LONG.check(made(LONG, VISITS, at, **changes))
    assert found.id == id and said in found.lines[0], found.lines


def test_a_sum_that_is_added_to_what_the_call_returned_is_told():
    returned = made(LONG, VISITS).calls[2][1]["l_i"]
    before = made(LONG, VISITS).calls[1][1]["l_i"]
    found = LONG.check(made(LONG, VISITS, 2, l_i=returned + before))
    assert (found.id, found.name) == ("added-twice", "l_i")


@pytest.mark.parametrize("stage, left_out, part", [
    (3, slice(2, 3), "the ragged last tile"), (4, slice(4, 6), "the diagonal"),
    (4, slice(0, 4), "the whole tiles")])
def test_a_part_that_is_left_out_is_named(stage, left_out, part):
    example = STEPS[stage].examples()[0]
    visits = right(stage, example)
    del visits[left_out]
    assert example.variants()["phase-left-out", part](made(example, visits))


# --------------------------------------------------------------------- borders
def windowed(given, names, **more) -> Observed:
    """What step 6.3 leaves."""
    return Observed([{"first": given["first"], "inner": given["inner"]} | names | more], [], {})


BORDERS = loops.borders(masks.window, loops.WINDOWS, loops.window_phases, ("first", "inner"))


def test_the_borders_of_the_lesson_and_none_else_are_right():
    for example, given in zip(BORDERS.examples(), loops.WINDOWS, strict=True):
        assert example.check(windowed(given, {})) is None
        assert example.exact(windowed(given, {}))
        for name in ("first", "inner"):
            found = example.check(windowed(given, {name: given[name] + 1}))
            assert found is None or found.note or name in found.lines[0]


@pytest.mark.parametrize("name, change, how", [
    ("first", lambda value: value // 16, "counts tiles instead of rows"),
    ("first", lambda value: value + 16, "is one tile too large"),
    ("inner", lambda value: value - 1, "is one too small")])
def test_a_border_that_is_off_is_named_with_what_would_make_it_right(name, change, how):
    example, given = BORDERS.examples()[8], loops.WINDOWS[8]  # a window of 48 keys
    left = windowed(given, {name: change(given[name])})
    found = example.check(left)
    assert found.name == name and f"should be {given[name]}" in found.lines[0]
    assert ("border-wrong", name, how) in [id for id, fits in example.variants().items()
                                           if fits(left)]


@pytest.mark.parametrize("value", [None, (1, 2), "x", np.zeros(2)])
def test_a_border_is_one_number(value):
    found = BORDERS.examples()[0].check(windowed(loops.WINDOWS[0], {"inner": value}))
    assert found.lines[0].startswith("inner: want one number")


def test_a_loop_without_end_is_counted_and_not_drawn():
    found = BORDERS.examples()[0].check(windowed(loops.WINDOWS[0], {"first": -10**5}))
    assert "so the loop visits " in found.lines[0] and len(found.lines) == 1


def test_long_loops_are_drawn_to_their_fourteenth_tile():
    loop = Loop(np.arange(16), 400, 16, everything)
    drawn = loop.judge([(at, False) for at in range(0, 240, 16)])
    assert drawn.got.endswith("208 ...") and drawn.want.endswith("208 ...")
    assert loop.judge([]).got == "none"

