"""Problem 9 -- The backward that GPT-OSS needs: groups, window, sinks and sink logits together.

In GPT-OSS every second layer has a window of 128 keys and the others have none;
eight query heads share a key/value head; and every query head has a learned *sink
logit*, which is not a sink token.  The grader's standard cases need only the first half.

== First half: window and sink tokens in the backward (9.4, 9.12, 9.16, 9.17, 9.20, 9.21)

Query i sees key j if j <= i and either i - j < W or j < S.  Problem 7 drew a row for
each query.  dkdv loops over queries, so here is a row for each key:

    W = 3, S = 1    queries ->  0 1 2 3 4 5
                    key 0       x x x o o o     a sink: seen by all that follow
                    key 1       . x x x . .
                    key 2       . . x x x .
                    key 3       . . . x x x

For a tile of keys there are three kinds of queries:

    diagonal     first ... inner - 1      some keys come after the query    masked
    interior     inner ... outer - 1      every key is visible              no mask
    right edge   outer ... last - 1       some keys have left the window    masked

    outer    the query at which the tile's first key leaves the window; N if all BLOCK_N
             keys are sinks, which are never hidden; either is rounded down to a
             multiple of BLOCK_M
    last     the query at which its last key leaves the window; N if the tile's first
             key is a sink, because a sink stays visible to the last query

So the work of all three kernels is O(N (W + S)).  Without a window W is N.

== Second half: sink logits (9.3, 9.11)

A sink logit takes part in the softmax like one more score, of a key whose value is 0:

    lse = log( exp(sink_h) + sum_j exp(S_ij) )      P_ij = exp(S_ij - lse)

A query to which no key matters can give its weight to the sink: its row of P sums to
less than one.  The online softmax begins as if the sink had been seen already.

The sink's weight is p = exp(sink_h - lse).  Its value is zero, so its dP is zero, and
dS = p * (0 - delta).  A head has one logit for all queries, so its gradient is the sum
of dS over them and over the batch.

New here: steps 9.3, 9.4, 9.11, 9.12, 9.16, 9.17, 9.20 and 9.21.  A line
"==== new" marks each.

Shapes      q, o, do, dq: (B, HQ, N, D)    k, v, dk, dv: (B, HKV, N, D)
            lse, delta: (B, HQ, N), float32    sink_logits: (HQ,)
Dtypes      as in problem 8, also where dS overflows in float16.  sink_logits: any float dtype,
            and their gradient in the same.

Check       python autograder_optional.py --p9
Stuck       python autograder_optional.py --hint 9.3      (any step number)
Guide       "Stage 9" of the companion guide; README.md says where it is
Faster      sink_attn/README.md, the kernel that examples/gpt_oss trains with
Source      GPT-OSS model card, arXiv 2508.10925; StreamingLLM, arXiv 2309.17453
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
    q_ptr, k_ptr, v_ptr, sink_logits_ptr,  # read
    o_ptr, lse_ptr,  # written
    q_strides, k_strides, v_strides,
    HQ, HKV, N, window_size, sink_size, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """Fill BLOCK_M rows of o and lse.  Grid: (cdiv(N, BLOCK_M) * B * HQ,).

    sink_logits_ptr may be None.
    """
    # Step 9.1 -- Copied from step 4.1: which rows of which head are mine, the longest loop first.
    # BEGIN SOLUTION 9.1
    num_tiles = tl.cdiv(N, BLOCK_M)
    bh = tl.program_id(0) // num_tiles
    b, h = bh // HQ, bh % HQ
    start_m = (num_tiles - 1 - tl.program_id(0) % num_tiles) * BLOCK_M
    query = start_m + tl.arange(0, BLOCK_M)
    # END SOLUTION 9.1
    # Offsets are computed from these and may exceed 2**31.
    bh, b, h = tl.cast(bh, tl.int64), tl.cast(b, tl.int64), tl.cast(h, tl.int64)
    q = _load(_head(q_ptr, q_strides, b, h), start_m, N, D, BLOCK_D, BLOCK_M, RAGGED=True)
    # Step 9.2 -- Copied from step 5.2: the key/value head that query head h reads.
    # BEGIN SOLUTION 9.2
    kv_head = h // (HQ // HKV)
    k_head, v_head = _head(k_ptr, k_strides, b, kv_head), _head(v_ptr, v_strides, b, kv_head)
    # END SOLUTION 9.2

    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    l_i, m_i = tl.zeros([BLOCK_M], tl.float32), tl.full([BLOCK_M], float("-inf"), tl.float32)
    if sink_logits_ptr is not None:
        sink = tl.load(sink_logits_ptr + h).to(tl.float32)
        # ================================================================== new
        # Step 9.3 -- The softmax begins with the sink already counted.
        #   m_i and l_i (BLOCK_M,), as if one key with the score `sink` had been seen; acc stays 0.
        #   m_i is in base 2; the logit is in base e.
        # BEGIN SOLUTION 9.3
        m_i = tl.zeros_like(m_i) + sink * LOG2E
        l_i = tl.zeros_like(l_i) + 1.0
        # END SOLUTION 9.3
    sink_end, first, inner, edge = _borders(
        start_m, N, window_size, sink_size, BLOCK_M, BLOCK_N, CAUSAL
    )
    # ====================================================================== new
    # Step 9.4 -- Loop over the keys: step 7.4 in a different order, between the borders just found.
    #   Sinks up to sink_end; left edge; interior up to edge; and the tile at edge: the diagonal,
    #   or without a causal mask the ragged tile, if there is one.  It is one tile, because BLOCK_M
    #   is BLOCK_N here.  _attend takes CAUSAL after BLOCK_N.  The left edge comes before the
    #   interior, because CUDA 12.8's assembler crashes on the other order if window_size is 1.
    # BEGIN SOLUTION 9.4
    for start_n in range(0, sink_end, BLOCK_N):
        acc, l_i, m_i = _attend(acc, l_i, m_i, q, k_head, v_head, query, start_n, N, window_size,
                                sink_size, scale * LOG2E, D, BLOCK_N, CAUSAL, MASKED=True)
    for start_n in range(first, inner, BLOCK_N):
        acc, l_i, m_i = _attend(acc, l_i, m_i, q, k_head, v_head, query, start_n, N, window_size,
                                sink_size, scale * LOG2E, D, BLOCK_N, CAUSAL, MASKED=True)
    for start_n in range(inner, edge, BLOCK_N):
        acc, l_i, m_i = _attend(acc, l_i, m_i, q, k_head, v_head, query, start_n, N, window_size,
                                sink_size, scale * LOG2E, D, BLOCK_N, CAUSAL, MASKED=False)
    if edge < N:
        acc, l_i, m_i = _attend(acc, l_i, m_i, q, k_head, v_head, query, edge, N, window_size,
                                sink_size, scale * LOG2E, D, BLOCK_N, CAUSAL, MASKED=True)
    # END SOLUTION 9.4

    # Step 9.5 -- Copied from step 3.3: normalise, form lse, and store both.
    # BEGIN SOLUTION 9.5
    lse = (m_i + tl.math.log2(l_i)) * LN2
    _store(o_ptr, acc / l_i[:, None], bh, query, N, D)
    tl.store(lse_ptr + bh * N + query, lse, mask=query < N)
    # END SOLUTION 9.5


@triton.jit
def _attend(acc, l_i, m_i, q, k_head, v_head, query, start_n, N,
            window_size, sink_size, scale_log2e,
            D: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr):
    """Update acc, l_i, m_i with one key tile, and return their new values."""
    # Only a MASKED tile may have rows past N - 1.
    k = _load(k_head, start_n, N, D, q.shape[1], BLOCK_N, RAGGED=MASKED)
    v = _load(v_head, start_n, N, D, q.shape[1], BLOCK_N, RAGGED=MASKED)
    key = start_n + tl.arange(0, BLOCK_N)
    keep = _keep(query[:, None], key[None, :], N, window_size, sink_size, CAUSAL)
    # Step 9.6 -- Copied from step 3.4: the scores of this tile, hidden keys at -inf.
    # BEGIN SOLUTION 9.6
    s = tl.dot(q, tl.trans(k))
    if MASKED:
        s = tl.where(keep, s, float("-inf"))
    # END SOLUTION 9.6

    # Step 9.7 -- Copied from step 6.7: the online softmax, also for rows that have seen no key.
    # BEGIN SOLUTION 9.7
    m_new = tl.maximum(m_i, tl.max(s, axis=1) * scale_log2e)
    pivot = tl.where(m_new == float("-inf"), 0.0, m_new)
    p = tl.math.exp2(s * scale_log2e - pivot[:, None])
    alpha = tl.math.exp2(m_i - pivot)
    l_i = l_i * alpha + tl.sum(p, axis=1)
    acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
    # END SOLUTION 9.7
    return acc, l_i, m_new


# ------------------------------------------------------------- backward: dq
@triton.jit
def _dq_kernel(
    q_ptr, k_ptr, v_ptr, sink_logits_ptr, o_ptr, do_ptr, lse_ptr,  # read
    delta_ptr, dq_ptr, dsink_ptr,  # written
    q_strides, k_strides, v_strides, o_strides,
    HQ, HKV, N, window_size, sink_size, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """Fill BLOCK_M rows of dq and delta, and one number of dsink.  Grid: as in the forward."""
    # Step 9.8 -- Copied from step 4.1: which rows of which head are mine, the longest loop first.
    # BEGIN SOLUTION 9.8
    num_tiles = tl.cdiv(N, BLOCK_M)
    bh = tl.program_id(0) // num_tiles
    b, h = bh // HQ, bh % HQ
    start_m = (num_tiles - 1 - tl.program_id(0) % num_tiles) * BLOCK_M
    query = start_m + tl.arange(0, BLOCK_M)
    # END SOLUTION 9.8
    # Offsets are computed from these and may exceed 2**31.
    bh, b, h = tl.cast(bh, tl.int64), tl.cast(b, tl.int64), tl.cast(h, tl.int64)
    q = _load(_head(q_ptr, q_strides, b, h), start_m, N, D, BLOCK_D, BLOCK_M, RAGGED=True)
    o = _load(_head(o_ptr, o_strides, b, h), start_m, N, D, BLOCK_D, BLOCK_M, RAGGED=True)
    do = _load(_head(do_ptr, o_strides, b, h), start_m, N, D, BLOCK_D, BLOCK_M, RAGGED=True)
    # Step 9.9 -- Copied from step 5.2: the key/value head that query head h reads.
    # BEGIN SOLUTION 9.9
    kv_head = h // (HQ // HKV)
    k_head, v_head = _head(k_ptr, k_strides, b, kv_head), _head(v_ptr, v_strides, b, kv_head)
    # END SOLUTION 9.9

    lse_log2 = _load_row(lse_ptr + bh * N, query, N, float("inf"), RAGGED=True) * LOG2E  # base 2
    # Step 9.10 -- Copied from step 8.9: delta = rowsum(do * o), stored for dkdv.
    # BEGIN SOLUTION 9.10
    delta = tl.sum(do.to(tl.float32) * o.to(tl.float32), axis=1)
    tl.store(delta_ptr + bh * N + query, delta, mask=query < N)
    # END SOLUTION 9.10
    if sink_logits_ptr is not None:
        sink = tl.load(sink_logits_ptr + h).to(tl.float32)
        # ================================================================== new
        # Step 9.11 -- What my queries add to the gradient of their head's sink logit.
        #   dsink: one number.  lse_log2 is in base 2; sink is in base e.  The backward adds up the
        #   numbers of all programs later, head by head.
        # BEGIN SOLUTION 9.11
        dsink = -tl.sum(tl.math.exp2(sink * LOG2E - lse_log2) * delta)
        # END SOLUTION 9.11
        tl.store(dsink_ptr + tl.program_id(0), dsink)

    dq = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    sink_end, first, inner, edge = _borders(
        start_m, N, window_size, sink_size, BLOCK_M, BLOCK_N, CAUSAL
    )
    # ====================================================================== new
    # Step 9.12 -- The same four phases for dq, as in step 8.10.
    # BEGIN SOLUTION 9.12
    for start_n in range(0, sink_end, BLOCK_N):
        dq = _add_dq(dq, q, do, lse_log2, delta, k_head, v_head, query, start_n, N, window_size,
                     sink_size, scale * LOG2E, D, BLOCK_N, CAUSAL, MASKED=True)
    for start_n in range(first, inner, BLOCK_N):
        dq = _add_dq(dq, q, do, lse_log2, delta, k_head, v_head, query, start_n, N, window_size,
                     sink_size, scale * LOG2E, D, BLOCK_N, CAUSAL, MASKED=True)
    for start_n in range(inner, edge, BLOCK_N):
        dq = _add_dq(dq, q, do, lse_log2, delta, k_head, v_head, query, start_n, N, window_size,
                     sink_size, scale * LOG2E, D, BLOCK_N, CAUSAL, MASKED=False)
    if edge < N:
        dq = _add_dq(dq, q, do, lse_log2, delta, k_head, v_head, query, edge, N, window_size,
                     sink_size, scale * LOG2E, D, BLOCK_N, CAUSAL, MASKED=True)
    _store(dq_ptr, dq * scale, bh, query, N, D)
    # END SOLUTION 9.12


@triton.jit
def _add_dq(dq, q, do, lse_log2, delta, k_head, v_head, query, start_n, N,
            window_size, sink_size, scale_log2e,
            D: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr):
    """Add one key tile's share to dq, still without the factor scale."""
    # Only a MASKED tile may have rows past N - 1.
    k = _load(k_head, start_n, N, D, q.shape[1], BLOCK_N, RAGGED=MASKED)
    v = _load(v_head, start_n, N, D, q.shape[1], BLOCK_N, RAGGED=MASKED)
    key = start_n + tl.arange(0, BLOCK_N)
    keep = _keep(query[:, None], key[None, :], N, window_size, sink_size, CAUSAL)
    # Step 9.13 -- Copied from step 8.11: P again, from the saved log-sum-exp.
    # BEGIN SOLUTION 9.13
    p = tl.math.exp2(tl.dot(q, tl.trans(k)) * scale_log2e - lse_log2[:, None])
    if MASKED:
        p = tl.where(keep, p, 0.0)
    # END SOLUTION 9.13

    # Step 9.14 -- Copied from step 8.12: dP, dS, and this tile's share of dq.
    # BEGIN SOLUTION 9.14
    ds = p * (tl.dot(do, tl.trans(v)) - delta[:, None])
    dq = tl.dot(ds.to(k.dtype), k, dq)
    # END SOLUTION 9.14
    return dq


# ------------------------------------------------------ backward: dk and dv
@triton.jit
def _dkdv_kernel(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr,  # read
    dk_ptr, dv_ptr,  # written
    q_strides, k_strides, v_strides, o_strides,
    HQ, HKV, N, window_size, sink_size, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """Fill BLOCK_N rows of dk and dv.  Grid: (cdiv(N, BLOCK_N) * B * HKV,)."""
    # Step 9.15 -- Copied from step 8.13: which keys of which head are mine.
    # BEGIN SOLUTION 9.15
    num_tiles = tl.cdiv(N, BLOCK_N)
    bh = tl.program_id(0) // num_tiles
    b, kv_head = bh // HKV, bh % HKV
    start_n = tl.program_id(0) % num_tiles * BLOCK_N
    key = start_n + tl.arange(0, BLOCK_N)
    # END SOLUTION 9.15
    # Offsets are computed from these and may exceed 2**31.
    bh, b, kv_head = tl.cast(bh, tl.int64), tl.cast(b, tl.int64), tl.cast(kv_head, tl.int64)
    k = _load(_head(k_ptr, k_strides, b, kv_head), start_n, N, D, BLOCK_D, BLOCK_N, RAGGED=True)
    v = _load(_head(v_ptr, v_strides, b, kv_head), start_n, N, D, BLOCK_D, BLOCK_N, RAGGED=True)

    dk, dv = tl.zeros([BLOCK_N, BLOCK_D], tl.float32), tl.zeros([BLOCK_N, BLOCK_D], tl.float32)
    # ====================================================================== new
    # Step 9.16 -- Which queries see these keys?
    #   first, inner: as in step 8.14; here, too, BLOCK_M may be smaller than BLOCK_N and divides
    #   it.  outer, last: see the top; last <= N and outer >= inner.
    #   Without CAUSAL: first, inner and outer of step 8.14, and last = N.
    # BEGIN SOLUTION 9.16
    first, inner, outer, last = 0, 0, N // BLOCK_M * BLOCK_M, N
    if CAUSAL:
        first, inner = start_n, start_n + BLOCK_N
        last = tl.where(start_n < sink_size, N, tl.minimum(inner - 1 + window_size, N))
        outer = tl.where(inner <= sink_size, N, tl.minimum(start_n + window_size, N))
        outer = tl.maximum(outer // BLOCK_M * BLOCK_M, inner)
    # END SOLUTION 9.16
    for h in range(kv_head * (HQ // HKV), (kv_head + 1) * (HQ // HKV)):  # shares add up
        q_head = _head(q_ptr, q_strides, b, h)
        do_head = _head(do_ptr, o_strides, b, h)
        row = (b * HQ + h) * N  # where this head's lse and delta begin
        # ================================================================== new
        # Step 9.17 -- Loop over the queries of this head: interior, right edge, diagonal.
        #   As in step 8.15, between the borders just found.
        # BEGIN SOLUTION 9.17
        for start_m in range(inner, outer, BLOCK_M):
            dk, dv = _add_dkdv(dk, dv, k, v, q_head, do_head, lse_ptr + row, delta_ptr + row, key,
                               start_m, N, window_size, sink_size, scale * LOG2E, D, BLOCK_M,
                               CAUSAL, MASKED=False)
        for start_m in range(outer, last, BLOCK_M):
            dk, dv = _add_dkdv(dk, dv, k, v, q_head, do_head, lse_ptr + row, delta_ptr + row, key,
                               start_m, N, window_size, sink_size, scale * LOG2E, D, BLOCK_M,
                               CAUSAL, MASKED=True)
        for start_m in range(first, inner, BLOCK_M):
            dk, dv = _add_dkdv(dk, dv, k, v, q_head, do_head, lse_ptr + row, delta_ptr + row, key,
                               start_m, N, window_size, sink_size, scale * LOG2E, D, BLOCK_M,
                               CAUSAL, MASKED=True)
        # END SOLUTION 9.17
    _store(dk_ptr, dk * scale, bh, key, N, D)
    _store(dv_ptr, dv, bh, key, N, D)


@triton.jit
def _add_dkdv(dk, dv, k, v, q_head, do_head, lse_ptr, delta_ptr, key, start_m, N,
              window_size, sink_size, scale_log2e,
              D: tl.constexpr, BLOCK_M: tl.constexpr, CAUSAL: tl.constexpr, MASKED: tl.constexpr):
    """Add one query tile's share to dk, still without the factor scale, and to dv."""
    # Only a MASKED tile may have rows past N - 1.
    q = _load(q_head, start_m, N, D, k.shape[1], BLOCK_M, RAGGED=MASKED)
    do = _load(do_head, start_m, N, D, k.shape[1], BLOCK_M, RAGGED=MASKED)
    query = start_m + tl.arange(0, BLOCK_M)
    lse_log2 = _load_row(lse_ptr, query, N, float("inf"), RAGGED=MASKED) * LOG2E
    delta = _load_row(delta_ptr, query, N, 0.0, RAGGED=MASKED)
    keep = _keep(query[None, :], key[:, None], N, window_size, sink_size, CAUSAL)
    # Step 9.18 -- Copied from step 8.16: P transposed: rows are keys, columns are queries.
    # BEGIN SOLUTION 9.18
    p_t = tl.math.exp2(tl.dot(k, tl.trans(q)) * scale_log2e - lse_log2[None, :])
    if MASKED:
        p_t = tl.where(keep, p_t, 0.0)
    # END SOLUTION 9.18

    # Step 9.19 -- Copied from step 8.17: this tile's share of dv and dk.
    # BEGIN SOLUTION 9.19
    dv = tl.dot(p_t.to(do.dtype), do, dv)
    ds_t = p_t * (tl.dot(v, tl.trans(do)) - delta[None, :])
    dk = tl.dot(ds_t.to(q.dtype), q, dk)
    # END SOLUTION 9.19
    return dk, dv


# -------------------------------------------------------------------- tiles
@triton.jit
def _borders(start_m, N, window_size, sink_size,
             BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, CAUSAL: tl.constexpr):
    """Where the loop over the keys changes, for queries start_m ... start_m + BLOCK_M - 1."""
    # ====================================================================== new
    # Step 9.20 -- The borders of the loop over keys: those of steps 7.3, 7.4 and 8.3.
    #   sink_end, first, inner; edge: the start of the remaining tile (there is only one, because
    #   BLOCK_M is BLOCK_N here).  Without CAUSAL there are no sinks and no left edge.
    # BEGIN SOLUTION 9.20
    sink_end, first, inner, edge = 0, 0, 0, N // BLOCK_N * BLOCK_N
    if CAUSAL:
        first = tl.maximum(start_m - window_size + 1, 0) // BLOCK_N * BLOCK_N
        inner = tl.cdiv(tl.maximum(start_m + BLOCK_M - window_size, 0), BLOCK_N) * BLOCK_N
        inner = tl.minimum(inner, start_m)
        edge = start_m
        sink_end = tl.minimum(sink_size, first)
    # END SOLUTION 9.20
    return sink_end, first, inner, edge


@triton.jit
def _keep(query, key, N, window_size, sink_size, CAUSAL: tl.constexpr):
    """Which keys each query sees.  query and key are positions that broadcast."""
    # ====================================================================== new
    # Step 9.21 -- The mask of step 7.8; without CAUSAL that of step 3.6.
    #   keep: booleans that broadcast to the shape of the scores.
    # BEGIN SOLUTION 9.21
    keep = key < N
    if CAUSAL:
        age = query - key
        keep = (age >= 0) & ((age < window_size) | (key < sink_size))
    # END SOLUTION 9.21
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
    # Step 9.22 -- Copied from step 3.7: load a tile; elements that do not exist read 0.
    # BEGIN SOLUTION 9.22
    i, j = tl.arange(0, ROWS)[:, None], tl.arange(0, BLOCK_D)[None, :]
    ptrs = ptr + (i * stride_n + j * stride_d)
    inside = (start + i < N) & (j < D)
    tile = tl.load(ptrs, mask=inside, other=0.0) if RAGGED or BLOCK_D != D else tl.load(ptrs)
    # END SOLUTION 9.22
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
    # Step 9.23 -- Copied from step 3.8: store those elements of a tile that exist.
    # BEGIN SOLUTION 9.23
    j = tl.arange(0, tile.shape[1])[None, :]
    ptrs = ptr + (bh * N + rows)[:, None] * D + j
    tl.store(ptrs, tile.to(ptr.dtype.element_ty), mask=(rows[:, None] < N) & (j < D))
    # END SOLUTION 9.23


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


class FlashSWDAWithSinkFunction(torch.autograd.Function):
    """Connects the three kernels to autograd.  First derivatives only."""

    @staticmethod
    def forward(ctx, q, k, v, window_size, sink_size, is_causal, scale, sink_logits):
        (B, HQ, N, D), HKV = q.shape, k.shape[1]
        q, k, v = (_small_strides(x) for x in (q, k, v))
        o = torch.empty(B, HQ, N, D, device=q.device, dtype=q.dtype)
        lse = torch.empty(B, HQ, N, device=q.device, dtype=torch.float32)
        tiles = _tiles(q)
        with torch.cuda.device(q.get_device()):  # launch on the data's GPU; no effect on a CPU
            _fwd_kernel[(triton.cdiv(N, tiles["BLOCK_M"]) * B * HQ,)](
                q, k, v, sink_logits, o, lse, q.stride(), k.stride(), v.stride(), HQ, HKV, N,
                window_size, sink_size, scale, CAUSAL=is_causal, **tiles)
        ctx.save_for_backward(q, k, v, sink_logits, o, lse)
        ctx.options = window_size, sink_size, scale, is_causal
        return o

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, do):
        q, k, v, sink_logits, o, lse = ctx.saved_tensors
        *numbers, is_causal = ctx.options
        (B, HQ, N), HKV = q.shape[:3], k.shape[1]
        do = do.contiguous()  # the kernels use o's strides for do; o.sum() sends an expanded scalar
        dq, dk, dv = (torch.empty(x.shape, device=q.device, dtype=q.dtype) for x in (q, k, v))
        delta, tiles, dsink = torch.empty_like(lse), _tiles(q), None
        strides = q.stride(), k.stride(), v.stride(), o.stride()
        num_tiles = triton.cdiv(N, tiles["BLOCK_M"])
        # num_stages: depth of dq's pipeline of loads; rows: BLOCK_M of dkdv.  The chip holds
        # fewer rows if D is large.
        num_stages, rows = (2, 32) if q.shape[3] > 64 else (3, 64)
        if sink_logits is not None:
            dsink = torch.empty(B, HQ, num_tiles, device=q.device, dtype=torch.float32)
        with torch.cuda.device(q.get_device()):
            _dq_kernel[(num_tiles * B * HQ,)](
                q, k, v, sink_logits, o, do, lse, delta, dq, dsink, *strides,
                HQ, HKV, N, *numbers, CAUSAL=is_causal, num_stages=num_stages, **tiles)
            if any(ctx.needs_input_grad[1:3]):
                _dkdv_kernel[(triton.cdiv(N, tiles["BLOCK_N"]) * B * HKV,)](
                    q, k, v, do, lse, delta, dk, dv, *strides, HQ, HKV, N, *numbers,
                    CAUSAL=is_causal, **tiles | {"BLOCK_M": min(rows, tiles["BLOCK_M"])})
        if dsink is not None:
            dsink = dsink.sum(dim=(0, 2)).to(sink_logits.dtype)
        return dq, dk, dv, None, None, None, None, dsink


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
            softmax denominator, without a value vector.  None: no logit.

    Returns:
        o: (B, HQ, N, D), contiguous, dtype of q.  The gradient that arrives for it
        may have any strides.

    Raises:
        ValueError, TypeError: the input breaks the contract above.
    """
    _check(q, k, v)
    N, D = q.shape[2:]
    window = N if window_size is None else window_size
    if not isinstance(window, int) or window < 1 or (window_size is not None and not is_causal):
        got = f"{window_size!r}, is_causal={is_causal}"
        raise ValueError(f"want an integer window_size >= 1 and is_causal=True, or None; got {got}")
    if not isinstance(sink_size, int) or sink_size < 0:
        raise ValueError(f"want an integer sink_size >= 0; got {sink_size!r}")
    softmax_scale = D**-0.5 if scale is None else float(scale)
    if not 0.0 < softmax_scale < float("inf"):
        raise ValueError(f"want scale > 0 and finite; got {scale}")
    if sink_logits is not None:
        if sink_logits.shape != q.shape[1:2] or not sink_logits.is_floating_point():
            got = f"{list(sink_logits.shape)}, {sink_logits.dtype}"
            raise ValueError(f"want sink_logits (HQ,) = ({q.shape[1]},), a float dtype; got {got}")
        if sink_logits.device != q.device:
            raise ValueError(f"want one device; got q {q.device}, sinks {sink_logits.device}")
        sink_logits = sink_logits.contiguous()
    return FlashSWDAWithSinkFunction.apply(
        q, k, v, min(window, N), min(sink_size, N), bool(is_causal), softmax_scale, sink_logits
    )


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
    q, k, v = torch.randn(3, 1, 2, 100, 16, requires_grad=True)
    keep = torch.ones(100, 100, dtype=torch.bool).tril()
    keep[:, 4:] = keep[:, 4:].triu(-16 - 4)  # a window of 17, and 4 sinks
    o = flash_swda_with_sink(q, k, v, window_size=17, sink_size=4)
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=keep)
    dq, want_dq = (torch.autograd.grad(x.square().sum(), q)[0] for x in (o, want))
    print("largest difference in dq:", (dq - want_dq).abs().max().item())
