"""The kernels of attention_hopper.py and attention_hopper_backward.py, connected to autograd."""

import torch
from torch.autograd.function import once_differentiable

from expert.attention_hopper import forward
from expert.attention_hopper_backward import backward
from expert.hopper import check, checked_scale


class HopperAttentionFunction(torch.autograd.Function):
    """Connects the kernels to autograd.  First derivatives only."""

    @staticmethod
    def forward(ctx, q, k, v, sink_logits, is_causal, window_size, scale, deterministic):
        o, lse = forward(q, k, v, is_causal, scale, window_size, sink_logits)
        ctx.save_for_backward(q, k, v, o, lse, sink_logits)
        ctx.options = is_causal, scale, window_size, deterministic
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx, do):
        q, k, v, o, lse, sink_logits = ctx.saved_tensors
        dq, dk, dv, delta = backward(q, k, v, o, lse, do, *ctx.options)
        dsink = None
        if sink_logits is not None and ctx.needs_input_grad[3]:  # the sink's weight, no row of v
            p_sink = torch.exp(sink_logits[None, :, None].float() - lse)
            dsink = -(p_sink * delta).sum((0, 2)).to(sink_logits.dtype)
        return dq, dk, dv, dsink, None, None, None, None


def flash_attention_hopper(
    q, k, v, is_causal=True, window_size=None, sink_logits=None, softmax_scale=None,
    deterministic=False,
):
    """Attention of grouped query heads, differentiable.

    Args, Raises: those of attention_forward, and
        deterministic: the same dq bit for bit every time, by a kernel of its own.  Otherwise its
        last bits vary: shares of dq are added up in the order in which they come.

    Returns:
        o: (B, HQ, N, D), contiguous, dtype of q.
    """
    check(q, k, v, is_causal, window_size, sink_logits)
    scale = checked_scale(softmax_scale, q.shape[3])
    tensors = (q, k, v) if sink_logits is None else (q, k, v, sink_logits)
    if not torch.is_grad_enabled() or not any(x.requires_grad for x in tensors):
        return forward(q, k, v, bool(is_causal), scale, window_size, sink_logits)[0]  # 7 us less
    return HopperAttentionFunction.apply(
        q, k, v, sink_logits, bool(is_causal), window_size, scale, bool(deterministic)
    )
