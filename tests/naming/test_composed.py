"""Composed mistakes: named where no listed one fits, in words that say both parts."""

import pytest
import torch

import reference
from grader.cases import Case
from grader.inputs import build
from grader.naming.backward import Backward
from grader.naming.candidates import single
from grader.naming.distance import Sample
from grader.naming.mistakes.programs import ADDRESSES, written
from grader.naming.mistakes.statistics import lse_of
from grader.naming.model import Model
from grader.naming.reading import all_pairs
from grader.naming.row_sum import RowSum
from grader.naming.search import Search

F32 = torch.float32
CAUSAL = Case(4, "standard", 150, D=16, HQ=2, HKV=2, dtype=F32, is_causal=True)


def named(case, ask):
    built = build(case, 0)
    return Search(Sample.of(built, ask(built), "cpu"), ask, "cpu", seconds=30).run()


def test_a_sum_that_is_wrong_in_one_phase_is_named_with_its_phase():
    def doubled(built):
        case, t = built.case, {n: x.double() for n, x in built.tensors.items()}
        i = torch.arange(case.N)
        s = (t["q"] @ t["k"].mT * case.D**-0.5).masked_fill(i[None, :] > i[:, None], -torch.inf)
        p = torch.exp(s)
        before = i[None, :] // 64 < i[:, None] // 64
        return {"o": (p @ t["v"] / (p * torch.where(before, 2.0, 1.0)).sum(-1, keepdim=True)
                      ).to(case.dtype)}
    name = named(CAUSAL, doubled)
    assert name.id == "phase-weights"
    assert name.words == "in the tiles before the diagonal: the weights join the sum l twice"


def given_backward(built, lse_of_rows):
    """Gradients as the given backward of stages 3 to 7 makes them of what was saved as lse."""
    case, t = built.case, {n: x.double() for n, x in built.tensors.items()}
    keep = reference.keep_mask(case.N, case.N, case.is_causal)
    s = (t["q"] @ t["k"].mT * case.D**-0.5).masked_fill(~keep, -torch.inf)
    o = torch.softmax(s, -1) @ t["v"]
    found = {"o": o.to(case.dtype)}
    if case.grads:
        do = built.dout.double()
        m = s.amax(-1, keepdim=True)
        p = torch.exp(s - lse_of_rows(m, torch.exp(s - m).sum(-1, keepdim=True)))
        ds = p * (do @ t["v"].mT - (do * found["o"].double()).sum(-1, keepdim=True))
        grads = ds @ t["k"] * case.D**-0.5, ds.mT @ t["q"] * case.D**-0.5, p.mT @ do
        found |= {"d_" + n: x.to(case.dtype) for n, x in zip("qkv", grads, strict=True)}
    return found


@pytest.mark.parametrize("what, id", [("m + l ln 2", "saved-lse-is"),
                                      ("m ln 2 + ln(l)", "saved-lse-is"),
                                      ("m", "saved-lse-is-the-max")])
def test_a_wrong_lse_is_named_where_gradients_alone_show_it(what, id):
    case = Case(4, "robust", 70, D=16, HQ=2, HKV=2, dtype=F32, is_causal=True,
                grads=("q", "k", "v"))
    name = named(case, lambda built: given_backward(built, lse_of(what, 0.25)))
    assert name.id == id and name.places == ("lse",)
    assert id != "saved-lse-is" or name.words == f"lse is saved as {what}"


def test_a_right_lse_gives_right_gradients():
    case = Case(4, "robust", 70, D=16, HQ=2, HKV=2, dtype=F32, is_causal=True,
                grads=("q", "k", "v"))
    built = build(case, 0)
    sample = Sample.of(built, given_backward(built, lse_of("m + ln(l)", 0.25)), "cpu")
    assert not any(sample.wrong.values())


def test_what_is_written_elsewhere_leaves_poison_behind():
    case = Case(3, "probe", 40, B=2, HQ=3, HKV=3, dtype=F32)
    model = Model(build(case, 0), all_pairs(case), BM=32)
    x = torch.arange(6 * 40 * 16, dtype=torch.float64).view(6, 40, 16)
    stored = written(model, x, ADDRESSES["at head h of the first batch entry"], True)
    assert torch.equal(stored[:3], x[3:])  # later programs write over earlier ones
    assert bool(torch.isnan(stored[3:]).all())
    same = written(model, x, lambda m, bh, row, j: (bh * m.N + row) * m.D + j, False)
    assert torch.equal(same, x)


def test_stage_1s_gradients_are_right_with_that_of_lse():
    case = Case(1, "probe", 50, NK=70, HQ=2, HKV=2, dtype=F32, grads=("q", "k", "v"))
    built = build(case, 0)
    exact = reference.attention(**built.tensors, **built.upstream, **case.mask())
    for name, found in Backward(built, all_pairs(case)).gradients().items():
        assert torch.allclose(found, exact[name[2:]], atol=1e-10), name


def test_stage_2s_gradients_are_right_until_they_are_changed():
    case = Case(2, "probe", 50, M=40, dtype=F32, grads=("x", "w"))
    built = build(case, 0)
    dx, dw = reference.weighted_row_sum_gradients(**built.tensors, **built.upstream)
    right = RowSum(built, 16, 16).gradients()
    assert torch.allclose(right["d_x"], dx) and torch.allclose(right["d_w"], dw)
    for candidate in single(2, "backward"):
        if candidate.id == "dw-of" and "lacks dy" in candidate.more[0]:
            model = RowSum(built, 16, 16)
            candidate.apply(model)
            assert torch.allclose(model.gradients()["d_w"], built.tensors["x"].double().sum(0))
