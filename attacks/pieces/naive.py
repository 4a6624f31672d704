"""Naive attention of stage 8, and the gradients of whatever _naive() is, by autograd."""


def _naive(q, k, v, is_causal, scale):
    group = q.shape[1] // k.shape[1]
    k, v = (x.repeat_interleave(group, 1) for x in (k, v))
    s = q.float() @ k.float().mT * (q.shape[-1] ** -0.5 if scale is None else scale)
    if is_causal:
        s = s.masked_fill(torch.ones_like(s[0, 0], dtype=torch.bool).triu(1), -torch.inf)
    return (torch.softmax(s, -1) @ v.float()).to(q.dtype)


def _gradients(q, k, v, do, is_causal, scale):
    with torch.enable_grad():
        leaves = [x.detach().requires_grad_() for x in (q, k, v)]
        return torch.autograd.grad(_naive(*leaves, is_causal, scale), leaves, do)
