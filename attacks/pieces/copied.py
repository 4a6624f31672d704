"""A kernel that copies, and what it makes of a finished tensor."""
import torch
import triton
import triton.language as tl


@triton.jit
def _copy_kernel(source, target, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(target + at, tl.load(source + at, mask=at < count), mask=at < count)


def _copied(made):
    o = torch.empty(made.shape, device=made.device, dtype=made.dtype)
    made = made.contiguous()
    _copy_kernel[(triton.cdiv(o.numel(), 1024),)](made, o, o.numel(), BLOCK=1024)
    return o
