"""Stage 4 asked of one batch entry with B x H heads: reshape copies what is no view."""
# stage: 4
# base: problem_4.py
# outcome: pass
one_entry = flash_attention_forward


def flash_attention_forward(q, k, v, is_causal=True):
    flat = (x.reshape(1, -1, *x.shape[2:]) for x in (q, k, v))
    return one_entry(*flat, is_causal).reshape(q.shape)
