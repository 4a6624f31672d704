"""A kernel that runs for 40 s by the clock of the GPU, which no signal reaches."""
# stage: 2
# outcome: timeout
# device: cuda
# options: --timeout 5
import torch
import triton
import triton.language as tl
from triton.language.extra.cuda import globaltimer


@triton.jit
def endless_kernel(y_ptr):
    start = globaltimer()
    now = start
    while now - start < 40_000_000_000:
        now = globaltimer()
    tl.store(y_ptr, now)


def weighted_row_sum_forward(x, w):
    endless_kernel[(1,)](torch.empty(1, dtype=torch.int64, device=x.device))
    return torch.zeros_like(x[:, 0])
