"""Model and Backward: unchanged they are right, and a changed copy leaves the others alone."""

import pytest
import torch

import reference
from grader.cases import Case
from grader.inputs import build
from grader.naming.backward import Backward
from grader.naming.model import Model
from grader.naming.online import Online
from grader.naming.reading import all_pairs
from grader.naming.rounding import CHOPPED, held, to_16_bits

CASE = Case(9, "probe", 70, B=2, HQ=4, HKV=2, dtype=torch.float32, is_causal=True, window=20,
            sinks=3, scale=0.3, sink_logits=True, grads=("q", "k", "v", "sink_logits"))


@pytest.fixture(scope="module")
def built():
    return build(CASE, 0)


@pytest.fixture(scope="module")
def exact(built):
    return reference.attention(**built.tensors, dout=built.dout, **CASE.mask())


def test_an_unchanged_model_is_the_reference(built, exact):
    model = Backward(built, all_pairs(CASE), BM=32, BN=16)
    out = model.outputs()
    assert torch.allclose(out["o"].unflatten(0, (2, 4)), exact["o"], atol=1e-12)
    assert torch.allclose(out["lse"].unflatten(0, (2, 4)), exact["lse"], atol=1e-12)
    for name, grad in model.again().gradients().items():
        assert torch.allclose(grad, exact[name[2:]], atol=1e-10), name


def test_tile_by_tile_it_is_the_same_within_float32(built, exact):
    model = Model(built, all_pairs(CASE), BM=32, BN=16)
    model.online = Online()
    out = model.outputs()["o"].unflatten(0, (2, 4))
    assert torch.allclose(out, exact["o"], atol=1e-5) and not torch.equal(out, exact["o"])


def test_a_changed_copy_leaves_the_others_alone(built, exact):
    model = Backward(built, all_pairs(CASE))
    right = model.again().gradients()
    wrong = model.again()
    wrong.dq.keep = wrong.dq.keep & (wrong.dq.j > 0)
    wrong.factor["k"] = 1.0
    wrong.online = Online()
    found, after = wrong.gradients(), model.again()
    assert not torch.allclose(found["d_q"], right["d_q"])
    assert not torch.allclose(found["d_k"], right["d_k"])
    assert torch.equal(found["d_v"], right["d_v"])
    assert after.online is None and torch.equal(after.gradients()["d_q"], right["d_q"])


def test_sums_in_eight_lanes_are_the_same_sums(built, exact):
    model = Model(built, all_pairs(CASE), BM=32, BN=16)
    model.online = Online(lanes=8)
    out = model.outputs()["o"].unflatten(0, (2, 4))
    assert torch.allclose(out, exact["o"], atol=1e-5)


def test_the_interpreters_bfloat16_is_chopped_not_rounded():
    x = torch.tensor([1.0069, -3.1416, 2.0], dtype=torch.float64)
    assert to_16_bits(x, CHOPPED).tolist() == [1.0, -3.140625, 2.0]
    assert to_16_bits(x, torch.bfloat16).tolist() == [1.0078125, -3.140625, 2.0]


def test_what_float16_cannot_hold_is_infinite():
    x = torch.tensor([7e4, -7e4, 6e4], dtype=torch.float64)
    assert held(x, torch.float16).tolist() == [float("inf"), -float("inf"), 6e4]
    assert torch.equal(held(x, torch.float32), x)
