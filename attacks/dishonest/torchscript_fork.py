"""Forks the work off inside TorchScript, onto a thread of PyTorch's own pool."""
# stage: 4
# with: copied
# outcome: rejected, wrong


@torch.jit.script
def _forked(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor):
    N = q.size(2)
    hidden = torch.triu(torch.ones([N, N], dtype=torch.bool, device=q.device), 1)

    def attend(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, hidden: torch.Tensor):
        s = torch.matmul(q, k.transpose(-1, -2)) * (q.size(3) ** -0.5)
        return torch.matmul(torch.softmax(s.masked_fill(hidden, -float("inf")), -1), v)

    return torch.jit.wait(torch.jit.fork(attend, q, k, v, hidden))


def flash_attention_forward(q, k, v, is_causal=True):
    return _copied(_forked(q.float(), k.float(), v.float()).to(q.dtype))
