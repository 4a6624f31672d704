"""reference.py against slower, independent ways of saying the same."""

import pytest
import torch

import reference


def inputs(B=2, HQ=4, HKV=2, NQ=9, NK=9, D=5):
    gen = torch.Generator().manual_seed(0)

    def randn(*shape):
        return torch.randn(*shape, generator=gen, dtype=torch.float64)

    return randn(B, HQ, NQ, D), randn(B, HKV, NK, D), randn(B, HKV, NK, D), randn(B, HQ, NQ, D)


def by_definition(q, k, v, i, b, h, visible, scale=None, sink=None):
    """One row of attention, one Python number at a time."""
    kv = h // (q.shape[1] // k.shape[1])
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    weights = {j: torch.exp((q[b, h, i] * k[b, kv, j]).sum() * scale) for j in visible}
    total = sum(weights.values()) + (0 if sink is None else torch.exp(sink))
    return sum(w * v[b, kv, j] for j, w in weights.items()) / total, torch.log(total)


def test_a_row_is_the_weighted_mean_of_the_values_its_query_sees():
    q, k, v, _ = inputs()
    out = reference.attention(q, k, v, is_causal=True, window_size=3, sink_size=2)
    o, lse = by_definition(q, k, v, 7, 1, 3, visible=[0, 1, 5, 6, 7])
    torch.testing.assert_close(out["o"][1, 3, 7], o)
    torch.testing.assert_close(out["lse"][1, 3, 7], lse)


def test_learned_sinks_join_the_denominator_and_carry_no_value():
    q, k, v, _ = inputs()
    sinks = torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64)
    out = reference.attention(q, k, v, is_causal=True, sink_logits=sinks, scale=0.7)
    o, lse = by_definition(q, k, v, 4, 0, 2, visible=range(5), scale=0.7, sink=sinks[2])
    torch.testing.assert_close(out["o"][0, 2, 4], o)
    torch.testing.assert_close(out["lse"][0, 2, 4], lse)


@pytest.mark.parametrize("options", [
    {}, {"is_causal": True}, {"is_causal": True, "window_size": 3, "sink_size": 2},
    {"is_causal": True, "window_size": 1, "scale": 0.3}, {"sink_logits": True},
    {"is_causal": True, "window_size": 4, "sink_size": 1, "sink_logits": True},
])
def test_gradients_equal_those_of_autograd(options):
    q, k, v, dout = inputs()
    options = dict(options)
    leaves = {"q": q, "k": k, "v": v}
    if options.pop("sink_logits", False):
        leaves["sink_logits"] = torch.tensor([0.5, -1.0, 2.0, 0.0], dtype=torch.float64)
    for t in leaves.values():
        t.requires_grad_()
    scale = options.get("scale", q.shape[-1] ** -0.5)
    masked = {key: value for key, value in options.items() if key != "scale"}
    keep = reference.keep_mask(9, 9, **masked)
    s = (q @ k.repeat_interleave(2, 1).mT * scale).masked_fill(~keep, -torch.inf)
    if "sink_logits" in leaves:
        column = leaves["sink_logits"].view(1, 4, 1, 1).expand(2, 4, 9, 1)
        p = torch.softmax(torch.cat([s, column], -1), -1)[..., :-1]
    else:
        p = torch.softmax(s, -1)
    o = p @ v.repeat_interleave(2, 1)
    wanted = dict(zip(leaves, torch.autograd.grad(o, list(leaves.values()), dout), strict=True))
    with torch.no_grad():
        got = reference.attention(**leaves, dout=dout, **options)
    torch.testing.assert_close(got["o"], o.detach())
    for name, grad in wanted.items():
        torch.testing.assert_close(got[name], grad)


def test_logits_of_128_neither_overflow_nor_vanish():
    q, k, v, _ = inputs(D=4)
    q[..., 0], k[..., 0] = 16.0, 16.0
    moved = reference.attention(q, k, v)["o"]
    q[..., 0] = 0.0
    torch.testing.assert_close(moved, reference.attention(q, k, v)["o"])


@pytest.mark.parametrize("options", [
    {}, {"is_causal": True}, {"window_size": 3, "sink_size": 1},
    {"is_causal": True, "window_size": 3, "sink_size": 1}])
def test_naive_attention_agrees_with_the_truth_in_float32(options):
    q, k, v, _ = (t.float() for t in inputs())
    got = reference.naive_attention(q, k, v, **options)
    torch.testing.assert_close(got.double(), reference.attention(q, k, v, **options)["o"],
                               rtol=1e-5, atol=1e-5)


def test_naive_attention_answers_in_the_dtype_of_its_input():
    q, k, v, _ = (t.half() for t in inputs())
    assert reference.naive_attention(q, k, v).dtype == torch.float16


def test_weighted_row_sum_sums_in_float64():
    x = torch.tensor([[6e4, 6e4, -6e4]], dtype=torch.float16)
    w = torch.ones(3, dtype=torch.float16)
    assert reference.weighted_row_sum(x, w).item() == x[0, 0].double().item()


def test_a_gradient_of_lse_joins_that_of_the_output():
    q, k, v, dout = inputs(HKV=4)
    dlse = torch.randn(q.shape[:3], generator=torch.Generator().manual_seed(1), dtype=q.dtype)
    leaves = [t.requires_grad_() for t in (q, k, v)]
    s = q @ k.mT * q.shape[-1] ** -0.5
    loss = (torch.softmax(s, -1) @ v * dout).sum() + (torch.logsumexp(s, -1) * dlse).sum()
    want = torch.autograd.grad(loss, leaves)
    out = reference.attention(*(t.detach() for t in leaves), dout=dout, dlse=dlse)
    for name, gradient in zip("qkv", want, strict=True):
        torch.testing.assert_close(out[name], gradient)


def test_gradients_of_a_weighted_row_sum_equal_those_of_autograd():
    x, w, dy = (torch.randn(*shape, dtype=torch.float64) for shape in ((5, 7), (7,), (5,)))
    want = torch.autograd.grad(x.requires_grad_() @ w.requires_grad_(), (x, w), dy)
    for got, gradient in zip(reference.weighted_row_sum_gradients(x.detach(), w.detach(), dy),
                             want, strict=True):
        torch.testing.assert_close(got, gradient)
