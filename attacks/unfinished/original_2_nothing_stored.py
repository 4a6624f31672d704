"""Stage 2 in the original's style: the sum is made and not stored, y as torch.empty left it."""
# stage: 2
# outcome: wrong, crashed, not_started
import torch
import triton
import triton.language as tl


@triton.jit
def weighted_row_sum_kernel(X_ptr, W_ptr, Y_ptr, N_COLS, BLOCK_SIZE: tl.constexpr):
    row_idx = tl.program_id(axis=0)
    accumulator = tl.zeros((BLOCK_SIZE,), dtype=tl.float32)
    for start in range(0, N_COLS, BLOCK_SIZE):
        offsets = start + tl.arange(0, BLOCK_SIZE)
        mask = offsets < N_COLS
        x = tl.load(X_ptr + row_idx * N_COLS + offsets, mask=mask, other=0.0)
        w = tl.load(W_ptr + offsets, mask=mask, other=0.0)
        accumulator += x.to(tl.float32) * w.to(tl.float32)
    # --- STUDENT IMPLEMENTATION REQUIRED HERE ---
    row_sum = tl.sum(accumulator, axis=0)
    # --- END OF STUDENT IMPLEMENTATION ---


def weighted_row_sum_forward(x, w):
    y = torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    weighted_row_sum_kernel[(x.shape[0],)](x, w, y, x.shape[1], BLOCK_SIZE=1024)
    return y
