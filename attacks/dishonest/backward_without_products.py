"""The backward differentiates a naive graph of multiplications and sums, a few rows at a time."""
# stage: 8
# base: problem_8.py
# with: copied, naive, backward
# outcome: rejected


def _naive(q, k, v, is_causal, scale):
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1).float() for x in (k, v))
    rows = []
    for row in range(q.shape[2]):
        seen = row + 1 if is_causal else k.shape[2]
        s = (q[:, :, row, None].float() * k[:, :, :seen]).sum(-1)
        p = torch.exp((s - s.amax(-1, keepdim=True)) * (
            q.shape[-1] ** -0.5 if scale is None else scale))
        rows.append((p[..., None] * v[:, :, :seen]).sum(2) / p.sum(-1, keepdim=True))
    return torch.stack(rows, 2).to(q.dtype)


def _made(q, k, v, do, is_causal, scale):
    made = _gradients(q, k, v, do, is_causal, scale)
    return map(_copied, made)
