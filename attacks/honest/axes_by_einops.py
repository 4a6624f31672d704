"""Stage 5 with rearrange and repeat of einops around the kernel, one batch entry of all heads."""
# stage: 5
# base: problem_5.py
# outcome: pass
from einops import rearrange, repeat

without_groups = flash_attention_forward


def flash_attention_forward(q, k, v, is_causal=True):
    B, group = q.shape[0], q.shape[1] // k.shape[1]
    k, v = (repeat(x, "b h n d -> 1 (b h g) n d", g=group) for x in (k, v))
    o = without_groups(rearrange(q, "b h n d -> 1 (b h) n d"), k, v, is_causal)
    return rearrange(o, "1 (b h) n d -> b h n d", b=B)
