"""Problem 5 -- Grouped-query heads: several query heads share one key/value head.

While a model generates text, it keeps k and v of every token, and reads all of them
for each new token.  Memory is the limit, not arithmetic.  Grouped-query
attention keeps fewer heads of k and v: HKV key/value heads serve HQ query heads, in
contiguous groups of HQ // HKV.

    HQ = 6, HKV = 2      query heads   0 1 2   3 4 5
                         read kv head    0       1

HKV = HQ is problem 4, and HKV = 1 is called multi-query attention.

The obvious way, repeat_interleave, writes HQ // HKV copies of k and v, and the
memory is not saved after all.  A kernel needs no copy: the program of a query head
reads k and v from another address, and that is all.  Query heads of one group run
close together in time, so later ones mostly find k and v in the GPU's L2 cache.

New here: step 5.2.  A line "==== new" marks it.

Shapes      q, o: (B, HQ, N, D)    k, v: (B, HKV, N, D), HQ a multiple of HKV
            lse: (B, HQ, N), natural logarithm
Dtypes      as in problem 3.  Causal, as in problem 4.

Check       python autograder.py --p5
Stuck       python autograder.py --hint 5.2      (any step number)
Guide       "Stage 5" of the companion guide; README.md says where it is
Faster      sink_attn/README.md, once all of this passes
Source      GQA, arXiv 2305.13245
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
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, q_strides, k_strides, v_strides, HQ, HKV, N, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """Fill BLOCK_M rows of o and lse.  Grid: (cdiv(N, BLOCK_M) * B * HQ,)."""
    # Step 5.1 -- Copied from step 4.1: which rows of which head are mine, the longest loop first.
    # BEGIN SOLUTION 5.1
    num_tiles = tl.cdiv(N, BLOCK_M)
    bh = tl.program_id(0) // num_tiles
    b, h = bh // HQ, bh % HQ
    start_m = (num_tiles - 1 - tl.program_id(0) % num_tiles) * BLOCK_M
    query = start_m + tl.arange(0, BLOCK_M)
    # END SOLUTION 5.1
    # Offsets are computed from these and may exceed 2**31.
    bh, b, h = tl.cast(bh, tl.int64), tl.cast(b, tl.int64), tl.cast(h, tl.int64)
    q = _load(_head(q_ptr, q_strides, b, h), start_m, N, D, BLOCK_D, BLOCK_M, RAGGED=True)
    # ====================================================================== new
    # Step 5.2 -- Which key/value head does query head h read?
    #   Make k_head and v_head with _head, as is done for q just above.
    # BEGIN SOLUTION 5.2
    kv_head = h // (HQ // HKV)
    k_head, v_head = _head(k_ptr, k_strides, b, kv_head), _head(v_ptr, v_strides, b, kv_head)
    # END SOLUTION 5.2

    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    l_i, m_i = tl.zeros([BLOCK_M], tl.float32), tl.full([BLOCK_M], float("-inf"), tl.float32)
    # Step 5.3 -- Copied from step 4.2: loop over the whole tiles, then the diagonal.
    # BEGIN SOLUTION 5.3
    for start_n in range(0, start_m, BLOCK_N):
        acc, l_i, m_i = _attend(acc, l_i, m_i, q, k_head, v_head, query, start_n, N, scale * LOG2E,
                                D, BLOCK_N, MASKED=False)
    for start_n in range(start_m, start_m + BLOCK_M, BLOCK_N):
        acc, l_i, m_i = _attend(acc, l_i, m_i, q, k_head, v_head, query, start_n, N, scale * LOG2E,
                                D, BLOCK_N, MASKED=True)
    # END SOLUTION 5.3

    # Step 5.4 -- Copied from step 3.3: normalise, form lse, and store both.
    # BEGIN SOLUTION 5.4
    lse = (m_i + tl.math.log2(l_i)) * LN2
    _store(o_ptr, acc / l_i[:, None], bh, query, N, D)
    tl.store(lse_ptr + bh * N + query, lse, mask=query < N)
    # END SOLUTION 5.4


@triton.jit
def _attend(acc, l_i, m_i, q, k_head, v_head, query, start_n, N, scale_log2e,
            D: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr):
    """Update acc, l_i, m_i with one key tile, and return their new values."""
    # Only a MASKED tile may have rows past N - 1.
    k = _load(k_head, start_n, N, D, q.shape[1], BLOCK_N, RAGGED=MASKED)
    v = _load(v_head, start_n, N, D, q.shape[1], BLOCK_N, RAGGED=MASKED)
    key = start_n + tl.arange(0, BLOCK_N)
    keep = _keep(query[:, None], key[None, :])
    # Step 5.5 -- Copied from step 3.4: the scores of this tile, hidden keys at -inf.
    # BEGIN SOLUTION 5.5
    s = tl.dot(q, tl.trans(k))
    if MASKED:
        s = tl.where(keep, s, float("-inf"))
    # END SOLUTION 5.5

    # Step 5.6 -- Copied from step 3.5: the online softmax of one tile.
    # BEGIN SOLUTION 5.6
    m_new = tl.maximum(m_i, tl.max(s, axis=1) * scale_log2e)
    p = tl.math.exp2(s * scale_log2e - m_new[:, None])
    alpha = tl.math.exp2(m_i - m_new)
    l_i = l_i * alpha + tl.sum(p, axis=1)
    acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
    # END SOLUTION 5.6
    return acc, l_i, m_new


# -------------------------------------------------------------------- tiles
@triton.jit
def _keep(query, key):
    """Which keys each query sees.  query (BLOCK_M, 1) and key (1, BLOCK_N) are positions."""
    # Step 5.7 -- Copied from step 4.6: a query sees itself and everything before it.
    # BEGIN SOLUTION 5.7
    keep = key <= query
    # END SOLUTION 5.7
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
    # Step 5.8 -- Copied from step 3.7: load a tile; elements that do not exist read 0.
    # BEGIN SOLUTION 5.8
    i, j = tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK_D)[None, :]
    ptrs = ptr + (i * stride_n + j * stride_d)
    inside = (start + i < N) & (j < D)
    tile = tl.load(ptrs, mask=inside, other=0.0) if RAGGED or BLOCK_D != D else tl.load(ptrs)
    # END SOLUTION 5.8
    return tile


@triton.jit
def _store(ptr, tile, bh, rows, N, D: tl.constexpr):
    """Store a tile's rows in a contiguous (B, H, N, D) tensor: row i of head bh is row bh * N + i.

    rows (ROWS,): positions in the sequence; rows past N - 1 are left out.
    """
    # Step 5.9 -- Copied from step 3.8: store those elements of a tile that exist.
    # BEGIN SOLUTION 5.9
    j = tl.arange(0, tile.shape[1])[None, :]
    ptrs = ptr + (bh * N + rows)[:, None] * D + j
    tl.store(ptrs, tile.to(ptr.dtype.element_ty), mask=(rows[:, None] < N) & (j < D))
    # END SOLUTION 5.9


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
        (B, HQ, N, D), HKV = q.shape, k.shape[1]
        q, k, v = (_small_strides(x) for x in (q, k, v))
        o = torch.empty(B, HQ, N, D, device=q.device, dtype=q.dtype)
        lse = torch.empty(B, HQ, N, device=q.device, dtype=torch.float32)
        tiles = _tiles(q)
        with torch.cuda.device(q.get_device()):  # launch on the data's GPU; no effect on a CPU
            _fwd_kernel[(triton.cdiv(N, tiles["BLOCK_M"]) * B * HQ,)](
                q, k, v, o, lse, q.stride(), k.stride(), v.stride(), HQ, HKV, N,
                D**-0.5, **tiles)
        ctx.save_for_backward(q, k, v, o, lse)
        return o

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, do):
        """Given: recomputes P from lse, 128 queries at a time.  Problem 8 has kernels for it."""
        HKV = ctx.saved_tensors[1].shape[1]  # each group by itself: (B, HKV, HQ // HKV, N, D)
        q, k, v, o, lse, do = (x.float().unflatten(1, (HKV, -1)) for x in (*ctx.saved_tensors, do))
        dq, dk, dv = torch.empty_like(q), torch.zeros_like(k), torch.zeros_like(v)
        scale = q.shape[-1] ** -0.5
        for start in range(0, q.shape[-2], 128):
            m, n = slice(start, start + 128), slice(0, start + 128)  # these queries, their keys
            s = scale * q[..., m, :] @ k[..., n, :].mT
            p = torch.exp(s - lse[..., m, None]).tril(start)
            delta = (do[..., m, :] * o[..., m, :]).sum(-1, keepdim=True)
            ds = scale * p * (do[..., m, :] @ v[..., n, :].mT - delta)
            dq[..., m, :] = ds @ k[..., n, :]
            dk[..., n, :] += (ds.mT @ q[..., m, :]).sum(2, keepdim=True)
            dv[..., n, :] += (p.mT @ do[..., m, :]).sum(2, keepdim=True)
        return tuple(x.flatten(1, 2).to(ctx.saved_tensors[0].dtype) for x in (dq, dk, dv))


def flash_attention_forward(q, k, v, is_causal=True):
    """Causal grouped-query attention, differentiable.

    Args:
        q: (B, HQ, N, D), any strides; float16, bfloat16 or float32; D <= 128.
        k, v: (B, HKV, N, D), any strides; HQ a multiple of HKV; dtype and device of q.
        is_causal: must be True; problem 3 is the one without a mask.

    Returns:
        o: (B, HQ, N, D), contiguous, dtype of q.

    Raises:
        ValueError, TypeError: the input breaks the contract above.
    """
    _check(q, k, v)
    if not is_causal:
        raise ValueError("want is_causal=True, problem 3 is the one without a mask; got False")
    return FlashAttentionFunction.apply(q, k, v)


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Refuse bad input here: inside a kernel it would be a silent wrong read."""
    shapes, dtypes = [list(x.shape) for x in (q, k, v)], {q.dtype, k.dtype, v.dtype}
    if q.dim() != 4 or k.dim() != 4 or k.shape != v.shape or 0 in (*q.shape, *k.shape):
        raise ValueError(f"want q (B, HQ, N, D), k and v (B, HKV, N, D), not empty; got {shapes}")
    if q.shape[0] != k.shape[0] or q.shape[2:] != k.shape[2:] or q.shape[1] % k.shape[1] != 0:
        raise ValueError(f"want q and k of one B, N and D, and HQ a multiple of HKV; got {shapes}")
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
    q, k, v = (torch.randn(1, heads, 100, 16, device=device) for heads in (6, 2, 2))
    attention = torch.nn.functional.scaled_dot_product_attention
    want = attention(q, k, v, is_causal=True, enable_gqa=True)
    print("largest difference:", (flash_attention_forward(q, k, v) - want).abs().max().item())
