"""Ignores sink_size in favour of its default, 4."""
# stage: 9
# base: problem_9.py
# outcome: wrong


_honest = flash_swda_with_sink


def flash_swda_with_sink(q, k, v, window_size, sink_size=0, is_causal=True, scale=None, *,
                         sink_logits=None):
    sinks = 4 if window_size else 0
    return _honest(q, k, v, window_size, sinks, is_causal, scale, sink_logits=sink_logits)
