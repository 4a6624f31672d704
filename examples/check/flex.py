"""FlexAttention of PyTorch, for python -m grader.check.

Sinks: the denominator's share of the sink logit is taken from o afterwards, as sigmoid(lse - sink).
On a CPU it has no backward, and gives no lse.
"""

import torch
from torch.nn.attention import flex_attention as flex

align = "top-left"


def attention(q, k, v, *, is_causal, window_size=None, sink_size=0, scale=None, sink_logits=None):
    def keep(b, h, query, key):
        seen = key <= query if is_causal else key >= 0
        if window_size is not None:
            seen = seen & ((query - key < window_size) | (key < sink_size))
        return seen

    masked = is_causal or window_size is not None
    mask = flex.create_block_mask(
        keep, None, None, q.shape[2], k.shape[2], device=q.device) if masked else None
    call = torch.compile(flex.flex_attention) if q.is_cuda else flex.flex_attention
    options = dict(block_mask=mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1])
    if sink_logits is None:
        return call(q, k, v, **options)
    o, aux = call(q, k, v, return_aux=flex.AuxRequest(lse=True), **options)
    share = torch.sigmoid(aux.lse - sink_logits.view(1, -1, 1))
    return o * share[..., None].to(o.dtype)
