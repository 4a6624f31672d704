"""FlexAttention of PyTorch, for python -m grader.check.

Sinks scale o afterwards, by the share that they leave of the denominator.  On a CPU there is no
backward.  On a GPU each shape is compiled, which takes minutes: ask for some rows with --only.
"""

import torch
from torch.nn.attention import flex_attention as flex

align = "top-left"
compiled = torch.compile(flex.flex_attention)


def attention(q, k, v, *, is_causal, window_size=None, sink_size=0, scale=None, sink_logits=None):
    def keep(b, h, query, key):
        seen = key <= query if is_causal else key >= 0
        if window_size is not None:
            seen = seen & ((query - key < window_size) | (key < sink_size))
        return seen

    mask = None
    if is_causal or window_size is not None:
        mask = flex.create_block_mask(keep, None, None, q.shape[2], k.shape[2], device=q.device)
    call = compiled if q.is_cuda else flex.flex_attention
    o, aux = call(q, k, v, block_mask=mask, scale=scale, enable_gqa=q.shape[1] != k.shape[1],
                  return_aux=flex.AuxRequest(lse=True))
    if sink_logits is None:
        return o, aux.lse
    lse = torch.logaddexp(aux.lse, sink_logits.float()[:, None])
    return (o * torch.exp(aux.lse - lse)[..., None]).to(q.dtype), lse
