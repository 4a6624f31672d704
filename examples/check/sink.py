"""sink_attn.attention, for python -m grader.check; without a GPU in Triton's interpreter."""

import sink_attn


def attention(q, k, v, *, is_causal, window_size=None, sink_size=0, scale=None, sink_logits=None):
    return sink_attn.attention(
        q, k, v, is_causal=is_causal, window_size=window_size, sink_size=sink_size,
        softmax_scale=scale, sink_logits=sink_logits, return_lse=True)
