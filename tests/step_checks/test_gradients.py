"""The backward's kernels: weights, products, delta and sink logits that are right, or are not."""

import numpy as np
import pytest

from grader.step_checks import gradients, loops, masks
from grader.step_checks.examples import LN2, LOG2E, Example, Observed, Pointer
from grader.step_checks.memory import MARK
from grader.step_checks.softmax import FACTOR


def left(**names) -> Observed:
    """What a step left in one program."""
    return Observed([names], [], {})


def wide(example: Example, *names: str) -> list[np.ndarray]:
    return [np.asarray(example.given[name], np.float64) for name in names]


def named(example: Example, **names) -> list:
    """The ids of the mistakes that leave these values."""
    return [id for id, fits in example.variants().items() if fits(left(**names))]


def weights(example: Example, transposed: bool, natural: bool = False, lse: bool = True,
            keep: bool = True) -> np.ndarray:
    """P of a tile, as the lesson has it."""
    q, k, less = wide(example, "q", "k", "lse_log2")
    less = less * LN2 if natural and transposed else less
    p = (np.exp if natural else np.exp2)(q @ k.T * FACTOR - less[:, None] * lse)
    p = p.T if transposed else p
    return np.where(example.given["keep"] | (not keep), p, 0)


@pytest.mark.parametrize("natural", [False, True])
@pytest.mark.parametrize("transposed, name", [(False, "p"), (True, "p_t")])
def test_weights_come_from_lse_and_are_zero_where_keep_is_false(transposed, name, natural):
    for example in gradients.weights(transposed, natural).examples():
        with np.errstate(all="ignore"):
            right = weights(example, transposed, natural)
        assert example.check(left(**{name: right})) is None, example.words
        assert example.check(left(**{name: right * 1.001})).name == name
        assert example.check(left(**{name: right.T})).name == name


@pytest.mark.parametrize("transposed, name", [(False, "p"), (True, "p_t")])
def test_a_mistake_in_the_weights_is_known_by_them(transposed, name):
    example = gradients.weights(transposed).examples()[0]
    assert named(example, **{name: weights(example, transposed, lse=False)}) == [
        "backward-without-lse"]
    assert named(example, **{name: weights(example, transposed, keep=False)}) == [
        "keep-not-applied"]


def test_zero_times_infinity_is_known_where_hidden_scores_are_very_large():
    *plain, loud = gradients.weights().examples()
    with np.errstate(all="ignore"):
        for example, id in ((loud, "zero-times-inf"), (plain[0], None)):
            p = np.where(example.given["keep"], weights(example, False), np.nan)
            assert example.check(left(p=p)).id == id


def shares(example: Example, transposed: bool, factor: float = 1.0, with_delta: bool = True
           ) -> dict[str, np.ndarray]:
    """dq, or dk and dv, with this tile's share.  factor: of ds."""
    q, k, v, do, delta = wide(example, "q", "k", "v", "do", "delta")
    p = np.asarray(example.given["p_t"].T if transposed else example.given["p"], np.float64)
    ds = p * (do @ v.T - delta[:, None] * with_delta) * factor
    if not transposed:
        return {"dq": example.given["dq"] + ds @ k}
    return {"dk": example.given["dk"] + ds.T @ q, "dv": example.given["dv"] + p.T @ do}


@pytest.mark.parametrize("transposed, name", [(False, "dq"), (True, "dk")])
def test_each_tile_adds_its_share_to_what_was_there(transposed, name):
    for example in gradients.products(transposed).examples():
        right = shares(example, transposed)
        assert example.check(left(**right)) is None, example.words
        found = example.check(left(**shares(example, transposed, factor=1.05)))
        assert found.name == name and found.others == ()
        assert example.check(left(**right | {name: right[name] - example.given[name]}))
    example = gradients.products(transposed).examples()[0]
    assert named(example, **shares(example, transposed, with_delta=False)) == ["no-delta"]


def test_delta_is_a_sum_over_a_row_and_is_stored_like_lse():
    for example in gradients.delta().examples():
        given = example.given
        do, o = wide(example, "do", "o")
        want, there = (do * o).sum(1), example.memory["delta"].copy()
        rows = given["query"][given["query"] < given["N"]]
        there[given["bh"] * given["N"] + rows] = want[:len(rows)]
        right = Observed([{"delta": want}], [], {"delta": there})
        assert example.check(right) is None, example.words
        off = Observed([{"delta": want * 1.01}], [], {"delta": there})
        assert example.check(off).name == "delta" and ", 0]" not in example.check(off).lines[0]
        nowhere = Observed([{"delta": want}], [], {"delta": example.memory["delta"]})
        assert example.check(nowhere).id == "nothing-stored"
        assert example.check(Observed([{"delta": 1.0}], [], {"delta": there})).name == "delta"


@pytest.mark.parametrize("base", [2.0, float(np.e)])
def test_any_m_and_l_are_right_that_stand_for_the_sink_logit(base):
    for example in gradients.sink_start(base).examples():
        sink, ones = float(example.given["sink"]), np.ones(16)
        logit = sink / np.log(base)
        for m_i, l_i in ((logit, 1.0), (logit - 1, base)):
            assert example.check(left(m_i=m_i * ones, l_i=l_i * ones)) is None
        assert example.check(left(m_i=(logit + 1) * ones, l_i=ones)).want == str(sink)
        assert sink == 0 or example.check(left(m_i=logit, l_i=ones)).name == "m_i"
    example = gradients.sink_start().examples()[0]
    assert named(example, m_i=np.full(16, -np.inf), l_i=np.zeros(16)) == ["sink-logits-ignored"]
    assert named(example, m_i=LOG2E * 1.5 * ones, l_i=ones) == []


def test_the_gradient_of_a_sink_logit_counts_the_queries_that_exist():
    for example in gradients.dsink().examples():
        sink, lse, delta = wide(example, "sink", "lse_log2", "delta")
        want = -(np.exp2(sink * LOG2E - lse) * delta).sum()
        assert example.check(left(dsink=want)) is None, example.words
        assert example.check(left(dsink=-want)).name == "dsink"
        assert named(example, dsink=-(np.exp(sink) * delta).sum()) == ["backward-without-lse"]


# --------------------------------------------------------------------- loops
DQ = gradients.dq_loop(masks.either, gradients.QUERY_TILES).examples()
DKDV = gradients.query_loop(masks.either, gradients.KEY_TILES).examples()


def visited(example: Example, function: str, begin: str, state: tuple[str, ...], visits,
            **changes) -> Observed:
    """What a loop leaves that hands on what it was given but for these changes."""
    given = example.given | {"scale_log2e": loops.SCALE * LOG2E}
    if function == "_add_dkdv":
        given |= {name: Pointer(given[name].name, given[name].at + int(given["row"]))
                  for name in ("lse_ptr", "delta_ptr")}
    now, calls = {name: given[name] for name in state}, []
    for number, (first, masked) in enumerate(visits):
        calls.append((function, given | now | {begin: first, "MASKED": masked} | changes))
        now = {name: np.full(np.shape(given[name]), 3.0 * number + i + 1)
               for i, name in enumerate(state)}
    left = Observed([now], calls, {name: x.copy() for name, x in example.memory.items()})
    if "dq" in left.memory:
        rows = given["query"][given["query"] < given["N"]]
        there = left.memory["dq"].reshape(-1, 16)
        there[given["bh"] * given["N"] + rows] = loops.SCALE * now["dq"][:len(rows)]
    return left


def loop_of(example: Example, own: str, size: str, keys: bool) -> loops.Loop:
    given = example.given
    return loops.Loop(given[own], given["N"], given[size], (
        lambda i, j: masks.either(i, j, given)) if not keys else (
        lambda i, j: masks.either(j, i, given)), first_sees=False)


@pytest.mark.parametrize("examples, how, own, size, handed", [
    (DQ, ("_add_dq", "start_n", ("dq",)), "query", "BLOCK_N", ("delta", "do", "CAUSAL")),
    (DKDV, ("_add_dkdv", "start_m", ("dk", "dv")), "key", "BLOCK_M", ("delta_ptr", "v", "key"))])
def test_a_loop_visits_every_visible_tile_and_hands_on_what_it_was_given(examples, how, own, size,
                                                                         handed):
    for example in examples:
        visits = loop_of(example, own, size, own == "key").wanted()
        assert example.check(visited(example, *how, visits)) is None, example.words
        assert not example.check(visited(example, *how, visits[1:])).note
        for name in (*handed, "scale_log2e"):
            found = example.check(visited(example, *how, visits, **{name: 0.125}))
            assert found.id == "handed-wrongly", name


def test_dq_is_stored_times_the_scale_and_only_where_queries_exist():
    example = DQ[1]
    assert example.given["query"].max() >= example.given["N"]
    visits = loop_of(example, "query", "BLOCK_N", False).wanted()
    unscaled = visited(example, "_add_dq", "start_n", ("dq",), visits)
    unscaled.memory["dq"][unscaled.memory["dq"] != MARK] /= loops.SCALE
    assert example.check(unscaled).name == "dq"
    assert example.variants()["dq-unscaled"](unscaled)


@pytest.mark.parametrize("left_out, part", [
    (slice(0, 1), "the diagonal"), (slice(1, 4), "the whole tiles"),
    (slice(4, 5), "the ragged last tile")])
def test_a_part_of_the_loop_over_queries_that_is_left_out_is_named(left_out, part):
    visits = loop_of(DKDV[0], "key", "BLOCK_M", True).wanted()
    del visits[left_out]
    left = visited(DKDV[0], "_add_dkdv", "start_m", ("dk", "dv"), visits)
    assert DKDV[0].variants()["dkdv-phase-left-out", part](left)


@pytest.mark.parametrize("S, window, borders", [
    (0, 0, {"first": 32, "inner": 48, "outer": 96}),  # of 100 rows in tiles of 16
    (0, 20, {"first": 32, "inner": 48, "outer": 48, "last": 67}),
    (40, 20, {"first": 32, "inner": 48, "outer": 48, "last": 100}),  # a sink: seen by all
    (48, 20, {"first": 32, "inner": 48, "outer": 96, "last": 100}),  # the tile's last key, too
    (64, 20, {"first": 32, "inner": 48, "outer": 96, "last": 100})])
def test_the_borders_of_a_tile_of_keys_are_those_of_the_lesson(S, window, borders):
    found = gradients.keys(100, 32, 16, 16, True, window, S)
    assert {name: found[name] for name in borders} == borders


@pytest.mark.parametrize("window, S, borders", [
    (20, 0, {"first": 32, "inner": 64, "edge": 64, "sink_end": 0}),
    (20, 20, {"first": 32, "inner": 64, "edge": 64, "sink_end": 20}),
    (20, 90, {"first": 32, "inner": 64, "edge": 64, "sink_end": 32}),
    (17, 0, {"first": 48, "inner": 64}), (18, 0, {"first": 32}), (33, 0, {"inner": 48})])
def test_the_borders_of_a_tile_of_queries_are_those_of_the_lesson(window, S, borders):
    found = gradients.queries(100, 64, 16, True, window, S)
    assert {name: found[name] for name in borders} == borders
