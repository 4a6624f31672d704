"""Problem 3 -- FlashAttention in Triton: without a mask.

Problem 1 looped over the key tiles of one query tile in Python: about fifteen PyTorch
operations per tile, and each of them read and wrote device memory.  Here one kernel
does the whole loop: q, m_i, l_i and acc stay on the chip, and only k and v are read,
tile by tile.

Who owns what.  As in problem 2, a program owns a tile of the output, here
BLOCK_M rows of o and of lse, for one head of one batch entry; it loops over the keys:

    program  ->  (head h of batch entry b, query rows)
                       start_n = 0        BLOCK_N      2 BLOCK_N
    q tile     @     [ k tile 0 ]^T     [ k tile 1 ]^T   ...      acc, l_i, m_i,
    (BLOCK_M, D)     [ v tile 0 ]       [ v tile 1 ]     ...      in float32

query and key are positions in the sequence: what problem 2 called offs_m, offs_n.

Base two.  The GPU has an instruction for 2^x and none for e^x; exp(x) = 2^(x log2 e).
So scores are multiplied by scale * LOG2E in place of scale, and the softmax runs in
base 2: m_i, too, is in base 2.  Only lse is stored as a natural logarithm.

Any N is allowed, so the last query tile may reach past the end: its extra rows load
as 0 and are never stored.  The last key tile may reach past the end, too: its extra
keys would get the score 0, not -inf, and must be masked.  All other key tiles need no
mask, for loads or scores, and are faster without one; so the loop has two phases, told
apart by two flags.  D is padded with zeros to BLOCK_D: tl.arange needs a power of two.

    MASKED   the scores of this tile need the mask
    RAGGED   some rows of this tile may be past N - 1

New in Triton.  tl.dot(a, b) is the product of two tiles of the same dtype, summed in
float32 over at least 16 terms.  Warm-up W.5 uses it on its own; W.6 is an online softmax.
tl.dot(a, b, acc) is a @ b + acc; tl.trans(x) is the transpose; tl.where,
tl.maximum, tl.math.exp2 and tl.math.log2 work element by element; tl.max(x, axis=1)
takes the maximum of each row.  One jit function may call another and get several
values back.  A tuple, such as q.stride(), is one argument.  Shapes and constexpr
arguments are known to the compiler: an `if` on them costs nothing.

The kernel comes first, then the functions that it calls: _attend, _keep, _head,
_load, _store.  Write the steps in any order; all of them are needed to run it.

Shapes      q, k, v, o: (B, HQ, N, D)    lse: (B, HQ, N), natural logarithm
Dtypes      float16, bfloat16, float32.  Softmax and sums run in float32; p is rounded
            to the dtype of v before its product.  Float32 tiles are multiplied in
            TF32 (10 bits) where the GPU has it, as Triton does by default.

Check       python autograder.py --p3
Stuck       python autograder.py --hint 3.1      (any step number)
Guide       "Stage 3" of the companion guide; README.md says where it is
Faster      sink_attn/README.md, once all of this passes
Source      FlashAttention-2, arXiv 2307.08691, Algorithm 1
"""

import os

import torch
import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)  # exp(x) == exp2(x * LOG2E)
LN2 = tl.constexpr(0.6931471805599453)  # log(x) == log2(x) * LN2

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # kernels run on the CPU, as Python


# ------------------------------------------------------------------- kernel
@triton.jit
def _fwd_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, q_strides, k_strides, v_strides, HQ, N, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """Fill BLOCK_M rows of o and lse.  Grid: (cdiv(N, BLOCK_M) * B * HQ,)."""
    # Step 3.1 -- Which rows of which head are mine?
    #   Programs 0, 1, 2 ... take the query tiles of head 0, the next ones those of head 1, and so
    #   on: neighbours run side by side, and read the same k and v.
    #   bh: the number of my head among all B * HQ.  b, h: which batch entry, and which head of it.
    #   start_m: my first row.  query (BLOCK_M,): all my rows.
    # BEGIN SOLUTION 3.1
    num_tiles = tl.cdiv(N, BLOCK_M)
    bh = tl.program_id(0) // num_tiles
    b, h = bh // HQ, bh % HQ
    start_m = tl.program_id(0) % num_tiles * BLOCK_M
    query = start_m + tl.arange(0, BLOCK_M)
    # END SOLUTION 3.1
    # Offsets are computed from these and may exceed 2**31.
    bh, b, h = tl.cast(bh, tl.int64), tl.cast(b, tl.int64), tl.cast(h, tl.int64)
    q = _load(_head(q_ptr, q_strides, b, h), start_m, N, D, BLOCK_D, BLOCK_M, RAGGED=True)
    k_head, v_head = _head(k_ptr, k_strides, b, h), _head(v_ptr, v_strides, b, h)

    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    l_i, m_i = tl.zeros([BLOCK_M], tl.float32), tl.full([BLOCK_M], float("-inf"), tl.float32)
    # Step 3.2 -- Loop over the keys: all whole tiles, then the last tile if it is not whole.
    #   whole: how many keys are in whole tiles.  Write a loop for these and an if for the last
    #   tile; in both, acc, l_i, m_i = _attend(acc, l_i, m_i, ..., scale * LOG2E, D, BLOCK_N,
    #   MASKED=...).
    # BEGIN SOLUTION 3.2
    whole = N // BLOCK_N * BLOCK_N
    for start_n in range(0, whole, BLOCK_N):
        acc, l_i, m_i = _attend(acc, l_i, m_i, q, k_head, v_head, query, start_n, N, scale * LOG2E,
                                D, BLOCK_N, MASKED=False)
    if whole < N:
        acc, l_i, m_i = _attend(acc, l_i, m_i, q, k_head, v_head, query, whole, N, scale * LOG2E,
                                D, BLOCK_N, MASKED=True)
    # END SOLUTION 3.2

    # Step 3.3 -- Normalise once, form lse, and store both.
    #   lse (BLOCK_M,): a natural logarithm, though m_i is in base 2.  The tensor of all lse is
    #   (B, HQ, N), contiguous: head bh begins at lse_ptr + bh * N.  Rows past N - 1 must not be
    #   stored.  Only the backward reads lse: a mistake in it shows only in the gradients.
    # BEGIN SOLUTION 3.3
    lse = (m_i + tl.math.log2(l_i)) * LN2
    _store(o_ptr, acc / l_i[:, None], bh, query, N, D)
    tl.store(lse_ptr + bh * N + query, lse, mask=query < N)
    # END SOLUTION 3.3


@triton.jit
def _attend(acc, l_i, m_i, q, k_head, v_head, query, start_n, N, scale_log2e,
            D: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr):
    """Update acc, l_i, m_i with one key tile, and return their new values."""
    # Only a MASKED tile may have rows past N - 1.
    k = _load(k_head, start_n, N, D, q.shape[1], BLOCK_N, RAGGED=MASKED)
    v = _load(v_head, start_n, N, D, q.shape[1], BLOCK_N, RAGGED=MASKED)
    key = start_n + tl.arange(0, BLOCK_N)
    keep = _keep(query[:, None], key[None, :], N)
    # Step 3.4 -- The scores of this tile, not yet scaled.
    #   s (BLOCK_M, BLOCK_N), float32.  In a MASKED tile it is -inf where keep is False.
    # BEGIN SOLUTION 3.4
    s = tl.dot(q, tl.trans(k))
    if MASKED:
        s = tl.where(keep, s, float("-inf"))
    # END SOLUTION 3.4

    # Step 3.5 -- Online softmax, steps 1.3 and 1.4 in base 2.
    #   m_new (BLOCK_M,): the larger of m_i and the row's maximum of s * scale_log2e.  Multiply
    #   after the maximum is taken: one product per row.  p (BLOCK_M, BLOCK_N); alpha (BLOCK_M,).
    #   Write exp2's argument as s * scale_log2e - m_new: the GPU does that in one instruction.
    #   tl.dot needs both operands in one dtype: round p to that of v.
    # BEGIN SOLUTION 3.5
    m_new = tl.maximum(m_i, tl.max(s, axis=1) * scale_log2e)
    p = tl.math.exp2(s * scale_log2e - m_new[:, None])
    alpha = tl.math.exp2(m_i - m_new)
    l_i = l_i * alpha + tl.sum(p, axis=1)
    acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
    # END SOLUTION 3.5
    return acc, l_i, m_new


# -------------------------------------------------------------------- tiles
@triton.jit
def _keep(query, key, N):
    """Which keys each query sees.  query (BLOCK_M, 1) and key (1, BLOCK_N) are positions."""
    # Step 3.6 -- Without a causal mask every query sees every key that exists.
    #   keep: booleans that broadcast to (BLOCK_M, BLOCK_N).  query is not needed yet.
    # BEGIN SOLUTION 3.6
    keep = key < N
    # END SOLUTION 3.6
    return keep


@triton.jit
def _head(ptr, strides, b, h):
    """One head of a (B, H, N, D) tensor: where it begins, the strides of its rows and columns."""
    return ptr + b * strides[0] + h * strides[1], strides[2], strides[3]


@triton.jit
def _load(head, start, N, D: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr,
          RAGGED: tl.constexpr):
    """Rows start ... start + ROWS - 1 of a head, (ROWS, BLOCK_D); elements outside read 0."""
    ptr, stride_n, stride_d = head
    ptr += tl.cast(start, tl.int64) * stride_n  # this offset may exceed 2**31
    # Step 3.7 -- Address every element of the tile, and load it.
    #   tile (ROWS, BLOCK_D).  Element (i, j) is at ptr + i * stride_n + j * stride_d; its row of
    #   the sequence is start + i.  Rows past N - 1 and columns past D - 1 do not exist: use 0.
    #   Only a RAGGED tile has such rows; every tile has such columns if BLOCK_D is more than D.
    #   Where something may be missing, load with mask= and other=.  Advice: load all other tiles
    #   with neither, which is faster (Triton refuses other= without mask=).
    # BEGIN SOLUTION 3.7
    i, j = tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK_D)[None, :]
    ptrs = ptr + (i * stride_n + j * stride_d)
    inside = (start + i < N) & (j < D)
    tile = tl.load(ptrs, mask=inside, other=0.0) if RAGGED or BLOCK_D != D else tl.load(ptrs)
    # END SOLUTION 3.7
    return tile


@triton.jit
def _store(ptr, tile, bh, rows, N, D: tl.constexpr):
    """Store a tile's rows in a contiguous (B, H, N, D) tensor: row i of head bh is row bh * N + i.

    rows (ROWS,): positions in the sequence; rows past N - 1 are left out.
    """
    # Step 3.8 -- The same for a store, in the dtype of the tensor, ptr.dtype.element_ty.
    #   The tensor's rows are D elements long; tile has tile.shape[1] columns, of which D exist.
    # BEGIN SOLUTION 3.8
    j = tl.arange(0, tile.shape[1])[None, :]
    ptrs = ptr + (bh * N + rows)[:, None] * D + j
    tl.store(ptrs, tile.to(ptr.dtype.element_ty), mask=(rows[:, None] < N) & (j < D))
    # END SOLUTION 3.8


# ----------------------------------------------------------- launch and autograd
def _tiles(q: torch.Tensor) -> dict:
    """Tile sizes for every D and dtype: 64 rows, or what fits.  tl.arange wants powers of two."""
    BLOCK_D, rows = max(16, triton.next_power_of_2(q.shape[3])), 64
    if BLOCK_D * q.element_size() > 256:
        rows = 32
    if q.is_cuda and torch.cuda.get_device_capability(q.device)[0] < 8:  # Turing, or older
        rows = 16
    return dict(D=q.shape[3], BLOCK_D=BLOCK_D, BLOCK_M=rows, BLOCK_N=rows)


def _small_strides(x: torch.Tensor) -> torch.Tensor:
    """x, or a copy: offsets within a tile are 32 bits wide, to save registers."""
    return x if sum(x.stride()[2:]) < 2**24 else x.contiguous()


class FlashAttentionFunction(torch.autograd.Function):
    """Connects the kernel and the given backward to autograd.  First derivatives only."""

    @staticmethod
    def forward(ctx, q, k, v):
        B, HQ, N, D = q.shape
        q, k, v = (_small_strides(x) for x in (q, k, v))
        o = torch.empty(B, HQ, N, D, device=q.device, dtype=q.dtype)
        lse = torch.empty(B, HQ, N, device=q.device, dtype=torch.float32)
        tiles = _tiles(q)
        with torch.cuda.device(q.get_device()):  # launch on the data's GPU; no effect on a CPU
            _fwd_kernel[(triton.cdiv(N, tiles["BLOCK_M"]) * B * HQ,)](
                q, k, v, o, lse, q.stride(), k.stride(), v.stride(), HQ, N, D**-0.5, **tiles)
        ctx.save_for_backward(q, k, v, o, lse)
        return o

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, do):
        """Given: recomputes P from lse, 128 queries at a time.  Problem 8 has kernels for it."""
        q, k, v, o, lse, do = (x.float() for x in (*ctx.saved_tensors, do))
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        scale = q.shape[-1] ** -0.5
        for start in range(0, q.shape[-2], 128):
            m = slice(start, start + 128)  # these queries
            p = torch.exp(scale * q[..., m, :] @ k.mT - lse[..., m, None])
            delta = (do[..., m, :] * o[..., m, :]).sum(-1, keepdim=True)
            ds = scale * p * (do[..., m, :] @ v.mT - delta)
            dq[..., m, :] = ds @ k
            dk += ds.mT @ q[..., m, :]
            dv += p.mT @ do[..., m, :]
        return tuple(x.to(ctx.saved_tensors[0].dtype) for x in (dq, dk, dv))


def flash_attention_forward(q, k, v, is_causal=False):
    """Attention without a mask, differentiable.

    Args:
        q, k, v: (B, HQ, N, D), any strides; float16, bfloat16 or float32; D <= 128.
        is_causal: must be False; the causal mask arrives in problem 4.

    Returns:
        o: (B, HQ, N, D), contiguous, dtype of q.

    Raises:
        ValueError, TypeError: the input breaks the contract above.
    """
    _check(q, k, v)
    if is_causal:
        raise ValueError("want is_causal=False, the causal mask arrives in problem 4; got True")
    return FlashAttentionFunction.apply(q, k, v)


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Refuse bad input here: inside a kernel it would be a silent wrong read."""
    shapes, dtypes = [list(x.shape) for x in (q, k, v)], {q.dtype, k.dtype, v.dtype}
    if q.dim() != 4 or q.numel() == 0 or not q.shape == k.shape == v.shape:
        raise ValueError(f"want q, k, v of one shape (B, HQ, N, D), not empty; got {shapes}")
    if q.shape[3] > 128:
        raise ValueError(f"want D <= 128; got {q.shape[3]}")
    # Triton's interpreter has no bfloat16: it would compute nonsense, silently.
    known = [torch.float16, torch.float32] + [torch.bfloat16] * q.is_cuda
    if len(dtypes) > 1 or q.dtype not in known:
        raise TypeError(f"want one of float16, float32, and on a GPU bfloat16; got {dtypes}")
    if not q.device == k.device == v.device or not (q.is_cuda or INTERPRETED):
        devices = f"{q.device}, {k.device}, {v.device}"
        raise ValueError(f"want one GPU, or TRITON_INTERPRET=1 at start; got {devices}")


if __name__ == "__main__":  # a look, not a test
    device = "cuda" if torch.cuda.is_available() else "cpu"
    q, k, v = torch.randn(3, 1, 2, 100, 16, device=device)
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    print("largest difference:", (flash_attention_forward(q, k, v) - want).abs().max().item())
