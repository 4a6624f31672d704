"""Stage 1 without tiles of keys and without an online softmax: 16 rows of all scores at a time."""
# stage: 1
# outcome: rejected
# says: keys at once
import torch


class FlashAttention2Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        outputs, sums = [], []
        for m in range(0, q.shape[2], 16):
            s = q[:, :, m:m + 16].float() @ k.float().mT * q.shape[3] ** -0.5
            if is_causal:
                s = s.masked_fill(torch.ones_like(s, dtype=torch.bool).triu(1 + m), -torch.inf)
            outputs.append(torch.softmax(s, -1) @ v.float())
            sums.append(torch.logsumexp(s, -1))
        return torch.cat(outputs, 2).to(q.dtype), torch.cat(sums, 2)
