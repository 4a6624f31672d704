"""Stage 8 with k and v of every query head by an index; its backward adds up a group's heads."""
# stage: 8
# base: problem_8.py
# outcome: pass
without_groups = flash_attention_gqa


def flash_attention_gqa(q, k, v, is_causal=True, softmax_scale=None):
    heads = torch.arange(q.shape[1], device=q.device) // (q.shape[1] // k.shape[1])
    return without_groups(q, k[:, heads], v[:, heads], is_causal, softmax_scale)
