import re
from pathlib import Path

import pytest
import torch

from grader.blank import blank
from problem_8 import flash_attention_gqa
from tests.commands import grader


@pytest.mark.skipif(torch.cuda.is_available(), reason="a GPU multiplies float32 in TF32")
def test_gradients_pass_gradcheck():
    # float32 inside, so a large step and a tolerance to match
    q = torch.randn(1, 2, 4, 4, requires_grad=True)
    k, v = (torch.randn(1, 1, 4, 4, requires_grad=True) for _ in "kv")
    assert torch.autograd.gradcheck(flash_attention_gqa, (q, k, v), eps=1e-2, atol=1e-2, rtol=1e-2)


@pytest.mark.parametrize("is_causal", [False, True])
def test_the_softmax_scale_reaches_output_and_gradients(is_causal, device):
    q, k, v = (torch.randn(1, 2, 70, 16, device=device, requires_grad=True) for _ in "qkv")
    do = torch.randn_like(q)
    o = flash_attention_gqa(q, k, v, is_causal, softmax_scale=0.6)
    want = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=is_causal, scale=0.6
    )
    assert (o - want).norm() / want.norm() < 2e-3
    got = torch.autograd.grad(o, (q, k, v), do)
    for x, y in zip(got, torch.autograd.grad(want, (q, k, v), do), strict=True):
        assert (x - y).norm() / y.norm() < 2e-3


@pytest.mark.parametrize("scale", [0.0, -1.0, float("inf"), float("nan")])
def test_a_scale_that_is_not_positive_is_refused(scale, device):
    with pytest.raises(ValueError, match="want softmax_scale > 0 and finite; got"):
        flash_attention_gqa(*torch.randn(3, 1, 1, 4, 16, device=device), softmax_scale=scale)


@pytest.mark.interpreter
def test_at_the_rest_dq_alone_is_graded(tmp_path):
    text = (Path(__file__).parent.parent / "problem_8.py").read_text("utf-8")
    for step in ("8.13", "8.14", "8.15", "8.16", "8.17"):
        text = blank(text, step)
    (tmp_path / "problem_8.py").write_text(text)
    command = re.search(r"#     python autograder_optional.py (.*)", text)[1]
    done = grader(*command.split(), "--submission", str(tmp_path), program="autograder_optional.py")
    assert "P8 Robust Test Passed! (1 case)" in done.stdout, done.stdout
