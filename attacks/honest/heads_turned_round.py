"""Stage 9 with its groups in reverse order and its batch rolled on by one, and back again."""
# stage: 9
# base: problem_9.py
# outcome: pass
in_order = flash_swda_with_sink


def flash_swda_with_sink(q, k, v, window_size, sink_size=0, is_causal=True, scale=None, *,
                         sink_logits=None):
    q, k, v = (x.flip(1).roll(1, 0) for x in (q, k, v))
    logits = None if sink_logits is None else sink_logits[torch.argsort(
        torch.arange(len(sink_logits), device=q.device), descending=True)]
    o = in_order(q, k, v, window_size, sink_size, is_causal, scale, sink_logits=logits)
    return torch.rot90(torch.rot90(o.roll(-1, 0).flip(1), 1, (2, 3)), -1, (2, 3))
