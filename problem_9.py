"""Problem 9 -- The backward GPT-OSS needs: groups, window, sinks and sink logits together.

GPT-OSS alternates layers with a window of 128 and layers without one, shares
each key/value head among eight query heads, and gives every query head a
learned *sink logit*: a number that takes part in the softmax as if it were one
more key, whose value is zero.

    lse = log( exp(sink_h) + sum_j exp(S_ij) )      P_ij = exp(S_ij - lse)

A query that finds nothing worth attending to can now give its weight away, and
its row of P sums to less than one.  In the online softmax the sink is the state
before the first key: m_i = sink, l_i = 1, acc = 0.  Nothing else changes.

Its gradient.  The sink's own weight is p = exp(sink_h - lse), its value is zero,
so its dP is zero too, and dS = P * (dP - delta) gives

    d sink_h = - sum over batch and queries of exp(sink_h - lse) * delta

*Sink tokens* (problem 7) are something else: positions whose key stays visible.
Both kinds may be combined with a window and with each other.

The mask, seen from a tile of keys.  Query i sees key j if j <= i and either
i - j < W or j < S.  Problem 7 drew it row by row; dkdv walks it column by column:

    W = 3, S = 1    queries ->  0 1 2 3 4 5
                    key 0       x x x o o o     a sink: seen by all that follow
                    key 1       . x x x . .
                    key 2       . . x x x .
                    key 3       . . . x x x

    diagonal     start_n ... inner - 1           some keys come after the query   masked
    interior     inner ... outer - 1             every key is visible             no mask
    right edge   outer ... last - 1              the window leaves key by key     masked

    last         one past the last query that sees any key of the tile:
                 its last key's window, or N if the tile holds a sink
    outer        one past the last query that sees all of them, down to a tile's
                 border: its first key's window, or N if all keys are sinks

So the work of dkdv is O(N (W + S)) like that of the forward, and dq walks the
forward's own phases.  window_size=None is a window of N: the same code.  A tile
that holds a sink is walked by all later queries, alone of its kind; its walk is
cut into parts that run side by side (given code, in _backward).

New here: steps 9.1, 9.6, 9.8 and 9.9.  The others are carried over from problems 7 and 8.

Shapes      q, o, do, dq: (B, HQ, N, D)    k, v, dk, dv: (B, HKV, N, D)
            lse, delta: (B, HQ, N), float32    sink_logits: (HQ,)
Dtypes      as in problem 8; sink_logits any float dtype, its gradient in the same.

Check       python autograder_optional.py --p9
Stuck       python autograder_optional.py --hint 9.1      (any step number)
Source      GPT-OSS model card, arXiv 2508.10925; StreamingLLM, arXiv 2309.17453
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
def _keep(query, key, N, window_size, sink_size, CAUSAL: tl.constexpr):
    """Which keys each query sees; query and key are positions that broadcast against each other."""
    # Step 9.1 -- The mask of step 7.1; without CAUSAL (no window then) all keys that exist.
    #   keep: booleans of query's and key's common shape.
    # BEGIN SOLUTION 9.1
    if CAUSAL:
        age = query - key
        keep = (age >= 0) & ((age < window_size) | (key < sink_size))
    else:
        keep = key < N
    # END SOLUTION 9.1
    return keep


@triton.jit
def _phases(
    start_m, N, window_size, sink_size,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr,
):
    """Borders of the walk over keys for queries start_m ... start_m + BLOCK_M - 1.

    Sinks 0 ... sink_end - 1, left edge first ... inner - 1, interior inner ... diag - 1,
    diagonal (or ragged tail) diag ... end - 1.  Shared by the forward and dq.
    """
    if CAUSAL:
        # Step 9.2 -- Carried over: the borders of problem 7.
        # BEGIN SOLUTION 9.2
        first = tl.maximum(start_m - window_size + 1, 0) // BLOCK_N * BLOCK_N
        inner = tl.cdiv(tl.maximum(start_m + BLOCK_M - window_size, 0), BLOCK_N) * BLOCK_N
        inner = tl.minimum(inner, start_m)
        sink_end = tl.minimum(sink_size, first)
        diag = start_m
        end = tl.minimum(start_m + BLOCK_M, N)
        # END SOLUTION 9.2
    else:
        sink_end, first, inner = 0, 0, 0
        diag = N // BLOCK_N * BLOCK_N
        end = N
    return sink_end, first, inner, diag, end


@triton.jit
def _attend_tile(
    acc, l_i, m_i, q, k_ptr, v_ptr, query, key, cols,
    stride_kn, stride_kd, stride_vn, stride_vd, scale_log2e, N, window_size, sink_size,
    D: tl.constexpr, CAUSAL: tl.constexpr, EDGE: tl.constexpr,
):
    """Forward, one key tile: (acc, l_i, m_i) -> (acc, l_i, m_i).  EDGE tiles are masked."""
    k = _load_rows(k_ptr, key, cols, stride_kn, stride_kd, N, D, EDGE)  # (BLOCK_N, BLOCK_D)
    v = _load_rows(v_ptr, key, cols, stride_vn, stride_vd, N, D, EDGE)  # (BLOCK_N, BLOCK_D)

    # Step 9.3 -- Carried over: step 7.2, with the mask of step 9.1.
    # BEGIN SOLUTION 9.3
    s = tl.dot(q, tl.trans(k))
    if EDGE:
        keep = _keep(query[:, None], key[None, :], N, window_size, sink_size, CAUSAL)
        s = tl.where(keep, s, float("-inf"))
    m_new = tl.maximum(m_i, tl.max(s, axis=1) * scale_log2e)
    pivot = tl.where(m_new == float("-inf"), 0.0, m_new) if EDGE else m_new
    p = tl.math.exp2(s * scale_log2e - pivot[:, None])
    alpha = tl.math.exp2(m_i - pivot)
    l_i = l_i * alpha + tl.sum(p, axis=1)
    acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
    # END SOLUTION 9.3
    return acc, l_i, m_new


@triton.jit
def _dq_tile(
    dq, q, do, lse2, delta, k_ptr, v_ptr, query, key, cols,
    stride_kn, stride_kd, stride_vn, stride_vd, scale_log2e, N, window_size, sink_size,
    D: tl.constexpr, CAUSAL: tl.constexpr, EDGE: tl.constexpr,
):
    """Add one key tile's share to dq, without the factor scale.  lse2 is lse in base 2."""
    k = _load_rows(k_ptr, key, cols, stride_kn, stride_kd, N, D, EDGE)  # (BLOCK_N, BLOCK_D)
    v = _load_rows(v_ptr, key, cols, stride_vn, stride_vd, N, D, EDGE)  # (BLOCK_N, BLOCK_D)

    # Step 9.4 -- Carried over: steps 8.2 and 8.3, with the mask of step 9.1.
    #   lse2 contains the sink logit, so p needs no thought about it.
    # BEGIN SOLUTION 9.4
    s = tl.dot(q, tl.trans(k))
    p = tl.math.exp2(s * scale_log2e - lse2[:, None])
    if EDGE:
        keep = _keep(query[:, None], key[None, :], N, window_size, sink_size, CAUSAL)
        p = tl.where(keep, p, 0.0)
    dp = tl.dot(do, tl.trans(v))
    ds = p * (dp - delta[:, None])
    dq = tl.dot(ds.to(k.dtype), k, dq)
    # END SOLUTION 9.4
    return dq


@triton.jit
def _dkdv_tile(
    dk, dv, k, v, q_ptr, do_ptr, lse_ptr, delta_ptr, query, key, cols,
    stride_qn, stride_qd, stride_don, stride_dod, scale_log2e, N, window_size, sink_size,
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

    # Step 9.5 -- Carried over: steps 8.4 and 8.5, with the mask of step 9.1.
    # BEGIN SOLUTION 9.5
    s_t = tl.dot(k, tl.trans(q))
    p_t = tl.math.exp2(s_t * scale_log2e - lse2[None, :])
    if EDGE:
        keep = _keep(query[None, :], key[:, None], N, window_size, sink_size, CAUSAL)
        p_t = tl.where(keep, p_t, 0.0)
    dv = tl.dot(p_t.to(do.dtype), do, dv)
    dp_t = tl.dot(v, tl.trans(do))
    ds_t = p_t * (dp_t - delta[None, :])
    dk = tl.dot(ds_t.to(q.dtype), q, dk)
    # END SOLUTION 9.5
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
@triton.jit(do_not_specialize=["N", "window_size", "sink_size"])
def _fwd_kernel(
    q_ptr, k_ptr, v_ptr, sink_logits_ptr, o_ptr, lse_ptr, HQ, HKV, N,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    scale_log2e, window_size, sink_size,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr, HAS_SINK_LOGITS: tl.constexpr,
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
    if HAS_SINK_LOGITS:
        # Step 9.6 -- The softmax begins with the sink already counted.
        #   m_i and l_i (BLOCK_M,), as if one key with this head's logit had been seen; acc
        #   stays 0.  m_i is in base 2, the logit is not.  Load it as float32.
        # BEGIN SOLUTION 9.6
        sink = tl.load(sink_logits_ptr + h).to(tl.float32) / LN2
        m_i = tl.zeros([BLOCK_M], dtype=tl.float32) + sink
        l_i = tl.full([BLOCK_M], 1.0, dtype=tl.float32)
        # END SOLUTION 9.6

    sink_end, first, inner, diag, end = _phases(
        start_m, N, window_size, sink_size, BLOCK_M, BLOCK_N, CAUSAL
    )
    for start_n in range(0, sink_end, BLOCK_N):  # the sinks
        acc, l_i, m_i = _attend_tile(
            acc, l_i, m_i, q, k_ptr, v_ptr, query, start_n + offs_n, cols,
            stride_kn, stride_kd, stride_vn, stride_vd, scale_log2e, N, window_size, sink_size,
            D, CAUSAL, True,
        )
    for start_n in range(first, inner, BLOCK_N):  # the left edge
        acc, l_i, m_i = _attend_tile(
            acc, l_i, m_i, q, k_ptr, v_ptr, query, start_n + offs_n, cols,
            stride_kn, stride_kd, stride_vn, stride_vd, scale_log2e, N, window_size, sink_size,
            D, CAUSAL, True,
        )
    for start_n in range(inner, diag, BLOCK_N):  # the interior
        acc, l_i, m_i = _attend_tile(
            acc, l_i, m_i, q, k_ptr, v_ptr, query, start_n + offs_n, cols,
            stride_kn, stride_kd, stride_vn, stride_vd, scale_log2e, N, window_size, sink_size,
            D, CAUSAL, False,
        )
    for start_n in range(diag, end, BLOCK_N):  # the diagonal, or the ragged tail
        acc, l_i, m_i = _attend_tile(
            acc, l_i, m_i, q, k_ptr, v_ptr, query, start_n + offs_n, cols,
            stride_kn, stride_kd, stride_vn, stride_vd, scale_log2e, N, window_size, sink_size,
            D, CAUSAL, True,
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

    # Step 9.7 -- Carried over: step 8.6, delta = rowsum(do * o) in float32.
    #   delta (BLOCK_M,).  Load both tiles with _load_rows, RAGGED; o is contiguous, (N, D).
    # BEGIN SOLUTION 9.7
    o = _load_rows(o_ptr, query, cols, D, 1, N, D, True).to(tl.float32)
    do = _load_rows(do_ptr, query, cols, stride_don, stride_dod, N, D, True).to(tl.float32)
    delta = tl.sum(o * do, axis=1)
    # END SOLUTION 9.7
    tl.store(delta_ptr + bh * N + query, delta, mask=query < N)


@triton.jit(do_not_specialize=["N", "window_size", "sink_size"])
def _dq_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr, HQ, HKV, N,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_dob, stride_doh, stride_don, stride_dod,
    scale, window_size, sink_size,
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

    sink_end, first, inner, diag, end = _phases(
        start_m, N, window_size, sink_size, BLOCK_M, BLOCK_N, CAUSAL
    )
    for start_n in range(0, sink_end, BLOCK_N):  # the sinks
        dq = _dq_tile(
            dq, q, do, lse2, delta, k_ptr, v_ptr, query, start_n + offs_n, cols,
            stride_kn, stride_kd, stride_vn, stride_vd, scale_log2e, N, window_size, sink_size,
            D, CAUSAL, True,
        )
    for start_n in range(first, inner, BLOCK_N):  # the left edge
        dq = _dq_tile(
            dq, q, do, lse2, delta, k_ptr, v_ptr, query, start_n + offs_n, cols,
            stride_kn, stride_kd, stride_vn, stride_vd, scale_log2e, N, window_size, sink_size,
            D, CAUSAL, True,
        )
    for start_n in range(inner, diag, BLOCK_N):  # the interior
        dq = _dq_tile(
            dq, q, do, lse2, delta, k_ptr, v_ptr, query, start_n + offs_n, cols,
            stride_kn, stride_kd, stride_vn, stride_vd, scale_log2e, N, window_size, sink_size,
            D, CAUSAL, False,
        )
    for start_n in range(diag, end, BLOCK_N):  # the diagonal, or the ragged tail
        dq = _dq_tile(
            dq, q, do, lse2, delta, k_ptr, v_ptr, query, start_n + offs_n, cols,
            stride_kn, stride_kd, stride_vn, stride_vd, scale_log2e, N, window_size, sink_size,
            D, CAUSAL, True,
        )

    mask = (query[:, None] < N) & (cols[None, :] < D)
    dq = (dq * scale).to(dq_ptr.dtype.element_ty)
    tl.store(dq_ptr + row[:, None] * D + cols[None, :], dq, mask=mask)


@triton.jit(
    do_not_specialize=["N", "window_size", "sink_size", "first_tile", "num_tiles", "rows_out"]
)
def _dkdv_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, HQ, HKV, N,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_dob, stride_doh, stride_don, stride_dod,
    scale, window_size, sink_size, first_tile, num_tiles, rows_out,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """Fill BLOCK_N rows of dk and dv with the sums over one part of the walk.

    Tiles first_tile ... first_tile + num_tiles - 1 of every head; dk and dv hold rows_out rows a
    head, and as many such sums as there are parts.  Grid: (num_tiles * B * HKV, parts).
    """
    tl.static_assert(BLOCK_N % BLOCK_M == 0)  # the diagonal begins at a query tile's border
    turn, bh = _longest_first(num_tiles, GROUP)  # bh: b * HKV + kv_head
    start_n = (first_tile + turn) * BLOCK_N  # the first keys are seen by the most queries
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

    # Step 9.8 -- Which query tiles see these keys?  The borders drawn at the top.
    #   inner: first query not before any key of this tile.  last: one past the last query
    #   that sees any of them, at most N.  outer: one past the last that sees all of them,
    #   down to a multiple of BLOCK_M, not below inner.  diag_tiles: as in step 8.7.
    if CAUSAL:
        # BEGIN SOLUTION 9.8
        inner = start_n + BLOCK_N
        last = N if start_n < sink_size else tl.minimum(inner - 1 + window_size, N)
        outer = N if inner <= sink_size else tl.minimum(start_n + window_size, N)
        outer = tl.maximum(outer // BLOCK_M * BLOCK_M, inner)
        diag_tiles = tl.cdiv(tl.minimum(inner, N) - start_n, BLOCK_M)
        # END SOLUTION 9.8
    else:
        inner, last, diag_tiles = 0, N, 0
        outer = N // BLOCK_M * BLOCK_M
    inner_tiles = (outer - inner) // BLOCK_M
    edge_tiles = diag_tiles + tl.cdiv(tl.maximum(last - outer, 0), BLOCK_M)

    # One loop for all heads of the group: their shares add up in dk and dv.
    group = HQ // HKV
    part, parts = tl.program_id(1), tl.num_programs(1)
    steps = group * inner_tiles
    for t in range(part * steps // parts, (part + 1) * steps // parts):
        h = kv_head * group + t // inner_tiles
        start_m = inner + t % inner_tiles * BLOCK_M
        dk, dv = _dkdv_tile(
            dk, dv, k, v,
            _head(q_ptr, b, h, stride_qb, stride_qh), _head(do_ptr, b, h, stride_dob, stride_doh),
            lse_ptr + (b * HQ + h).to(tl.int64) * N, delta_ptr + (b * HQ + h).to(tl.int64) * N,
            start_m + offs_m, key, cols,
            stride_qn, stride_qd, stride_don, stride_dod, scale_log2e, N, window_size, sink_size,
            D, CAUSAL, False,
        )
    steps = group * edge_tiles
    for t in range(part * steps // parts, (part + 1) * steps // parts):
        h = kv_head * group + t // edge_tiles
        e = t % edge_tiles
        start_m = tl.where(e < diag_tiles, start_n, outer - diag_tiles * BLOCK_M) + e * BLOCK_M
        dk, dv = _dkdv_tile(
            dk, dv, k, v,
            _head(q_ptr, b, h, stride_qb, stride_qh), _head(do_ptr, b, h, stride_dob, stride_doh),
            lse_ptr + (b * HQ + h).to(tl.int64) * N, delta_ptr + (b * HQ + h).to(tl.int64) * N,
            start_m + offs_m, key, cols,
            stride_qn, stride_qd, stride_don, stride_dod, scale_log2e, N, window_size, sink_size,
            D, CAUSAL, True,
        )

    num_heads = tl.num_programs(0) // num_tiles
    row = (part * num_heads + bh).to(tl.int64) * rows_out + key
    mask = (key[:, None] < rows_out) & (cols[None, :] < D)
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


def _forward(q, k, v, sink_logits, window_size, sink_size, is_causal, scale):
    """Launch the kernel.  q (B, HQ, N, D), k and v (B, HKV, N, D) -> o, lse (B, HQ, N)."""
    B, HQ, N, D = q.shape
    HKV = k.shape[1]
    o = torch.empty(B, HQ, N, D, device=q.device, dtype=q.dtype)
    lse = torch.empty(B, HQ, N, device=q.device, dtype=torch.float32)
    sinks = lse if sink_logits is None else sink_logits.contiguous()  # lse: never read
    tiles = _tiles(D, q.dtype, q.device)
    if window_size <= 128:  # a short walk is mostly edges: narrow tiles mask less of them away
        tiles |= dict(BLOCK_N=min(32, tiles["BLOCK_N"]), num_stages=3)
    grid = (triton.cdiv(N, tiles["BLOCK_M"]) * B * HQ,)
    with torch.cuda.device(q.get_device()):  # launch where the data is; does nothing on a CPU
        _fwd_kernel[grid](
            q, k, v, sinks, o, lse, HQ, HKV, N, *q.stride(), *k.stride(), *v.stride(),
            scale * LOG2E, window_size, sink_size,
            D=D, CAUSAL=is_causal, HAS_SINK_LOGITS=sink_logits is not None, **tiles,
        )
    return o, lse


def _backward(q, k, v, sink_logits, o, lse, do, window_size, sink_size, is_causal, scale, needs):
    """Launch the three kernels.  needs: which of dq, dk, dv, dsink_logits are wanted; else None."""
    B, HQ, N, D = q.shape
    HKV = k.shape[1]
    dq_tiles, dkdv_tiles = _backward_tiles(D, q.dtype, q.device)
    strides = *q.stride(), *k.stride(), *v.stride(), *do.stride()
    delta = torch.empty(B, HQ, N, device=q.device, dtype=torch.float32)
    dq = dk = dv = dsink_logits = None
    with torch.cuda.device(q.get_device()):
        _delta_kernel[(triton.cdiv(N, 16) * B * HQ,)](
            o, do, delta, HQ, N, *do.stride(), D=D, BLOCK_D=dq_tiles["BLOCK_D"], BLOCK_M=16
        )
        if needs[0]:
            dq = torch.empty(B, HQ, N, D, device=q.device, dtype=q.dtype)
            _dq_kernel[(triton.cdiv(N, dq_tiles["BLOCK_M"]) * B * HQ,)](
                q, k, v, do, lse, delta, dq, HQ, HKV, N, *strides, scale, window_size, sink_size,
                D=D, CAUSAL=is_causal, **dq_tiles,
            )
        if needs[1] or needs[2]:
            dk = torch.empty(B, HKV, N, D, device=k.device, dtype=k.dtype)
            dv = torch.empty(B, HKV, N, D, device=v.device, dtype=v.dtype)
            BLOCK_N = dkdv_tiles["BLOCK_N"]
            tiles = triton.cdiv(N, BLOCK_N)
            sink_tiles, parts = triton.cdiv(sink_size, BLOCK_N), N // (window_size + BLOCK_N)
            if not 0 < sink_tiles <= 4 or sink_tiles == tiles or parts < 2:
                sink_tiles = 0

            def launch(dk, dv, first_tile, num_tiles, rows_out, parts):
                _dkdv_kernel[(num_tiles * B * HKV, parts)](
                    q, k, v, do, lse, delta, dk, dv, HQ, HKV, N, *strides,
                    scale, window_size, sink_size, first_tile, num_tiles, rows_out,
                    D=D, CAUSAL=is_causal, **dkdv_tiles,
                )

            launch(dk, dv, sink_tiles, tiles - sink_tiles, N, 1)
            if sink_tiles:
                # All later queries see a sink: its tile's walk is N long where the others' are W.
                # Cut into parts of about that length, it has as many sums, which are added here.
                parts, rows = min(parts, 32), sink_tiles * BLOCK_N
                shape = 2, parts, B, HKV, rows, D
                sums = torch.empty(shape, device=k.device, dtype=torch.float32)
                launch(sums[0], sums[1], 0, sink_tiles, rows, parts)
                dk[:, :, :rows], dv[:, :, :rows] = sums.sum(1)[..., :N, :]
    if needs[3]:
        # Step 9.9 -- The gradient of the sink logits: a sum over batch and queries, per head.
        #   dsink_logits (HQ,), in the dtype of sink_logits.  lse and delta are (B, HQ, N).
        # BEGIN SOLUTION 9.9
        p_sink = torch.exp(sink_logits.float()[None, :, None] - lse)
        dsink_logits = -(p_sink * delta).sum(dim=(0, 2)).to(sink_logits.dtype)
        # END SOLUTION 9.9
    return dq, dk, dv, dsink_logits


class FlashSWDAWithSink(torch.autograd.Function):
    """Connects the kernels to autograd.  First derivatives only."""

    @staticmethod
    def forward(ctx, q, k, v, window_size, sink_size, is_causal, scale, sink_logits):
        options = window_size, sink_size, is_causal, scale
        o, lse = _forward(q, k, v, sink_logits, *options)
        ctx.save_for_backward(q, k, v, sink_logits, o, lse)
        ctx.options = options
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx, do):
        needs = [ctx.needs_input_grad[i] for i in (0, 1, 2, 7)]
        dq, dk, dv, dsink_logits = _backward(*ctx.saved_tensors, do, *ctx.options, needs)
        return dq, dk, dv, None, None, None, None, dsink_logits


def flash_swda_with_sink(
    q, k, v, window_size, sink_size=0, is_causal=True, scale=None, *, sink_logits=None
):
    """Grouped-query attention with a sliding window, sink tokens and sink logits, differentiable.

    Args:
        q: (B, HQ, N, D), any strides; float16, bfloat16 or float32; D <= 128.
        k, v: (B, HKV, N, D), any strides; HQ a multiple of HKV; dtype and device of q.
        window_size: how many keys a query sees, itself included, >= 1; None for all.
        sink_size: how many first keys stay visible beyond the window, >= 0.
        is_causal: hide keys after the query.  A window needs it.
        scale: factor of the scores, > 0; None for 1 / sqrt(D).
        sink_logits: (HQ,), any float dtype, device of q: one more logit in each head's
            softmax denominator, without a value.  None for none.

    Returns:
        o: (B, HQ, N, D), contiguous, dtype of q.  The gradient that arrives for it
        may have any strides.

    Raises:
        ValueError, TypeError: the input breaks the contract above.
    """
    _check(q, k, v)
    N, D = q.shape[2:]
    if window_size is not None and (not isinstance(window_size, int) or window_size < 1):
        raise ValueError(f"want an integer window_size >= 1, or None; got {window_size!r}")
    if window_size is not None and not is_causal:
        raise ValueError("want is_causal=True with a window; got is_causal=False")
    if not isinstance(sink_size, int) or sink_size < 0:
        raise ValueError(f"want an integer sink_size >= 0; got {sink_size!r}")
    softmax_scale = 1.0 / math.sqrt(D) if scale is None else float(scale)
    if not 0.0 < softmax_scale < float("inf"):
        raise ValueError(f"want scale > 0 and finite; got {scale}")
    if sink_logits is not None:
        if sink_logits.shape != (q.shape[1],) or not sink_logits.is_floating_point():
            got = f"{list(sink_logits.shape)}, {sink_logits.dtype}"
            raise ValueError(f"want sink_logits (HQ,) = ({q.shape[1]},), a float dtype; got {got}")
        if sink_logits.device != q.device:
            raise ValueError(f"want one device; got q {q.device}, sinks {sink_logits.device}")
    window = N if window_size is None else min(window_size, N)
    return FlashSWDAWithSink.apply(
        q, k, v, window, min(sink_size, N), bool(is_causal), softmax_scale, sink_logits
    )


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
    q, k, v = torch.randn(3, 1, 2, 100, 16, device=device).requires_grad_().unbind(0)
    i = torch.arange(100, device=device)
    age = i[:, None] - i[None, :]
    keep = (age >= 0) & ((age < 17) | (i < 4))
    o = flash_swda_with_sink(q, k, v, window_size=17, sink_size=4)
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=keep)
    do = torch.randn_like(o)
    got = torch.autograd.grad(o, (q, k, v), do)
    for name, x, y in zip("qkv", got, torch.autograd.grad(want, (q, k, v), do), strict=True):
        print(f"largest difference in d{name}:", (x - y).abs().max().item())
