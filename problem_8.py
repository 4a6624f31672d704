"""Problem 8 -- The backward as kernels: recompute, and never write where another writes.

Training needs dq, dk and dv.  Autograd through S = q k^T would store P, the
(N, N) matrix that the forward never makes.  FlashAttention stores lse, one number
for each query, and computes each tile of P again when it needs it:

    P  = exp(S - lse)            already normalised: no maximum, no running sum
    dP = do v^T
    dS = P * (dP - delta)        delta = rowsum(P * dP), one number per query
    dq = scale * dS k            dk = scale * dS^T q            dv = P^T do

delta comes from the softmax's denominator.  It seems to need a whole row of P and
dP; but rowsum(P * dP) = do . (P v) = do . o.

Who owns what, the question of problem 2.  dq sums over keys; dk and dv sum over
queries.  If one kernel made all three, many programs would add to the same rows of
dq, or of dk and dv.  Such *atomic* additions wait for each other.  Their order changes
from run to run, and so do the last bits of the sum.  So there are two loops over
the tiles of S, and in each a program owns what it sums:

    kernel   owns                           loops over                recomputes
    dq       BLOCK_M rows of dq and delta   keys, as in the forward   S, dP
    dkdv     BLOCK_N rows of dk and dv      queries, and the heads    S^T, dP^T
                                            of the group

That is seven matrix products per tile instead of five, and the same bits every time.
dq runs first: dkdv needs its delta.

dkdv needs P^T and dS^T as left factors, and computes them that way from the start:
S^T = k q^T and dP^T = v do^T, so P and dS are never transposed.

Each key/value head serves HQ / HKV query heads, and its gradient is the sum over all
of them: one more loop around dkdv's loop over queries.

Causal, seen from the keys: key j is seen by queries j ... N - 1.

    queries ->   0       1       2      3
    k tile 0   [ diag | whole | whole | tail ]   tail: it reaches past N - 1
    k tile 1   [      | diag  | whole | tail ]   no causal mask: all but tail are whole

Drawn with BLOCK_M = BLOCK_N.  If BLOCK_M is smaller, each key tile has several diag tiles.

New here: steps 8.3 and 8.9 to 8.18.  A line "==== new" marks each.  The forward and dq
call _keep, step 8.18: write it after 8.3.  Once dq is done, you can pause and run it.

Shapes      q, o, do, dq: (B, HQ, N, D)    k, v, dk, dv: (B, HKV, N, D)
            lse, delta: (B, HQ, N), float32
Dtypes      as in problem 3; P and dS are rounded to the input dtype before their products.
            In float16 a dS beyond 65504 overflows to infinity there, and takes dq and dk
            with it.  That takes very large v and do, which the caller must avoid.  bfloat16
            has the range of float32, but fewer digits.

Check       python autograder_optional.py --p8
Stuck       python autograder_optional.py --hint 8.3      (any step number)
Guide       "Stage 8" of the companion guide; README.md says where it is
Faster      sink_attn/README.md, once all of this passes
Source      FlashAttention-2, arXiv 2307.08691, Algorithm 2
"""

import os

import torch
import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)  # exp(x) == exp2(x * LOG2E)
LN2 = tl.constexpr(0.6931471805599453)  # log(x) == log2(x) * LN2

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # kernels run on the CPU, as Python


# ------------------------------------------------------------------ forward
@triton.jit
def _fwd_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, q_strides, k_strides, v_strides, HQ, HKV, N, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """Fill BLOCK_M rows of o and lse.  Grid: (cdiv(N, BLOCK_M) * B * HQ,)."""
    # Step 8.1 -- Copied from step 4.1: which rows of which head are mine, the longest loop first.
    # BEGIN SOLUTION 8.1
    num_tiles = tl.cdiv(N, BLOCK_M)
    bh = tl.program_id(0) // num_tiles
    b, h = bh // HQ, bh % HQ
    start_m = (num_tiles - 1 - tl.program_id(0) % num_tiles) * BLOCK_M
    query = start_m + tl.arange(0, BLOCK_M)
    # END SOLUTION 8.1
    # Offsets are computed from these and may exceed 2**31.
    bh, b, h = tl.cast(bh, tl.int64), tl.cast(b, tl.int64), tl.cast(h, tl.int64)
    q = _load(_head(q_ptr, q_strides, b, h), start_m, N, D, BLOCK_D, BLOCK_M, RAGGED=True)
    # Step 8.2 -- Copied from step 5.2: the key/value head that query head h reads.
    # BEGIN SOLUTION 8.2
    kv_head = h // (HQ // HKV)
    k_head, v_head = _head(k_ptr, k_strides, b, kv_head), _head(v_ptr, v_strides, b, kv_head)
    # END SOLUTION 8.2

    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    l_i, m_i = tl.zeros([BLOCK_M], tl.float32), tl.full([BLOCK_M], float("-inf"), tl.float32)
    # ====================================================================== new
    # Step 8.3 -- Loop over the keys, with a causal mask (step 4.2) or without (3.2).
    #   edge: the start of the one tile that needs a mask, if there is one; BLOCK_M is BLOCK_N
    #   here.  CAUSAL is known when the kernel is compiled, so an `if` on it costs nothing.
    #   _attend takes CAUSAL after BLOCK_N.
    # BEGIN SOLUTION 8.3
    edge = start_m if CAUSAL else N // BLOCK_N * BLOCK_N
    for start_n in range(0, edge, BLOCK_N):
        acc, l_i, m_i = _attend(acc, l_i, m_i, q, k_head, v_head, query, start_n, N, scale * LOG2E,
                                D, BLOCK_N, CAUSAL, MASKED=False)
    if edge < N:
        acc, l_i, m_i = _attend(acc, l_i, m_i, q, k_head, v_head, query, edge, N, scale * LOG2E,
                                D, BLOCK_N, CAUSAL, MASKED=True)
    # END SOLUTION 8.3

    # Step 8.4 -- Copied from step 3.3: normalise, form lse, and store both.
    # BEGIN SOLUTION 8.4
    lse = (m_i + tl.math.log2(l_i)) * LN2
    _store(o_ptr, acc / l_i[:, None], bh, query, N, D)
    tl.store(lse_ptr + bh * N + query, lse, mask=query < N)
    # END SOLUTION 8.4


@triton.jit
def _attend(acc, l_i, m_i, q, k_head, v_head, query, start_n, N, scale_log2e,
            D: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr):
    """Update acc, l_i, m_i with one key tile, and return their new values."""
    # Only a MASKED tile may have rows past N - 1.
    k = _load(k_head, start_n, N, D, q.shape[1], BLOCK_N, RAGGED=MASKED)
    v = _load(v_head, start_n, N, D, q.shape[1], BLOCK_N, RAGGED=MASKED)
    key = start_n + tl.arange(0, BLOCK_N)
    keep = _keep(query[:, None], key[None, :], N, CAUSAL)
    # Step 8.5 -- Copied from step 3.4: the scores of this tile, hidden keys at -inf.
    # BEGIN SOLUTION 8.5
    s = tl.dot(q, tl.trans(k))
    if MASKED:
        s = tl.where(keep, s, float("-inf"))
    # END SOLUTION 8.5

    # Step 8.6 -- Copied from step 3.5: the online softmax of one tile.
    # BEGIN SOLUTION 8.6
    m_new = tl.maximum(m_i, tl.max(s, axis=1) * scale_log2e)
    p = tl.math.exp2(s * scale_log2e - m_new[:, None])
    alpha = tl.math.exp2(m_i - m_new)
    l_i = l_i * alpha + tl.sum(p, axis=1)
    acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
    # END SOLUTION 8.6
    return acc, l_i, m_new


# ------------------------------------------------------------- backward: dq
@triton.jit
def _dq_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, do_ptr, lse_ptr,  # read
    delta_ptr, dq_ptr,  # written
    q_strides, k_strides, v_strides, o_strides, HQ, HKV, N, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """Fill BLOCK_M rows of dq and delta.  Grid: (cdiv(N, BLOCK_M) * B * HQ,)."""
    # Step 8.7 -- Copied from step 4.1: which rows of which head are mine, the longest loop first.
    # BEGIN SOLUTION 8.7
    num_tiles = tl.cdiv(N, BLOCK_M)
    bh = tl.program_id(0) // num_tiles
    b, h = bh // HQ, bh % HQ
    start_m = (num_tiles - 1 - tl.program_id(0) % num_tiles) * BLOCK_M
    query = start_m + tl.arange(0, BLOCK_M)
    # END SOLUTION 8.7
    # Offsets are computed from these and may exceed 2**31.
    bh, b, h = tl.cast(bh, tl.int64), tl.cast(b, tl.int64), tl.cast(h, tl.int64)
    q = _load(_head(q_ptr, q_strides, b, h), start_m, N, D, BLOCK_D, BLOCK_M, RAGGED=True)
    o = _load(_head(o_ptr, o_strides, b, h), start_m, N, D, BLOCK_D, BLOCK_M, RAGGED=True)
    do = _load(_head(do_ptr, o_strides, b, h), start_m, N, D, BLOCK_D, BLOCK_M, RAGGED=True)
    # Step 8.8 -- Copied from step 5.2: the key/value head that query head h reads.
    # BEGIN SOLUTION 8.8
    kv_head = h // (HQ // HKV)
    k_head, v_head = _head(k_ptr, k_strides, b, kv_head), _head(v_ptr, v_strides, b, kv_head)
    # END SOLUTION 8.8

    lse_log2 = _load_row(lse_ptr + bh * N, query, N, float("inf"), RAGGED=True) * LOG2E  # base 2
    # ====================================================================== new
    # Step 8.9 -- delta = rowsum(do * o), in float32.
    #   delta (BLOCK_M,).  dkdv reads it later: store it at delta_ptr, as lse is stored at lse_ptr.
    # BEGIN SOLUTION 8.9
    delta = tl.sum(do.to(tl.float32) * o.to(tl.float32), axis=1)
    tl.store(delta_ptr + bh * N + query, delta, mask=query < N)
    # END SOLUTION 8.9

    dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    # ====================================================================== new
    # Step 8.10 -- Loop over the keys once more, between the borders of step 8.3.
    #   _add_dq adds one tile's share.  After the loop multiply dq by scale, once, and _store it.
    # BEGIN SOLUTION 8.10
    edge = start_m if CAUSAL else N // BLOCK_N * BLOCK_N
    for start_n in range(0, edge, BLOCK_N):
        dq = _add_dq(dq, q, do, lse_log2, delta, k_head, v_head, query, start_n, N, scale * LOG2E,
                     D, BLOCK_N, CAUSAL, MASKED=False)
    if edge < N:
        dq = _add_dq(dq, q, do, lse_log2, delta, k_head, v_head, query, edge, N, scale * LOG2E,
                     D, BLOCK_N, CAUSAL, MASKED=True)
    _store(dq_ptr, dq * scale, bh, query, N, D)
    # END SOLUTION 8.10


@triton.jit
def _add_dq(dq, q, do, lse_log2, delta, k_head, v_head, query, start_n, N, scale_log2e,
            D: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr):
    """Add one key tile's share to dq, still without the factor scale."""
    # Only a MASKED tile may have rows past N - 1.
    k = _load(k_head, start_n, N, D, q.shape[1], BLOCK_N, RAGGED=MASKED)
    v = _load(v_head, start_n, N, D, q.shape[1], BLOCK_N, RAGGED=MASKED)
    key = start_n + tl.arange(0, BLOCK_N)
    keep = _keep(query[:, None], key[None, :], N, CAUSAL)
    # ====================================================================== new
    # Step 8.11 -- P again, from the saved log-sum-exp.
    #   p (BLOCK_M, BLOCK_N), float32: 2^(s * scale_log2e - lse_log2), with s = q k^T.  In a
    #   MASKED tile it is 0 where keep is False.  No maximum is needed: every visible score
    #   satisfies s * scale_log2e <= lse_log2.  A hidden score need not, and 2^(...) may then be
    #   infinite.
    # BEGIN SOLUTION 8.11
    p = tl.math.exp2(tl.dot(q, tl.trans(k)) * scale_log2e - lse_log2[:, None])
    if MASKED:
        p = tl.where(keep, p, 0.0)
    # END SOLUTION 8.11

    # ====================================================================== new
    # Step 8.12 -- dP, dS, and this tile's share of dq.
    #   ds (BLOCK_M, BLOCK_N), float32.  Round it to the dtype of k for its product.
    # BEGIN SOLUTION 8.12
    ds = p * (tl.dot(do, tl.trans(v)) - delta[:, None])
    dq = tl.dot(ds.to(k.dtype), k, dq)
    # END SOLUTION 8.12
    return dq


# A good place to stop.  Once 8.18 to 8.20 (after the kernels) are done, dq is complete: run it now.
# Where only q needs a gradient, _dkdv_kernel is not launched, so its blank steps do not matter:
#     TRITON_INTERPRET=1 python problem_8.py         the last row of dq, and what it should be
#     python autograder_optional.py --p8 --case robust/H1-N193-D16-float32-falling-dq


# ------------------------------------------------------ backward: dk and dv
@triton.jit
def _dkdv_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr,  # read
    dk_ptr, dv_ptr,  # written
    q_strides, k_strides, v_strides, o_strides, HQ, HKV, N, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """Fill BLOCK_N rows of dk and dv.  Grid: (cdiv(N, BLOCK_N) * B * HKV,)."""
    # ====================================================================== new
    # Step 8.13 -- Which keys of which head are mine?
    #   As in step 3.1, with HKV heads and tiles of BLOCK_N keys: bh, b, kv_head, start_n, and key
    #   (BLOCK_N,).  Advice: start with the tile that the most queries see.  Which one is that?
    # BEGIN SOLUTION 8.13
    num_tiles = tl.cdiv(N, BLOCK_N)
    bh = tl.program_id(0) // num_tiles
    b, kv_head = bh // HKV, bh % HKV
    start_n = tl.program_id(0) % num_tiles * BLOCK_N
    key = start_n + tl.arange(0, BLOCK_N)
    # END SOLUTION 8.13
    # Offsets are computed from these and may exceed 2**31.
    bh, b, kv_head = tl.cast(bh, tl.int64), tl.cast(b, tl.int64), tl.cast(kv_head, tl.int64)
    k = _load(_head(k_ptr, k_strides, b, kv_head), start_n, N, D, BLOCK_D, BLOCK_N, RAGGED=True)
    v = _load(_head(v_ptr, v_strides, b, kv_head), start_n, N, D, BLOCK_D, BLOCK_N, RAGGED=True)

    dk, dv = tl.zeros([BLOCK_N, BLOCK_D], tl.float32), tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    # ====================================================================== new
    # Step 8.14 -- Which queries see these keys?
    #   As drawn at the top: the diagonal from first to inner, whole tiles from inner to outer, the
    #   tail from outer to N.  Without CAUSAL there is no diagonal.  outer: a multiple of BLOCK_M,
    #   not below inner.  BLOCK_M may be smaller than BLOCK_N here, and divides it.
    # BEGIN SOLUTION 8.14
    first = start_n if CAUSAL else 0
    inner = start_n + BLOCK_N if CAUSAL else 0
    outer = tl.maximum(N // BLOCK_M * BLOCK_M, inner)
    # END SOLUTION 8.14
    for h in range(kv_head * (HQ // HKV), (kv_head + 1) * (HQ // HKV)):  # shares add up
        q_head = _head(q_ptr, q_strides, b, h)
        do_head = _head(do_ptr, o_strides, b, h)
        row = (b * HQ + h) * N  # where this head's lse and delta begin
        # ================================================================== new
        # Step 8.15 -- Loop over the queries of this head: whole tiles, tail, diagonal.
        #   One call per tile: dk, dv = _add_dkdv(dk, dv, ...).  This order is recommended for
        #   speed: the diagonal comes last.
        # BEGIN SOLUTION 8.15
        for start_m in range(inner, outer, BLOCK_M):
            dk, dv = _add_dkdv(dk, dv, k, v, q_head, do_head, lse_ptr + row, delta_ptr + row, key,
                               start_m, N, scale * LOG2E, D, BLOCK_M, CAUSAL, MASKED=False)
        for start_m in range(outer, N, BLOCK_M):
            dk, dv = _add_dkdv(dk, dv, k, v, q_head, do_head, lse_ptr + row, delta_ptr + row, key,
                               start_m, N, scale * LOG2E, D, BLOCK_M, CAUSAL, MASKED=True)
        for start_m in range(first, inner, BLOCK_M):
            dk, dv = _add_dkdv(dk, dv, k, v, q_head, do_head, lse_ptr + row, delta_ptr + row, key,
                               start_m, N, scale * LOG2E, D, BLOCK_M, CAUSAL, MASKED=True)
        # END SOLUTION 8.15
    _store(dk_ptr, dk * scale, bh, key, N, D)
    _store(dv_ptr, dv, bh, key, N, D)


@triton.jit
def _add_dkdv(dk, dv, k, v, q_head, do_head, lse_ptr, delta_ptr, key, start_m, N, scale_log2e,
              D: tl.constexpr, BLOCK_M: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr):
    """Add one query tile's share to dk, still without the factor scale, and to dv."""
    # Only a MASKED tile may have rows past N - 1.
    q = _load(q_head, start_m, N, D, k.shape[1], BLOCK_M, RAGGED=MASKED)
    do = _load(do_head, start_m, N, D, k.shape[1], BLOCK_M, RAGGED=MASKED)
    query = start_m + tl.arange(0, BLOCK_M)
    lse_log2 = _load_row(lse_ptr, query, N, float("inf"), RAGGED=MASKED) * LOG2E
    delta = _load_row(delta_ptr, query, N, 0.0, RAGGED=MASKED)
    keep = _keep(query[None, :], key[:, None], N, CAUSAL)
    # ====================================================================== new
    # Step 8.16 -- P transposed: rows are keys, columns are queries.
    #   p_t (BLOCK_N, BLOCK_M): step 8.11 with the axes exchanged.  keep is transposed already.
    #   Queries past N - 1 have lse_log2 = inf, so their p_t is 2^(-inf) = 0.
    # BEGIN SOLUTION 8.16
    p_t = tl.math.exp2(tl.dot(k, tl.trans(q)) * scale_log2e - lse_log2[None, :])
    if MASKED:
        p_t = tl.where(keep, p_t, 0.0)
    # END SOLUTION 8.16

    # ====================================================================== new
    # Step 8.17 -- This tile's share of dv and dk, from p_t and ds_t.
    #   ds_t (BLOCK_N, BLOCK_M), as ds in step 8.12.  For the products round p_t to the dtype of do,
    #   ds_t to that of q.
    # BEGIN SOLUTION 8.17
    dv = tl.dot(p_t.to(do.dtype), do, dv)
    ds_t = p_t * (tl.dot(v, tl.trans(do)) - delta[None, :])
    dk = tl.dot(ds_t.to(q.dtype), q, dk)
    # END SOLUTION 8.17
    return dk, dv


# -------------------------------------------------------------------- tiles
@triton.jit
def _keep(query, key, N, CAUSAL: tl.constexpr):
    """Which keys each query sees.  query and key are positions that broadcast."""
    # ====================================================================== new
    # Step 8.18 -- The mask of step 4.6; without CAUSAL that of step 3.6.
    #   keep: booleans that broadcast to the shape of the scores.
    # BEGIN SOLUTION 8.18
    keep = key <= query if CAUSAL else key < N
    # END SOLUTION 8.18
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
    # Step 8.19 -- Copied from step 3.7: load a tile; elements that do not exist read 0.
    # BEGIN SOLUTION 8.19
    i, j = tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK_D)[None, :]
    ptrs = ptr + (i * stride_n + j * stride_d)
    inside = (start + i < N) & (j < D)
    tile = tl.load(ptrs, mask=inside, other=0.0) if RAGGED or BLOCK_D != D else tl.load(ptrs)
    # END SOLUTION 8.19
    return tile


@triton.jit
def _load_row(ptr, rows, N, outside, RAGGED: tl.constexpr):
    """One number for each row, lse or delta; a row past N - 1 gets `outside`."""
    return tl.load(ptr + rows, mask=rows < N, other=outside) if RAGGED else tl.load(ptr + rows)


@triton.jit
def _store(ptr, tile, bh, rows, N, D: tl.constexpr):
    """Store a tile's rows in a contiguous (B, H, N, D) tensor: row i of head bh is row bh * N + i.

    rows (ROWS,): positions in the sequence; rows past N - 1 are left out.
    """
    # Step 8.20 -- Copied from step 3.8: store those elements of a tile that exist.
    # BEGIN SOLUTION 8.20
    j = tl.arange(0, tile.shape[1])[None, :]
    ptrs = ptr + (bh * N + rows)[:, None] * D + j
    tl.store(ptrs, tile.to(ptr.dtype.element_ty), mask=(rows[:, None] < N) & (j < D))
    # END SOLUTION 8.20


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


class FlashAttentionGQAFunction(torch.autograd.Function):
    """Connects the three kernels to autograd.  First derivatives only."""

    @staticmethod
    def forward(ctx, q, k, v, is_causal, scale):
        (B, HQ, N, D), HKV = q.shape, k.shape[1]
        q, k, v = (_small_strides(x) for x in (q, k, v))
        o = torch.empty(B, HQ, N, D, device=q.device, dtype=q.dtype)
        lse = torch.empty(B, HQ, N, device=q.device, dtype=torch.float32)
        tiles = _tiles(q)
        with torch.cuda.device(q.get_device()):  # launch on the data's GPU; no effect on a CPU
            _fwd_kernel[(triton.cdiv(N, tiles["BLOCK_M"]) * B * HQ,)](
                q, k, v, o, lse, q.stride(), k.stride(), v.stride(), HQ, HKV, N, scale,
                CAUSAL=is_causal, **tiles)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.is_causal, ctx.scale = is_causal, scale
        return o

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, do):
        q, k, v, o, lse = ctx.saved_tensors
        (B, HQ, N), HKV = q.shape[:3], k.shape[1]
        do = do.contiguous()  # the kernels use o's strides for do; o.sum() sends an expanded scalar
        dq, dk, dv = (torch.empty(x.shape, device=q.device, dtype=q.dtype) for x in (q, k, v))
        delta, tiles = torch.empty_like(lse), _tiles(q)
        strides = q.stride(), k.stride(), v.stride(), o.stride()
        num_tiles = triton.cdiv(N, tiles["BLOCK_M"])
        # num_stages: depth of dq's pipeline of loads; rows: BLOCK_M of dkdv.  The chip holds
        # fewer rows if D is large.
        num_stages, rows = (2, 32) if q.shape[3] > 64 else (3, 64)
        with torch.cuda.device(q.get_device()):
            _dq_kernel[(num_tiles * B * HQ,)](
                q, k, v, o, do, lse, delta, dq, *strides,
                HQ, HKV, N, ctx.scale, CAUSAL=ctx.is_causal, num_stages=num_stages, **tiles)
            if not any(ctx.needs_input_grad[1:3]):
                return dq, None, None, None, None
            _dkdv_kernel[(triton.cdiv(N, tiles["BLOCK_N"]) * B * HKV,)](
                q, k, v, do, lse, delta, dk, dv, *strides, HQ, HKV, N, ctx.scale,
                CAUSAL=ctx.is_causal, **tiles | {"BLOCK_M": min(rows, tiles["BLOCK_M"])})
        return dq, dk, dv, None, None


def flash_attention_gqa(q, k, v, is_causal=True, softmax_scale=None):
    """Grouped-query attention, differentiable.

    Args:
        q: (B, HQ, N, D), any strides; float16, bfloat16 or float32; D <= 128.
        k, v: (B, HKV, N, D), any strides; HQ a multiple of HKV; dtype and device of q.
        is_causal: hide keys after the query.
        softmax_scale: factor of the scores, > 0; None for 1 / sqrt(D).

    Returns:
        o: (B, HQ, N, D), contiguous, dtype of q.  The gradient that arrives for it
        may have any strides.

    Raises:
        ValueError, TypeError: the input breaks the contract above.
    """
    _check(q, k, v)
    scale = q.shape[3] ** -0.5 if softmax_scale is None else float(softmax_scale)
    if not 0.0 < scale < float("inf"):
        raise ValueError(f"want softmax_scale > 0 and finite; got {softmax_scale}")
    return FlashAttentionGQAFunction.apply(q, k, v, bool(is_causal), scale)


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
    torch.set_default_device("cuda" if torch.cuda.is_available() else "cpu")
    q, (k, v) = torch.randn(1, 2, 100, 16, requires_grad=True), torch.randn(2, 1, 2, 100, 16)
    for attend in (flash_attention_gqa, torch.nn.functional.scaled_dot_product_attention):
        print(torch.autograd.grad(attend(q, k, v, is_causal=True).square().sum(), q)[0][0, 0, -1])
