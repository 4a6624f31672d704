"""Stage 1 in the original's style: forward saves its inputs and hands the query back."""
# stage: 1
# outcome: wrong, crashed, not_started
import torch


class FlashAttention2Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        ctx.save_for_backward(q, k, v)
        # TODO: tiles
        return q.clone(), torch.zeros(q.shape[:3], device=q.device)

    @staticmethod
    def backward(ctx, *grads):
        raise NotImplementedError
