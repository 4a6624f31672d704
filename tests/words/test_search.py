"""Naming: one mistake gets its id, a right answer none, and what no mistake explains none."""

import math

import pytest
import torch

import reference
from grader.course.cases import Case
from grader.course.correctness import answer
from grader.course.inputs import build
from grader.words import search
from grader.words.search import Sample, Search

F32 = torch.float32
CASE = Case(6, "standard", 96, D=16, HQ=4, HKV=2, is_causal=True, window=20)


def student(mistake):
    """A function like a submission's: naive attention with a mistake in it.  -> ask(built)."""
    def ask(built):
        case, t = built.case, {n: x.double() for n, x in built.tensors.items()}
        heads = torch.arange(case.HQ) // (case.HQ // case.HKV)
        window, scale = case.window, case.D**-0.5
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
        if mistake == "not normalised":
            p = torch.exp(s - s.amax(-1, keepdim=True))
        return {"o": (p @ v).to(case.dtype)}
    return ask


def name_of(ask, case=CASE, seconds=20.0):
    built = build(case, 0)
    return Search(Sample.of(built, ask(built), "cpu"), ask, "cpu", seconds=seconds).run()


@pytest.mark.parametrize("mistake, id", [
    ("window", "window-plus-one"), ("scale", "no-scale"), ("heads", "heads-interleaved"),
    ("base", "no-log2e"), ("not normalised", "not-normalised")])
def test_a_mistake_that_is_known_is_named(mistake, id):
    name = name_of(student(mistake))
    assert name is not None and name.id == id
    assert name.distance < 1.5 and name.runner_up_distance > 5 * name.distance
    assert name.truth_distance > 100


def test_what_no_mistake_explains_gets_no_name():
    assert name_of(student("strange")) is None


def test_a_right_answer_matches_no_mistake():
    built = build(CASE, 0)
    ask = student("")
    sample = Sample.of(built, ask(built), "cpu")
    assert not any(sample.wrong.values())
    assert Search(sample, ask, "cpu", seconds=20.0).run() is None


def test_a_search_without_time_gives_up_and_says_so():
    built, ask = build(CASE, 0), student("window")
    one = Search(Sample.of(built, ask(built), "cpu"), ask, "cpu", seconds=0.0)
    assert one.run() is None and one.gave_up


def test_two_mistakes_that_give_the_same_numbers_are_both_said_and_three_are_not(monkeypatch):
    def again(*others):
        def answers(built, part):
            for (id, *more), make in whole(built, part):
                yield (id, *more), make
                if id == "window-plus-one":
                    yield from (((other, *more), make) for other in others)
        return answers

    whole = search.whole.answers
    monkeypatch.setattr(search.whole, "answers", again("window-minus-one"))
    found = name_of(student("window"))
    assert "sees W + 1 keys; or the window is one key too narrow" in found.words
    assert found.words.endswith("which gives the same numbers")
    assert name_of(student("scale")).words == "the scores are not divided by sqrt(D)"
    monkeypatch.setattr(search.whole, "answers", again("window-minus-one", "half-the-window"))
    assert name_of(student("window")) is None


def test_a_case_that_crashes_leaves_the_own_case_to_name_the_mistake_by():
    def ask(built):
        return None if built.case.N % 32 else student("base")(built)
    assert name_of(ask).id == "no-log2e"


def test_nan_must_stand_where_the_mistake_puts_it():
    built = build(Case(3, "probe", 50, D=16, HQ=2, HKV=2, dtype=F32), 0)
    truth = answer(built, "cpu").truth["o"]
    x = truth.clone()
    x[:, :, 40:] = math.nan
    sample = Sample.of(built, {"o": x}, "cpu")
    assert sample.distance({"o": x.numpy()}, ["o"]) < 1
    assert sample.distance({"o": truth.numpy()}, ["o"]) == math.inf
    x = x.clone()
    x[:, :, 39:] = math.nan
    assert sample.distance({"o": x.numpy()}, ["o"]) == math.inf


def gradients(spoil):
    """A backward with a mistake.  spoil(built, exact) -> the gradients that are wrong."""
    def ask(built):
        exact = reference.attention(**built.tensors, dout=built.dout, **built.case.mask())
        found = {"o": exact["o"].float()}
        if built.case.grads:
            found |= {"d_" + n: exact[n].float() for n in "qkv"}
            found |= {"d_" + n: x.float() for n, x in spoil(built, exact).items()}
        return found
    return ask


@pytest.mark.parametrize("spoil, id, places", [
    (lambda built, exact: {"k": exact["k"] * built.case.D**0.5}, "dk-unscaled", ("dk scale",)),
    (lambda built, exact: {"q": exact["q"] * math.log2(math.e)}, "dq-in-base-2", ("dq scale",)),
    (lambda built, exact: {n: exact[n] / 3 for n in "kv"}, "group-mean",
     ("dkdv calls",))])
def test_a_mistake_of_the_gradients_is_named_with_its_places(spoil, id, places):
    case = Case(8, "standard", 40, D=16, HQ=6, HKV=2, dtype=F32, is_causal=True,
                grads=("q", "k", "v"))
    ask = gradients(spoil) if id != "group-mean" else gradients(
        lambda built, exact: {n: exact[n] / (built.case.HQ // built.case.HKV) for n in "kv"})
    name = name_of(ask, case)
    assert name is not None and (name.id, name.places) == (id, places)


def test_a_mistake_of_one_kernel_points_at_that_one():
    assert search._places("no-delta", ", in dq") == ("dq products", "delta")
    assert search._places("no-delta", ", in dk") == ("dkdv products", "delta")
    assert search._places("dq-causal-ignored") == ("dq mask", "dq walk", "dq borders")
