"""Stage 8 in the original's style: the forward is right, the backward returns torch.empty."""
# stage: 8
# base: problem_8.py
# outcome: wrong, crashed, not_started
import torch

_solved = FlashAttentionGQAFunction.forward  # noqa: F821


class FlashAttentionGQA(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, is_causal, scale):
        return _solved(ctx, q, k, v, is_causal, scale)

    @staticmethod
    def backward(ctx, do):
        q, k, v = ctx.saved_tensors[:3]
        # --- STUDENT IMPLEMENTATION REQUIRED HERE ---
        dq, dk, dv = torch.empty_like(q), torch.empty_like(k), torch.empty_like(v)
        # --- END OF STUDENT IMPLEMENTATION ---
        return dq, dk, dv, None, None


def flash_attention_gqa(q, k, v, is_causal=True, softmax_scale=None):
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    return FlashAttentionGQA.apply(q, k, v, is_causal, scale)
