"""Attention in plain PyTorch with all that the check asks for: every adapter's model."""

import torch

align = "bottom-right"


def attention(q, k, v, *, is_causal, window_size=None, sink_size=0, scale=None, sink_logits=None):
    (B, HQ, NQ, D), (_, HKV, NK, _) = q.shape, k.shape
    k, v = (x.repeat_interleave(HQ // HKV, dim=1).float() for x in (k, v))
    scores = q.float() @ k.mT * (D**-0.5 if scale is None else scale)
    if is_causal or window_size is not None:
        query = torch.arange(NK - NQ, NK, device=q.device)[:, None]
        key = torch.arange(NK, device=q.device)
        keep = key <= query if is_causal else torch.ones_like(key <= query)
        if window_size is not None:
            keep &= (query - key < window_size) | (key < sink_size)
        scores = scores.masked_fill(~keep, -torch.inf)
    sinks = scores[..., :0] if sink_logits is None else \
        sink_logits.float().view(1, HQ, 1, 1).expand(B, HQ, NQ, 1)
    lse = torch.cat([scores, sinks], -1).logsumexp(-1)
    return ((scores - lse[..., None]).exp() @ v).to(q.dtype), lse
