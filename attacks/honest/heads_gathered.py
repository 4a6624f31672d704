"""Stage 9 with k by index_select and v by gather, along axes that are not the heads' own: what adds
up their gradients are index_add and scatter_add."""
# stage: 9
# base: problem_9.py
# outcome: pass
without_groups = flash_swda_with_sink


def flash_swda_with_sink(q, k, v, window_size, sink_size=0, is_causal=True, scale=None, *,
                         sink_logits=None):
    B, HQ, N, D = q.shape
    heads = torch.arange(HQ, device=q.device) // (HQ // k.shape[1])
    k = k.transpose(1, 2).index_select(2, heads).transpose(1, 2)
    v = torch.gather(v, 1, heads[None, :, None, None].expand(B, HQ, N, D))
    return without_groups(q, k, v, window_size, sink_size, is_causal, scale,
                          sink_logits=sink_logits)
