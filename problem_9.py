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
forward's own phases.  window_size=None is a window of N, with MASK "causal".  A tile
that holds a sink is walked by all later queries, alone of its kind; its walk is
cut into parts that run side by side (given code, in _backward).

New here: steps 9.1, 9.6, 9.8 and 9.9.  The others are carried over from problems 7 and 8.

Shapes      q, o, do, dq: (B, HQ, N, D)    k, v, dk, dv: (B, HKV, N, D)
            lse2, delta: (B, HQ, N), float32    sink_logits: (HQ,)
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
    return x, b, h, stride_h, stride_row, stride_col


@triton.jit
def _load_rows(
    head, start, N,
    ROWS: tl.constexpr, BLOCK_D: tl.constexpr, D: tl.constexpr, RAGGED: tl.constexpr,
    HEADS: tl.constexpr = 1,
):
    """Rows start ... start + ROWS - 1 of a head, (ROWS, BLOCK_D); what lies outside reads 0.

    RAGGED: some of the rows may lie past N - 1.  HEADS: so many heads, one below the other.
    """
    x, b, h, stride_h, stride_row, stride_col = head
    if isinstance(x, tl.tensor_descriptor):  # the copy engine finds addresses and borders
        tile = x.load([b, h, start, 0]).reshape(ROWS, BLOCK_D)
    else:
        i, cols = tl.arange(0, HEADS * ROWS), tl.arange(0, BLOCK_D)
        rows = start + i % ROWS
        ptrs = x + rows.to(tl.int64)[:, None] * stride_row + cols.to(tl.int64)[None, :] * stride_col
        if HEADS > 1:
            ptrs += (i // ROWS).to(tl.int64)[:, None] * stride_h
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
    ptr, tile, bh, start, N,
    ROWS: tl.constexpr, BLOCK_D: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr = 1,
):
    """Store a tile in a tensor of ours: contiguous, row i of head bh is row bh * N + i."""
    i, cols = tl.arange(0, HEADS * ROWS), tl.arange(0, BLOCK_D)
    rows = start + i % ROWS
    ptrs = ptr + ((bh + i // ROWS).to(tl.int64) * N + rows)[:, None] * D + cols[None, :]
    mask = rows[:, None] < N
    if BLOCK_D != D:
        mask &= cols[None, :] < D
    tl.store(ptrs, tile.to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def _keep(query, key, N, window_size, sink_size, MASK: tl.constexpr):
    """Which keys each query sees; query and key are positions that broadcast against each other.

    MASK: "full", "causal", "window", or "sinks": a window and sink tokens.
    """
    # Step 9.1 -- The mask of step 7.1, and no more of it than MASK asks for.
    #   keep: booleans of query's and key's common shape; "full": all keys that exist.
    # BEGIN SOLUTION 9.1
    if MASK == "full":
        keep = key < N
    elif MASK == "causal":
        keep = key <= query
    elif MASK == "window":
        keep = (key <= query) & (key > query - window_size)
    else:
        age = query - key
        keep = (age >= 0) & ((age < window_size) | (key < sink_size))
    # END SOLUTION 9.1
    return keep


@triton.jit
def _phases(
    start_m, N, window_size, sink_size,
    ROWS: tl.constexpr, BLOCK_N: tl.constexpr, MASK: tl.constexpr, SHORT: tl.constexpr,
):
    """Borders of the walk over keys for queries start_m ... start_m + ROWS - 1.

    Sinks 0 ... sink_end - 1, left edge first ... inner - 1, interior inner ... diag - 1,
    diagonal (or ragged tail) diag ... end - 1.  Shared by the forward and dq.
    """
    sink_end, first, inner = 0, 0, 0
    if MASK == "full":
        diag = N // BLOCK_N * BLOCK_N
        end = N
    else:
        diag = start_m // BLOCK_N * BLOCK_N
        end = tl.minimum(start_m + ROWS, N)
    if SHORT:  # a window of a few tiles is all edge: one masked walk
        first = tl.maximum(start_m - window_size + 1, 0)
        if MASK == "sinks":
            first = first // BLOCK_N * BLOCK_N
            sink_end = tl.minimum(sink_size, first)
        inner, diag = end, end
    elif MASK == "window" or MASK == "sinks":
        # Step 9.2 -- Carried over: the borders of problem 7.
        # BEGIN SOLUTION 9.2
        first = tl.maximum(start_m - window_size + 1, 0) // BLOCK_N * BLOCK_N
        inner = tl.cdiv(tl.maximum(start_m + ROWS - window_size, 0), BLOCK_N) * BLOCK_N
        inner = tl.minimum(inner, diag)
        sink_end = tl.minimum(sink_size, first)
        # END SOLUTION 9.2
    return sink_end, first, inner, diag, end


@triton.jit
def _scores(q, k, query, key, N, window_size, sink_size, MASK: tl.constexpr, EDGE: tl.constexpr):
    """Scores of a query tile and a key tile, (BLOCK_M, BLOCK_N); EDGE tiles are masked."""
    s = tl.dot(q, tl.trans(k))
    if EDGE:
        s = tl.where(_keep(query[:, None], key[None, :], N,
        window_size, sink_size, MASK), s, float("-inf"))
    return s


@triton.jit
def _partial_sums(p):
    """Row sums of p still spread over 8 columns, (BLOCK_M, 8): every thread adds what it holds."""
    return tl.sum(tl.reshape(p, [p.shape[0], p.shape[1] // 8, 8]), axis=1)


@triton.jit
def _softmax(s, l_i, m_i, scale_log2e, EDGE: tl.constexpr):
    """Weights of a tile against the new maximum, what the old sums are worth, the new l_i."""
    # Step 9.3 -- Carried over: step 7.2.
    # BEGIN SOLUTION 9.3
    m_new = tl.maximum(m_i, tl.max(s, axis=1) * scale_log2e)
    pivot = tl.where(m_new == float("-inf"), 0.0, m_new) if EDGE else m_new
    p = tl.math.exp2(s * scale_log2e - pivot[:, None])
    alpha = tl.math.exp2(m_i - pivot)
    l_i = l_i * alpha[:, None] + _partial_sums(p)
    # END SOLUTION 9.3
    return p, alpha, l_i, m_new


@triton.jit
def _attend_tile(
    sums, q, k_head, v_head, query, start_n, scale_log2e, N, window_size, sink_size,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, D: tl.constexpr, MASK: tl.constexpr,
    EDGE: tl.constexpr, RAGGED: tl.constexpr, LATE_V: tl.constexpr,
):
    """Forward, one key tile: sums (acc, l_i, m_i) -> sums.  EDGE tiles are masked."""
    acc, l_i, m_i = sums
    key = start_n + tl.arange(0, BLOCK_N)
    k = _load_rows(k_head, start_n, N, BLOCK_N, BLOCK_D, D, RAGGED)
    if not LATE_V:
        v = _load_rows(v_head, start_n, N, BLOCK_N, BLOCK_D, D, RAGGED)
    s = _scores(q, k, query, key, N, window_size, sink_size, MASK, EDGE)
    p, alpha, l_i, m_i = _softmax(s, l_i, m_i, scale_log2e, EDGE)
    if LATE_V:  # into the shared memory that k has left
        v = _load_rows(v_head, start_n, N, BLOCK_N, BLOCK_D, D, RAGGED)
    acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
    return acc, l_i, m_i


@triton.jit
def _dq_tile(
    dq, q, do, lse2, delta, k_head, v_head, query, start_n, scale_log2e, N, window_size, sink_size,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, D: tl.constexpr, MASK: tl.constexpr,
    EDGE: tl.constexpr, RAGGED: tl.constexpr,
):
    """Add one key tile's share to dq, without the factor scale."""
    key = start_n + tl.arange(0, BLOCK_N)
    k = _load_rows(k_head, start_n, N, BLOCK_N, BLOCK_D, D, RAGGED)
    v = _load_rows(v_head, start_n, N, BLOCK_N, BLOCK_D, D, RAGGED)

    # Step 9.4 -- Carried over: steps 8.2 and 8.3, with the mask of step 9.1.
    #   lse2 contains the sink logit, so p needs no thought about it.
    # BEGIN SOLUTION 9.4
    s = tl.dot(q, tl.trans(k))
    p = tl.math.exp2(s * scale_log2e - lse2[:, None])
    if EDGE:
        p = tl.where(_keep(query[:, None], key[None, :], N, window_size, sink_size, MASK), p, 0.0)
    dp = tl.dot(do, tl.trans(v))
    ds = p * (dp - delta[:, None])
    dq = tl.dot(ds.to(k.dtype), k, dq)
    # END SOLUTION 9.4
    return dq


@triton.jit
def _load_statistic(ptr, query, N, outside, RAGGED: tl.constexpr):
    """lse2 or delta of these queries, (BLOCK_M,); outside for queries that do not exist."""
    return tl.load(ptr + query, mask=query < N, other=outside) if RAGGED else tl.load(ptr + query)


@triton.jit
def _dkdv_tile(
    dk, dv, k, v, q_head, do_head, lse2_ptr, delta_ptr, start_m, key, scale_log2e, N,
    window_size, sink_size,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, D: tl.constexpr, MASK: tl.constexpr,
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

    # Step 9.5 -- Carried over: steps 8.4 and 8.5, with the mask of step 9.1.
    # BEGIN SOLUTION 9.5
    s_t = tl.dot(k, tl.trans(q))
    if PRODUCTS_FIRST:
        lse2 = _load_statistic(lse2_ptr, query, N, float("inf"), RAGGED)
        dp_t = tl.dot(v, tl.trans(do))
    p_t = tl.math.exp2(s_t * scale_log2e - lse2[None, :])
    if EDGE:
        p_t = tl.where(_keep(query[None, :], key[:, None], N,
        window_size, sink_size, MASK), p_t, 0.0)
    dv = tl.dot(p_t.to(do.dtype), do, dv)
    delta = _load_statistic(delta_ptr, query, N, 0.0, RAGGED)
    if PRODUCTS_FIRST:
        ds_t = p_t * (dp_t - delta[None, :])
    else:  # dP^T - delta in one go: the product starts from -delta instead of 0
        dp_t = tl.dot(v, tl.trans(do), tl.zeros_like(s_t) - delta[None, :])
        ds_t = p_t * dp_t
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
    q_in, k_in, v_in, sink_logits_ptr, o_ptr, lse2_ptr, HQ, HKV, N,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    scale_log2e, window_size, sink_size,
    D: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr,
    MASK: tl.constexpr, RAGGED: tl.constexpr, Q_IN_REGISTERS: tl.constexpr, LATE_V: tl.constexpr,
    GROUP: tl.constexpr,
    HEADS: tl.constexpr, SHORT: tl.constexpr, HAS_SINK_LOGITS: tl.constexpr,
):
    """Fill ROWS rows of o and lse2 for HEADS heads of a group.

    Grid: (cdiv(N, ROWS) * B * HQ / HEADS,).  RAGGED: N is no multiple of ROWS.
    """
    num_tiles = tl.cdiv(N, ROWS)
    turn, bh = _longest_first(num_tiles, GROUP)
    start_m = (num_tiles - 1 - turn) * ROWS  # the last queries see the most keys
    bh *= HEADS
    b = bh // HQ
    h = bh % HQ
    kv_head = h // (HQ // HKV)
    q_head = _head(q_in, b, h, stride_qb, stride_qh, stride_qn, stride_qd)
    k_head = _head(k_in, b, kv_head, stride_kb, stride_kh, stride_kn, stride_kd)
    v_head = _head(v_in, b, kv_head, stride_vb, stride_vh, stride_vn, stride_vd)

    scale_log2e = tl.cast(scale_log2e, tl.float32)  # torch.compile passes float64
    i = tl.arange(0, HEADS * ROWS)
    query = start_m + i % ROWS
    q = _load_rows(q_head, start_m, N, ROWS, BLOCK_D, D, RAGGED, HEADS)
    if Q_IN_REGISTERS:  # an exact doubling: what comes from arithmetic, not a load, stays there
        q, scale_log2e = q + q, scale_log2e * 0.5
    acc = tl.zeros([HEADS * ROWS, BLOCK_D], dtype=tl.float32)
    l_i = tl.zeros([HEADS * ROWS, 8], dtype=tl.float32)
    m_i = tl.full([HEADS * ROWS], float("-inf"), dtype=tl.float32)
    if HAS_SINK_LOGITS:
        sink = tl.load(sink_logits_ptr + h + i // ROWS).to(tl.float32)
        # Step 9.6 -- The softmax begins with the sink already counted.
        #   m_i (BLOCK_M,) and l_i (BLOCK_M, 8), as if one key with the logit sink (BLOCK_M,)
        #   had been seen; acc stays 0.  m_i is in base 2, the logit is not; only the sum of
        #   l_i's 8 columns counts.
        # BEGIN SOLUTION 9.6
        m_i = sink / LN2
        l_i += 1.0 / 8.0
        # END SOLUTION 9.6
    sums = acc, l_i, m_i

    sink_end, first, inner, diag, end = _phases(
        start_m, N, window_size, sink_size, ROWS, BLOCK_N, MASK, SHORT
    )
    for start_n in range(0, sink_end, BLOCK_N):  # the sinks
        sums = _attend_tile(
            sums, q, k_head, v_head, query, start_n, scale_log2e, N,
            window_size, sink_size,
            BLOCK_N, BLOCK_D, D, MASK, True, RAGGED or SHORT, LATE_V,
        )
    for start_n in range(first, inner, BLOCK_N):  # the left edge
        sums = _attend_tile(
            sums, q, k_head, v_head, query, start_n, scale_log2e, N,
            window_size, sink_size,
            BLOCK_N, BLOCK_D, D, MASK, True, RAGGED or SHORT, LATE_V,
        )
    for start_n in range(inner, diag, BLOCK_N):  # the interior
        sums = _attend_tile(
            sums, q, k_head, v_head, query, start_n, scale_log2e, N,
            window_size, sink_size,
            BLOCK_N, BLOCK_D, D, MASK, False, False, LATE_V,
        )
    if MASK != "full" or RAGGED:
        for start_n in range(diag, end, BLOCK_N):  # the diagonal, or the ragged tail
            sums = _attend_tile(
                sums, q, k_head, v_head, query, start_n, scale_log2e, N,
                window_size, sink_size,
                BLOCK_N, BLOCK_D, D, MASK, True, RAGGED, LATE_V,
            )

    _finish(sums, o_ptr, lse2_ptr, bh, start_m, N, ROWS, BLOCK_D, D, HEADS)


@triton.jit
def _finish(
    sums, o_ptr, lse2_ptr, bh, start_m, N,
    ROWS: tl.constexpr, BLOCK_D: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr,
):
    """Normalise the sums of a query tile and store its rows of o and lse2."""
    acc, l_i, m_i = sums
    l_i = tl.sum(l_i, axis=1)  # (BLOCK_M, 8) -> (BLOCK_M,)
    lse2 = m_i + tl.math.log2(l_i)
    _store_rows(o_ptr, acc / l_i[:, None], bh, start_m, N, ROWS, BLOCK_D, D, HEADS)
    i = tl.arange(0, HEADS * ROWS)
    query = start_m + i % ROWS
    tl.store(lse2_ptr + (bh + i // ROWS).to(tl.int64) * N + query, lse2, mask=query < N)


@triton.jit(do_not_specialize=["N", "window_size", "sink_size"])
def _dq_kernel(
    q_in, k_in, v_in, o_ptr, do_in, sink_logits_ptr, lse2_ptr, delta_ptr, dq_ptr, dsink_ptr,
    HQ, HKV, N,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_dob, stride_doh, stride_don, stride_dod,
    scale, window_size, sink_size,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    MASK: tl.constexpr, RAGGED: tl.constexpr, Q_IN_REGISTERS: tl.constexpr, GROUP: tl.constexpr,
    SHORT: tl.constexpr, WANT_DSINK: tl.constexpr,
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
    # Step 9.7 -- Carried over: step 8.6, delta = rowsum(do * o) in float32.
    #   delta (BLOCK_M,), from the tiles o and do, (BLOCK_M, BLOCK_D).
    # BEGIN SOLUTION 9.7
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), axis=1)
    # END SOLUTION 9.7
    tl.store(delta_ptr + row, delta, mask=query < N)
    if WANT_DSINK:
        sink = tl.load(sink_logits_ptr + h).to(tl.float32)
        # Step 9.8 -- These queries' share in the gradient of their head's sink logit.
        #   dsink: one number, float32.  lse2 is in base 2, sink is not.  The shares of a head
        #   are added up after the launch.
        # BEGIN SOLUTION 9.8
        p_sink = tl.math.exp2(sink / LN2 - lse2)
        dsink = -tl.sum(p_sink * delta)
        # END SOLUTION 9.8
        tl.store(dsink_ptr + bh * num_tiles + start_m // BLOCK_M, dsink)
    scale = tl.cast(scale, tl.float32)  # torch.compile passes float64
    scale_log2e = scale / LN2
    if Q_IN_REGISTERS:  # as in the forward; do and delta doubled, too, double dS
        q, do, delta = q + q, do + do, delta + delta
        scale_log2e, scale = scale_log2e * 0.5, scale * 0.5
    dq = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)

    sink_end, first, inner, diag, end = _phases(
        start_m, N, window_size, sink_size, BLOCK_M, BLOCK_N, MASK, SHORT
    )
    for start_n in range(0, sink_end, BLOCK_N):  # the sinks
        dq = _dq_tile(
            dq, q, do, lse2, delta, k_head, v_head, query, start_n, scale_log2e, N,
            window_size, sink_size,
            BLOCK_N, BLOCK_D, D, MASK, True, RAGGED or SHORT,
        )
    for start_n in range(first, inner, BLOCK_N):  # the left edge
        dq = _dq_tile(
            dq, q, do, lse2, delta, k_head, v_head, query, start_n, scale_log2e, N,
            window_size, sink_size,
            BLOCK_N, BLOCK_D, D, MASK, True, RAGGED or SHORT,
        )
    for start_n in range(inner, diag, BLOCK_N):  # the interior
        dq = _dq_tile(
            dq, q, do, lse2, delta, k_head, v_head, query, start_n, scale_log2e, N,
            window_size, sink_size,
            BLOCK_N, BLOCK_D, D, MASK, False, False,
        )
    if MASK != "full" or RAGGED:
        for start_n in range(diag, end, BLOCK_N):  # the diagonal, or the ragged tail
            dq = _dq_tile(
                dq, q, do, lse2, delta, k_head, v_head, query, start_n, scale_log2e, N,
                window_size, sink_size,
                BLOCK_N, BLOCK_D, D, MASK, True, RAGGED,
            )
    _store_rows(dq_ptr, dq * scale, bh, start_m, N, BLOCK_M, BLOCK_D, D)


@triton.jit(do_not_specialize=[
    "N", "window_size", "sink_size", "first_tile", "num_tiles", "rows_out"
])
def _dkdv_kernel(
    q_in, k_in, v_in, do_in, lse2_ptr, delta_ptr, dk_ptr, dv_ptr, HQ, HKV, N,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_dob, stride_doh, stride_don, stride_dod,
    scale, window_size, sink_size, first_tile, num_tiles, rows_out,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    MASK: tl.constexpr, RAGGED: tl.constexpr, GROUP: tl.constexpr, GROUPED: tl.constexpr,
    PRODUCTS_FIRST: tl.constexpr,
    SPLIT: tl.constexpr,
):
    """Fill BLOCK_N rows of dk and dv with the sums over the walk, or over one part of it.

    Tiles first_tile ... first_tile + num_tiles - 1 of every head; dk and dv hold rows_out rows a
    head, and with SPLIT as many such sums as there are parts.  Grid: (num_tiles * B * HKV, parts).
    GROUPED: more than one query head reads this key/value head.
    """
    tl.static_assert(BLOCK_N % BLOCK_M == 0)  # the diagonal begins at a query tile's border
    turn, bh = _longest_first(num_tiles, GROUP)  # bh: b * HKV + kv_head
    start_n = (first_tile + turn) * BLOCK_N  # the first keys are seen by the most queries
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

    # Step 9.9 -- Which query tiles see these keys?  The borders drawn at the top.
    #   inner: first query after all keys of this tile.  last: one past the last query
    #   that sees any of them, at most N.  outer: one past the last that sees all of them,
    #   down to a multiple of BLOCK_M, not below inner.  diag_tiles: as in step 8.7.
    if MASK != "full":
        # BEGIN SOLUTION 9.9
        inner = start_n + BLOCK_N
        last = N if start_n < sink_size else tl.minimum(inner - 1 + window_size, N)
        outer = N if inner <= sink_size else tl.minimum(start_n + window_size, N)
        outer = tl.maximum(outer // BLOCK_M * BLOCK_M, inner)
        diag_tiles = tl.cdiv(tl.minimum(inner, N) - start_n, BLOCK_M)
        # END SOLUTION 9.9
    else:
        inner, last, diag_tiles = 0, N, 0
        outer = N // BLOCK_M * BLOCK_M
    inner_tiles = (outer - inner) // BLOCK_M
    edge_tiles = diag_tiles + tl.cdiv(tl.maximum(last - outer, 0), BLOCK_M)

    # One loop for all heads of the group: their shares add up in dk and dv.
    h = kv_head
    group = HQ // HKV if GROUPED else 1
    part, parts = 0, 1
    if SPLIT:
        part, parts = tl.program_id(1), tl.num_programs(1)
    steps = group * inner_tiles
    for t in range(part * steps // parts, (part + 1) * steps // parts):
        start_m = inner + t * BLOCK_M
        if GROUPED:
            h = kv_head * group + t // inner_tiles
            start_m = inner + t % inner_tiles * BLOCK_M
        dk, dv = _dkdv_tile(
            dk, dv, k, v,
            _head(q_in, b, h, stride_qb, stride_qh, stride_qn, stride_qd),
            _head(do_in, b, h, stride_dob, stride_doh, stride_don, stride_dod),
            lse2_ptr + (b * HQ + h).to(tl.int64) * N, delta_ptr + (b * HQ + h).to(tl.int64) * N,
            start_m, key, scale_log2e, N, window_size, sink_size,
            BLOCK_M, BLOCK_D, D, MASK, False, False, PRODUCTS_FIRST,
        )
    steps = group * edge_tiles
    for t in range(part * steps // parts, (part + 1) * steps // parts):
        e = t
        if GROUPED:
            h = kv_head * group + t // edge_tiles
            e = t % edge_tiles
        start_m = tl.where(e < diag_tiles, start_n, outer - diag_tiles * BLOCK_M) + e * BLOCK_M
        dk, dv = _dkdv_tile(
            dk, dv, k, v,
            _head(q_in, b, h, stride_qb, stride_qh, stride_qn, stride_qd),
            _head(do_in, b, h, stride_dob, stride_doh, stride_don, stride_dod),
            lse2_ptr + (b * HQ + h).to(tl.int64) * N, delta_ptr + (b * HQ + h).to(tl.int64) * N,
            start_m, key, scale_log2e, N, window_size, sink_size,
            BLOCK_M, BLOCK_D, D, MASK, True, RAGGED, PRODUCTS_FIRST,
        )
    num_heads = tl.num_programs(0) // num_tiles
    _store_rows(dk_ptr, dk * scale, part * num_heads + bh, start_n, rows_out, BLOCK_N, BLOCK_D, D)
    _store_rows(dv_ptr, dv, part * num_heads + bh, start_n, rows_out, BLOCK_N, BLOCK_D, D)


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


def _mask(N, window_size, sink_size, is_causal):
    """The least mask that will do: "full", "causal", "window" or "sinks"."""
    if not is_causal:
        return "full"
    if window_size >= N:
        return "causal"
    return "sinks" if sink_size else "window"


def _forward(q, k, v, sink_logits, window_size, sink_size, is_causal, scale):
    """Launch the kernel.  q (B, HQ, N, D), k and v (B, HKV, N, D) -> o, lse2 (B, HQ, N)."""
    B, HQ, N, D = q.shape
    HKV = k.shape[1]
    o = torch.empty(B, HQ, N, D, device=q.device, dtype=q.dtype)
    lse2 = torch.empty(B, HQ, N, device=q.device, dtype=torch.float32)
    sinks = lse2 if sink_logits is None else sink_logits.contiguous()  # lse2: never read
    strides = *q.stride(), *k.stride(), *v.stride()
    mask = _mask(N, window_size, sink_size, is_causal)
    narrow = is_causal and window_size <= 128
    short = narrow and HQ // HKV % 8 == 0  # eight heads fill a tile's rows
    descriptors = not short and _can_describe(q, k, v)
    tiles = _tiles(D, q.dtype, q.device, descriptors)
    if narrow:  # a short walk is mostly edges: narrow tiles mask less of them away
        tiles |= dict(BLOCK_N=min(32, tiles["BLOCK_N"]), num_stages=3)
    if tiles["BLOCK_D"] == 16 and mask != "causal":
        tiles.pop("maxnreg", None)  # the four loops of a window need more registers
    unstaged = tiles["num_stages"] == 1
    rows = tiles.pop("BLOCK_M")
    if short:
        rows = 2 * rows // 8 if tiles["BLOCK_D"] * q.element_size() <= 128 else rows // 8
    if descriptors:
        BLOCK_D, BLOCK_N = tiles["BLOCK_D"], tiles["BLOCK_N"]
        q = _describe(q, rows, BLOCK_D)
        k, v = _describe(k, BLOCK_N, BLOCK_D), _describe(v, BLOCK_N, BLOCK_D)
    heads = 8 if short else 1
    programs = -(-N // rows) * B * HQ // heads
    with torch.cuda.device(o.get_device()):  # launch where the data is; does nothing on a CPU
        _fwd_kernel[(programs,)](
            q, k, v, sinks, o, lse2, HQ, HKV, N, *strides, scale * LOG2E, window_size, sink_size,
            D=D, ROWS=rows, MASK=mask, RAGGED=N % max(rows, tiles["BLOCK_N"]) != 0,
            # Without the second loop of a mask ptxas mixes up the registers of q and p.
            Q_IN_REGISTERS=descriptors and is_causal and not unstaged,
            HEADS=heads, SHORT=short, HAS_SINK_LOGITS=sink_logits is not None,
            GROUP=GROUP // heads, LATE_V=unstaged, **tiles,
        )
    return o, lse2


def _backward(q, k, v, sink_logits, o, lse2, do, window_size, sink_size, is_causal, scale, needs):
    """Launch both kernels.  needs: are dq, dk, dv, dsink_logits wanted?  Else None, but for dq."""
    B, HQ, N, D = q.shape
    HKV = k.shape[1]
    strides = *q.stride(), *k.stride(), *v.stride(), *do.stride()
    descriptors = _can_describe(q, k, v, do)
    dq_tiles, dkdv_tiles = _backward_tiles(D, q.dtype, q.device, descriptors)
    mask = _mask(N, window_size, sink_size, is_causal)
    narrow = is_causal and window_size <= 128
    if narrow and descriptors:
        dq_tiles |= dict(num_stages=2)
        dkdv_tiles |= dict(num_stages=3 if dq_tiles["BLOCK_D"] == 64 else 2, PRODUCTS_FIRST=True)
        dkdv_tiles.pop("maxnreg", None)
    delta = torch.empty(B, HQ, N, device=q.device, dtype=torch.float32)
    dq = torch.empty(B, HQ, N, D, device=q.device, dtype=q.dtype)
    dk = dv = dsink_logits = None
    if needs[1] or needs[2]:
        dkdv = torch.empty(2, B, HKV, N, D, device=k.device, dtype=k.dtype)
        dk, dv = dkdv.unbind()
    dq_programs = -(-N // dq_tiles["BLOCK_M"])  # of a head
    dsink_parts = delta  # never written
    if needs[3]:
        dsink_parts = torch.empty(B, HQ, dq_programs, device=q.device, dtype=torch.float32)
    sinks = delta if sink_logits is None else sink_logits.contiguous()
    if descriptors:  # all tiles of both kernels have 64 rows then
        q, k, v, do = (_describe(x, 64, dq_tiles["BLOCK_D"]) for x in (q, k, v, do))
    with torch.cuda.device(dq.get_device()):
        # Always, even if nobody asked for dq: dkdv and dsink_logits need its delta.
        _dq_kernel[(dq_programs * B * HQ,)](
            q, k, v, o, do, sinks, lse2, delta, dq, dsink_parts, HQ, HKV, N, *strides,
            scale, window_size, sink_size,
            D=D, MASK=mask, RAGGED=N % dq_tiles["BLOCK_M"] != 0, SHORT=narrow,
            WANT_DSINK=needs[3], GROUP=GROUP, **dq_tiles,
        )
        if needs[1] or needs[2]:
            BLOCK_N = dkdv_tiles["BLOCK_N"]
            tiles = -(-N // BLOCK_N)
            sink_tiles, parts = -(-sink_size // BLOCK_N), N // (window_size + BLOCK_N)
            if not 0 < sink_tiles <= 4 or sink_tiles == tiles or parts < 2:
                sink_tiles = 0

            def launch(dk, dv, first_tile, num_tiles, rows_out, parts):
                _dkdv_kernel[(num_tiles * B * HKV, parts)](
                    q, k, v, do, lse2, delta, dk, dv, HQ, HKV, N, *strides,
                    scale, window_size, sink_size, first_tile, num_tiles, rows_out,
                    D=D, MASK=mask, RAGGED=N % BLOCK_N != 0,
                    GROUP=GROUP, GROUPED=HQ != HKV, SPLIT=parts > 1, **dkdv_tiles,
                )

            launch(dk, dv, sink_tiles, tiles - sink_tiles, N, 1)
            if sink_tiles:
                # All later queries see a sink: its tile's walk is N long where the others' are W.
                # Cut into parts of about that length, it has as many sums, which are added here.
                parts, rows = min(parts, 32), sink_tiles * BLOCK_N
                shape = 2, parts, B, HKV, rows, D
                sums = torch.empty(shape, device=dkdv.device, dtype=torch.float32)
                launch(*sums.unbind(), 0, sink_tiles, rows, parts)
                dkdv[:, :, :, :rows] = sums.sum(1)[..., :N, :]
    if needs[3]:
        dsink_logits = dsink_parts.sum(dim=(0, 2)).to(sink_logits.dtype)
    return dq, dk, dv, dsink_logits


class FlashSWDAWithSink(torch.autograd.Function):
    """Connects the kernels to autograd.  First derivatives only."""

    @staticmethod
    def forward(ctx, q, k, v, window_size, sink_size, is_causal, scale, sink_logits):
        options = window_size, sink_size, is_causal, scale
        o, lse2 = _forward(q, k, v, sink_logits, *options)
        ctx.save_for_backward(q, k, v, sink_logits, o, lse2)
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
