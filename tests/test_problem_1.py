import math
import re

import pytest
import torch

import problem_1
from problem_1 import BLOCK_M, FlashAttention2Function

attend = FlashAttention2Function.apply


def _naive(q, k, v, is_causal):
    s = q @ k.mT / math.sqrt(q.shape[-1])
    if is_causal:
        s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1), -math.inf)
    return torch.softmax(s, -1) @ v, torch.logsumexp(s, -1)


@pytest.mark.parametrize("is_causal", [False, True])
def test_gradients_of_output_and_lse_together_match_float64(is_causal):
    N = 2 * BLOCK_M + 1
    q, k, v = (torch.randn(1, 2, N, 16, dtype=torch.float64, requires_grad=True) for _ in "qkv")
    do, dlse = torch.randn(1, 2, N, 16), torch.randn(1, 2, N)
    want = torch.autograd.grad(_naive(q, k, v, is_causal), (q, k, v), (do.double(), dlse.double()))
    single = [x.detach().float().requires_grad_() for x in (q, k, v)]
    got = torch.autograd.grad(attend(*single, is_causal), single, (do, dlse))
    for x, y in zip(got, want, strict=True):
        assert (x - y).norm() / y.norm() < 2e-6


def test_gradients_pass_gradcheck():
    # float32 inside, so a large step and a tolerance to match
    q, k, v = (torch.randn(1, 1, 5, 4, requires_grad=True) for _ in "qkv")
    assert torch.autograd.gradcheck(
        lambda *x: attend(*x, True), (q, k, v), eps=1e-2, atol=1e-2, rtol=1e-2
    )


def test_queries_and_keys_may_differ_in_number_without_a_mask():
    q, k, v = torch.randn(1, 2, 5, 16), torch.randn(1, 2, 300, 16), torch.randn(1, 2, 300, 16)
    o, lse = attend(q, k, v)
    want_o, want_lse = _naive(q.double(), k.double(), v.double(), False)
    assert (o - want_o).abs().max() < 1e-5
    assert (lse - want_lse).abs().max() < 1e-5


def test_lse_is_float32_whatever_the_input():
    q, k, v = torch.randn(3, 1, 1, 4, 16).half()
    o, lse = attend(q, k, v)
    assert (o.dtype, lse.dtype) == (torch.float16, torch.float32)


def test_the_default_dtype_of_the_moment_changes_nothing():
    q, k, v = (torch.randn(1, 1, 200, 16, requires_grad=True) for _ in "qkv")
    do = torch.randn(1, 1, 200, 16)

    def run():
        o, lse = attend(q, k, v, True)
        return o, lse, *torch.autograd.grad(o, (q, k, v), do)

    want = run()
    torch.set_default_dtype(torch.bfloat16)
    try:
        got = run()
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(x, y) for x, y in zip(got, want, strict=True))


@pytest.mark.parametrize("shift", [-128.0, 128.0])
def test_shifted_scores_change_nothing(shift):
    q, k, v = torch.randn(3, 1, 1, 200, 16)
    q[..., 0], k[..., 0] = 16.0, 0.0
    o, lse = attend(q, k, v)
    k[..., 0] = shift / 4  # adds 16 * shift / 4 / sqrt(16) = shift to every score
    shifted_o, shifted_lse = attend(q, k, v)
    assert (shifted_o - o).abs().max() < 1e-4
    assert (shifted_lse - lse - shift).abs().max() < 1e-4


@pytest.mark.parametrize("is_causal", [False, True])
def test_no_tensor_grows_with_the_square_of_the_length(is_causal):
    def largest(N):
        sizes = []

        class Watch(torch.utils._python_dispatch.TorchDispatchMode):
            def __torch_dispatch__(self, func, types, args=(), kwargs=None):
                out = func(*args, **(kwargs or {}))
                if isinstance(out, torch.Tensor):
                    sizes.append(out.numel())
                return out

        q, k, v = (torch.randn(1, 1, N, 16, requires_grad=True) for _ in "qkv")
        with Watch():
            attend(q, k, v, is_causal)[0].sum().backward()
        return max(sizes)

    assert largest(4096) <= 2 * largest(2048)


@pytest.mark.parametrize(
    ("shapes", "message"),
    [
        (((1, 2, 4, 16), (1, 2, 5, 16), (1, 2, 6, 16)), "want q"),
        (((1, 2, 4, 16), (1, 1, 4, 16), (1, 1, 4, 16)), "want q"),
        (((1, 2, 4, 160),) * 3, "want D <= 128; got 160"),
        (((1, 2, 0, 16),) * 3, "not empty"),
        (((2, 4, 16),) * 3, "want q"),
    ],
)
def test_shapes_it_cannot_honour_are_refused(shapes, message):
    with pytest.raises(ValueError, match=message):
        attend(*(torch.randn(*shape) for shape in shapes))


def test_a_causal_mask_needs_as_many_queries_as_keys():
    with pytest.raises(ValueError, match="want NQ == NK with is_causal=True; got 4, 5"):
        attend(torch.randn(1, 1, 4, 16), *torch.randn(2, 1, 1, 5, 16), True)


def test_other_dtypes_are_refused():
    with pytest.raises(TypeError, match="want float16, bfloat16 or float32; got torch.float64"):
        attend(*torch.randn(3, 1, 1, 4, 16, dtype=torch.float64))
    with pytest.raises(TypeError, match="want one dtype"):
        attend(torch.randn(1, 1, 4, 16), *torch.randn(2, 1, 1, 4, 16).half())


def test_the_bytes_that_its_text_begins_with_are_those_of_its_sizes():
    text = " ".join(problem_1.__doc__.split())
    N, heads, of_p, of_q, D = map(int, re.search(
        r"At N = (\d+) and (\d+) heads one of them takes (\d+) GiB in bfloat16, while q, k, v and "
        r"o take (\d+) MiB each \(D = (\d+)\)", text).groups())
    assert 2 * heads * N * N == of_p << 30 and 2 * heads * N * D == of_q << 20
