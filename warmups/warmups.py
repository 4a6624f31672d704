"""Warm-ups -- eight short exercises, a few minutes each: seven before problem 1, one after 4.

The nine problems ask for two things at once: the mathematics of attention, and Triton.  Here each
comes alone, in its smallest form; W.6 joins the two, and W.7 is what surrounds a kernel.  None of
it earns points.

    W.1  the online softmax, in a loop      PyTorch     returns in problems 1 and 3
    W.2  softmax times a matrix, in tiles   PyTorch     problem 1
    W.3  the sum of two vectors             Triton      problem 2
    W.4  the sum of each row up to the diagonal, with a mask    problems 2 and 4
    W.5  a product of matrices, in tiles, with tl.dot     problem 3
    W.6  the online softmax of rows longer than a tile    Triton      problem 3
    W.7  a kernel's launch, and its gradient              PyTorch     problems 2 and 8
    W.8  tiles for a kernel, and a prediction                         after problem 4

Triton in a few words; problem 2 says more.  A kernel is a function that runs many times at once.
Each run is a *program*, and tl.program_id(0) is its number, from 0 on.  tl.arange(0, BLOCK) is a
tile, the numbers 0 ... BLOCK - 1, and what is computed with it is done for all of them at once;
each of its places is a *lane*.  A pointer plus a tile of numbers is a tile of addresses: tl.load
reads there, tl.store writes there.  Lanes whose element does not exist are switched off by a mask,
a tile of booleans: tl.load(..., mask=mask, other=0.0) gives 0 for them and reads nothing, and
tl.store(..., mask=mask) writes nothing.

Check       python autograder.py --warmup           (--watch: again whenever you save)
One alone   python autograder.py --step W.1         (any of them; faster)
Stuck       python autograder.py --hint W.1         (any of them)
By hand     TRITON_INTERPRET=1 python warmups/warmups.py runs them all without a GPU
Guide       "Warm-ups", and for W.8 "How a GPU runs a kernel"; README.md says where it is
Source      W.1: Online normalizer calculation for softmax, arXiv 1805.02867
"""

import os

import torch

BLOCK = 32  # elements of a tile, a power of two


# ------------------------------------------------- W.1  the online softmax, in a loop
def online_softmax(x: torch.Tensor) -> torch.Tensor:
    """softmax(x) of x (N,), float32: one loop for the maximum and the sum, one for the result.

    exp(x) of a large x is infinite, so softmax subtracts the maximum first.  The sum can be started
    before the maximum is known: when a larger number comes, the sum so far is corrected.
    """
    m_i = torch.tensor(float("-inf"), device=x.device)  # the largest number so far
    l_i = torch.tensor(0.0, device=x.device)  # the sum of exp(x - m_i) so far
    for start in range(0, x.numel(), BLOCK):
        tile = x[start : start + BLOCK]
        # Step W.1 -- Bring m_i and l_i up to date with this tile.
        #   m_i: the larger of itself and the tile's largest.  l_i: the numbers summed so far
        #   used the old maximum; multiply by exp(old maximum - new one), then add the tile's sum
        #   of exp(x - new one).  In the first tile that factor is exp(-inf) = 0.
        # BEGIN SOLUTION W.1
        m_new = torch.maximum(m_i, tile.max())
        l_i = l_i * torch.exp(m_i - m_new) + torch.exp(tile - m_new).sum()
        m_i = m_new
        # END SOLUTION W.1
    return torch.exp(x - m_i) / l_i


# ---------------------------------------------- W.2  softmax times a matrix, in tiles
def softmax_times(s: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """softmax(s) @ v of s (M, N) and v (N, D), float32 -> (M, D), each row's weights summing to 1.

    The (M, N) weights never all exist at once: this is attention with given scores s.
    """
    M, N = s.shape
    m_i = torch.full((M,), float("-inf"), device=s.device)  # of each row, as in W.1
    l_i = torch.zeros(M, device=s.device)
    acc = torch.zeros(M, v.shape[1], device=s.device)  # the sum of exp(s - m_i) * v so far
    for start in range(0, N, BLOCK):
        s_tile = s[:, start : start + BLOCK]
        v_tile = v[start : start + BLOCK]
        # Step W.2 -- Bring m_i, l_i and acc up to date with this tile.
        #   As in W.1, for M rows at once: m_i and l_i are (M,), s_tile is (M, columns).
        #   acc (M, D) was made with the old maximum, too: it takes the same factor as l_i.
        # BEGIN SOLUTION W.2
        m_new = torch.maximum(m_i, s_tile.amax(dim=1))
        alpha = torch.exp(m_i - m_new)
        p = torch.exp(s_tile - m_new[:, None])
        l_i = alpha * l_i + p.sum(dim=1)
        acc = alpha[:, None] * acc + p @ v_tile
        m_i = m_new
        # END SOLUTION W.2
    return acc / l_i[:, None]


import triton
import triton.language as tl

TILE = 16  # rows and columns of a tile in W.5; tl.dot needs at least 16 terms per sum


# -------------------------------------------------- W.3  the sum of two vectors, Triton
@triton.jit
def _add_kernel(x_ptr, y_ptr, z_ptr, N, BLOCK: tl.constexpr):
    """z = x + y, contiguous, (N,).  Grid: (cdiv(N, BLOCK),): each program fills BLOCK of z."""
    # Step W.3 -- Load this program's elements of x and y, add them, store the sum.
    #   Program 0 has elements 0 ... BLOCK - 1, program 1 the next BLOCK, and so on.  The last one
    #   may reach past N: those elements need a mask, in the loads and in the store.
    # BEGIN SOLUTION W.3
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    mask = offs < N
    x = tl.load(x_ptr + offs, mask=mask, other=0.0)
    y = tl.load(y_ptr + offs, mask=mask, other=0.0)
    tl.store(z_ptr + offs, x + y, mask=mask)
    # END SOLUTION W.3


def add(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
    """x + y for x and y (N,), contiguous."""
    z = torch.empty_like(x)
    _add_kernel[(triton.cdiv(x.numel(), BLOCK),)](x, y, z, x.numel(), BLOCK=BLOCK)
    return z


# ------------------------------------ W.4  the sum of each row up to the diagonal, Triton
@triton.jit
def _row_sum_kernel(x_ptr, y_ptr, N, BLOCK: tl.constexpr):
    """y[i] = x[i, 0] + ... + x[i, i] for x (M, N), contiguous.  Grid: (M,): one program per row.

    x[i, i] is on the diagonal: row and column are the same number.
    """
    row = tl.program_id(0)
    acc = 0.0
    for start in range(0, N, BLOCK):
        # Step W.4 -- Add to acc those numbers of this tile that count for row `row`.
        #   The tile has columns start ... start + BLOCK - 1; element (row, column) is at
        #   x_ptr + row * N + column.  A column counts if it exists and is at most `row`: two
        #   comparisons, each in parentheses, joined with &.  tl.sum(tile, axis=0) sums a tile.
        # BEGIN SOLUTION W.4
        offs = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * N + offs, mask=(offs < N) & (offs <= row), other=0.0)
        acc += tl.sum(x, axis=0)
        # END SOLUTION W.4
    tl.store(y_ptr + row, acc)


def causal_row_sum(x: torch.Tensor) -> torch.Tensor:
    """The sum of each row of x (M, N), float32, contiguous, up to the diagonal -> (M,)."""
    M, N = x.shape
    y = torch.empty(M, device=x.device, dtype=x.dtype)
    _row_sum_kernel[(M,)](x, y, N, BLOCK=BLOCK)
    return y


# ------------------------------------------- W.5  a product of matrices, in tiles, Triton
@triton.jit
def _matmul_kernel(a_ptr, b_ptr, c_ptr, M, N, K, TILE: tl.constexpr):
    """c = a b, contiguous; one TILE x TILE tile of c.  Grid: (cdiv(M, TILE), cdiv(N, TILE))."""
    offs_m = tl.program_id(0) * TILE + tl.arange(0, TILE)
    offs_n = tl.program_id(1) * TILE + tl.arange(0, TILE)
    acc = tl.zeros([TILE, TILE], dtype=tl.float32)
    for start in range(0, K, TILE):
        offs_k = start + tl.arange(0, TILE)
        # Step W.5 -- Load a tile of a (M, K) and one of b (K, N), and add their product to acc.
        #   [:, None] turns a tile of numbers into a column, [None, :] into a row; together they
        #   give a tile of addresses: a[i, k] is at a_ptr + i * K + k, b[k, j] at b_ptr + k * N + j.
        #   Mask both with what exists, other=0.0; a mask has two axes, too: rows[:, None] < M.
        #   tl.dot(x, y) is the product of two tiles.
        # BEGIN SOLUTION W.5
        a = tl.load(a_ptr + offs_m[:, None] * K + offs_k[None, :],
                    mask=(offs_m[:, None] < M) & (offs_k[None, :] < K), other=0.0)
        b = tl.load(b_ptr + offs_k[:, None] * N + offs_n[None, :],
                    mask=(offs_k[:, None] < K) & (offs_n[None, :] < N), other=0.0)
        acc += tl.dot(a, b)
        # END SOLUTION W.5
    tl.store(c_ptr + offs_m[:, None] * N + offs_n[None, :], acc,
             mask=(offs_m[:, None] < M) & (offs_n[None, :] < N))


def matmul(a: torch.Tensor, b: torch.Tensor) -> torch.Tensor:
    """a b for a (M, K) and b (K, N), float16, contiguous -> (M, N), float32."""
    (M, K), N = a.shape, b.shape[1]
    c = torch.empty(M, N, device=a.device, dtype=torch.float32)
    _matmul_kernel[(triton.cdiv(M, TILE), triton.cdiv(N, TILE))](a, b, c, M, N, K, TILE=TILE)
    return c


# ----------------------------------------------- W.6  the online softmax of rows, Triton
@triton.jit
def _softmax_kernel(x_ptr, y_ptr, N, BLOCK: tl.constexpr):
    """y[i] = softmax(x[i]) for x (M, N), contiguous.  Grid: (M,): one program per row."""
    row = tl.program_id(0)
    m_i, l_i = float("-inf"), 0.0  # the maximum and the sum so far, as in W.1
    # Step W.6 -- Loop over the row's tiles twice: for m_i and l_i, then to store the softmax in y.
    #   The row is longer than a tile, so its maximum is known only after the first loop.  That one
    #   does what W.1 did: tl.max(tile, axis=0) is a tile's largest number, tl.maximum(a, b) the
    #   larger of two, tl.exp the exponential.  Columns past N - 1 must count neither as a maximum
    #   nor in the sum: load them as -inf, other=float("-inf").
    #   The second loop loads each tile again, and stores exp(x - m_i) / l_i at the same place of y.
    # BEGIN SOLUTION W.6
    for start in range(0, N, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * N + offs, mask=offs < N, other=float("-inf"))
        m_new = tl.maximum(m_i, tl.max(x, axis=0))
        l_i = l_i * tl.exp(m_i - m_new) + tl.sum(tl.exp(x - m_new), axis=0)
        m_i = m_new
    for start in range(0, N, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        x = tl.load(x_ptr + row * N + offs, mask=offs < N, other=float("-inf"))
        tl.store(y_ptr + row * N + offs, tl.exp(x - m_i) / l_i, mask=offs < N)
    # END SOLUTION W.6


def softmax(x: torch.Tensor) -> torch.Tensor:
    """softmax of each row of x (M, N), float32, contiguous -> (M, N)."""
    M, N = x.shape
    y = torch.empty_like(x)
    _softmax_kernel[(M,)](x, y, N, BLOCK=BLOCK)
    return y


# ------------------------------------- W.7  launch a kernel, and connect it to autograd
@triton.jit
def _rows_kernel(x_ptr, y_ptr, M, N, scale, stride_xm, stride_xn,
                 BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """y[i] = softmax(scale * x[i]) for x (M, N), any strides; y (M, N), contiguous.

    Grid: (cdiv(M, BLOCK_M),): BLOCK_M rows per program, each whole in its tile: BLOCK_N >= N.
    """
    i = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    j = tl.arange(0, BLOCK_N)[None, :]
    inside = (i < M) & (j < N)
    x = tl.load(x_ptr + i * stride_xm + j * stride_xn, mask=inside, other=0.0)
    x = tl.where(j < N, scale * x, float("-inf"))
    y = tl.exp(x - tl.max(x, axis=1)[:, None])
    tl.store(y_ptr + i * N + j, y / tl.sum(y, axis=1)[:, None], mask=inside)


@triton.jit
def _rows_backward_kernel(y_ptr, dy_ptr, dx_ptr, M, N, scale, stride_dym, stride_dyn,
                          BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """dx[i] = scale * y[i] * (dy[i] - sum of y[i] dy[i]).  y, dx (M, N), contiguous; dy: any
    strides.  Grid and tiles: as in the forward."""
    i = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)[:, None]
    j = tl.arange(0, BLOCK_N)[None, :]
    inside = (i < M) & (j < N)
    y = tl.load(y_ptr + i * N + j, mask=inside, other=0.0)
    dy = tl.load(dy_ptr + i * stride_dym + j * stride_dyn, mask=inside, other=0.0)
    dx = scale * y * (dy - tl.sum(y * dy, axis=1)[:, None])
    tl.store(dx_ptr + i * N + j, dx, mask=inside)


def scaled_softmax(x: torch.Tensor, scale: float, BLOCK_M: int = 4) -> torch.Tensor:
    """softmax of each row of scale * x, with a gradient; x (M, N), float32, any strides."""
    # Step W.7 -- Write class Softmax(torch.autograd.Function), with two @staticmethods.
    #   forward(ctx, x, scale): make y, contiguous, launch _rows_kernel, and return y.  A launch is
    #   kernel[grid](its arguments): the docstring says the grid, x.stride() the strides of x.
    #   BLOCK_N is yours to choose: a power of two, N or more (triton.next_power_of_2), in both
    #   launches.  Keep what backward needs: tensors with ctx.save_for_backward, a number as
    #   ctx.scale.
    #   backward(ctx, dy): the same with _rows_backward_kernel.  Return one gradient for each
    #   argument of forward after ctx: dx, and None for a number.  dy may have any strides, even 0.
    # BEGIN SOLUTION W.7
    class Softmax(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x, scale):
            M, N = x.shape
            y = torch.empty(M, N, device=x.device, dtype=x.dtype)
            _rows_kernel[(triton.cdiv(M, BLOCK_M),)](
                x, y, M, N, scale, x.stride(0), x.stride(1),
                BLOCK_M=BLOCK_M, BLOCK_N=triton.next_power_of_2(N))
            ctx.save_for_backward(y)
            ctx.scale = scale
            return y

        @staticmethod
        def backward(ctx, dy):
            y, = ctx.saved_tensors
            M, N = y.shape
            dx = torch.empty_like(y)
            _rows_backward_kernel[(triton.cdiv(M, BLOCK_M),)](
                y, dy, dx, M, N, ctx.scale, dy.stride(0), dy.stride(1),
                BLOCK_M=BLOCK_M, BLOCK_N=triton.next_power_of_2(N))
            return dx, None
    # END SOLUTION W.7
    return Softmax.apply(x, scale)


# ----------------------------- W.8  choose tiles, and predict: when problem 4 is solved
def choose() -> tuple[dict, str, tuple[str, str]]:
    """Tiles for the kernel of your problem_4.py with D = 128, float16, and a prediction.

    In shared memory are q's tile (BLOCK_M, D) and num_stages tiles of k and v, (BLOCK_N, D) each.
    In registers are acc (BLOCK_M, D) and s (BLOCK_M, BLOCK_N), in float32: one register for each
    number, at most 255 per thread.  A program has 32 num_warps threads.

    The candidates, all with num_warps=4 and num_stages=2, for 16 heads of 4,096 tokens:

        A   BLOCK_M =  64, BLOCK_N =  64
        B   BLOCK_M = 128, BLOCK_N = 128
        C   BLOCK_M =  16, BLOCK_N =  16
    """
    # Step W.8 -- Choose tiles, and predict which candidate is the fastest.
    #   BLOCK_M, BLOCK_N, num_warps, num_stages: for at most 75 KiB of shared memory, so that three
    #   programs fit on a multiprocessor of an H100.  BLOCK_M: 64 or more, a multiple of BLOCK_N.
    #   num_stages: 2 or more.
    #   fastest: "A", "B" or "C".  why: what slows each of the other two, in their order: two of
    #   "registers" (too few, so that some are spilled), "shared memory" and "little work" (in a
    #   tile, for what is loaded).  The prediction is not graded; on a GPU it is checked.
    # BEGIN SOLUTION W.8
    BLOCK_M, BLOCK_N, num_warps, num_stages = 64, 32, 4, 3
    fastest = "A"
    why = "registers", "little work"
    # END SOLUTION W.8
    return dict(BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_warps=num_warps,
                num_stages=num_stages), fastest, why


if __name__ == "__main__":  # a look, not a test
    device = "cuda" if torch.cuda.is_available() else "cpu"
    x, y = torch.randn(70, device=device), torch.randn(70, device=device)
    s = torch.randn(3, 70, device=device)
    a = torch.randn(20, 40, device=device, dtype=torch.float16)
    print("W.1", online_softmax(x)[:4].tolist(), "of", x.softmax(0)[:4].tolist())
    print("W.2", softmax_times(s, s.T)[0].tolist(), "of", (s.softmax(1) @ s.T)[0].tolist())
    if device == "cpu" and os.environ.get("TRITON_INTERPRET") != "1":
        raise SystemExit("W.3 to W.7: want a GPU, or TRITON_INTERPRET=1 at start; got neither")
    print("W.3", add(x, y)[:4].tolist(), "of", (x + y)[:4].tolist())
    print("W.4", causal_row_sum(s).tolist(), "of", s.tril().sum(1).tolist())
    print("W.5", matmul(a, a.T.contiguous())[0, :3].tolist(), "of", (a @ a.T)[0, :3].tolist())
    print("W.6", softmax(s)[0, :4].tolist(), "of", s.softmax(1)[0, :4].tolist())
    print("W.7", scaled_softmax(s.T, 0.5)[0].tolist(), "of", (0.5 * s.T).softmax(1)[0].tolist())
    print("W.8", *choose())
