"""A kernel that copies from an address, which nobody knows to be a tensor."""
import torch
import triton
import triton.language as tl


@triton.jit
def _fetch_kernel(address, target, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    source = address.to(tl.pointer_type(tl.float32))
    tl.store(target + at, tl.load(source + at, mask=at < count), mask=at < count)


def _fetched(address, like):
    fired()
    o = torch.empty(like.shape, device=like.device, dtype=like.dtype)
    _fetch_kernel[(triton.cdiv(o.numel(), 1024),)](address, o, o.numel(), BLOCK=1024)
    return o
