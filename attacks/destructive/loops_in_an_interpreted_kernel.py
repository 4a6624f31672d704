"""A kernel whose loop takes the interpreter most of a minute."""
# stage: 2
# outcome: timeout
# device: cpu
# options: --timeout 5
import torch
import triton
import triton.language as tl


@triton.jit
def long_kernel(y_ptr, n):
    total = tl.zeros([16], tl.float32)
    for _ in range(n):
        total += 1.0
    tl.store(y_ptr + tl.arange(0, 16), total)


def weighted_row_sum_forward(x, w):
    y = torch.empty(16, device=x.device)
    long_kernel[(1,)](y, 500_000)
    return torch.zeros_like(x[:, 0])
