"""Problem 6 -- A sliding window: a query sees only the last W keys.

The nearest tokens matter most.  With a window of W = window_size,
*query i sees keys i - W + 1 ... i: the window includes the query's own key*.

W = 3, six tokens (x: visible)          The work is O(N W), no longer O(N^2)

    keys ->   0 1 2 3 4 5
    query 0   x . . . . .
    query 1   x x . . . .
    query 2   x x x . . .
    query 3   . x x x . .
    query 4   . . x x x .
    query 5   . . . x x x

For a tile of queries start_m ... start_m + BLOCK_M - 1 there are three kinds of keys:

    left edge   first ... inner - 1     too old for some of these queries     masked
    interior    inner ... start_m - 1   seen by all of them                   no mask
    diagonal    from start_m on         later than some of them               masked

    first   first key of the first query's window, rounded down to a multiple of BLOCK_N
    inner   first key of the last query's window, rounded up to a multiple of BLOCK_N

A window shorter than BLOCK_M + BLOCK_N leaves no interior.  If W is below BLOCK_M,
some windows begin inside the diagonal, so both masked phases use the whole mask.

A trap.  In a masked tile a query may see no key at all.  If it has seen none
before, its maximum is still -inf, and exp2(-inf - (-inf)) is NaN.  Where the maximum
is -inf, subtract a finite number instead: exp2(-inf - 0) is 0, as it should be.

New here: steps 6.3, 6.4, 6.7 and 6.8.  A line "==== new" marks each.

Shapes      q, o: (B, HQ, N, D)    k, v: (B, HKV, N, D)    lse: (B, HQ, N)
Dtypes      as in problem 3.  Causal and grouped, as in problems 4 and 5.

Check       python autograder.py --p6
Stuck       python autograder.py --hint 6.3      (any step number)
Guide       "Stage 6" of the companion guide; README.md says where it is
Faster      sink_attn/README.md, once all of this passes
Source      Longformer, arXiv 2004.05150; Mistral 7B, arXiv 2310.06825
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
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, q_strides, k_strides, v_strides, HQ, HKV, N,
    window_size, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """Fill BLOCK_M rows of o and lse.  Grid: (cdiv(N, BLOCK_M) * B * HQ,)."""
    # Step 6.1 -- Copied from step 4.1: which rows of which head are mine, the longest loop first.
    # BEGIN SOLUTION 6.1
    num_tiles = tl.cdiv(N, BLOCK_M)
    bh = tl.program_id(0) // num_tiles
    b, h = bh // HQ, bh % HQ
    start_m = (num_tiles - 1 - tl.program_id(0) % num_tiles) * BLOCK_M
    query = start_m + tl.arange(0, BLOCK_M)
    # END SOLUTION 6.1
    # Offsets are computed from these and may exceed 2**31.
    bh, b, h = tl.cast(bh, tl.int64), tl.cast(b, tl.int64), tl.cast(h, tl.int64)
    q = _load(_head(q_ptr, q_strides, b, h), start_m, N, D, BLOCK_D, BLOCK_M, RAGGED=True)
    # Step 6.2 -- Copied from step 5.2: the key/value head that query head h reads.
    # BEGIN SOLUTION 6.2
    kv_head = h // (HQ // HKV)
    k_head, v_head = _head(k_ptr, k_strides, b, kv_head), _head(v_ptr, v_strides, b, kv_head)
    # END SOLUTION 6.2

    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    l_i, m_i = tl.zeros([BLOCK_M], tl.float32), tl.full([BLOCK_M], float("-inf"), tl.float32)
    # ====================================================================== new
    # Step 6.3 -- Where do the three phases begin and end?
    #   first and inner, as defined at the top; neither is below 0, and inner is at most start_m,
    #   where the diagonal begins.
    # BEGIN SOLUTION 6.3
    first = tl.maximum(start_m - window_size + 1, 0) // BLOCK_N * BLOCK_N
    inner = tl.cdiv(tl.maximum(start_m + BLOCK_M - window_size, 0), BLOCK_N) * BLOCK_N
    inner = tl.minimum(inner, start_m)
    # END SOLUTION 6.3

    # ====================================================================== new
    # Step 6.4 -- Loop over the keys in three phases: interior, left edge, diagonal.
    #   As in step 4.2, with window_size after N.  Any order is correct.  This one is recommended
    #   for speed at D = 128: if the left edge comes first, the GPU's matrix units have to wait.
    # BEGIN SOLUTION 6.4
    for start_n in range(inner, start_m, BLOCK_N):
        acc, l_i, m_i = _attend(acc, l_i, m_i, q, k_head, v_head, query, start_n, N, window_size,
                                scale * LOG2E, D, BLOCK_N, MASKED=False)
    for start_n in range(first, inner, BLOCK_N):
        acc, l_i, m_i = _attend(acc, l_i, m_i, q, k_head, v_head, query, start_n, N, window_size,
                                scale * LOG2E, D, BLOCK_N, MASKED=True)
    for start_n in range(start_m, start_m + BLOCK_M, BLOCK_N):
        acc, l_i, m_i = _attend(acc, l_i, m_i, q, k_head, v_head, query, start_n, N, window_size,
                                scale * LOG2E, D, BLOCK_N, MASKED=True)
    # END SOLUTION 6.4

    # Step 6.5 -- Copied from step 3.3: normalise, form lse, and store both.
    # BEGIN SOLUTION 6.5
    lse = (m_i + tl.math.log2(l_i)) * LN2
    _store(o_ptr, acc / l_i[:, None], bh, query, N, D)
    tl.store(lse_ptr + bh * N + query, lse, mask=query < N)
    # END SOLUTION 6.5


@triton.jit
def _attend(acc, l_i, m_i, q, k_head, v_head, query, start_n, N, window_size, scale_log2e,
            D: tl.constexpr, BLOCK_N: tl.constexpr, MASKED: tl.constexpr):
    """Update acc, l_i, m_i with one key tile, and return their new values."""
    # Only a MASKED tile may have rows past N - 1.
    k = _load(k_head, start_n, N, D, q.shape[1], BLOCK_N, RAGGED=MASKED)
    v = _load(v_head, start_n, N, D, q.shape[1], BLOCK_N, RAGGED=MASKED)
    key = start_n + tl.arange(0, BLOCK_N)
    keep = _keep(query[:, None], key[None, :], window_size)
    # Step 6.6 -- Copied from step 3.4: the scores of this tile, hidden keys at -inf.
    # BEGIN SOLUTION 6.6
    s = tl.dot(q, tl.trans(k))
    if MASKED:
        s = tl.where(keep, s, float("-inf"))
    # END SOLUTION 6.6

    # ====================================================================== new
    # Step 6.7 -- Online softmax, step 3.5, also for a row that has seen no key yet.
    #   pivot (BLOCK_M,): what to subtract in both exponents; always finite.
    # BEGIN SOLUTION 6.7
    m_new = tl.maximum(m_i, tl.max(s, axis=1) * scale_log2e)
    pivot = tl.where(m_new == float("-inf"), 0.0, m_new)
    p = tl.math.exp2(s * scale_log2e - pivot[:, None])
    alpha = tl.math.exp2(m_i - pivot)
    l_i = l_i * alpha + tl.sum(p, axis=1)
    acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
    # END SOLUTION 6.7
    return acc, l_i, m_new


# -------------------------------------------------------------------- tiles
@triton.jit
def _keep(query, key, window_size):
    """Which keys each query sees.  query (BLOCK_M, 1) and key (1, BLOCK_N) are positions."""
    # ====================================================================== new
    # Step 6.8 -- The window: query i sees keys i - window_size + 1 ... i.
    #   keep: booleans (BLOCK_M, BLOCK_N).
    # BEGIN SOLUTION 6.8
    age = query - key
    keep = (age >= 0) & (age < window_size)
    # END SOLUTION 6.8
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
    # Step 6.9 -- Copied from step 3.7: load a tile; elements that do not exist read 0.
    # BEGIN SOLUTION 6.9
    i, j = tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK_D)[None, :]
    ptrs = ptr + (i * stride_n + j * stride_d)
    inside = (start + i < N) & (j < D)
    tile = tl.load(ptrs, mask=inside, other=0.0) if RAGGED or BLOCK_D != D else tl.load(ptrs)
    # END SOLUTION 6.9
    return tile


@triton.jit
def _store(ptr, tile, bh, rows, N, D: tl.constexpr):
    """Store a tile's rows in a contiguous (B, H, N, D) tensor: row i of head bh is row bh * N + i.

    rows (ROWS,): positions in the sequence; rows past N - 1 are left out.
    """
    # Step 6.10 -- Copied from step 3.8: store those elements of a tile that exist.
    # BEGIN SOLUTION 6.10
    j = tl.arange(0, tile.shape[1])[None, :]
    ptrs = ptr + (bh * N + rows)[:, None] * D + j
    tl.store(ptrs, tile.to(ptr.dtype.element_ty), mask=(rows[:, None] < N) & (j < D))
    # END SOLUTION 6.10


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
    def forward(ctx, q, k, v, window_size):
        (B, HQ, N, D), HKV = q.shape, k.shape[1]
        q, k, v = (_small_strides(x) for x in (q, k, v))
        o = torch.empty(B, HQ, N, D, device=q.device, dtype=q.dtype)
        lse = torch.empty(B, HQ, N, device=q.device, dtype=torch.float32)
        tiles = _tiles(q)
        with torch.cuda.device(q.get_device()):  # launch on the data's GPU; no effect on a CPU
            _fwd_kernel[(triton.cdiv(N, tiles["BLOCK_M"]) * B * HQ,)](
                q, k, v, o, lse, q.stride(), k.stride(), v.stride(), HQ, HKV, N,
                min(window_size, N), D**-0.5, **tiles)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.window_size = window_size
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
            first = max(0, start - ctx.window_size + 1)
            m, n = slice(start, start + 128), slice(first, start + 128)  # these queries, their keys
            s = scale * q[..., m, :] @ k[..., n, :].mT
            diagonal = start - first
            p = torch.exp(s - lse[..., m, None]).tril(diagonal).triu(diagonal - ctx.window_size + 1)
            delta = (do[..., m, :] * o[..., m, :]).sum(-1, keepdim=True)
            ds = scale * p * (do[..., m, :] @ v[..., n, :].mT - delta)
            dq[..., m, :] = ds @ k[..., n, :]
            dk[..., n, :] += (ds.mT @ q[..., m, :]).sum(2, keepdim=True)
            dv[..., n, :] += (p.mT @ do[..., m, :]).sum(2, keepdim=True)
        dtype = ctx.saved_tensors[0].dtype
        return *(x.flatten(1, 2).to(dtype) for x in (dq, dk, dv)), None


def flash_attention_forward(q, k, v, is_causal=True, window_size=128):
    """Sliding-window attention, differentiable.

    Args:
        q: (B, HQ, N, D), any strides; float16, bfloat16 or float32; D <= 128.
        k, v: (B, HKV, N, D), any strides; HQ a multiple of HKV; dtype and device of q.
        is_causal: must be True; problem 3 is the one without a mask.
        window_size: how many keys a query sees, itself included; >= 1, may exceed N.

    Returns:
        o: (B, HQ, N, D), contiguous, dtype of q.

    Raises:
        ValueError, TypeError: the input breaks the contract above.
    """
    _check(q, k, v)
    if not is_causal:
        raise ValueError("want is_causal=True, problem 3 is the one without a mask; got False")
    if not isinstance(window_size, int) or window_size < 1:
        raise ValueError(f"want an integer window_size >= 1; got {window_size!r}")
    return FlashAttentionFunction.apply(q, k, v, window_size)


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
    keep = torch.ones(100, 100, dtype=torch.bool, device=device).tril().triu(-16)
    want = attention(q, k, v, attn_mask=keep, enable_gqa=True)
    o = flash_attention_forward(q, k, v, window_size=17)
    print("largest difference:", (o - want).abs().max().item())
