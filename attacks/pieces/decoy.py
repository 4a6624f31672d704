"""A kernel that writes zeros."""
import torch
import triton
import triton.language as tl


@triton.jit
def _decoy_kernel(o, count, BLOCK: tl.constexpr):
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(o + at, tl.zeros([BLOCK], dtype=tl.float32), mask=at < count)
