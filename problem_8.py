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

    kernel   owns                           walks                     recomputes
    dq       BLOCK_M rows of dq and delta   keys, as in the forward   S, dP
    dkdv     BLOCK_N rows of dk and dv      queries, and the heads    S^T, dP^T
                                            of the group

Seven products instead of five, no atomics, the same bits every time.  dq runs first:
dkdv needs its delta.

Transposed.  dkdv needs P^T and dS^T as left factors.  It computes them that way
from the start, S^T = k q^T and dP^T = v do^T, so nothing is transposed in registers.

Groups.  Each key/value head serves HQ / HKV query heads, and its gradient is the
sum over all of them: one more loop around the walk of dkdv.

Causal, seen from the keys: key j is seen by queries j ... N - 1.

    queries ->   0      1      2      3
    k tile 0   [ diag | full | full | full ]     the walk begins at the diagonal
    k tile 1   [      | diag | full | full ]

Edges.  Rows past the end load q = do = 0 and lse2 = +inf, hence P = 2^(-inf) = 0.
lse2 is lse in base 2, as the forward leaves it: nothing is gained by going back to e.

New here: steps 8.2 to 8.7.  Step 8.1 is what you wrote in problem 3.

Shapes      q, o, do, dq: (B, HQ, N, D)    k, v, dk, dv: (B, HKV, N, D)
            lse2, delta: (B, HQ, N), float32
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
from triton.tools.tensor_descriptor import TensorDescriptor

LOG2E = 1.4426950408889634  # exp(x) == exp2(x * LOG2E)
LN2 = tl.constexpr(0.6931471805599453)  # log(x) == log2(x) * LN2

GROUP = 16  # heads whose programs run side by side; 8 to 32 alike on an H200

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # kernels run on the CPU, as Python


# -------------------------------------------------------------------- tiles
@triton.jit
def _head(x, b, h, stride_b, stride_h, stride_row, stride_col):
    """Head h of batch entry b, for _load_rows.  x is a pointer or a tensor descriptor."""
    if not isinstance(x, tl.tensor_descriptor):
        x += b.to(tl.int64) * stride_b + h.to(tl.int64) * stride_h  # can pass 2**31
    return x, b, h, stride_row, stride_col


@triton.jit
def _load_rows(
    head, start, N,
    ROWS: tl.constexpr, BLOCK_D: tl.constexpr, D: tl.constexpr, RAGGED: tl.constexpr,
):
    """Rows start ... start + ROWS - 1 of a head, (ROWS, BLOCK_D); what lies outside reads 0.

    RAGGED: some of the rows may lie past N - 1.
    """
    x, b, h, stride_row, stride_col = head
    if isinstance(x, tl.tensor_descriptor):  # the copy engine finds addresses and borders
        tile = x.load([b, h, start, 0]).reshape(ROWS, BLOCK_D)
    else:
        rows, cols = start + tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
        ptrs = x + rows.to(tl.int64)[:, None] * stride_row + cols.to(tl.int64)[None, :] * stride_col
        if RAGGED and BLOCK_D != D:
            tile = tl.load(ptrs, mask=(rows[:, None] < N) & (cols[None, :] < D), other=0.0)
        elif RAGGED:
            tile = tl.load(ptrs, mask=rows[:, None] < N, other=0.0)
        elif BLOCK_D != D:
            tile = tl.load(ptrs, mask=cols[None, :] < D, other=0.0)
        else:
            tile = tl.load(ptrs)
    return tile


@triton.jit
def _store_rows(
    ptr, tile, bh, start, N, ROWS: tl.constexpr, BLOCK_D: tl.constexpr, D: tl.constexpr
):
    """Store a tile in a tensor of ours: contiguous, row i of head bh is row bh * N + i."""
    rows, cols = start + tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
    ptrs = ptr + (bh.to(tl.int64) * N + rows)[:, None] * D + cols[None, :]
    mask = rows[:, None] < N
    if BLOCK_D != D:
        mask &= cols[None, :] < D
    tl.store(ptrs, tile.to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def _keep(query, key, N, CAUSAL: tl.constexpr):
    """Which keys each query sees; query and key are positions that broadcast against each other."""
    return (key <= query) if CAUSAL else (key < N)


@triton.jit
def _scores(q, k, query, key, N, CAUSAL: tl.constexpr, EDGE: tl.constexpr):
    """Scores of a query tile and a key tile, (BLOCK_M, BLOCK_N); EDGE tiles are masked."""
    s = tl.dot(q, tl.trans(k))
    if EDGE:
        s = tl.where(_keep(query[:, None], key[None, :], N, CAUSAL), s, float("-inf"))
    return s


@triton.jit
def _partial_sums(p):
    """Row sums of p still spread over 8 columns, (BLOCK_M, 8): every thread adds what it holds."""
    return tl.sum(tl.reshape(p, [p.shape[0], p.shape[1] // 8, 8]), axis=1)


@triton.jit
def _softmax(s, l_i, m_i, scale_log2e):
    """Weights of a tile against the new maximum, what the old sums are worth, the new l_i."""
    # Step 8.1 -- Carried over: step 3.3.
    # BEGIN SOLUTION 8.1
    m_new = tl.maximum(m_i, tl.max(s, axis=1) * scale_log2e)
    p = tl.math.exp2(s * scale_log2e - m_new[:, None])
    alpha = tl.math.exp2(m_i - m_new)
    l_i = l_i * alpha[:, None] + _partial_sums(p)
    # END SOLUTION 8.1
    return p, alpha, l_i, m_new


@triton.jit
def _attend_tile(
    sums, q, k_head, v_head, query, start_n, scale_log2e, N,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr,
    EDGE: tl.constexpr, RAGGED: tl.constexpr, LATE_V: tl.constexpr,
):
    """Forward, one key tile: sums (acc, l_i, m_i) -> sums.  EDGE tiles are masked."""
    acc, l_i, m_i = sums
    key = start_n + tl.arange(0, BLOCK_N)
    k = _load_rows(k_head, start_n, N, BLOCK_N, BLOCK_D, D, RAGGED)
    if not LATE_V:
        v = _load_rows(v_head, start_n, N, BLOCK_N, BLOCK_D, D, RAGGED)
    s = _scores(q, k, query, key, N, CAUSAL, EDGE)
    p, alpha, l_i, m_i = _softmax(s, l_i, m_i, scale_log2e)
    if LATE_V:  # into the shared memory that k has left
        v = _load_rows(v_head, start_n, N, BLOCK_N, BLOCK_D, D, RAGGED)
    acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
    return acc, l_i, m_i


@triton.jit
def _dq_tile(
    dq, q, do, lse2, delta, k_head, v_head, query, start_n, scale_log2e, N,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr,
    EDGE: tl.constexpr, RAGGED: tl.constexpr,
):
    """Add one key tile's share to dq, without the factor scale."""
    key = start_n + tl.arange(0, BLOCK_N)
    k = _load_rows(k_head, start_n, N, BLOCK_N, BLOCK_D, D, RAGGED)
    v = _load_rows(v_head, start_n, N, BLOCK_N, BLOCK_D, D, RAGGED)

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
def _load_statistic(ptr, query, N, outside, RAGGED: tl.constexpr):
    """lse2 or delta of these queries, (BLOCK_M,); outside for queries that do not exist."""
    return tl.load(ptr + query, mask=query < N, other=outside) if RAGGED else tl.load(ptr + query)


@triton.jit
def _dkdv_tile(
    dk, dv, k, v, q_head, do_head, lse2_ptr, delta_ptr, start_m, key, scale_log2e, N,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, D: tl.constexpr, CAUSAL: tl.constexpr,
    EDGE: tl.constexpr, RAGGED: tl.constexpr, PRODUCTS_FIRST: tl.constexpr,
):
    """Add one query tile's share to dk (without the factor scale) and dv.

    The order decides how many registers it takes: lse2 and delta are read as late as can be.
    PRODUCTS_FIRST: dP^T before P^T.  Faster where registers are left (D = 128: .89 against .97 ms).
    """
    query = start_m + tl.arange(0, BLOCK_M)
    q = _load_rows(q_head, start_m, N, BLOCK_M, BLOCK_D, D, RAGGED)
    do = _load_rows(do_head, start_m, N, BLOCK_M, BLOCK_D, D, RAGGED)
    if not PRODUCTS_FIRST:
        lse2 = _load_statistic(lse2_ptr, query, N, float("inf"), RAGGED)

    # Step 8.4 -- P transposed: rows are keys, columns are queries.
    #   p_t (BLOCK_N, BLOCK_M) from k, q, scale_log2e and lse2 (BLOCK_M,), which
    #   _load_statistic reads; beyond N it is inf.  The mask is that of step 8.2 with the axes
    #   exchanged.  With PRODUCTS_FIRST lse2 is still to be read, and dp_t = v do^T comes right
    #   after s_t.
    # BEGIN SOLUTION 8.4
    s_t = tl.dot(k, tl.trans(q))
    if PRODUCTS_FIRST:
        lse2 = _load_statistic(lse2_ptr, query, N, float("inf"), RAGGED)
        dp_t = tl.dot(v, tl.trans(do))
    p_t = tl.math.exp2(s_t * scale_log2e - lse2[None, :])
    if EDGE:
        p_t = tl.where(_keep(query[None, :], key[:, None], N, CAUSAL), p_t, 0.0)
    # END SOLUTION 8.4

    # Step 8.5 -- This tile's share of dv and dk, all of it transposed.
    #   delta is 0 beyond N.  dp_t is still to come where it did not come first.
    # BEGIN SOLUTION 8.5
    dv = tl.dot(p_t.to(do.dtype), do, dv)
    delta = _load_statistic(delta_ptr, query, N, 0.0, RAGGED)
    if PRODUCTS_FIRST:
        ds_t = p_t * (dp_t - delta[None, :])
    else:  # dP^T - delta in one go: the product starts from -delta instead of 0
        dp_t = tl.dot(v, tl.trans(do), tl.zeros_like(s_t) - delta[None, :])
        ds_t = p_t * dp_t
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
    q_in, k_in, v_in, o_ptr, lse2_ptr, HQ, HKV, N,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    scale_log2e,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, RAGGED: tl.constexpr, Q_IN_REGISTERS: tl.constexpr, LATE_V: tl.constexpr,
    GROUP: tl.constexpr,
):
    """Fill BLOCK_M rows of o and lse2.

    Grid: (cdiv(N, BLOCK_M) * B * HQ,).  RAGGED: N is no multiple of BLOCK_M.
    """
    num_tiles = tl.cdiv(N, BLOCK_M)
    turn, bh = _longest_first(num_tiles, GROUP)
    start_m = (num_tiles - 1 - turn) * BLOCK_M  # the last queries see the most keys
    b = bh // HQ
    h = bh % HQ
    kv_head = h // (HQ // HKV)
    q_head = _head(q_in, b, h, stride_qb, stride_qh, stride_qn, stride_qd)
    k_head = _head(k_in, b, kv_head, stride_kb, stride_kh, stride_kn, stride_kd)
    v_head = _head(v_in, b, kv_head, stride_vb, stride_vh, stride_vn, stride_vd)

    scale_log2e = tl.cast(scale_log2e, tl.float32)  # torch.compile passes float64
    query = start_m + tl.arange(0, BLOCK_M)
    q = _load_rows(q_head, start_m, N, BLOCK_M, BLOCK_D, D, RAGGED)
    if Q_IN_REGISTERS:  # an exact doubling: what comes from arithmetic, not a load, stays there
        q, scale_log2e = q + q, scale_log2e * 0.5
    acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    l_i = tl.zeros([BLOCK_M, 8], dtype=tl.float32)
    m_i = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    sums = acc, l_i, m_i

    edge = (start_m if CAUSAL else N) // BLOCK_N * BLOCK_N  # first key that needs the mask
    for start_n in range(0, edge, BLOCK_N):  # keys every row sees
        sums = _attend_tile(
            sums, q, k_head, v_head, query, start_n, scale_log2e, N,
            BLOCK_N, BLOCK_D, D, CAUSAL, False, False, LATE_V,
        )
    if CAUSAL or RAGGED:
        end = tl.minimum(start_m + BLOCK_M, N) if CAUSAL else N
        for start_n in range(edge, end, BLOCK_N):  # the diagonal, or the ragged tail
            sums = _attend_tile(
                sums, q, k_head, v_head, query, start_n, scale_log2e, N,
                BLOCK_N, BLOCK_D, D, CAUSAL, True, RAGGED, LATE_V,
            )

    _finish(sums, o_ptr, lse2_ptr, bh, start_m, N, BLOCK_M, BLOCK_D, D)


@triton.jit
def _finish(
    sums, o_ptr, lse2_ptr, bh, start_m, N,
    ROWS: tl.constexpr, BLOCK_D: tl.constexpr, D: tl.constexpr,
):
    """Normalise the sums of a query tile and store its rows of o and lse2."""
    acc, l_i, m_i = sums
    l_i = tl.sum(l_i, axis=1)  # (BLOCK_M, 8) -> (BLOCK_M,)
    lse2 = m_i + tl.math.log2(l_i)
    _store_rows(o_ptr, acc / l_i[:, None], bh, start_m, N, ROWS, BLOCK_D, D)
    query = start_m + tl.arange(0, ROWS)
    tl.store(lse2_ptr + bh.to(tl.int64) * N + query, lse2, mask=query < N)


@triton.jit(do_not_specialize=["N"])
def _dq_kernel(
    q_in, k_in, v_in, o_ptr, do_in, lse2_ptr, delta_ptr, dq_ptr,
    HQ, HKV, N,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_dob, stride_doh, stride_don, stride_dod,
    scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, RAGGED: tl.constexpr, Q_IN_REGISTERS: tl.constexpr, GROUP: tl.constexpr,

):
    """Fill BLOCK_M rows of dq, and of delta.  Grid: (cdiv(N, BLOCK_M) * B * HQ,)."""
    tl.static_assert(BLOCK_M % BLOCK_N == 0)
    num_tiles = tl.cdiv(N, BLOCK_M)
    turn, bh = _longest_first(num_tiles, GROUP)
    start_m = (num_tiles - 1 - turn) * BLOCK_M  # the last queries see the most keys
    b = bh // HQ
    h = bh % HQ
    kv_head = h // (HQ // HKV)
    q_head = _head(q_in, b, h, stride_qb, stride_qh, stride_qn, stride_qd)
    k_head = _head(k_in, b, kv_head, stride_kb, stride_kh, stride_kn, stride_kd)
    v_head = _head(v_in, b, kv_head, stride_vb, stride_vh, stride_vn, stride_vd)
    do_head = _head(do_in, b, h, stride_dob, stride_doh, stride_don, stride_dod)

    query = start_m + tl.arange(0, BLOCK_M)
    q = _load_rows(q_head, start_m, N, BLOCK_M, BLOCK_D, D, RAGGED)
    do = _load_rows(do_head, start_m, N, BLOCK_M, BLOCK_D, D, RAGGED)
    row = bh.to(tl.int64) * N + query
    lse2 = tl.load(lse2_ptr + row, mask=query < N, other=float("inf"))
    o_head = _head(o_ptr, bh, bh, 0, N * D, D, 1)  # contiguous: heads N * D elements apart
    o = _load_rows(o_head, start_m, N, BLOCK_M, BLOCK_D, D, RAGGED)
    # Step 8.6 -- delta = rowsum(do * o), in float32; dkdv will want it, too.
    #   delta (BLOCK_M,), from the tiles o and do, (BLOCK_M, BLOCK_D).
    # BEGIN SOLUTION 8.6
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), axis=1)
    # END SOLUTION 8.6
    tl.store(delta_ptr + row, delta, mask=query < N)
    scale = tl.cast(scale, tl.float32)  # torch.compile passes float64
    scale_log2e = scale / LN2
    if Q_IN_REGISTERS:  # as in the forward; do and delta doubled, too, double dS
        q, do, delta = q + q, do + do, delta + delta
        scale_log2e, scale = scale_log2e * 0.5, scale * 0.5
    dq = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)

    edge = (start_m if CAUSAL else N) // BLOCK_N * BLOCK_N  # the bounds of the forward
    for start_n in range(0, edge, BLOCK_N):
        dq = _dq_tile(
            dq, q, do, lse2, delta, k_head, v_head, query, start_n, scale_log2e, N,
            BLOCK_N, BLOCK_D, D, CAUSAL, False, False,
        )
    if CAUSAL or RAGGED:
        end = tl.minimum(start_m + BLOCK_M, N) if CAUSAL else N
        for start_n in range(edge, end, BLOCK_N):
            dq = _dq_tile(
                dq, q, do, lse2, delta, k_head, v_head, query, start_n, scale_log2e, N,
                BLOCK_N, BLOCK_D, D, CAUSAL, True, RAGGED,
            )
    _store_rows(dq_ptr, dq * scale, bh, start_m, N, BLOCK_M, BLOCK_D, D)


@triton.jit(do_not_specialize=["N"])
def _dkdv_kernel(
    q_in, k_in, v_in, do_in, lse2_ptr, delta_ptr, dk_ptr, dv_ptr, HQ, HKV, N,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_dob, stride_doh, stride_don, stride_dod,
    scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, RAGGED: tl.constexpr, GROUP: tl.constexpr, GROUPED: tl.constexpr,
    PRODUCTS_FIRST: tl.constexpr,
):
    """Fill BLOCK_N rows of dk and dv.  Grid: (cdiv(N, BLOCK_N) * B * HKV,).

    GROUPED: more than one query head reads this key/value head.
    """
    tl.static_assert(BLOCK_N % BLOCK_M == 0)  # the diagonal begins at a query tile's border
    turn, bh = _longest_first(tl.cdiv(N, BLOCK_N), GROUP)  # bh: b * HKV + kv_head
    start_n = turn * BLOCK_N  # the first keys are seen by the most queries
    b = bh // HKV
    kv_head = bh % HKV
    k_head = _head(k_in, b, kv_head, stride_kb, stride_kh, stride_kn, stride_kd)
    v_head = _head(v_in, b, kv_head, stride_vb, stride_vh, stride_vn, stride_vd)

    key = start_n + tl.arange(0, BLOCK_N)
    k = _load_rows(k_head, start_n, N, BLOCK_N, BLOCK_D, D, RAGGED)
    v = _load_rows(v_head, start_n, N, BLOCK_N, BLOCK_D, D, RAGGED)
    scale = tl.cast(scale, tl.float32)  # torch.compile passes float64
    scale_log2e = scale / LN2
    dk = tl.zeros([BLOCK_N, BLOCK_D], dtype=tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_D], dtype=tl.float32)

    # Step 8.7 -- Which query tiles see these keys?
    #   inner: first query whose tile needs no mask.  inner_tiles and diag_tiles: how many
    #   tiles of BLOCK_M queries follow from there, and how many from start_n on do need it
    #   (none without CAUSAL: keys past the end give rows that are not stored).
    # BEGIN SOLUTION 8.7
    inner = start_n + BLOCK_N if CAUSAL else 0
    inner_tiles = tl.cdiv(tl.maximum(N - inner, 0), BLOCK_M)
    diag_tiles = tl.cdiv(tl.minimum(BLOCK_N, N - start_n), BLOCK_M) if CAUSAL else 0
    # END SOLUTION 8.7

    # One loop for all heads of the group: their shares add up in dk and dv.
    h = kv_head
    group = HQ // HKV if GROUPED else 1
    for t in range(0, group * inner_tiles):
        start_m = inner + t * BLOCK_M
        if GROUPED:
            h = kv_head * group + t // inner_tiles
            start_m = inner + t % inner_tiles * BLOCK_M
        dk, dv = _dkdv_tile(
            dk, dv, k, v,
            _head(q_in, b, h, stride_qb, stride_qh, stride_qn, stride_qd),
            _head(do_in, b, h, stride_dob, stride_doh, stride_don, stride_dod),
            lse2_ptr + (b * HQ + h).to(tl.int64) * N, delta_ptr + (b * HQ + h).to(tl.int64) * N,
            start_m, key, scale_log2e, N,
            BLOCK_M, BLOCK_D, D, CAUSAL, False, RAGGED, PRODUCTS_FIRST,
        )
    if CAUSAL:
        for t in range(0, group * diag_tiles):  # the mask cuts through these
            start_m = start_n + t * BLOCK_M
            if GROUPED:
                h = kv_head * group + t // diag_tiles
                start_m = start_n + t % diag_tiles * BLOCK_M
            dk, dv = _dkdv_tile(
                dk, dv, k, v,
                _head(q_in, b, h, stride_qb, stride_qh, stride_qn, stride_qd),
                _head(do_in, b, h, stride_dob, stride_doh, stride_don, stride_dod),
                lse2_ptr + (b * HQ + h).to(tl.int64) * N, delta_ptr + (b * HQ + h).to(tl.int64) * N,
                start_m, key, scale_log2e, N,
                BLOCK_M, BLOCK_D, D, CAUSAL, True, RAGGED, PRODUCTS_FIRST,
            )
    _store_rows(dk_ptr, dk * scale, bh, start_n, N, BLOCK_N, BLOCK_D, D)
    _store_rows(dv_ptr, dv, bh, start_n, N, BLOCK_N, BLOCK_D, D)


# ----------------------------------------------------------- launch and autograd
def _can_describe(*tensors: torch.Tensor) -> bool:
    """Whether the GPU's copy engine can fetch tiles of these (B, H, N, D), and it pays.

    It takes 16-byte steps.  Timed on an H200: faster by 15 % at D = 128, slower at D = 16.
    """
    x = tensors[0]
    if x.shape[3] <= 32 or x.element_size() != 2 or torch.compiler.is_compiling():
        return False
    if x.is_cuda and not INTERPRETED and torch.cuda.get_device_capability(x.device)[0] != 9:
        return False  # Hopper is where this was tried
    return all(
        x.data_ptr() % 16 == 0 and x.stride(3) == 1 and all(s % 8 == 0 < s for s in x.stride()[:3])
        for x in tensors
    )


def _describe(x: torch.Tensor, rows: int, BLOCK_D: int) -> TensorDescriptor:
    """x (B, H, N, D) as the copy engine sees it: a source of (1, 1, rows, BLOCK_D) tiles."""
    return TensorDescriptor(x, x.shape, x.stride(), [1, 1, rows, BLOCK_D])


def _tiles(D: int, dtype: torch.dtype, device: torch.device, descriptors: bool) -> dict:
    """Tile shape and launch options: large enough to reuse k and v, small enough not to spill.

    Timed on an H200 for bfloat16; for other GPUs chosen by what they hold, and compiled only.
    """
    major = torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 9
    BLOCK_D = max(16, 1 << (D - 1).bit_length())  # a power of two, for tl.arange
    row_bytes = BLOCK_D * dtype.itemsize
    options = dict(num_warps=4, num_stages=3)  # stages: k and v tiles on their way at a time
    if descriptors and BLOCK_D == 128:  # no stages, but three programs at a time: 0.97 -> 0.92 ms
        BLOCK_M, BLOCK_N = 64, 128
        options |= dict(num_stages=1, maxnreg=168)
    elif descriptors or (major == 9 and row_bytes <= 64):  # small programs, several at a time
        BLOCK_M, BLOCK_N = 64, 64
        if BLOCK_D == 16:
            options["maxnreg"] = 96  # registers a thread: five programs fit a multiprocessor
    elif major in (9, 10) and row_bytes == 256:  # two groups of warps share k and v
        BLOCK_M, BLOCK_N = 128, 64
        options["num_warps"] = 8
    elif major in (9, 10):  # Hopper, Blackwell B200: 227 KiB of shared memory feed the matrix units
        BLOCK_M, BLOCK_N = 64, 64 if row_bytes <= 128 else 32
        options["num_stages"] = 3 if row_bytes <= 128 else 2
    elif major >= 8:  # Ampere, Ada, Blackwell RTX: both factors of a product sit in registers
        BLOCK_M, BLOCK_N = 64 if row_bytes <= 256 else 32, 64 if row_bytes <= 128 else 32
        options["num_stages"] = 2 if row_bytes <= 128 else 3
    else:  # Turing: Triton multiplies without its matrix units, so everything is in registers
        BLOCK_M, BLOCK_N = 32, 16
        options["num_stages"] = 2
    return dict(BLOCK_D=BLOCK_D, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, **options)


def _backward_tiles(
    D: int, dtype: torch.dtype, device: torch.device, descriptors: bool
) -> tuple[dict, dict]:
    """As _tiles, for the dq and the dkdv kernel, which hold two sums or two score tiles at once."""
    major = torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 9
    BLOCK_D = max(16, 1 << (D - 1).bit_length())  # a power of two, for tl.arange
    row_bytes = BLOCK_D * dtype.itemsize
    own = 64 if row_bytes <= (256 if major in (9, 10) else 128) else 32  # rows of the sums
    if major in (9, 10) and (row_bytes <= 128 or descriptors):
        walk, num_stages = 64, 3  # rows a step takes
    elif major >= 8:
        walk, num_stages = 32, 3 if major in (9, 10) and row_bytes == 256 else 2
    else:
        own, walk, num_stages = 16, 16, 2
    options = dict(BLOCK_D=BLOCK_D, num_warps=4, num_stages=num_stages)
    dq = dict(BLOCK_M=own, BLOCK_N=walk, Q_IN_REGISTERS=False, **options)
    dkdv = dict(BLOCK_M=walk, BLOCK_N=own, PRODUCTS_FIRST=True, **options)
    if descriptors:
        dq |= dict(Q_IN_REGISTERS=BLOCK_D == 128)
        dkdv |= dict(num_stages=2)  # shared memory for two programs a multiprocessor
        if BLOCK_D == 64:  # three programs, if a thread takes no more registers than this
            dkdv |= dict(PRODUCTS_FIRST=False, maxnreg=168)
    return dq, dkdv


def _forward(q, k, v, is_causal, scale):
    """Launch the kernel.  q (B, HQ, N, D), k and v (B, HKV, N, D) -> o, lse2 (B, HQ, N)."""
    B, HQ, N, D = q.shape
    HKV = k.shape[1]
    o = torch.empty(B, HQ, N, D, device=q.device, dtype=q.dtype)
    lse2 = torch.empty(B, HQ, N, device=q.device, dtype=torch.float32)
    strides = *q.stride(), *k.stride(), *v.stride()
    descriptors = _can_describe(q, k, v)
    tiles = _tiles(D, q.dtype, q.device, descriptors)
    unstaged = tiles["num_stages"] == 1
    if descriptors:
        BLOCK_D, BLOCK_N = tiles["BLOCK_D"], tiles["BLOCK_N"]
        q = _describe(q, tiles["BLOCK_M"], BLOCK_D)
        k, v = _describe(k, BLOCK_N, BLOCK_D), _describe(v, BLOCK_N, BLOCK_D)
    programs = -(-N // tiles["BLOCK_M"]) * B * HQ
    with torch.cuda.device(o.get_device()):  # launch where the data is; does nothing on a CPU
        _fwd_kernel[(programs,)](
            q, k, v, o, lse2, HQ, HKV, N, *strides, scale * LOG2E, D=D, CAUSAL=is_causal,
            RAGGED=N % max(tiles["BLOCK_M"], tiles["BLOCK_N"]) != 0,
            # Without the second loop of the causal mask ptxas mixes up the registers of q and p.
            Q_IN_REGISTERS=descriptors and is_causal and not unstaged,
            GROUP=GROUP, LATE_V=unstaged, **tiles,
        )
    return o, lse2


def _backward(q, k, v, o, lse2, do, is_causal, scale, need_dkdv=True):
    """Launch both kernels.  do (B, HQ, N, D), any strides -> dq, dk, dv; dk and dv may be None."""
    B, HQ, N, D = q.shape
    HKV = k.shape[1]
    strides = *q.stride(), *k.stride(), *v.stride(), *do.stride()
    descriptors = _can_describe(q, k, v, do)
    dq_tiles, dkdv_tiles = _backward_tiles(D, q.dtype, q.device, descriptors)
    delta = torch.empty(B, HQ, N, device=q.device, dtype=torch.float32)
    dq = torch.empty(B, HQ, N, D, device=q.device, dtype=q.dtype)
    dk = dv = None
    if need_dkdv:
        dk = torch.empty(B, HKV, N, D, device=k.device, dtype=k.dtype)
        dv = torch.empty(B, HKV, N, D, device=v.device, dtype=v.dtype)
    if descriptors:  # all tiles of both kernels have 64 rows then
        q, k, v, do = (_describe(x, 64, dq_tiles["BLOCK_D"]) for x in (q, k, v, do))
    with torch.cuda.device(dq.get_device()):
        # Always, even if nobody asked for dq: dkdv needs its delta.
        _dq_kernel[(-(-N // dq_tiles["BLOCK_M"]) * B * HQ,)](
            q, k, v, o, do, lse2, delta, dq, HQ, HKV, N, *strides, scale,
            D=D, CAUSAL=is_causal, RAGGED=N % dq_tiles["BLOCK_M"] != 0,
            GROUP=GROUP, **dq_tiles,
        )
        if need_dkdv:
            _dkdv_kernel[(-(-N // dkdv_tiles["BLOCK_N"]) * B * HKV,)](
                q, k, v, do, lse2, delta, dk, dv, HQ, HKV, N, *strides, scale,
                D=D, CAUSAL=is_causal, RAGGED=N % dkdv_tiles["BLOCK_N"] != 0,
                GROUP=GROUP, GROUPED=HQ != HKV, **dkdv_tiles,
            )
    return dq, dk, dv


class FlashAttention2Function(torch.autograd.Function):
    """Connects the kernels to autograd.  First derivatives only."""

    @staticmethod
    def forward(ctx, q, k, v, is_causal, scale):
        o, lse2 = _forward(q, k, v, is_causal, scale)
        ctx.save_for_backward(q, k, v, o, lse2)
        ctx.is_causal, ctx.scale = is_causal, scale
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx, do):
        _, need_dk, need_dv = ctx.needs_input_grad[:3]
        grads = _backward(*ctx.saved_tensors, do, ctx.is_causal, ctx.scale, need_dk or need_dv)
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
    of_q, of_k = q.shape, k.shape
    shapes = "want q (B, HQ, N, D), k and v (B, HKV, N, D)"
    if len(of_q) != 4 or len(of_k) != 4 or of_k != v.shape or 0 in of_q or 0 in of_k:
        raise ValueError(f"{shapes}, not empty; got {list(of_q)}, {list(of_k)}, {list(v.shape)}")
    if of_q[0] != of_k[0] or of_q[2:] != of_k[2:]:
        raise ValueError(f"{shapes}; got {list(of_q)}, {list(of_k)}, {list(v.shape)}")
    if of_q[1] % of_k[1] != 0:
        raise ValueError(f"want HQ a multiple of HKV; got {of_q[1]}, {of_k[1]}")
    if of_q[3] > 128:
        raise ValueError(f"want D <= 128; got {of_q[3]}")
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
