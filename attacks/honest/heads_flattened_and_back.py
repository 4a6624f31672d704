"""Stage 8 asked of one batch entry, its result viewed as q is."""
# stage: 8
# base: problem_8.py
# outcome: pass
one_entry = flash_attention_gqa


def flash_attention_gqa(q, k, v, is_causal=True, softmax_scale=None):
    flat = (x.flatten(0, 1)[None] for x in (q, k, v))
    return one_entry(*flat, is_causal, softmax_scale).view(q.shape)
