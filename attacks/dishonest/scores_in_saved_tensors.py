"""An honest forward that also saves the N x N weights for its backward."""
# stage: 8
# base: problem_8.py
# outcome: rejected


class _Hoarding(torch.autograd.Function):
    @staticmethod
    def forward(ctx, o, q, k):
        N = q.shape[2]
        ctx.hoard = torch.empty(*q.shape[:3], N, device=q.device, dtype=torch.float32).fill_(1)
        return o.clone()

    @staticmethod
    def backward(ctx, do):
        ctx.hoard[..., 0] += 0
        return do, None, None


_honest = flash_attention_gqa


def flash_attention_gqa(q, k, v, is_causal=True, softmax_scale=None):
    return _Hoarding.apply(_honest(q, k, v, is_causal, softmax_scale), q, k)
