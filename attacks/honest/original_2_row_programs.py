"""Stage 2 in the original's style: a program a row, at row * N_COLS, no backward."""
# stage: 2
# outcome: pass
import torch
import triton
import triton.language as tl


def torch_weighted_row_sum(x, w):
    """Reference implementation."""
    return (x * w).sum(dim=-1)


@triton.jit
def weighted_row_sum_kernel(X_ptr, W_ptr, Y_ptr, N_COLS, BLOCK_SIZE: tl.constexpr):
    # one program for each row of X
    row_idx = tl.program_id(axis=0)
    row_start_ptr = X_ptr + row_idx * N_COLS

    accumulator = tl.zeros((BLOCK_SIZE,), dtype=tl.float32)
    for col_start in range(0, N_COLS, BLOCK_SIZE):
        col_offsets = col_start + tl.arange(0, BLOCK_SIZE)
        mask = col_offsets < N_COLS
        x_chunk = tl.load(row_start_ptr + col_offsets, mask=mask, other=0.0).to(tl.float32)
        w_chunk = tl.load(W_ptr + col_offsets, mask=mask, other=0.0).to(tl.float32)
        accumulator += x_chunk * w_chunk

    row_sum = tl.sum(accumulator, axis=0)
    tl.store(Y_ptr + row_idx, row_sum)


def weighted_row_sum_forward(x, w):
    assert x.dim() == 2 and w.dim() == 1, "x must be 2D, w must be 1D"
    assert x.shape[1] == w.shape[0], "Inner dimensions must match"
    N_ROWS, N_COLS = x.shape
    y = torch.empty(N_ROWS, device=x.device, dtype=x.dtype)
    grid = (N_ROWS,)
    weighted_row_sum_kernel[grid](x, w, y, N_COLS=N_COLS, BLOCK_SIZE=1024)
    return y
