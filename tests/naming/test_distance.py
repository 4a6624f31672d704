"""Distances: in limits of a right kernel, strict on NaN, lenient on a few flipped roundings."""

import math
from dataclasses import replace

import torch

from grader.cases import Case
from grader.correctness import answer
from grader.inputs import build
from grader.naming.candidates import single
from grader.naming.distance import NEAR, Sample, alike

CASE = Case(3, "probe", 200, B=2, HQ=2, HKV=2, dtype=torch.float32)


def sample_of(case=CASE, spoil=lambda o: o):
    built = build(case, 0)
    exact = answer(built, "cpu")
    got = {"o": spoil(exact.truth["o"].clone()).to(case.dtype)}
    return Sample.of(built, got, "cpu", exact)


def mistake(id, *more):
    return next(c for c in single(3, "forward")
                if c.mistake.id == id and (not more or c.more == more))


def test_a_right_answer_is_within_its_limit_and_a_wrong_one_is_not():
    assert sample_of().part(["o"], "many").from_truth() < 1
    off = sample_of(spoil=lambda o: o * 1.01).part(["o"], "many").from_truth()
    assert off > NEAR


def test_the_worst_rows_are_always_compared():
    def one_row(o):
        o[0, 1, 77] *= 1.5
        return o
    for size in ("few", "many"):
        assert sample_of(spoil=one_row).part(["o"], size).from_truth() > NEAR, size


def test_nan_must_stand_where_the_mistake_puts_it():
    def poison(o):
        o[:, :, 192:] = math.nan
        return o
    part = sample_of(spoil=poison).part(["o"], "many")
    tail = mistake("last-rows-not-written", 1, 1)
    assert part.from_mistake(tail, 64, 64)[0] < 1
    assert part.from_mistake(tail, 128, 64)[0] == math.inf
    assert part.from_truth() == math.inf


def test_a_flipped_rounding_is_forgiven_to_a_mistake_that_rounds():
    rounds = mistake("acc-in-16-bits", torch.float16)
    part = sample_of().part(["o"], "many")
    predicted = part.answers(part.changed(rounds, 64, 64))
    got = {"o": predicted["o"].clone()}
    got["o"][:, ::20, 3] *= 1 + 2.0**-10
    part.got = got
    assert part.distance(predicted) > NEAR > 1 > part.distance(predicted, rounds=True)
    got["o"][:, ::2, 3] *= 1 + 2.0**-10  # half of the rows are not a few
    assert part.distance(predicted, rounds=True) > NEAR
    got["o"] = predicted["o"].clone()
    got["o"][:, 5] *= 1.5  # and half of a number is no rounding
    assert part.distance(predicted, rounds=True) > NEAR


def test_gradients_are_compared_whole():
    case = replace(CASE, stage=8, N=40, grads=("q", "k", "v"))
    built = build(case, 0)
    exact = answer(built, "cpu")
    got = {n: x.float() for n, x in exact.truth.items() if n != "lse"}
    part = Sample.of(built, got, "cpu", exact).part(["d_q", "d_k", "d_v"], "few")
    assert len(part.rows) == 40 and len(part.pairs) == 4
    assert part.from_truth() < 1


def test_alike():
    a = {"o": torch.tensor([1.0, 2.0])}
    assert alike(a, {"o": a["o"] + 1e-6}) and not alike(a, {"o": a["o"] + 0.1})
    assert not alike(a, {"o": torch.tensor([1.0, math.nan])})
