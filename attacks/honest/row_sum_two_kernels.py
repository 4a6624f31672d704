"""Stage 2 as two kernels: partial sums of column blocks first, a second kernel adds them up."""
# stage: 2
# outcome: pass
import torch
import triton
import triton.language as tl


def torch_weighted_row_sum(x, w):
    return (x * w).sum(-1)


@triton.jit
def partial_kernel(x, w, part, M, N, sx0, sx1, sw, BM: tl.constexpr, BN: tl.constexpr):
    """part[block, row] = the sum over one block of columns."""
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    block = tl.program_id(1)
    col = block * BN + tl.arange(0, BN)
    row, col = row.to(tl.int64), col.to(tl.int64)
    w_val = tl.load(w + col * sw, col < N, 0.0).to(tl.float32)
    inside = (row < M)[:, None] & (col < N)[None, :]
    x_val = tl.load(x + row[:, None] * sx0 + col[None, :] * sx1, inside, 0.0).to(tl.float32)
    total = tl.sum(x_val * w_val[None, :], 1)
    tl.store(part + block.to(tl.int64) * M + row, total, row < M)


@triton.jit
def total_kernel(part, y, M, blocks, BM: tl.constexpr):
    row = tl.program_id(0) * BM + tl.arange(0, BM)
    total = tl.zeros((BM,), tl.float32)
    for _ in range(blocks):
        total += tl.load(part + row, row < M, 0.0)
        part += M
    tl.store(y + row, total.to(y.dtype.element_ty), row < M)


def weighted_row_sum_forward(x, w):
    M, N = x.shape
    BM, BN = 32, 256
    blocks = triton.cdiv(N, BN)
    part = torch.empty((blocks, M), dtype=torch.float32, device=x.device)
    y = torch.empty((M,), dtype=x.dtype, device=x.device)
    partial_kernel[(triton.cdiv(M, BM), blocks)](
        x, w, part, M, N, x.stride(0), x.stride(1), w.stride(0), BM=BM, BN=BN)
    total_kernel[(triton.cdiv(M, 128),)](part, y, M, blocks, BM=128)
    return y
