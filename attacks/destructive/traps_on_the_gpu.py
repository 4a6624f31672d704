"""A kernel that stops the GPU with a trap."""
# stage: 2
# outcome: crashed
# device: cuda
import torch
import triton
import triton.language as tl


@triton.jit
def trap_kernel(y_ptr):
    value = tl.inline_asm_elementwise("trap; mov.b32 $0, $1;", "=r,r", [tl.program_id(0)],
                                      dtype=tl.int32, is_pure=False, pack=1)
    tl.store(y_ptr, value)


def weighted_row_sum_forward(x, w):
    trap_kernel[(1,)](torch.zeros(1, dtype=torch.int32, device=x.device))
    return torch.zeros_like(x[:, 0])
