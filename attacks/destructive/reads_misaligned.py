"""Reads float32 at an odd address."""
# stage: 2
# outcome: crashed
# device: cuda
import torch
import triton
import triton.language as tl


@triton.jit
def odd_kernel(x_ptr, y_ptr):
    odd = (x_ptr.to(tl.int64) + 1).to(tl.pointer_type(tl.float32))
    tl.store(y_ptr, tl.load(odd))


def weighted_row_sum_forward(x, w):
    y = torch.zeros(x.shape[0], device=x.device)
    odd_kernel[(1,)](x, y)
    return y.to(x.dtype)
