"""Attention functions of Transformers, by name, called as a layer of GPT-OSS calls them:
python -m grader.check examples/check/transformers_attention.py:sdpa, or :eager, or :flex_attention
"""

from types import SimpleNamespace

import torch
from torch.nn.attention.flex_attention import create_block_mask
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS
from transformers.models.gpt_oss.modeling_gpt_oss import eager_attention_forward


def eager(q, k, v, *, is_causal, window_size=None, scale=None, sink_logits=None):
    """GPT-OSS's own, which always has sinks; a sink of -inf is none."""
    if sink_logits is None:
        sink_logits = q.new_full((q.shape[1],), -torch.inf)
    mask = torch.where(_keep(q, k, is_causal, window_size), 0.0, -torch.inf).to(q.dtype)
    return _called(eager_attention_forward, q, k, v, mask, scale, sink_logits)


def sdpa(q, k, v, *, is_causal, window_size=None, scale=None, sink_logits=None):
    mask = None if window_size is None else _keep(q, k, is_causal, window_size)
    return _called(ALL_ATTENTION_FUNCTIONS["sdpa"], q, k, v, mask, scale, sink_logits, is_causal)


def flex_attention(q, k, v, *, is_causal, window_size=None, scale=None, sink_logits=None):
    keep = _keep(q, k, is_causal, window_size)
    mask = create_block_mask(lambda b, h, query, key: keep[query, key], None, None, q.shape[2],
                             k.shape[2], device=q.device)
    return _called(ALL_ATTENTION_FUNCTIONS["flex_attention"], q, k, v, mask, scale, sink_logits)


def _keep(q, k, is_causal, window_size):
    query, key = (torch.arange(x.shape[2], device=x.device) for x in (q, k))
    age = query[:, None] - key
    near = age < (q.shape[2] if window_size is None else window_size)
    return near & ((age >= 0) | (not is_causal))


def _called(function, q, k, v, mask, scale, sink_logits, is_causal=None):
    layer = SimpleNamespace(num_key_value_groups=q.shape[1] // k.shape[1], is_causal=is_causal,
                            training=True, sinks=sink_logits)
    scale = q.shape[-1]**-0.5 if scale is None else scale
    return function(layer, q, k, v, mask, scaling=scale, dropout=0.0, s_aux=sink_logits,
                    is_causal=is_causal)[0].transpose(1, 2)
