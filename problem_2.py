"""Problem 2 -- Weighted row-sum: the first Triton kernels.

Attention is two matrix products with a sum in between.  This problem takes the sum
alone, to learn Triton with it: programs, offsets, masks, and who owns what.

A Triton kernel is a function that runs many times at once.  Each run is a
*program*; tl.program_id says which one it is, and from that number it works out
which tile of the result is its own.  It computes addresses (pointer + index *
stride, for a whole tile at a time), loads, computes, and stores.  Elements of the
tile that fall outside the tensor are switched off with a mask: without one the
last program would read and write memory that belongs to other tensors.  The first
kernel below, _double_kernel, is complete and explained; read it before step 2.1.

Two things it does not show.  tl.sum(x, axis=1) adds up each row of a tile, axis=0
each column: (BLOCK_M, BLOCK_N) -> (BLOCK_M,) or (BLOCK_N,).  And a mask is a tile of
booleans: join two with &, and put each comparison in parentheses, (i < M) & (j < N).
Do not use Python's `and` and `or`: without a GPU, `a and b` is just b.

Forward     y[i]     = sum_j x[i, j] * w[j]
Backward    dx[i, j] = dy[i] * w[j]
            dw[j]    = sum_i dy[i] * x[i, j]

Shapes      x, dx: (M, N)    w, dw: (N,)    y, dy: (M,)
Dtypes      float16, bfloat16 or float32, x and w in the same.  Sums run in float32;
            y, dx and dw are stored in that dtype.

Who owns what.  A program owns a tile of the *output* and loops over the axis that
it sums over.  No address has two writers, so no program waits for another:

    kernel   owns                 loops over
    fwd      BLOCK_M rows of y    columns, BLOCK_N at a time
    dx       one tile of dx       nothing
    dw       BLOCK_N cols of dw   rows, BLOCK_M at a time

Keep this table in mind: problem 8 asks the same question of dq, dk and dv.

Check       python autograder.py --p2
Stuck       python autograder.py --hint 2.1      (any step number)
Guide       "Stage 2" of the companion guide; README.md says where it is
By hand     TRITON_INTERPRET=1 python problem_2.py runs the kernels without a GPU,
            as ordinary Python: print() works inside them
Source      CS336, assignment 2 (its weighted sum); Triton's tutorials, triton-lang.org
"""

import os

import torch
import triton
import triton.language as tl

# Tile shape.  Powers of two (tl.arange requires it); 16 * 128 float32 values are
# 8 KiB, small enough to fit in the registers, which hold what a program computes with.
BLOCK_M = 16
BLOCK_N = 128

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # kernels run on the CPU, as Python


# ------------------------------------------------------------------ reference
def torch_weighted_row_sum(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """The formula, in float32, written for clarity, not speed.  x (M, N), w (N,) -> y (M,)."""
    return (x.float() * w.float()).sum(dim=1).to(x.dtype)


# --------------------------------------------------------- an example, complete
@triton.jit  # compiled for the GPU when it is first launched
def _double_kernel(x_ptr, y_ptr, N, BLOCK_N: tl.constexpr):  # constexpr: known to the compiler
    """y = 2 x for a contiguous x (N,).  Grid: (cdiv(N, BLOCK_N),), one program per tile."""
    offs_n = tl.program_id(0) * BLOCK_N + tl.arange(0, BLOCK_N)  # which elements are mine?
    mask_n = offs_n < N  # the last tile may reach past the end
    x = tl.load(x_ptr + offs_n, mask=mask_n, other=0.0)  # no read outside: 0 instead
    y = 2.0 * x  # for all BLOCK_N elements at once
    tl.store(y_ptr + offs_n, y, mask=mask_n)


def double(x: torch.Tensor) -> torch.Tensor:
    """Launch the example: kernel[grid](arguments) starts as many programs as the grid says."""
    y = torch.empty_like(x)
    _double_kernel[(triton.cdiv(x.numel(), BLOCK_N),)](x, y, x.numel(), BLOCK_N=BLOCK_N)
    return y


# -------------------------------------------------------------------- kernels
@triton.jit
def _fwd_kernel(
    x_ptr, w_ptr, y_ptr, M, N,
    stride_xm, stride_xn, stride_wn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """Fill BLOCK_M entries of y.  Grid: (cdiv(M, BLOCK_M),)."""
    # Step 2.1 -- Which rows are mine?
    #   offs_m: this program's BLOCK_M row numbers.
    #   mask_m: which of them exist.  The last program may reach past M.
    # BEGIN SOLUTION 2.1
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    mask_m = offs_m < M
    # END SOLUTION 2.1
    offs_m = offs_m.to(tl.int64)  # for a large x, index * stride exceeds 2**31

    acc = tl.zeros([BLOCK_M], dtype=tl.float32)
    for start_n in range(0, N, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N).to(tl.int64)
        mask_n = offs_n < N

        # Step 2.2 -- Load one (BLOCK_M, BLOCK_N) tile of x and BLOCK_N weights.
        #   x: an address is the base plus index * stride for each axis.  [:, None] turns a vector
        #   into a column, [None, :] into a row; together they give a tile of addresses.  Make its
        #   mask from mask_m and mask_n in the same way, joined with &.  w: as x, with only one
        #   index.  Elements outside must be 0: pass other=0.0.  Without it, their value is
        #   undefined.
        # BEGIN SOLUTION 2.2
        x_ptrs = x_ptr + offs_m[:, None] * stride_xm + offs_n[None, :] * stride_xn
        x = tl.load(x_ptrs, mask=mask_m[:, None] & mask_n[None, :], other=0.0)
        w = tl.load(w_ptr + offs_n * stride_wn, mask=mask_n, other=0.0)
        # END SOLUTION 2.2

        # Step 2.3 -- Add this tile's share of each row to acc, with tl.sum.
        #   Make x and w float32 *before* the product: a 16-bit product would be rounded.
        # BEGIN SOLUTION 2.3
        acc += tl.sum(x.to(tl.float32) * w.to(tl.float32)[None, :], axis=1)
        # END SOLUTION 2.3

    tl.store(y_ptr + offs_m, acc.to(y_ptr.dtype.element_ty), mask=mask_m)


@triton.jit
def _dx_kernel(
    dy_ptr, w_ptr, dx_ptr, M, N,
    stride_dym, stride_wn, stride_dxm, stride_dxn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """Fill one tile of dx.  Grid: (cdiv(M, BLOCK_M) * cdiv(N, BLOCK_N),).

    One axis for both directions: a grid's first axis is the only one that may
    exceed 65,535 programs.
    """
    num_n = tl.cdiv(N, BLOCK_N)
    offs_m = (tl.program_id(0) // num_n).to(tl.int64) * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = (tl.program_id(0) % num_n).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask_m, mask_n = offs_m < M, offs_n < N

    # Step 2.4 -- Load dy and w, form their outer product, store the tile.
    #   x is not needed: y is linear in x, so its derivative is w, whatever x is.
    # BEGIN SOLUTION 2.4
    dy = tl.load(dy_ptr + offs_m * stride_dym, mask=mask_m, other=0.0).to(tl.float32)
    w = tl.load(w_ptr + offs_n * stride_wn, mask=mask_n, other=0.0).to(tl.float32)
    dx = dy[:, None] * w[None, :]
    dx_ptrs = dx_ptr + offs_m[:, None] * stride_dxm + offs_n[None, :] * stride_dxn
    tl.store(dx_ptrs, dx.to(dx_ptr.dtype.element_ty), mask=mask_m[:, None] & mask_n[None, :])
    # END SOLUTION 2.4


@triton.jit
def _dw_kernel(
    dy_ptr, x_ptr, dw_ptr, M, N,
    stride_dym, stride_xm, stride_xn,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """Fill BLOCK_N entries of dw.  Grid: (cdiv(N, BLOCK_N),)."""
    offs_n = tl.program_id(0).to(tl.int64) * BLOCK_N + tl.arange(0, BLOCK_N)
    mask_n = offs_n < N

    acc = tl.zeros([BLOCK_N], dtype=tl.float32)
    for start_m in range(0, M, BLOCK_M):
        start_m = tl.cast(start_m, tl.int64)  # as offs_m in the forward
        # Step 2.5 -- The forward loop turned on its side: loop over the rows, sum over axis 0.
        #   offs_m here: BLOCK_M rows from start_m on.  Again other=0.0.
        # BEGIN SOLUTION 2.5
        offs_m = start_m + tl.arange(0, BLOCK_M)
        mask_m = offs_m < M
        x_ptrs = x_ptr + offs_m[:, None] * stride_xm + offs_n[None, :] * stride_xn
        x = tl.load(x_ptrs, mask=mask_m[:, None] & mask_n[None, :], other=0.0)
        dy = tl.load(dy_ptr + offs_m * stride_dym, mask=mask_m, other=0.0)
        acc += tl.sum(dy.to(tl.float32)[:, None] * x.to(tl.float32), axis=0)
        # END SOLUTION 2.5

    tl.store(dw_ptr + offs_n, acc.to(dw_ptr.dtype.element_ty), mask=mask_n)


# ----------------------------------------------------------- launch and autograd
def weighted_row_sum_forward(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Launch the forward kernel.

    Args:
        x: (M, N), any strides; float16, bfloat16 or float32.
        w: (N,), any stride; same dtype and device as x.

    Returns:
        y: (M,), contiguous, dtype of x.

    Raises:
        ValueError, TypeError: a shape, dtype or device breaks the contract above.
    """
    _check(x, w)
    M, N = x.shape
    y = torch.empty(M, device=x.device, dtype=x.dtype)
    with torch.cuda.device(x.get_device()):  # launch where the data is; does nothing on a CPU
        _fwd_kernel[(triton.cdiv(M, BLOCK_M),)](
            x, w, y, M, N, x.stride(0), x.stride(1), w.stride(0), BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N,
        )
    return y


class WeightedRowSumFunction(torch.autograd.Function):
    """Connects the three kernels to autograd.  First derivatives only."""

    @staticmethod
    def forward(ctx, x, w):
        ctx.save_for_backward(x, w)
        return weighted_row_sum_forward(x, w)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy):
        x, w = ctx.saved_tensors
        M, N = x.shape
        grid_m, grid_n = triton.cdiv(M, BLOCK_M), triton.cdiv(N, BLOCK_N)
        dx = dw = None
        # Step 2.6 -- Allocate and launch; leave None where ctx.needs_input_grad is False.
        #   ctx.needs_input_grad has an entry for x and one for w; dx and dw have their shapes.
        #   dy can be a view of one number: y.sum().backward() sends stride 0.  Pass
        #   dy.stride(0) on; never assume 1.  Grids: see the kernels' docstrings.
        # BEGIN SOLUTION 2.6
        with torch.cuda.device(x.get_device()):
            if ctx.needs_input_grad[0]:
                dx = torch.empty(M, N, device=x.device, dtype=x.dtype)
                _dx_kernel[(grid_m * grid_n,)](
                    dy, w, dx, M, N, dy.stride(0), w.stride(0), dx.stride(0), dx.stride(1),
                    BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N,
                )
            if ctx.needs_input_grad[1]:
                dw = torch.empty(N, device=w.device, dtype=w.dtype)
                _dw_kernel[(grid_n,)](
                    dy, x, dw, M, N, dy.stride(0), x.stride(0), x.stride(1),
                    BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N,
                )
        # END SOLUTION 2.6
        return dx, dw


def weighted_row_sum(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
    """Differentiable y = x @ w.  Contract: see weighted_row_sum_forward."""
    return WeightedRowSumFunction.apply(x, w)


def _check(x: torch.Tensor, w: torch.Tensor) -> None:
    """Refuse bad input here: inside a kernel it would be a silent wrong read."""
    if x.dim() != 2 or w.dim() != 1 or x.shape[1] != w.shape[0] or x.numel() == 0:
        raise ValueError(f"want x (M, N), w (N,), not empty; got {list(x.shape)}, {list(w.shape)}")
    # Triton's interpreter has no bfloat16: it would compute nonsense, silently.
    known = [torch.float16, torch.float32] + [torch.bfloat16] * x.is_cuda
    if x.dtype != w.dtype or x.dtype not in known:
        both = f"{x.dtype}, {w.dtype}"
        raise TypeError(f"want float16, float32, or on a GPU bfloat16, for both; got {both}")
    if x.device != w.device:
        raise ValueError(f"want one device; got x on {x.device}, w on {w.device}")
    if not x.is_cuda and not INTERPRETED:
        raise ValueError(f"want CUDA tensors, or TRITON_INTERPRET=1 at start; got {x.device}")


if __name__ == "__main__":  # a look, not a test
    x, w = torch.randn(5, 300), torch.randn(300)
    if torch.cuda.is_available():
        x, w = x.cuda(), w.cuda()
    _check(x, w)  # says what is wanted where there is no GPU
    print("double ", double(w[:4]).tolist(), "of", w[:4].tolist())
    print("triton ", weighted_row_sum(x, w).tolist())
    print("torch  ", torch_weighted_row_sum(x, w).tolist())
