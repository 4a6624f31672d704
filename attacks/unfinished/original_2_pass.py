"""Stage 2 in the original's style: the loop's body is pass, the accumulator goes out."""
# stage: 2
# outcome: wrong, crashed, not_started
import torch
import triton
import triton.language as tl


@triton.jit
def weighted_row_sum_kernel(X_ptr, W_ptr, Y_ptr, N_COLS, BLOCK_SIZE: tl.constexpr):
    row_idx = tl.program_id(axis=0)
    # --- STUDENT IMPLEMENTATION REQUIRED (Part 1) ---
    row_start_ptr = X_ptr + row_idx * N_COLS
    accumulator = tl.zeros((BLOCK_SIZE,), dtype=tl.float32)
    # --- END OF STUDENT IMPLEMENTATION ---
    for col_block_start in range(0, N_COLS, BLOCK_SIZE):
        # --- STUDENT IMPLEMENTATION REQUIRED (Part 2) ---
        pass
        # --- END OF STUDENT IMPLEMENTATION ---
    tl.store(Y_ptr + row_idx, tl.sum(accumulator, axis=0))


def weighted_row_sum_forward(x, w):
    N_ROWS, N_COLS = x.shape
    y = torch.empty(N_ROWS, dtype=x.dtype, device=x.device)
    weighted_row_sum_kernel[(N_ROWS,)](x, w, y, N_COLS=N_COLS, BLOCK_SIZE=1024)
    return y
