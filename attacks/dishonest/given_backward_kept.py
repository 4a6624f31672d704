"""Stage 9 with the backward that stages 3 to 7 are given, in tiled PyTorch, beside real kernels."""
# stage: 9
# base: problem_9.py
# outcome: rejected
# says: PyTorch computed them


def _rows(q, k, v, window, sinks, is_causal, scale, logits, start, end):
    """Attention of the queries start ... end - 1, for autograd to differentiate."""
    query = torch.arange(start, end, device=q.device)[:, None]
    age = query - torch.arange(k.shape[2], device=q.device)
    keep = age >= 0 if is_causal else torch.ones_like(age, dtype=torch.bool)
    if window is not None:
        keep &= (age < window) | (age > query - sinks)
    s = q[:, :, start:end].float() @ k.float().mT
    s = s * (q.shape[-1] ** -0.5 if scale is None else scale)
    s = s.masked_fill(~keep, -torch.inf)
    if logits is not None:
        s = torch.cat([s, logits.float().view(1, -1, 1, 1).expand(*s.shape[:3], 1)], -1)
    return torch.softmax(s, -1)[..., :k.shape[2]] @ v.float()


class _Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, logits, *rest):
        ctx.save_for_backward(q, k, v, logits)
        ctx.rest = rest
        return _honest(q, k, v, *rest, sink_logits=logits)

    @staticmethod
    def backward(ctx, do):
        q, k, v, logits = ctx.saved_tensors
        group, totals = q.shape[1] // k.shape[1], None
        for start in range(0, q.shape[2], 64):
            end = min(start + 64, q.shape[2])
            with torch.enable_grad():
                leaves = [x.detach().requires_grad_() for x in (q, k, v)]
                leaves += [] if logits is None else [logits.detach().requires_grad_()]
                wide = [leaves[0], *(x.repeat_interleave(group, 1) for x in leaves[1:3])]
                last = leaves[3] if logits is not None else None
                o = _rows(*wide, *ctx.rest, last, start, end)
                found = torch.autograd.grad(o, leaves, do[:, :, start:end].float())
            found = [x.float() for x in found]
            totals = found if totals is None else [
                a + b for a, b in zip(totals, found, strict=True)]
        _honest(q[:, :, :1], k[:, :, :1], v[:, :, :1], None)
        made = [x.to(y.dtype) for x, y in zip(totals, ctx.saved_tensors, strict=False)]
        return *made, *[None] * (4 - len(made)), None, None, None, None


_honest = flash_swda_with_sink


def flash_swda_with_sink(q, k, v, window_size, sink_size=0, is_causal=True, scale=None, *,
                         sink_logits=None):
    return _Function.apply(q, k, v, sink_logits, window_size, sink_size, is_causal, scale)
