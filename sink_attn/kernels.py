"""Attention at full speed in plain Triton: the kernels for what problems 3 to 9 compute.

A problem file has one plain kernel and one tile shape.  Here the same mathematics has a form for
each kind of workload, because on a GPU the same products can take 1.1 or 2 times as long, depending
on their layout.  README.md in this folder leads from one to the other, trick by trick, and says
what each gained.  Figures in the comments: H200, bfloat16, Triton 3.6, November 2026, ms.

launcher.py launches them, in the form and with the tiles that policy.py chooses.

Masks.  MASK is the simplest that is right: "full", "causal", "window", or "sinks" (a window and
sink tokens).  A query tile loops over the keys in four parts, most of them empty for most masks:

    0  sinks       0 ... sink_end - 1      tiles of sink tokens before the window         masked
    1  left edge   first ... inner - 1     the window leaves its queries one by one       masked
    2  interior    inner ... diag - 1      every query sees every key                     no mask
    3  diagonal    diag ... end - 1        keys come after queries; or the ragged tail    masked

dkdv loops over the queries that see a tile of keys.  W = 3, S = 1:

    queries ->  0 1 2 3 4 5
    key 0       x x x o o o     o: a sink, which all later queries see
    key 1       . x x x . .
    key 2       . . x x x .     inner ... outer - 1     every key is visible      no mask
    key 3       . . . x x x     start_n ... inner - 1, outer ... last - 1         masked

Packed sequences.  With cu_seqlens (S + 1,), B is 1 and the N rows of a head hold S sequences, one
after the other; sequence s begins at row cu_seqlens[s].  A program finds the sequence of its tile,
moves its pointers there, and continues as if there were no other: from then on N is its length, and
T the rows of a head.  Without cu_seqlens, which the compiler knows, T is N and nothing changes.

Shapes      q, o, do, dq: (B, HQ, N, D)    k, v, dk, dv: (B, HKV, N, D)
            lse_log2, delta, dlse: (B, HQ, N), float32; lse_log2 is the log-sum-exp in base 2
            sink_logits: (HQ,), one more logit in the softmax of a head, without a value
Dtypes      float16, bfloat16, float32; statistics and sums in float32.  Float32 tiles are
            multiplied in TF32 where the GPU has it, as Triton does by default.
Names       as in the stages; BLOCK_M counts positions: a query tile has HEADS * BLOCK_M rows
"""

import triton
import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)  # log(x) == log2(x) * LN2

GROUP = tl.constexpr(16)  # heads whose programs run side by side; 8 to 32 are alike on an H200


# -------------------------------------------------------------------- tiles
@triton.jit
def _head(x, b, h, first, stride_b, stride_h, stride_row, stride_col):
    """Returns what _load_rows and _store_rows need of head h of batch entry b, from row first on.

    x is a pointer or, if first is 0, a tensor descriptor.
    """
    if not isinstance(x, tl.tensor_descriptor):
        x += b.to(tl.int64) * stride_b + h.to(tl.int64) * stride_h  # can pass 2**31
        x += first * stride_row
    return x, b, h, stride_h, stride_row, stride_col


@triton.jit
def _row_ptrs(head, start, ROWS: tl.constexpr, BLOCK_D: tl.constexpr, HEADS: tl.constexpr):
    """Returns the pointers to the tile that _load_rows returns, its rows, and its columns."""
    x, b, h, stride_h, stride_row, stride_col = head
    i, cols = tl.arange(0, HEADS * ROWS), tl.arange(0, BLOCK_D)
    rows = start + i % ROWS
    ptrs = x + rows.to(tl.int64)[:, None] * stride_row + cols.to(tl.int64)[None, :] * stride_col
    if HEADS > 1:
        ptrs += (i // ROWS).to(tl.int64)[:, None] * stride_h
    return ptrs, rows[:, None], cols[None, :]


@triton.jit
def _load_rows(
    head, start, N,
    ROWS: tl.constexpr, BLOCK_D: tl.constexpr, D: tl.constexpr, RAGGED: tl.constexpr,
    HEADS: tl.constexpr = 1,
):
    """Returns rows start ... start + ROWS - 1 of a head, (HEADS * ROWS, BLOCK_D); 0 outside.

    RAGGED: some of the rows may be past N - 1.  HEADS: this many heads, one below the other.
    With a tensor descriptor the copy engine computes addresses and bounds: full attention at
    D = 128 went from 1.136 to 1.05.  At D = 16 pointers are faster, .106 against .118.
    """
    x, b, h, stride_h, stride_row, stride_col = head
    if isinstance(x, tl.tensor_descriptor):
        tile = x.load([b, h, start, 0]).reshape(ROWS, BLOCK_D)
    else:
        ptrs, rows, cols = _row_ptrs(head, start, ROWS, BLOCK_D, HEADS)
        if RAGGED and BLOCK_D != D:
            tile = tl.load(ptrs, mask=(rows < N) & (cols < D), other=0.0)
        elif RAGGED:
            tile = tl.load(ptrs, mask=rows < N, other=0.0)
        elif BLOCK_D != D:
            tile = tl.load(ptrs, mask=cols < D, other=0.0)
        else:
            tile = tl.load(ptrs)
    return tile


@triton.jit
def _store_rows(
    head, tile, start, N,
    ROWS: tl.constexpr, BLOCK_D: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr = 1,
):
    """Store the rows before N of a tile, where _load_rows would read them."""
    ptrs, rows, cols = _row_ptrs(head, start, ROWS, BLOCK_D, HEADS)
    mask = rows < N
    if BLOCK_D != D:
        mask &= cols < D
    tl.store(ptrs, tile.to(ptrs.dtype.element_ty), mask=mask)


# ----------------------------------------------------------- masks and loops
@triton.jit
def _keep(query, key, limits, MASK: tl.constexpr):
    """Returns which keys each query sees; query and key are positions that broadcast together."""
    N, window_size, sink_size = limits
    if MASK == "full":
        keep = key < N
    elif MASK == "causal":
        keep = key <= query
    elif MASK == "window":
        keep = (key <= query) & (key > query - window_size)
    else:
        age = query - key
        keep = (age >= 0) & ((age < window_size) | (key < sink_size))
    return keep


@triton.jit
def _walk(
    start_m, limits,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, MASK: tl.constexpr, SHORT: tl.constexpr,
):
    """Returns the starts and ends of the loop's four parts, which are drawn at the top.

    SHORT: a window of a few tiles has only edges: one masked loop, in place of the left edge.
    """
    N, window_size, sink_size = limits
    sink_end, first, inner = 0, 0, 0
    if MASK == "full":
        diag = N // BLOCK_N * BLOCK_N
        end = N
    else:
        diag = start_m // BLOCK_N * BLOCK_N
        end = tl.minimum(start_m + BLOCK_M, N)
    if SHORT:
        first = tl.maximum(start_m - window_size + 1, 0)
        if MASK == "sinks":  # whole tiles, so that none of them holds a sink of part 0
            first = first // BLOCK_N * BLOCK_N
            sink_end = tl.minimum(sink_size, first)
        inner, diag = end, end
    elif MASK == "window" or MASK == "sinks":
        first = tl.maximum(start_m - window_size + 1, 0) // BLOCK_N * BLOCK_N
        inner = tl.cdiv(tl.maximum(start_m + BLOCK_M - window_size, 0), BLOCK_N) * BLOCK_N
        inner = tl.minimum(inner, diag)
        if MASK == "sinks":
            sink_end = tl.minimum(sink_size, first)
    return (0, first, inner, diag), (sink_end, inner, diag, end)


@triton.jit
def _longest_first(num_tiles, HEADS: tl.constexpr = 1):
    """Returns this program's turn: (how many tiles after the longest loop, number of the head).

    Programs start in the order of their numbers.  Long loops come first, so that none still runs
    at the end (causal D = 16: .083 -> .063), and GROUP heads at a time, so that their k and v stay
    in the L2 cache.
    """
    SIDE_BY_SIDE: tl.constexpr = GROUP // HEADS
    num_heads = tl.num_programs(0) // num_tiles
    first_head = tl.program_id(0) // (SIDE_BY_SIDE * num_tiles) * SIDE_BY_SIDE
    heads = tl.minimum(SIDE_BY_SIDE, num_heads - first_head)
    turn = tl.program_id(0) % (SIDE_BY_SIDE * num_tiles)
    return turn // heads, first_head + turn % heads


@triton.jit
def _num_tiles(cu_seqlens, S, N, ROWS: tl.constexpr):
    """Returns how many tiles of ROWS rows a head has."""
    return tl.cdiv(N, ROWS) if cu_seqlens is None else N // ROWS + S


@triton.jit
def _sequence(cu_seqlens, S, tile, N, ROWS: tl.constexpr):
    """Returns the first row and the length of a tile's sequence, and the tile's start in it.

    The first tile of packed sequence s is number cu_seqlens[s] // ROWS + s.  So a sequence has as
    many tiles as it needs, or one more, which starts past its end.
    """
    if cu_seqlens is None:
        first, start = 0, tile * ROWS
    else:
        s, above = 0, S
        while above - s > 1:
            middle = (s + above) // 2
            begins = tl.load(cu_seqlens + middle) // ROWS + middle <= tile
            s, above = tl.where(begins, middle, s), tl.where(begins, above, middle)
        first = tl.load(cu_seqlens + s)
        N = tl.load(cu_seqlens + s + 1) - first
        start = (tile - first // ROWS - s) * ROWS
        first = first.to(tl.int64)
    return first, N, start


# ------------------------------------------------------------------ forward
@triton.jit
def _scores(q, k, query, key, limits, MASK: tl.constexpr, MASKED: tl.constexpr):
    """Returns the scores of a query tile and a key tile; MASKED: apply the mask."""
    s = tl.dot(q, tl.trans(k))
    if MASKED:
        s = tl.where(_keep(query[:, None], key[None, :], limits, MASK), s, float("-inf"))
    return s


@triton.jit
def _softmax(s, l_i, m_i, scale_log2e, BLIND: tl.constexpr):
    """Returns a tile's weights, the factor of the old sums, the new l_i and the new maximum.

    BLIND: a row may have seen no key yet; its maximum is -inf, and -inf - (-inf) is NaN.
    l_i (rows, 8) spreads the row sums over 8 columns: every thread adds what it holds, and threads
    exchange sums only once, at the end.  GPT-OSS window: .1075 -> .1024.
    """
    m_new = tl.maximum(m_i, tl.max(s, axis=1) * scale_log2e)
    pivot = tl.where(m_new == float("-inf"), 0.0, m_new) if BLIND else m_new
    p = tl.math.exp2(s * scale_log2e - pivot[:, None])  # one fused multiply-add per element
    alpha = tl.math.exp2(m_i - pivot)
    partial_sums = tl.sum(tl.reshape(p, [p.shape[0], p.shape[1] // 8, 8]), axis=1)
    return p, alpha, l_i * alpha[:, None] + partial_sums, m_new


@triton.jit
def _attend_tile(
    sums, sums2, q, q2, k_head, v_head, query, start_n, scale_log2e, limits,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, D: tl.constexpr, MASK: tl.constexpr,
    MASKED: tl.constexpr, RAGGED: tl.constexpr, LATE_V: tl.constexpr, TWO_TILES: tl.constexpr,
):
    """Add a key tile to the sums (acc, l_i, m_i) of q and, with TWO_TILES, of q2.

    Two query tiles share every k and v, and the softmax of one runs while the matrix units add p v
    of the other.  LATE_V: v is read into the shared memory or registers that k no longer needs.
    """
    acc, l_i, m_i = sums
    key = start_n + tl.arange(0, BLOCK_N)
    k = _load_rows(k_head, start_n, limits[0], BLOCK_N, BLOCK_D, D, MASKED and RAGGED)
    if not LATE_V:
        v = _load_rows(v_head, start_n, limits[0], BLOCK_N, BLOCK_D, D, MASKED and RAGGED)
    s = _scores(q, k, query, key, limits, MASK, MASKED)
    BLIND: tl.constexpr = MASKED and (MASK == "window" or MASK == "sinks")
    if TWO_TILES:
        acc2, l_i2, m_i2 = sums2
        s2 = _scores(q2, k, query, key, limits, MASK, MASKED)
    p, alpha, l_i, m_i = _softmax(s, l_i, m_i, scale_log2e, BLIND)
    if LATE_V:
        v = _load_rows(v_head, start_n, limits[0], BLOCK_N, BLOCK_D, D, MASKED and RAGGED)
    acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
    if TWO_TILES:
        p2, alpha2, l_i2, m_i2 = _softmax(s2, l_i2, m_i2, scale_log2e, BLIND)
        acc2 = tl.dot(p2.to(v.dtype), v, acc2 * alpha2[:, None])
        sums2 = acc2, l_i2, m_i2
    return (acc, l_i, m_i), sums2


@triton.jit
def _finish(
    sums, o_head, lse_log2_ptr, bh, start_m, N, T,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr,
):
    """Normalise the sums of a query tile and store its rows of o and lse_log2."""
    acc, l_i, m_i = sums
    l_i = tl.sum(l_i, axis=1)
    lse_log2 = m_i + tl.math.log2(l_i)
    _store_rows(o_head, acc / l_i[:, None], start_m, N, BLOCK_M, BLOCK_D, D, HEADS)
    i = tl.arange(0, HEADS * BLOCK_M)
    query = start_m + i % BLOCK_M
    tl.store(lse_log2_ptr + (bh + i // BLOCK_M).to(tl.int64) * T + query, lse_log2, mask=query < N)


@triton.jit(do_not_specialize=["N", "S", "window_size", "sink_size"])
def _fwd_kernel(
    q_in, k_in, v_in, sink_logits_ptr, o_ptr, lse_log2_ptr, HQ, HKV, N, cu_seqlens, S,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_ob, stride_oh, stride_on, stride_od,
    scale_log2e, window_size, sink_size,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    HEADS: tl.constexpr, MASK: tl.constexpr, SHORT: tl.constexpr, RAGGED: tl.constexpr,
    HAS_SINK_LOGITS: tl.constexpr, Q_IN_REGISTERS: tl.constexpr, LATE_V: tl.constexpr,
    TWO_TILES: tl.constexpr,
):
    """Fill BLOCK_M rows of o and lse_log2, or twice as many (TWO_TILES), for HEADS heads.

    Grid: (cdiv(N, rows) * B * HQ / HEADS,); packed: ((N // rows + S) * HQ / HEADS,).  RAGGED: N is
    not a multiple of the larger of rows and BLOCK_N.
    """
    ROWS: tl.constexpr = 2 * BLOCK_M if TWO_TILES else BLOCK_M
    num_tiles = _num_tiles(cu_seqlens, S, N, ROWS)
    if MASK == "full":  # all loops are equally long: run the tiles of a head side by side
        tile = tl.program_id(0) % num_tiles
        bh = tl.program_id(0) // num_tiles
    else:
        turn, bh = _longest_first(num_tiles, HEADS)
        tile = num_tiles - 1 - turn  # the last queries see the most keys
    T = N
    first, N, start_m = _sequence(cu_seqlens, S, tile, N, ROWS)
    if cu_seqlens is not None and start_m >= N:
        return
    lse_log2_ptr += first
    bh *= HEADS
    b = bh // HQ
    h = bh % HQ
    kv_head = h // (HQ // HKV)
    q_head = _head(q_in, b, h, first, stride_qb, stride_qh, stride_qn, stride_qd)
    k_head = _head(k_in, b, kv_head, first, stride_kb, stride_kh, stride_kn, stride_kd)
    v_head = _head(v_in, b, kv_head, first, stride_vb, stride_vh, stride_vn, stride_vd)
    # By bh, which lse_log2 needs anyway: h would take a register through all loops (D = 128 with
    # window, sinks and sink logits: 24 bytes of stack -> 80).
    stride_ob -= tl.cast(HQ, tl.int64) * stride_oh
    o_head = _head(o_ptr, b, bh, first, stride_ob, stride_oh, stride_on, stride_od)

    limits = N, window_size, sink_size
    i = tl.arange(0, HEADS * BLOCK_M)
    query = start_m + i % BLOCK_M  # of q; q2 exists only in full attention, whose mask needs none
    q = _load_rows(q_head, start_m, N, BLOCK_M, BLOCK_D, D, RAGGED, HEADS)
    q2 = q
    if TWO_TILES:
        q2 = _load_rows(q_head, start_m + BLOCK_M, N, BLOCK_M, BLOCK_D, D, RAGGED)
    if Q_IN_REGISTERS:
        # Doubling is exact, and the result of arithmetic, unlike that of a load, stays in
        # registers: shared memory feeds the matrix units one factor fewer.  Causal D = 64: .659 ->
        # .611
        q, q2, scale_log2e = q + q, q2 + q2, scale_log2e * 0.5
    acc = tl.zeros([HEADS * BLOCK_M, BLOCK_D], dtype=tl.float32)
    l_i = tl.zeros([HEADS * BLOCK_M, 8], dtype=tl.float32)
    m_i = tl.full([HEADS * BLOCK_M], float("-inf"), dtype=tl.float32)
    if HAS_SINK_LOGITS:  # the softmax starts as if it had seen one key, whose value is 0
        m_i = tl.load(sink_logits_ptr + h + i // BLOCK_M).to(tl.float32) / LN2
        l_i += 1.0 / 8.0  # of 8 columns
    sums, sums2 = (acc, l_i, m_i), (acc, l_i, m_i)

    starts, ends = _walk(start_m, limits, BLOCK_M, BLOCK_N, MASK, SHORT)
    # A flag of the compiler instead of a loop that may be empty: full D = 64, 1.209 -> 1.091
    PARTS: tl.constexpr = 4 if MASK != "full" or RAGGED else 3
    for part in tl.static_range(PARTS):
        for start_n in range(starts[part], ends[part], BLOCK_N):
            sums, sums2 = _attend_tile(
                sums, sums2, q, q2, k_head, v_head, query, start_n, scale_log2e, limits,
                BLOCK_N, BLOCK_D, D, MASK, part != 2, RAGGED or SHORT, LATE_V, TWO_TILES,
            )
    _finish(sums, o_head, lse_log2_ptr, bh, start_m, N, T, BLOCK_M, BLOCK_D, D, HEADS)
    if TWO_TILES:
        start_m += BLOCK_M
        _finish(sums2, o_head, lse_log2_ptr, bh, start_m, N, T, BLOCK_M, BLOCK_D, D, HEADS)


# ----------------------------------------------------------------- backward
@triton.jit
def _dq_tile(
    dq, q, do, lse_log2, delta, k_head, v_head, query, start_n, scale_log2e, limits,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, D: tl.constexpr, MASK: tl.constexpr,
    MASKED: tl.constexpr, RAGGED: tl.constexpr,
):
    """Add one key tile's share to dq, without the factor scale."""
    key = start_n + tl.arange(0, BLOCK_N)
    k = _load_rows(k_head, start_n, limits[0], BLOCK_N, BLOCK_D, D, MASKED and RAGGED)
    v = _load_rows(v_head, start_n, limits[0], BLOCK_N, BLOCK_D, D, MASKED and RAGGED)
    s = tl.dot(q, tl.trans(k))
    p = tl.math.exp2(s * scale_log2e - lse_log2[:, None])
    if MASKED:
        p = tl.where(_keep(query[:, None], key[None, :], limits, MASK), p, 0.0)
    dp = tl.dot(do, tl.trans(v))
    ds = p * (dp - delta[:, None])
    return tl.dot(ds.to(k.dtype), k, dq)


@triton.jit(do_not_specialize=["N", "S", "window_size", "sink_size"])
def _dq_kernel(
    q_in, k_in, v_in, o_ptr, do_in, dlse_ptr, sink_logits_ptr, lse_log2_ptr, delta_ptr, dq_ptr,
    dsink_ptr, HQ, HKV, N, cu_seqlens, S,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_dob, stride_doh, stride_don, stride_dod,
    stride_ob, stride_oh, stride_on, stride_od,
    stride_dqb, stride_dqh, stride_dqn, stride_dqd,
    scale, window_size, sink_size,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    MASK: tl.constexpr, SHORT: tl.constexpr, RAGGED: tl.constexpr, WANT_DSINK: tl.constexpr,
    Q_IN_REGISTERS: tl.constexpr,
):
    """Fill BLOCK_M rows of dq and of delta, and one share of dsink.

    Grid: (cdiv(N, BLOCK_M) * B * HQ,); packed: ((N // BLOCK_M + S) * HQ,).
    delta and dsink need no launch of their own: causal D = 64 is .014 faster, and the backward of
    the GPT-OSS window, which the host limits, went from .56 to between .35 and .52.
    """
    tl.static_assert(BLOCK_M % BLOCK_N == 0)
    num_tiles = _num_tiles(cu_seqlens, S, N, BLOCK_M)
    turn, bh = _longest_first(num_tiles)
    tile = num_tiles - 1 - turn  # the last queries see the most keys
    T = N
    first, N, start_m = _sequence(cu_seqlens, S, tile, N, BLOCK_M)
    if cu_seqlens is not None and start_m >= N:
        return
    lse_log2_ptr += first
    delta_ptr += first
    b = bh // HQ
    h = bh % HQ
    kv_head = h // (HQ // HKV)
    q_head = _head(q_in, b, h, first, stride_qb, stride_qh, stride_qn, stride_qd)
    k_head = _head(k_in, b, kv_head, first, stride_kb, stride_kh, stride_kn, stride_kd)
    v_head = _head(v_in, b, kv_head, first, stride_vb, stride_vh, stride_vn, stride_vd)
    do_head = _head(do_in, b, h, first, stride_dob, stride_doh, stride_don, stride_dod)
    o_head = _head(o_ptr, b, h, first, stride_ob, stride_oh, stride_on, stride_od)
    dq_head = _head(dq_ptr, b, h, first, stride_dqb, stride_dqh, stride_dqn, stride_dqd)

    query = start_m + tl.arange(0, BLOCK_M)
    q = _load_rows(q_head, start_m, N, BLOCK_M, BLOCK_D, D, RAGGED)
    do = _load_rows(do_head, start_m, N, BLOCK_M, BLOCK_D, D, RAGGED)
    row = bh.to(tl.int64) * T + query
    lse_log2 = tl.load(lse_log2_ptr + row, mask=query < N, other=float("inf"))
    o = _load_rows(o_head, start_m, N, BLOCK_M, BLOCK_D, D, RAGGED)
    delta = tl.sum(o.to(tl.float32) * do.to(tl.float32), axis=1)
    if dlse_ptr is not None:  # P is the gradient of lse by S, so dS = P * (dP - (delta - dlse))
        delta -= tl.load(dlse_ptr + first + row, mask=query < N, other=0.0)
    tl.store(delta_ptr + row, delta, mask=query < N)
    if WANT_DSINK:  # the sink's value is 0; the shares of a head are added up later
        sink = tl.load(sink_logits_ptr + h).to(tl.float32)
        p_sink = tl.math.exp2(sink / LN2 - lse_log2)
        tl.store(dsink_ptr + bh * num_tiles + tile, -tl.sum(p_sink * delta))
    scale_log2e = scale / LN2
    if Q_IN_REGISTERS:  # as in the forward; doubling do and delta as well doubles dS
        q, do, delta = q + q, do + do, delta + delta
        scale_log2e, scale = scale_log2e * 0.5, scale * 0.5
    dq = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)

    limits = N, window_size, sink_size
    starts, ends = _walk(start_m, limits, BLOCK_M, BLOCK_N, MASK, SHORT)
    PARTS: tl.constexpr = 4 if MASK != "full" or RAGGED else 3
    for part in tl.static_range(PARTS):
        for start_n in range(starts[part], ends[part], BLOCK_N):
            dq = _dq_tile(
                dq, q, do, lse_log2, delta, k_head, v_head, query, start_n, scale_log2e, limits,
                BLOCK_N, BLOCK_D, D, MASK, part != 2, RAGGED or SHORT,
            )
    _store_rows(dq_head, dq * scale, start_m, N, BLOCK_M, BLOCK_D, D)


@triton.jit
def _load_statistic(ptr, query, N, outside, RAGGED: tl.constexpr):
    """Returns lse_log2 or delta of queries, (BLOCK_M,), and outside where there is no query."""
    return tl.load(ptr + query, mask=query < N, other=outside) if RAGGED else tl.load(ptr + query)


@triton.jit
def _dkdv_tile(
    dk, dv, k, v, q_head, do_head, lse_log2_ptr, delta_ptr, start_m, key, scale_log2e, limits,
    BLOCK_M: tl.constexpr, BLOCK_D: tl.constexpr, D: tl.constexpr, MASK: tl.constexpr,
    MASKED: tl.constexpr, RAGGED: tl.constexpr, PRODUCTS_FIRST: tl.constexpr,
):
    """Add one query tile's share to dk (without the factor scale) and dv.

    The order decides how many registers are needed: lse_log2 and delta are read as late as possible
    (D = 128 in groups of 4: 120 bytes of stack -> 0).  PRODUCTS_FIRST: dP^T before P^T, faster if
    registers are left (D = 128: .888 against .967).  Otherwise dP^T starts from -delta, and the
    product does the subtraction: 32 fewer registers (D = 64: 1.113 -> 1.030).
    """
    N = limits[0]
    query = start_m + tl.arange(0, BLOCK_M)
    q = _load_rows(q_head, start_m, N, BLOCK_M, BLOCK_D, D, RAGGED)
    do = _load_rows(do_head, start_m, N, BLOCK_M, BLOCK_D, D, RAGGED)
    if not PRODUCTS_FIRST:
        lse_log2 = _load_statistic(lse_log2_ptr, query, N, float("inf"), RAGGED)
    s_t = tl.dot(k, tl.trans(q))
    if PRODUCTS_FIRST:
        lse_log2 = _load_statistic(lse_log2_ptr, query, N, float("inf"), RAGGED)
        dp_t = tl.dot(v, tl.trans(do))
    p_t = tl.math.exp2(s_t * scale_log2e - lse_log2[None, :])
    if MASKED:
        p_t = tl.where(_keep(query[None, :], key[:, None], limits, MASK), p_t, 0.0)
    dv = tl.dot(p_t.to(do.dtype), do, dv)
    delta = _load_statistic(delta_ptr, query, N, 0.0, RAGGED)
    if PRODUCTS_FIRST:
        ds_t = p_t * (dp_t - delta[None, :])
    else:
        dp_t = tl.dot(v, tl.trans(do), tl.zeros_like(s_t) - delta[None, :])
        ds_t = p_t * dp_t
    dk = tl.dot(ds_t.to(q.dtype), q, dk)
    return dk, dv


@triton.jit(do_not_specialize=[
    "N", "S", "window_size", "sink_size", "first_tile", "num_tiles"
])
def _dkdv_kernel(
    q_in, k_in, v_in, do_in, lse_log2_ptr, delta_ptr, dk_ptr, dv_ptr, HQ, HKV, N, cu_seqlens, S,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    stride_dob, stride_doh, stride_don, stride_dod,
    stride_dkb, stride_dkh, stride_dkn, stride_dkd,
    stride_dvb, stride_dvh, stride_dvn, stride_dvd,
    scale, window_size, sink_size, first_tile, num_tiles,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    MASK: tl.constexpr, RAGGED: tl.constexpr, GROUPED: tl.constexpr, SPLIT: tl.constexpr,
    PRODUCTS_FIRST: tl.constexpr,
):
    """Fill BLOCK_N rows of dk and dv with the sums over the loop, or over one part of it.

    The launch covers tiles first_tile ... first_tile + num_tiles - 1 of every head.  With SPLIT dk
    and dv have B batch entries for every part, one part after the other.
    Grid: (num_tiles * B * HKV, parts); packed: all N // BLOCK_N + S tiles and one part.
    GROUPED: more than one query head reads this key/value head.
    """
    tl.static_assert(BLOCK_N % BLOCK_M == 0)  # the diagonal begins at a query tile's border
    turn, bh = _longest_first(num_tiles)  # bh: b * HKV + kv_head
    T = N
    # The first keys are seen by the most queries.
    first, N, start_n = _sequence(cu_seqlens, S, first_tile + turn, N, BLOCK_N)
    if cu_seqlens is not None and start_n >= N:
        return
    lse_log2_ptr += first
    delta_ptr += first
    b = bh // HKV
    kv_head = bh % HKV
    k_head = _head(k_in, b, kv_head, first, stride_kb, stride_kh, stride_kn, stride_kd)
    v_head = _head(v_in, b, kv_head, first, stride_vb, stride_vh, stride_vn, stride_vd)

    key = start_n + tl.arange(0, BLOCK_N)
    k = _load_rows(k_head, start_n, N, BLOCK_N, BLOCK_D, D, RAGGED)
    v = _load_rows(v_head, start_n, N, BLOCK_N, BLOCK_D, D, RAGGED)
    scale_log2e = scale / LN2
    dk = tl.zeros([BLOCK_N, BLOCK_D], dtype=tl.float32)
    dv = tl.zeros([BLOCK_N, BLOCK_D], dtype=tl.float32)

    # Queries inner ... outer - 1 see all of these keys; queries from last on see none.
    WINDOW: tl.constexpr = MASK == "window" or MASK == "sinks"
    TAIL: tl.constexpr = RAGGED or WINDOW  # tiles from outer on; an empty loop costs registers
    inner, diag_tiles = 0, 0
    if MASK != "full":
        inner = start_n + BLOCK_N
        diag_tiles = tl.cdiv(tl.minimum(BLOCK_N, N - start_n), BLOCK_M)
    last, outer = N, N
    inner_tiles = tl.cdiv(tl.maximum(N - inner, 0), BLOCK_M)
    edge_tiles = diag_tiles
    if WINDOW:
        last = N if start_n < sink_size else tl.minimum(inner - 1 + window_size, N)
        outer = N if inner <= sink_size else tl.minimum(start_n + window_size, N)
    if TAIL:
        outer = tl.maximum(outer // BLOCK_M * BLOCK_M, inner)
        inner_tiles = (outer - inner) // BLOCK_M
        edge_tiles += tl.cdiv(tl.maximum(last - outer, 0), BLOCK_M)

    # One flat loop over all heads of the group, whose shares add up in dk and dv; the tiles that
    # need the mask come last.  With a separate loop over heads: GPT-OSS full 2.2 -> 2.8.
    h = kv_head
    group = HQ // HKV if GROUPED else 1
    part, parts = 0, 1
    if SPLIT:
        part, parts = tl.program_id(1), tl.num_programs(1)
    for MASKED in tl.static_range(2):
        tiles = edge_tiles if MASKED else inner_tiles
        steps = group * tiles
        for t in range(part * steps // parts, (part + 1) * steps // parts):
            i = t
            if GROUPED:
                h = kv_head * group + t // tiles
                i = t % tiles
            start_m = start_n if MASKED else inner
            if MASKED and TAIL:
                start_m = tl.where(i < diag_tiles, start_n, outer - diag_tiles * BLOCK_M)
            row = (b * HQ + h).to(tl.int64) * T
            dk, dv = _dkdv_tile(
                dk, dv, k, v,
                _head(q_in, b, h, first, stride_qb, stride_qh, stride_qn, stride_qd),
                _head(do_in, b, h, first, stride_dob, stride_doh, stride_don, stride_dod),
                lse_log2_ptr + row, delta_ptr + row, start_m + i * BLOCK_M, key, scale_log2e,
                (N, window_size, sink_size),
                BLOCK_M, BLOCK_D, D, MASK, MASKED == 1, MASKED == 1 and RAGGED, PRODUCTS_FIRST,
            )
    b += part * (tl.num_programs(0) // num_tiles // HKV)
    dk_head = _head(dk_ptr, b, kv_head, first, stride_dkb, stride_dkh, stride_dkn, stride_dkd)
    dv_head = _head(dv_ptr, b, kv_head, first, stride_dvb, stride_dvh, stride_dvn, stride_dvd)
    _store_rows(dk_head, dk * scale, start_n, N, BLOCK_N, BLOCK_D, D)
    _store_rows(dv_head, dv, start_n, N, BLOCK_N, BLOCK_D, D)
