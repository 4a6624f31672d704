"""The arithmetic of one key tile: what a step may leave, and what is said of anything else."""

import numpy as np
import pytest

from grader.step_checks import softmax
from grader.step_checks.examples import Example, Observed

SCORES = softmax.scores().examples()
ONLINE = softmax.online_softmax().examples()
BLIND = softmax.online_softmax(first_row_sees=False).examples()
NATURAL = softmax.online_softmax(1.0, float(np.e)).examples()


def left(**names) -> Observed:
    """What a step left in one program."""
    return Observed([names], [], {})


def scored(example: Example, hidden: float = -np.inf) -> np.ndarray:
    given = example.given
    s = given["q"].astype(np.float64) @ given["k"].astype(np.float64).T
    return np.where(given["keep"], s, hidden)


@pytest.mark.parametrize("example", SCORES, ids=lambda one: one.words)
def test_scores_are_q_times_k_and_minus_infinity_where_keep_is_false(example):
    right = scored(example)
    assert example.check(left(s=right)) is None
    assert example.check(left(s=right * 1.01)).name == "s"
    assert example.check(left(s=right[:, ::-1])) and example.check(left(s=0.0))


@pytest.mark.parametrize("hidden, said", [
    (-9e4, "keep is False there: want -inf."), (0.0, "keep is False there: want -inf."),
    (-1e9, "a real score may be as low"), (-1e30, "")])
def test_a_hidden_score_may_be_any_number_that_no_score_can_reach(hidden, said):
    found = SCORES[0].check(left(s=scored(SCORES[0], hidden)))
    assert said in found.lines[0] if said else found is None
    assert not said or found.note == (hidden == -1e9)


def test_nan_where_keep_is_false_is_zero_times_infinity():
    assert SCORES[0].check(left(s=scored(SCORES[0], np.nan))).id == "zero-times-inf"
    s = scored(SCORES[0])
    s[0, 0] = np.nan
    assert SCORES[0].check(left(s=s * 1.5)).id == "zero-times-inf"


def test_a_mistake_in_the_scores_is_known_by_the_scores_that_it_gives():
    example = SCORES[0]
    plain = example.given["q"].astype(np.float64) @ example.given["k"].astype(np.float64).T
    reshaped = example.given["q"].astype(np.float64) @ example.given["k"].reshape(16, 32)
    keep, found = example.given["keep"], example.variants()
    for id, s in (("keep-not-applied", plain), ("hidden-scores-zero", np.where(keep, plain, 0)),
                  ("k-reshaped", np.where(keep, reshaped, -np.inf)), ("", scored(example))):
        assert [name for name, fits in found.items() if fits(left(s=s))] == [id] * bool(id)


def stepped(example: Example, above: float = 0.0, factor: float = softmax.FACTOR,
            base: float = 2.0, least: float = -np.inf) -> dict[str, np.ndarray]:
    """What the lesson's step leaves.  above: by which m_new is larger than the maximum; least: what
    the maximum starts at."""
    given = {name: np.asarray(example.given[name], np.float64) for name in (
        "s", "m_i", "l_i", "acc", "v")}
    given["m_i"] = np.maximum(given["m_i"], least)
    m_new = np.maximum(given["m_i"], given["s"].max(1) * factor) + above
    pivot = np.where(np.isinf(m_new), 0.0, m_new)
    p, alpha = base**(given["s"] * factor - pivot[:, None]), base**(given["m_i"] - pivot)
    return {"m_new": m_new, "l_i": alpha * given["l_i"] + p.sum(1),
            "acc": alpha[:, None] * given["acc"] + p @ given["v"]}


@pytest.mark.parametrize("above", [0.0, 3.0])
@pytest.mark.parametrize("examples, how", [
    (ONLINE, {}), (BLIND, {}), (NATURAL, {"factor": 1.0, "base": float(np.e)})])
def test_any_m_new_is_right_if_the_sums_belong_to_it(examples, how, above):
    for example in examples:
        right = stepped(example, above, **how)
        assert example.check(left(**right)) is None, example.words
        assert example.exact(left(**right)) == (above == 0.0)


@pytest.mark.parametrize("example", ONLINE, ids=lambda one: one.words)
@pytest.mark.parametrize("name", ["l_i", "acc"])
def test_one_row_that_is_off_is_wrong_and_named(example, name):
    right = stepped(example)
    row = int(np.abs(right[name]).reshape(16, -1).max(1).argmax())
    right[name][row] *= 1.01
    found = example.check(left(**right))
    assert found.name == name and f"{name}[{row}" in found.lines[0] and not found.note
    assert example.check(left(**stepped(example) | {name: np.float64(1.0)})).name == name


def test_sums_that_do_not_belong_to_m_new_are_wrong():
    for example in ONLINE:
        found = example.check(left(**stepped(example) | {"m_new": stepped(example, 1.0)["m_new"]}))
        assert found.name == "m_new" and {*found.others} == {"l_i", "acc"}
    assert ONLINE[0].check(left(**stepped(ONLINE[0]) | {"m_new": 1.0})).name == "m_new"


def test_a_maximum_that_does_not_start_at_minus_infinity_is_wrong():
    for least in (0.0, -100.0, -1000.0):
        assert any(example.check(left(**stepped(example, least=least))) for example in ONLINE)


def in_float32(example: Example, pivot=np.maximum, p_to=None, acc_to=None) -> dict:
    """As stepped(), in the step's own precision.  pivot: m_new of the old and the new maximum."""
    given = example.given
    new = (given["s"].max(1) * np.float32(softmax.FACTOR)).astype(np.float32)
    m_new = pivot(given["m_i"], new)
    p = np.exp2(given["s"] * np.float32(softmax.FACTOR) - m_new[:, None])
    alpha, v = np.exp2(given["m_i"] - m_new), given["v"]
    old = (given["acc"] * alpha[:, None]).astype(acc_to(v.dtype) if acc_to else np.float32)
    acc = old + p.astype(p_to(v.dtype) if p_to else np.float32).astype(np.float64) @ v
    return {"m_new": m_new, "l_i": given["l_i"] * alpha + p.sum(1), "acc": acc}


@pytest.mark.parametrize("how", [
    dict(pivot=lambda old, new: new),  # alpha overflows
    dict(pivot=lambda old, new: np.where(old > -np.inf, old, new)),  # p overflows
    dict(pivot=lambda old, new: 0 * new), dict(p_to=lambda dtype: np.float16),
    dict(acc_to=lambda dtype: dtype)])
def test_what_overflows_or_is_rounded_is_wrong(how):
    with np.errstate(all="ignore"):
        for right in ({}, {"p_to": lambda dtype: dtype}):
            for example in ONLINE:
                assert example.check(left(**in_float32(example, **right))) is None, example.words
        assert any(example.check(left(**in_float32(example, **how))) for example in ONLINE)


@pytest.mark.parametrize("how", [
    lambda s, q: s.astype(q.dtype), lambda s, q: np.clip(s, -1e4, 1e4),
    lambda s, q: np.where(s < -1e5, -np.inf, s), lambda s, q: s.astype(np.float16)])
def test_scores_that_are_rounded_or_cut_off_are_wrong(how):
    with np.errstate(over="ignore"):
        assert any(example.check(left(s=how(scored(example), example.given["q"])))
                   for example in SCORES)


@pytest.mark.parametrize("m_new, id", [(0.0, "blind-row-max"), (-2000.0, None), (-np.inf, None)])
def test_a_row_that_has_seen_no_key_keeps_a_very_low_maximum(m_new, id):
    right = stepped(BLIND[0])
    right["m_new"][2:4] = m_new
    found = BLIND[0].check(left(**right))
    assert (found and found.id) == id
    assert id is None or "m_new[2] is 0, but that row has not seen a key yet" in found.lines[0]


def test_nan_in_such_a_row_alone_is_a_missing_pivot():
    for name in ("l_i", "acc"):
        right = stepped(BLIND[0])
        right[name][2] = np.nan
        assert BLIND[0].check(left(**right)).id == "no-pivot"
        right[name][9] = np.nan
        assert BLIND[0].check(left(**right)).id is None


@pytest.mark.parametrize("old, new, said", [
    (5.0, -np.inf, "all keys of this tile are hidden"),
    (-np.inf, 5.0, "no key was seen before this tile"),
    (5.0, 4.0, "m_i stays the maximum"), (5.0, 5.005, "grows by less than 0.01"),
    (-200.0, -150.0, "far below those of the other rows"), (4.0, 5.0, "")])
def test_what_is_special_about_a_row_is_said_beside_it(old, new, said):
    found = softmax.row(np.array([0.0, old, 0.0]), np.array([1.0, new, 1.0]), (1,))
    assert said in found and bool(said) == bool(found)


@pytest.mark.parametrize("row, said", [
    (0, "no key was seen before this tile"), (4, "m_i stays the maximum"),
    (8, "far below those of the other rows"), (9, "grows by less than 0.01"), (10, "")])
def test_the_first_example_has_a_row_of_every_kind(row, said):
    assert said in ONLINE[0].about((row,)) and bool(said) == bool(ONLINE[0].about((row,)))
