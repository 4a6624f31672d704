"""Problem 8 -- The backward as kernels: recompute, and never write where another writes.

Training needs dq, dk and dv.  Autograd through S = q k^T would store P, the
(N, N) matrix the forward so carefully avoided.  FlashAttention stores lse, one
number a query, and recomputes each tile of P when it needs it:

    P  = exp(S - lse)            already normalised: no maximum, no running sum
    dP = do v^T
    dS = P * (dP - delta)        delta = rowsum(do * o), one number a query
    dq = scale * dS k            dk = scale * dS^T q            dv = P^T do

delta is rowsum(P * dP): the softmax's denominator passes every query's mean
gradient back to each of its scores.  Since o = P v, it equals do . o.

Who owns what, the question of problem 2.  dq sums over keys; dk and dv sum over
queries.  One kernel that walks tiles of S would have to add to one of them from
many programs at once, with atomics: slower, and different in the last bits from
run to run.  So the walk is done twice, each time owning what it sums into:

    kernel   owns                         walks                     recomputes
    delta    BLOCK_M entries of delta     nothing                   -
    dq       BLOCK_M rows of dq           keys, as in the forward   S, dP
    dkdv     BLOCK_N rows of dk and dv    queries, and the heads    S^T, dP^T
                                          of the group

Seven products instead of five, no atomics, the same bits every time.

Transposed.  dkdv needs P^T and dS^T as left factors.  It computes them that way
from the start, S^T = k q^T and dP^T = v do^T, so nothing is transposed in registers.

Groups.  Each key/value head serves HQ / HKV query heads, and its gradient is the
sum over all of them: one more loop around the walk of dkdv.

Causal, seen from the keys: key j is seen by queries j ... N - 1.

    queries ->   0      1      2      3
    k tile 0   [ diag | full | full | full ]     the walk begins at the diagonal
    k tile 1   [      | diag | full | full ]

Edges.  Rows past the end load q = do = 0 and lse = +inf, hence P = exp(-inf) = 0.

New here: steps 8.2 to 8.7.  Step 8.1 is what you wrote in problem 3.

Shapes      q, o, do, dq: (B, HQ, N, D)    k, v, dk, dv: (B, HKV, N, D)
            lse, delta: (B, HQ, N), float32
Dtypes      as in problem 3; P and dS are rounded to the input dtype before their products.

Check       python autograder_optional.py --p8
Stuck       python autograder_optional.py --hint 8.2      (any step number)
Source      FlashAttention-2, arXiv 2307.08691, Algorithm 2
"""

import math
import os

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

LOG2E = 1.4426950408889634  # exp(x) == exp2(x * LOG2E)
LN2 = tl.constexpr(0.6931471805599453)  # log(x) == log2(x) * LN2

GROUP = tl.constexpr(16)  # heads whose programs run side by side; 8 to 32 alike on an H200

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # kernels run on the CPU, as Python


# -------------------------------------------------------------------- tiles
@triton.jit
def _head(ptr, b, h, stride_b, stride_h):
    """Where head h of batch entry b begins; in int64, for an offset can pass 2**31."""
    return ptr + b.to(tl.int64) * stride_b + h.to(tl.int64) * stride_h


@triton.jit
def _load_rows(ptr, rows, cols, stride_row, stride_col, N, D: tl.constexpr, RAGGED: tl.constexpr):
    """Load the tile [rows, cols] of an (N, D) matrix; what lies outside reads 0."""
    rows64, cols64 = rows.to(tl.int64), cols.to(tl.int64)  # index * stride can pass 2**31
    ptrs = ptr + rows64[:, None] * stride_row + cols64[None, :] * stride_col
    if RAGGED:
        tile = tl.load(ptrs, mask=(rows[:, None] < N) & (cols[None, :] < D), other=0.0)
    elif cols.shape[0] != D:
        tile = tl.load(ptrs, mask=cols[None, :] < D, other=0.0)
    else:
        tile = tl.load(ptrs)
    return tile


@triton.jit
def _keep(query, key, N, CAUSAL: tl.constexpr):
    """Which keys each query sees; query and key are positions that broadcast against each other."""
    return (key <= query) if CAUSAL else (key < N)


@triton.jit
def _attend_tile(
    acc, l_i, m_i, q, k_ptr, v_ptr, query, key, cols,
    stride_kn, stride_kd, stride_vn, stride_vd, scale_log2e, N,
    D: tl.constexpr, CAUSAL: tl.constexpr, EDGE: tl.constexpr,
):
    """Forward, one key tile: (acc, l_i, m_i) -> (acc, l_i, m_i).  EDGE tiles are masked."""
    k = _load_rows(k_ptr, key, cols, stride_kn, stride_kd, N, D, EDGE)  # (BLOCK_N, BLOCK_D)
    v = _load_rows(v_ptr, key, cols, stride_vn, stride_vd, N, D, EDGE)  # (BLOCK_N, BLOCK_D)

    # Step 8.1 -- Carried over: steps 3.2 to 3.4, with the mask between the scores and the softmax.
    # BEGIN SOLUTION 8.1
    s = tl.dot(q, tl.trans(k))
    if EDGE:
        s = tl.where(_keep(query[:, None], key[None, :], N, CAUSAL), s, float("-inf"))
    m_new = tl.maximum(m_i, tl.max(s, axis=1) * scale_log2e)
    p = tl.math.exp2(s * scale_log2e - m_new[:, None])
    alpha = tl.math.exp2(m_i - m_new)
    l_i = l_i * alpha + tl.sum(p, axis=1)
    acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
    # END SOLUTION 8.1
    return acc, l_i, m_new


@triton.jit
def _dq_tile(
    dq, q, do, lse2, delta, k_ptr, v_ptr, query, key, cols,
    stride_kn, stride_kd, stride_vn, stride_vd, scale_log2e, N,
    D: tl.constexpr, CAUSAL: tl.constexpr, EDGE: tl.constexpr,
):
    """Add one key tile's share to dq, without the factor scale.  lse2 is lse in base 2."""
    k = _load_rows(k_ptr, key, cols, stride_kn, stride_kd, N, D, EDGE)  # (BLOCK_N, BLOCK_D)
    v = _load_rows(v_ptr, key, cols, stride_vn, stride_vd, N, D, EDGE)  # (BLOCK_N, BLOCK_D)

    # Step 8.2 -- P again, from the saved log-sum-exp.
    #   p (BLOCK_M, BLOCK_N), float32, from q, k, scale_log2e and lse2 (BLOCK_M,); hidden
    #   keys of an EDGE tile get 0.  No maximum is needed: lse2 is at least the largest score.
    # BEGIN SOLUTION 8.2
    s = tl.dot(q, tl.trans(k))
    p = tl.math.exp2(s * scale_log2e - lse2[:, None])
    if EDGE:
        p = tl.where(_keep(query[:, None], key[None, :], N, CAUSAL), p, 0.0)
    # END SOLUTION 8.2

    # Step 8.3 -- dP, dS, and this tile's share of dq.
    #   Round dS to the dtype of k for its product.  The factor scale comes once, after the walk.
    # BEGIN SOLUTION 8.3
    dp = tl.dot(do, tl.trans(v))
    ds = p * (dp - delta[:, None])
    dq = tl.dot(ds.to(k.dtype), k, dq)
    # END SOLUTION 8.3
    return dq


@triton.jit
def _dkdv_tile(
    dk, dv, k, v, q_ptr, do_ptr, lse_ptr, delta_ptr, query, key, cols,
    stride_qn, stride_qd, stride_don, stride_dod, scale_log2e, N,
    D: tl.constexpr, CAUSAL: tl.constexpr, EDGE: tl.constexpr,
):
    """Add one query tile's share to dk (without the factor scale) and dv."""
    q = _load_rows(q_ptr, query, cols, stride_qn, stride_qd, N, D, EDGE)  # (BLOCK_M, BLOCK_D)
    do = _load_rows(do_ptr, query, cols, stride_don, stride_dod, N, D, EDGE)  # (BLOCK_M, BLOCK_D)
    if EDGE:
        lse2 = tl.load(lse_ptr + query, mask=query < N, other=float("inf")) / LN2
        delta = tl.load(delta_ptr + query, mask=query < N, other=0.0)
    else:
        lse2 = tl.load(lse_ptr + query) / LN2
        delta = tl.load(delta_ptr + query)

    # Step 8.4 -- P transposed: rows are keys, columns are queries.
    #   p_t (BLOCK_N, BLOCK_M) from k, q, scale_log2e and lse2 (BLOCK_M,).  The mask is
    #   that of step 8.2 with the axes exchanged.
    # BEGIN SOLUTION 8.4
    s_t = tl.dot(k, tl.trans(q))
    p_t = tl.math.exp2(s_t * scale_log2e - lse2[None, :])
    if EDGE:
        p_t = tl.where(_keep(query[None, :], key[:, None], N, CAUSAL), p_t, 0.0)
    # END SOLUTION 8.4

    # Step 8.5 -- This tile's share of dv and dk, all of it transposed.
    # BEGIN SOLUTION 8.5
    dv = tl.dot(p_t.to(do.dtype), do, dv)
    dp_t = tl.dot(v, tl.trans(do))
    ds_t = p_t * (dp_t - delta[None, :])
    dk = tl.dot(ds_t.to(q.dtype), q, dk)
    # END SOLUTION 8.5
    return dk, dv


@triton.jit
def _longest_first(num_tiles, GROUP: tl.constexpr):
    """This program's turn: (how many tiles from the longest walk, number of the head).

    Programs start in the order of their numbers.  Long walks come first, so that none is left
    over at the end, and GROUP heads at a time, so that their k and v stay in the L2 cache.
    """
    num_heads = tl.num_programs(0) // num_tiles
    first_head = tl.program_id(0) // (GROUP * num_tiles) * GROUP
    heads = tl.minimum(GROUP, num_heads - first_head)
    turn = tl.program_id(0) % (GROUP * num_tiles)
    return turn // heads, first_head + turn % heads


# ------------------------------------------------------------------ kernels
@triton.jit(do_not_specialize=["N"])
def _fwd_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, HQ, HKV, N,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    scale_log2e,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """Fill BLOCK_M rows of o and lse.  Grid: (cdiv(N, BLOCK_M) * B * HQ,)."""
    tl.static_assert(BLOCK_M % BLOCK_N == 0)  # the diagonal begins at a tile's border
    num_tiles = tl.cdiv(N, BLOCK_M)
    turn, bh = _longest_first(num_tiles, GROUP)
    start_m = (num_tiles - 1 - turn) * BLOCK_M  # the last queries see the most keys
    b = bh // HQ
    h = bh % HQ
    kv_head = h // (HQ // HKV)
    q_ptr = _head(q_ptr, b, h, stride_qb, stride_qh)
    k_ptr = _head(k_ptr, b, kv_head, stride_kb, stride_kh)
    v_ptr = _head(v_ptr, b, kv_head, stride_vb, stride_vh)

    scale_log2e = tl.cast(scale_log2e, tl.float32)  # torch.compile passes float64
    query = start_m + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    cols = tl.arange(0, BLOCK_D)
    q = _load_rows(q_ptr, query, cols, stride_qn, stride_qd, N, D, True)  # (BLOCK_M, BLOCK_D)
    m_i = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)

    edge = start_m if CAUSAL else N // BLOCK_N * BLOCK_N  # first key that needs the mask
    end = tl.minimum(start_m + BLOCK_M, N) if CAUSAL else N
    for start_n in range(0, edge, BLOCK_N):  # keys every row sees
        acc, l_i, m_i = _attend_tile(
            acc, l_i, m_i, q, k_ptr, v_ptr, query, start_n + offs_n, cols,
            stride_kn, stride_kd, stride_vn, stride_vd, scale_log2e, N, D, CAUSAL, False,
        )
    for start_n in range(edge, end, BLOCK_N):  # the diagonal, or the ragged tail
        acc, l_i, m_i = _attend_tile(
            acc, l_i, m_i, q, k_ptr, v_ptr, query, start_n + offs_n, cols,
            stride_kn, stride_kd, stride_vn, stride_vd, scale_log2e, N, D, CAUSAL, True,
        )

    o = acc / l_i[:, None]
    lse = (m_i + tl.math.log2(l_i)) * LN2

    # o and lse are ours and contiguous: row i of head bh is row bh * N + i.
    row = bh.to(tl.int64) * N + query
    o_mask = (query[:, None] < N) & (cols[None, :] < D)
    tl.store(o_ptr + row[:, None] * D + cols[None, :], o.to(o_ptr.dtype.element_ty), mask=o_mask)
    tl.store(lse_ptr + row, lse, mask=query < N)


@triton.jit(do_not_specialize=["N"])
def _delta_kernel(
    o_ptr, do_ptr, delta_ptr, HQ, N,
    stride_dob, stride_doh, stride_don, stride_dod,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr,
):
    """Fill BLOCK_M entries of delta.  Grid: (cdiv(N, BLOCK_M) * B * HQ,)."""
    num_tiles = tl.cdiv(N, BLOCK_M)
    query = tl.program_id(0) % num_tiles * BLOCK_M + tl.arange(0, BLOCK_M)
    bh = (tl.program_id(0) // num_tiles).to(tl.int64)
    do_ptr += bh // HQ * stride_dob + bh % HQ * stride_doh
    o_ptr += bh * N * D
    cols = tl.arange(0, BLOCK_D)

    # Step 8.6 -- delta = rowsum(do * o), in float32.
    #   delta (BLOCK_M,).  Load both tiles with _load_rows, RAGGED; o is contiguous, (N, D).
    # BEGIN SOLUTION 8.6
    o = _load_rows(o_ptr, query, cols, D, 1, N, D, True).to(tl.float32)
    do = _load_rows(do_ptr, query, cols, stride_don, stride_dod, N, D, True).to(tl.float32)
    delta = tl.sum(o * do, axis=1)
    # END SOLUTION 8.6
    tl.store(delta_ptr + bh * N + query, delta, mask=query < N)


@triton.jit(do_not_specialize=["N"])
def _dq_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr, HQ, HKV, N,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_dob, stride_doh, stride_don, stride_dod,
    scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """Fill BLOCK_M rows of dq.  Grid: (cdiv(N, BLOCK_M) * B * HQ,)."""
    tl.static_assert(BLOCK_M % BLOCK_N == 0)
    num_tiles = tl.cdiv(N, BLOCK_M)
    turn, bh = _longest_first(num_tiles, GROUP)
    start_m = (num_tiles - 1 - turn) * BLOCK_M  # the last queries see the most keys
    b = bh // HQ
    h = bh % HQ
    kv_head = h // (HQ // HKV)
    q_ptr = _head(q_ptr, b, h, stride_qb, stride_qh)
    k_ptr = _head(k_ptr, b, kv_head, stride_kb, stride_kh)
    v_ptr = _head(v_ptr, b, kv_head, stride_vb, stride_vh)
    do_ptr = _head(do_ptr, b, h, stride_dob, stride_doh)

    query = start_m + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    cols = tl.arange(0, BLOCK_D)
    row = bh.to(tl.int64) * N + query
    q = _load_rows(q_ptr, query, cols, stride_qn, stride_qd, N, D, True)  # (BLOCK_M, BLOCK_D)
    do = _load_rows(do_ptr, query, cols, stride_don, stride_dod, N, D, True)  # (BLOCK_M, BLOCK_D)
    lse2 = tl.load(lse_ptr + row, mask=query < N, other=float("inf")) / LN2
    delta = tl.load(delta_ptr + row, mask=query < N, other=0.0)
    scale = tl.cast(scale, tl.float32)  # torch.compile passes float64
    scale_log2e = scale / LN2
    dq = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)

    edge = start_m if CAUSAL else N // BLOCK_N * BLOCK_N  # the bounds of the forward
    end = tl.minimum(start_m + BLOCK_M, N) if CAUSAL else N
    for start_n in range(0, edge, BLOCK_N):
        dq = _dq_tile(
            dq, q, do, lse2, delta, k_ptr, v_ptr, query, start_n + offs_n, cols,
            stride_kn, stride_kd, stride_vn, stride_vd, scale_log2e, N, D, CAUSAL, False,
        )
    for start_n in range(edge, end, BLOCK_N):
        dq = _dq_tile(
            dq, q, do, lse2, delta, k_ptr, v_ptr, query, start_n + offs_n, cols,
            stride_kn, stride_kd, stride_vn, stride_vd, scale_log2e, N, D, CAUSAL, True,
        )

    mask = (query[:, None] < N) & (cols[None, :] < D)
    dq = (dq * scale).to(dq_ptr.dtype.element_ty)
    tl.store(dq_ptr + row[:, None] * D + cols[None, :], dq, mask=mask)


@triton.jit(do_not_specialize=["N"])
def _dkdv_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, HQ, HKV, N,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_dob, stride_doh, stride_don, stride_dod,
    scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """Fill BLOCK_N rows of dk and dv.  Grid: (cdiv(N, BLOCK_N) * B * HKV,)."""
    tl.static_assert(BLOCK_N % BLOCK_M == 0)  # the diagonal begins at a query tile's border
    turn, bh = _longest_first(tl.cdiv(N, BLOCK_N), GROUP)  # bh: b * HKV + kv_head
    start_n = turn * BLOCK_N  # the first keys are seen by the most queries
    b = bh // HKV
    kv_head = bh % HKV
    k_ptr = _head(k_ptr, b, kv_head, stride_kb, stride_kh)
    v_ptr = _head(v_ptr, b, kv_head, stride_vb, stride_vh)

    key = start_n + tl.arange(0, BLOCK_N)
    offs_m = tl.arange(0, BLOCK_M)
    cols = tl.arange(0, BLOCK_D)
    k = _load_rows(k_ptr, key, cols, stride_kn, stride_kd, N, D, True)  # (BLOCK_N, BLOCK_D)
    v = _load_rows(v_ptr, key, cols, stride_vn, stride_vd, N, D, True)  # (BLOCK_N, BLOCK_D)
    scale = tl.cast(scale, tl.float32)  # torch.compile passes float64
    scale_log2e = scale / LN2
    dk = tl.zeros([BLOCK_N, BLOCK_D], dtype=tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_D], dtype=tl.float32)

    # Step 8.7 -- Which query tiles see these keys?  Interior first, then the tiles the mask cuts.
    #   inner: first query that sees every key of this tile (not causal: 0).
    #   tail: where the interior ends, the last tile's border at or above inner.
    #   diag_tiles: query tiles from start_n up to inner that exist (not causal: 0).
    #   Every other query tile up to N - 1 must be visited once, and none twice.
    # BEGIN SOLUTION 8.7
    inner = start_n + BLOCK_N if CAUSAL else 0
    tail = tl.maximum(inner, N // BLOCK_M * BLOCK_M)
    diag_tiles = tl.cdiv(tl.minimum(inner, N) - start_n, BLOCK_M) if CAUSAL else 0
    # END SOLUTION 8.7
    inner_tiles = (tail - inner) // BLOCK_M
    edge_tiles = diag_tiles + tl.cdiv(tl.maximum(N - tail, 0), BLOCK_M)

    # One loop for all heads of the group: their shares add up in dk and dv.
    group = HQ // HKV
    for t in range(group * inner_tiles):
        h = kv_head * group + t // inner_tiles
        start_m = inner + t % inner_tiles * BLOCK_M
        dk, dv = _dkdv_tile(
            dk, dv, k, v,
            _head(q_ptr, b, h, stride_qb, stride_qh), _head(do_ptr, b, h, stride_dob, stride_doh),
            lse_ptr + (b * HQ + h).to(tl.int64) * N, delta_ptr + (b * HQ + h).to(tl.int64) * N,
            start_m + offs_m, key, cols,
            stride_qn, stride_qd, stride_don, stride_dod, scale_log2e, N, D, CAUSAL, False,
        )
    for t in range(group * edge_tiles):
        h = kv_head * group + t // edge_tiles
        e = t % edge_tiles
        start_m = tl.where(e < diag_tiles, start_n + e * BLOCK_M, tail)
        dk, dv = _dkdv_tile(
            dk, dv, k, v,
            _head(q_ptr, b, h, stride_qb, stride_qh), _head(do_ptr, b, h, stride_dob, stride_doh),
            lse_ptr + (b * HQ + h).to(tl.int64) * N, delta_ptr + (b * HQ + h).to(tl.int64) * N,
            start_m + offs_m, key, cols,
            stride_qn, stride_qd, stride_don, stride_dod, scale_log2e, N, D, CAUSAL, True,
        )

    row = bh.to(tl.int64) * N + key
    mask = (key[:, None] < N) & (cols[None, :] < D)
    dk = (dk * scale).to(dk_ptr.dtype.element_ty)
    dv = dv.to(dv_ptr.dtype.element_ty)
    tl.store(dk_ptr + row[:, None] * D + cols[None, :], dk, mask=mask)
    tl.store(dv_ptr + row[:, None] * D + cols[None, :], dv, mask=mask)


# ----------------------------------------------------------- launch and autograd
def _tiles(D: int, dtype: torch.dtype, device: torch.device) -> dict:
    """Tile shape and launch options: large enough to reuse k and v, small enough not to spill.

    Timed on an H200 for bfloat16; for other GPUs chosen by what they hold, and compiled only.
    """
    major = torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 9
    BLOCK_D = max(16, triton.next_power_of_2(D))
    row_bytes = BLOCK_D * dtype.itemsize
    num_warps = 4
    if major in (9, 10) and row_bytes == 256:  # D = 128: two groups of warps share k and v
        BLOCK_M, BLOCK_N, num_warps, num_stages = 128, 64, 8, 3
    elif major in (9, 10):  # Hopper, Blackwell B200: 227 KiB of shared memory feed the matrix units
        BLOCK_M, BLOCK_N = 64, 64 if row_bytes <= 128 else 32
        num_stages = 3 if row_bytes <= 128 else 2  # k and v tiles on their way at a time
    elif major >= 8:  # Ampere, Ada, Blackwell RTX: both factors of a product sit in registers
        BLOCK_M, BLOCK_N = 64 if row_bytes <= 256 else 32, 64 if row_bytes <= 128 else 32
        num_stages = 2 if row_bytes <= 128 else 3
    else:  # Turing: Triton multiplies without its matrix units, so everything is in registers
        BLOCK_M, BLOCK_N, num_stages = 32, 16, 2
    return dict(
        BLOCK_D=BLOCK_D, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N,
        num_warps=num_warps, num_stages=num_stages,
    )


def _backward_tiles(D: int, dtype: torch.dtype, device: torch.device) -> tuple[dict, dict]:
    """As _tiles, for the dq and the dkdv kernel, which hold two sums or two score tiles at once."""
    major = torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 9
    BLOCK_D = max(16, triton.next_power_of_2(D))
    row_bytes = BLOCK_D * dtype.itemsize
    own = 64 if row_bytes <= (256 if major in (9, 10) else 128) else 32  # rows of the sums
    if major in (9, 10) and row_bytes <= 128:
        walk, num_stages = 64, 3  # rows a step takes
    elif major >= 8:
        walk, num_stages = 32, 3 if major in (9, 10) and row_bytes == 256 else 2
    else:
        own, walk, num_stages = 16, 16, 2
    options = dict(BLOCK_D=BLOCK_D, num_warps=4, num_stages=num_stages)
    return dict(BLOCK_M=own, BLOCK_N=walk, **options), dict(BLOCK_M=walk, BLOCK_N=own, **options)


def _forward(q, k, v, is_causal, scale):
    """Launch the kernel.  q (B, HQ, N, D), k and v (B, HKV, N, D) -> o, lse (B, HQ, N)."""
    B, HQ, N, D = q.shape
    HKV = k.shape[1]
    o = torch.empty(B, HQ, N, D, device=q.device, dtype=q.dtype)
    lse = torch.empty(B, HQ, N, device=q.device, dtype=torch.float32)
    tiles = _tiles(D, q.dtype, q.device)
    grid = (triton.cdiv(N, tiles["BLOCK_M"]) * B * HQ,)
    with torch.cuda.device(q.get_device()):  # launch where the data is; does nothing on a CPU
        _fwd_kernel[grid](
            q, k, v, o, lse, HQ, HKV, N, *q.stride(), *k.stride(), *v.stride(),
            scale * LOG2E, D=D, CAUSAL=is_causal, **tiles,
        )
    return o, lse


def _backward(q, k, v, o, lse, do, is_causal, scale, need_dq=True, need_dkdv=True):
    """Launch the three kernels.  do (B, HQ, N, D), any strides -> dq, dk, dv, each may be None."""
    B, HQ, N, D = q.shape
    HKV = k.shape[1]
    dq_tiles, dkdv_tiles = _backward_tiles(D, q.dtype, q.device)
    strides = *q.stride(), *k.stride(), *v.stride(), *do.stride()
    delta = torch.empty(B, HQ, N, device=q.device, dtype=torch.float32)
    dq = dk = dv = None
    with torch.cuda.device(q.get_device()):
        _delta_kernel[(triton.cdiv(N, 16) * B * HQ,)](
            o, do, delta, HQ, N, *do.stride(), D=D, BLOCK_D=dq_tiles["BLOCK_D"], BLOCK_M=16
        )
        if need_dq:
            dq = torch.empty(B, HQ, N, D, device=q.device, dtype=q.dtype)
            _dq_kernel[(triton.cdiv(N, dq_tiles["BLOCK_M"]) * B * HQ,)](
                q, k, v, do, lse, delta, dq, HQ, HKV, N, *strides, scale,
                D=D, CAUSAL=is_causal, **dq_tiles,
            )
        if need_dkdv:
            dk = torch.empty(B, HKV, N, D, device=k.device, dtype=k.dtype)
            dv = torch.empty(B, HKV, N, D, device=v.device, dtype=v.dtype)
            _dkdv_kernel[(triton.cdiv(N, dkdv_tiles["BLOCK_N"]) * B * HKV,)](
                q, k, v, do, lse, delta, dk, dv, HQ, HKV, N, *strides, scale,
                D=D, CAUSAL=is_causal, **dkdv_tiles,
            )
    return dq, dk, dv


class FlashAttention2Function(torch.autograd.Function):
    """Connects the kernels to autograd.  First derivatives only."""

    @staticmethod
    def forward(ctx, q, k, v, is_causal, scale):
        o, lse = _forward(q, k, v, is_causal, scale)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.is_causal, ctx.scale = is_causal, scale
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx, do):
        need_dq, need_dk, need_dv = ctx.needs_input_grad[:3]
        grads = _backward(
            *ctx.saved_tensors, do, ctx.is_causal, ctx.scale, need_dq, need_dk or need_dv
        )
        return *grads, None, None


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
    scale = 1.0 / math.sqrt(q.shape[3]) if softmax_scale is None else float(softmax_scale)
    if not 0.0 < scale < float("inf"):
        raise ValueError(f"want softmax_scale > 0 and finite; got {softmax_scale}")
    return FlashAttention2Function.apply(q, k, v, bool(is_causal), scale)


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Refuse bad input here: inside a kernel it would be a silent wrong read."""
    shapes = f"{list(q.shape)}, {list(k.shape)}, {list(v.shape)}"
    if q.dim() != 4 or k.dim() != 4 or k.shape != v.shape or 0 in (*q.shape, *k.shape):
        raise ValueError(f"want q (B, HQ, N, D), k and v (B, HKV, N, D), not empty; got {shapes}")
    if q.shape[0] != k.shape[0] or q.shape[2:] != k.shape[2:]:
        raise ValueError(f"want q (B, HQ, N, D), k and v (B, HKV, N, D); got {shapes}")
    if q.shape[1] % k.shape[1] != 0:
        raise ValueError(f"want HQ a multiple of HKV; got {q.shape[1]}, {k.shape[1]}")
    if q.shape[3] > 128:
        raise ValueError(f"want D <= 128; got {q.shape[3]}")
    if q.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise TypeError(f"want float16, bfloat16 or float32; got {q.dtype}")
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"want one dtype; got {q.dtype}, {k.dtype}, {v.dtype}")
    if not q.device == k.device == v.device:
        raise ValueError(f"want one device; got {q.device}, {k.device}, {v.device}")
    if not q.is_cuda and not INTERPRETED:
        raise ValueError(f"want CUDA tensors, or TRITON_INTERPRET=1 at start; got {q.device}")


if __name__ == "__main__":  # a look, not a test
    device = "cuda" if torch.cuda.is_available() else "cpu"
    q = torch.randn(1, 6, 100, 16, device=device, requires_grad=True)
    k, v = torch.randn(2, 1, 2, 100, 16, device=device).requires_grad_().unbind(0)
    o = flash_attention_gqa(q, k, v)
    want = torch.nn.functional.scaled_dot_product_attention(
        q, k, v, is_causal=True, enable_gqa=True
    )
    do = torch.randn_like(o)
    got = torch.autograd.grad(o, (q, k, v), do)
    for name, x, y in zip("qkv", got, torch.autograd.grad(want, (q, k, v), do), strict=True):
        print(f"largest difference in d{name}:", (x - y).abs().max().item())
