"""Stage 1 without tiles: all the scores at once, and one softmax over them."""
# stage: 1
# outcome: rejected
# says: keys at once
import torch


class FlashAttention2Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        s = q.float() @ k.float().mT * q.shape[-1] ** -0.5
        if is_causal:
            s = s.masked_fill(torch.ones_like(s[0, 0], dtype=torch.bool).triu(1), -torch.inf)
        return (torch.softmax(s, -1) @ v.float()).to(q.dtype), s.logsumexp(-1)
