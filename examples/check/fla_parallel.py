"""parallel_attn of Flash Linear Attention (pip install flash-linear-attention), on a GPU."""

from fla.ops.attn import parallel_attn


def attention(q, k, v, *, is_causal, window_size=None, scale=None, sink_logits=None):
    if not is_causal:
        raise NotImplementedError("parallel_attn is always causal")
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    o = parallel_attn(q, k, v, scale=scale, window_size=window_size, sink_bias=sink_logits)
    return o.transpose(1, 2)
