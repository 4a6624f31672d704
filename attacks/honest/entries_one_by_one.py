"""Stage 8 an entry of the batch at a time: select, chunk, stack and cat, and their backwards."""
# stage: 8
# base: problem_8.py
# outcome: pass
of_one_entry = flash_attention_gqa


def flash_attention_gqa(q, k, v, is_causal=True, softmax_scale=None):
    entries = zip(q.unbind(0), k.chunk(k.shape[0]), v.split(1), strict=True)
    answers = [of_one_entry(q[None], k, v, is_causal, softmax_scale)[0] for q, k, v in entries]
    last = answers.pop()
    return torch.cat([torch.stack(answers), last[None]]) if answers else last.unsqueeze(0)
