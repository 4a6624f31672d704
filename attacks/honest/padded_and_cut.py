"""Stage 8 on inputs padded to whole tiles; the backward of the cut pads, and of the pad cuts."""
# stage: 8
# base: problem_8.py
# outcome: pass
on_whole_tiles = flash_attention_gqa


def flash_attention_gqa(q, k, v, is_causal=True, softmax_scale=None):
    N = q.shape[2]
    pad = -N % 64 if is_causal else 0  # without a mask every query would see the zeros
    q, k, v = (torch.nn.functional.pad(x, (0, 0, 0, pad)) for x in (q, k, v))
    return on_whole_tiles(q, k, v, is_causal, softmax_scale)[:, :, :N]
