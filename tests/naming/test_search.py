"""Naming: one mistake gets its id, a right answer none, and what no mistake explains none."""

import math

import pytest
import torch

import reference
from grader.cases import Case
from grader.inputs import build
from grader.naming import search
from grader.naming.candidates import Candidate, single
from grader.naming.distance import Sample
from grader.naming.search import Search
from grader.naming.table import Mistake

F32 = torch.float32
CASE = Case(6, "standard", 96, D=16, HQ=4, HKV=2, is_causal=True, window=20)


def student(mistake):
    """A function like a submission's: naive attention with a mistake in it.  -> ask(built)."""
    def ask(built):
        case, t = built.case, {n: x.double() for n, x in built.tensors.items()}
        heads = torch.arange(case.HQ) // (case.HQ // case.HKV)
        window, scale, normalise = case.window, case.D**-0.5, True
        if mistake == "window":
            window += 1
        if mistake == "scale":
            scale = 1.0
        if mistake == "heads":
            heads = torch.arange(case.HQ) % case.HKV
        if mistake == "base":
            scale *= math.log(2)
        if mistake == "strange":
            scale *= 1.3 + 0.2 * math.sin(case.N)
        keep = reference.keep_mask(case.N, case.N, True, window)
        k, v = t["k"][:, heads], t["v"][:, heads]
        s = (t["q"] @ k.mT * scale).masked_fill(~keep, -torch.inf)
        p = torch.softmax(s, -1)
        if mistake == "strange":
            p = p**1.1
        if mistake == "not normalised" or not normalise:
            p = torch.exp(s - s.amax(-1, keepdim=True))
        return {"o": (p @ v).to(case.dtype)}
    return ask


def name_of(mistake, case=CASE, seconds=20.0):
    built = build(case, 0)
    ask = student(mistake)
    return Search(Sample.of(built, ask(built), "cpu"), ask, "cpu", seconds=seconds).run()


@pytest.mark.parametrize("mistake, id", [
    ("window", "window-plus-one"), ("scale", "no-scale"), ("heads", "heads-interleaved"),
    ("base", "no-log2e"), ("not normalised", "not-normalised")])
def test_a_mistake_of_the_table_is_named(mistake, id):
    name = name_of(mistake)
    assert name is not None and name.id == id
    assert name.distance < 1.5 and name.runner_up_distance > 5 * name.distance
    assert name.truth_distance > 100


def test_what_no_mistake_explains_gets_no_name():
    assert name_of("strange", seconds=3.0) is None


def test_a_right_answer_matches_no_mistake():
    built = build(CASE, 0)
    sample = Sample.of(built, student("")(built), "cpu")
    assert not any(sample.wrong.values())


def test_nan_rows_must_be_those_that_the_mistake_leaves():
    case = Case(3, "standard", 100, D=16, HQ=2, HKV=2, dtype=F32)

    def ask(built):
        case, t = built.case, {n: x.double() for n, x in built.tensors.items()}
        o = torch.softmax(t["q"] @ t["k"].mT * case.D**-0.5, -1) @ t["v"]
        o[:, :, max(case.N // 32, 1) * 32:] = math.nan
        return {"o": o.to(case.dtype)}

    built = build(case, 0)
    name = Search(Sample.of(built, ask(built), "cpu"), ask, "cpu", seconds=20).run()
    assert name is not None and name.id == "last-rows-not-written"


def test_a_gradient_without_its_scale_is_named():
    case = Case(8, "standard", 40, D=16, HQ=4, HKV=2, dtype=F32, is_causal=True,
                grads=("q", "k", "v"))

    def ask(built):
        exact = reference.attention(**built.tensors, dout=built.dout, **built.case.mask())
        found = {"o": exact["o"].float()}
        if built.case.grads:
            found |= {"d_" + n: exact[n].float() for n in "qkv"}
            found["d_k"] *= built.case.D**0.5
        return found

    built = build(case, 0)
    name = Search(Sample.of(built, ask(built), "cpu"), ask, "cpu", seconds=20).run()
    assert name is not None and name.id == "dk-unscaled" and name.places == ("dk scale",)


def rounded(dtype):
    """Stage 3 with its accumulator rounded after every tile of 64 keys.  -> ask(built)."""
    def ask(built):
        case, t = built.case, {n: x.float() for n, x in built.tensors.items()}
        s, o = t["q"] @ t["k"].mT * case.D**-0.5, 0.0
        m = s.amax(-1, keepdim=True)
        for lo in range(0, case.N, 64):
            top, part = s[..., :lo + 64].amax(-1, keepdim=True), slice(lo, lo + 64)
            before = s[..., :lo].amax(-1, keepdim=True) if lo else top
            o = o * torch.exp(before - top) + torch.exp(s[..., part] - top) @ t["v"][:, :, part]
            o = o.to(dtype).float()
        return {"o": (o / torch.exp(s - m).sum(-1, keepdim=True)).to(case.dtype)}
    return ask


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_an_accumulator_in_16_bits_is_named_though_single_roundings_differ(dtype):
    case, ask = Case(3, "standard", 150, D=16, HQ=2, HKV=2, dtype=F32), rounded(dtype)
    built = build(case, 0)
    name = Search(Sample.of(built, ask(built), "cpu"), ask, "cpu", seconds=20).run()
    assert name is not None and name.id == "acc-in-16-bits" and name.truth_distance > 100


def test_two_mistakes_that_give_the_same_numbers_are_named_together(monkeypatch):
    whole = {c.mistake.id: c for c in single(6, "forward") if c.mistake.id == "window-plus-one"}
    same = whole["window-plus-one"].mistake

    def twice(stage, part):
        other = Mistake("another", "the same", "a line", "mask", "mask", "", (6,), same.change)
        return [*single(stage, part), Candidate(other)]
    monkeypatch.setattr(search, "single", twice)
    name = name_of("window")
    assert {name.id, name.either.id} == {"window-plus-one", "another"}
    assert name_of("scale").either is None


def test_a_factor_that_changes_from_case_to_case_is_no_name():
    def ask(built):
        case, t = built.case, {n: x.double() for n, x in built.tensors.items()}
        o = torch.softmax(t["q"] @ t["k"].mT * case.D**-0.5, -1) @ t["v"]
        return {"o": (o * (1.1 + 0.001 * case.N)).to(case.dtype)}

    built = build(Case(3, "standard", 100, D=16, HQ=2, HKV=2, dtype=F32), 0)
    assert Search(Sample.of(built, ask(built), "cpu"), ask, "cpu", seconds=20).run() is None
