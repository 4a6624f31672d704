"""Stage 8 with a table of heads, (HKV, B * N * D), and F.embedding, whose backward adds rows up."""
# stage: 8
# base: problem_8.py
# outcome: pass
without_groups = flash_attention_gqa


def flash_attention_gqa(q, k, v, is_causal=True, softmax_scale=None):
    B, HQ, N, D = q.shape
    heads = torch.arange(HQ, device=q.device) // (HQ // k.shape[1])

    def of_every_head(x):
        table = x.transpose(0, 1).reshape(x.shape[1], -1)
        return torch.nn.functional.embedding(heads, table).view(HQ, B, N, D).transpose(0, 1)

    return without_groups(q, of_every_head(k), of_every_head(v), is_causal, softmax_scale)
