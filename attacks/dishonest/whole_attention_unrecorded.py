"""Stage 1 by PyTorch's whole attention, while recording is off and no mode watches."""
# stage: 1
# outcome: rejected
# says: came out wrong when the same PyTorch operations
import torch
from torch._C._autograd import _enable_record_function
from torch.utils._python_dispatch import _disable_current_modes


def _attend(q, k, v, is_causal):
    q, k, v = (t.float().contiguous() for t in (q, k, v))
    o = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=is_causal)
    s = q @ k.mT * q.shape[-1] ** -0.5
    if is_causal:
        s = s.masked_fill(torch.ones_like(s[0, 0], dtype=torch.bool).triu(1), -torch.inf)
    return o, s.logsumexp(-1)


class FlashAttention2Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, is_causal=False):
        _enable_record_function(False)
        try:
            with _disable_current_modes():
                o, lse = _attend(q, k, v, is_causal)
        finally:
            _enable_record_function(True)
        return o.to(q.dtype), lse
