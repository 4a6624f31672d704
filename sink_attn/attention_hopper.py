"""Attention for Hopper, one level below Triton, for the last 20 % of speed: the forward.

In kernels.py Triton decides which warp does what, and when, and leaves a gap: while the softmax
runs, the tensor cores wait.  Gluon (triton.experimental.gluon), the level below, lets a kernel
arrange the work itself.  This one gives every warp a fixed role:

    producer, one warp          copies tiles of q, k and v into shared memory (asynchronous, TMA)
    consumers, 2 warpgroups     of 4 warps: products, softmax and output of 64 query rows each

Between them are two rings of slots, one for k and one for v.  Who waits for whom:

               "full": an mbarrier in shared memory, flipped by the last byte of the copy
    producer ------------------------------------------------------------------> consumers
             <------------------------------------------------------------------
               "empty": a hardware barrier; all warps have arrived, the slot may be refilled

The products are asynchronous as well.  In a round a warpgroup starts the scores of key tile j and,
after them, P V of tile j - 1; it waits only for the scores, and computes their softmax while P V
runs.  And while one warpgroup is in its softmax, it is the other's turn:

    tensor cores  | 0: S(j) PV(j-1) | 1: S(j) PV(j-1) | 0: S(j+1) PV(j) | 1: S(j+1) PV(j) |
    warpgroup 0     start |    softmax of tile j      | start |    softmax of tile j + 1
    warpgroup 1           its turn: | start |    softmax of tile j      | start |   softmax

Programs are persistent, one per multiprocessor, and fetch the number of their next query tile from
a counter in global memory.  The last product and the output of a query tile overlap the first
softmax of the next.  Key tiles are taken from right to left, so that those that need the mask come
first.  P never leaves the registers: the layout of the scores in an accumulator is, register by
register, the one that the second product takes as its left factor.

Three rules of ptxas shape the code.  Break one, and the results are right, but the kernel waits
after every product; `ptxas -v` reports this (C7510 ... C7515), and test_sink_attn_hopper.py checks:
  1. no product is in flight where a loop begins or ends;
  2. an accumulator is touched by other instructions only after the wait for its product;
  3. that wait has no operands, so ptxas may move it up, above the softmax: a wait on an mbarrier,
     which is a loop, keeps it in its place.

Shapes      q, o: (B, HQ, N, D)    k, v: (B, HKV, N, D)    lse: (B, HQ, N), float32
            D is 64 or 128, N is any; float16 or bfloat16
Read first  kernels.py, and README.md in this folder for the steps from there to here
"""

import torch
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from . import hopper, kept
from .launcher import new_like

BLOCK_M = gl.constexpr(128)  # queries per tile, 64 for each warpgroup
BLOCK_N = gl.constexpr(128)  # keys per tile
Q_EMPTY = gl.constexpr(5)  # a hardware barrier; those of the slots end at 13, turns are 14 and 15
ALL = gl.constexpr(288)  # threads: the consumers and the producer

# What each step gains (H200, D = 128, ms, off -> on, full; causal): persistent programs .817 ->
# .778; .448 -> .416.  P V under the softmax .788 -> .778; .424 -> .416.  Turns .788 -> .778; .414
# -> .416.  16 partial maxima per row (1: none) .779 -> .778; .409 -> .416.  8 in place of 16,
# D = 64: full 1.099 -> 1.069, window 1024 .326 -> .307, others alike.
STEPS = dict(STAY=True, UNDER=True, TURNS=True, COLUMNS=8)


# -------------------------------------------------------------------- tiles
@gluon.jit
def _place(
    t, N, tiles, window, CAUSAL: gl.constexpr, WINDOWED: gl.constexpr, GROUP: gl.constexpr
):
    """Returns a query tile's first row, head, rightmost key tile, and number of key tiles.

    Like _longest_first in kernels.py: the longest loops of GROUP heads first, whose keys fit into
    the L2 cache.
    """
    blocks = gl.cdiv(N, BLOCK_M)
    first = t // (GROUP * blocks) * GROUP
    heads = gl.minimum(GROUP, tiles // blocks - first)
    turn = t % (GROUP * blocks)
    row = (blocks - 1 - turn // heads) * BLOCK_M
    last = row // BLOCK_N if CAUSAL else (N - 1) // BLOCK_N
    n = last + 1
    if WINDOWED:
        n -= gl.maximum(row - window + 1, 0) // BLOCK_N
    return row, first + turn % heads, last, n


@gluon.jit
def _masked(s, ahead, left, window, CAUSAL: gl.constexpr, WINDOWED: gl.constexpr):
    """Returns the scores of a tile, -inf where a query does not see a key.

    ahead: first query minus first key.  left: keys from the first key to the end.
    """
    tile, row, lane, key = hopper.by_lane(s)
    if CAUSAL:
        query = row + ahead - lane
        keep = key <= query
        if WINDOWED:
            keep &= key > query - window
    else:
        keep = key < row * 0 + left - lane
    return hopper.where_kept(keep, tile, s)


# ----------------------------------------------------------------- producer
@gluon.jit
def _fetch_v(v_desc, v_bufs, v_full, i, b, head, row, EMPTY: gl.constexpr, ALL: gl.constexpr):
    """Fill the slot of the i-th v tile."""
    slot, parity = hopper.ring(i, v_bufs.shape[0])
    if i >= v_bufs.shape[0]:
        hopper.bar_sync(EMPTY + slot, ALL)
    mbarrier.expect(v_full.index(slot), v_desc.block_type.nbytes)
    hopper.tma_load(v_desc, [b, head, row, 0], v_full.index(slot), v_bufs.index(slot))


@gluon.jit
def _produce(
    q_desc, k_desc, v_desc, bufs, bars, tile_buf, COUNTER, N, HQ, group, tiles, window,
    CAUSAL: gl.constexpr, WINDOWED: gl.constexpr, GROUP: gl.constexpr,
):
    """One warp: fetch the number of a query tile, then its q and all its k and v, in that order.

    k of tile j comes before v of tile j - 1, as the consumers need them.
    """
    q_bufs, k_bufs, v_bufs, o_bufs = bufs
    q_full, k_full, v_full = bars
    SLOTS: gl.constexpr = k_bufs.shape[0]
    K_EMPTY: gl.constexpr = 14 - 2 * SLOTS
    V_EMPTY: gl.constexpr = 14 - SLOTS
    ONE: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    i = 0  # key tiles so far
    v_b = 0  # the v tile that is due: that of the previous k tile
    v_head = 0
    v_row = 0
    t = gl.program_id(0)
    while t < tiles:
        row, head, last, n = _place(t, N, tiles, window, CAUSAL, WINDOWED, GROUP)
        b = head // HQ
        h = head % HQ
        for j in range(n):
            key = (last - j) * BLOCK_N
            slot, parity = hopper.ring(i, SLOTS)
            if i >= SLOTS:
                hopper.bar_sync(K_EMPTY + slot, ALL)
            mbarrier.expect(k_full.index(slot), k_desc.block_type.nbytes)
            hopper.tma_load(k_desc, [b, h // group, key, 0], k_full.index(slot), k_bufs.index(slot))
            if i > 0:
                _fetch_v(v_desc, v_bufs, v_full, i - 1, v_b, v_head, v_row, V_EMPTY, ALL)
            if j == 0:  # the number of the tile travels with its queries
                if i > 0:
                    hopper.bar_sync(Q_EMPTY, ALL)
                tile_buf.store(gl.full([1], t, gl.int32, ONE))
                for w in gl.static_range(2):
                    mbarrier.expect(q_full.index(w), q_desc.block_type.nbytes)
                    at = [b, h, row + w * 64, 0]
                    hopper.tma_load(q_desc, at, q_full.index(w), q_bufs.index(w))
            v_b = b + 0  # + 0: a plain copy of a value that changes does not reach the next round
            v_head = h // group
            v_row = key + 0
            i += 1
        fetched = hopper.uniform(gl.atomic_add(COUNTER, 1))
        if fetched == tiles - 1:  # each tile fetches once: the last leaves zero for the next launch
            gl.store(COUNTER, 0)
        t = fetched + gl.num_programs(0)
    _fetch_v(v_desc, v_bufs, v_full, i - 1, v_b, v_head, v_row, V_EMPTY, ALL)
    hopper.bar_sync(Q_EMPTY, ALL)
    tile_buf.store(gl.full([1], t, gl.int32, ONE))  # a number past the end: stop
    for w in gl.static_range(2):
        mbarrier.arrive(q_full.index(w), count=1)


# ----------------------------------------------------------------- consumer
@gluon.jit
def _denominators(LSE, SINK, m_i, l_i, scale, row, head, zero, N, HQ, A: gl.constexpr):
    """Store lse of 64 rows; returns the factors to multiply their acc with."""
    l_i = gl.convert_layout(gl.sum(l_i, 1), m_i.type.layout)
    rows = row + zero + gl.arange(0, 64, m_i.type.layout)
    m_i = m_i * scale
    factor = 1.0 / l_i
    if SINK is not None:  # one more logit, whose value is zero
        sink = gl.load(SINK + head % HQ).to(gl.float32) * hopper.LOG2E
        m_new = gl.maximum(m_i, sink)
        alpha = gl.exp2(m_i - m_new)
        l_i = gl.fma(l_i, alpha, gl.exp2(sink - m_new))
        factor = alpha / l_i
        m_i = m_new
    gl.store(LSE + head.to(gl.int64) * N + rows, (m_i + gl.log2(l_i)) * hopper.LN2, mask=rows < N)
    return gl.convert_layout(factor, gl.SliceLayout(1, A))


@gluon.jit
def _write(o_desc, o_buf, o, row, head, HQ):
    """Start writing 64 rows of o; only the next write waits until they are read from o_buf."""
    tma.store_wait(0)
    hopper.meet()
    o_buf.store(o)
    fence_async_shared()
    hopper.tma_store(o_desc, [head // HQ, head % HQ, row, 0], o_buf)  # not past row N - 1


@gluon.jit
def _consume(
    w: gl.constexpr, o_desc, LSE, SINK, bufs, bars, tile_buf, N, HQ, tiles, scale, window,
    CAUSAL: gl.constexpr, WINDOWED: gl.constexpr, RAGGED: gl.constexpr, GROUP: gl.constexpr,
    TURNS: gl.constexpr, UNDER: gl.constexpr, COLUMNS: gl.constexpr,
):
    """Warpgroup w: 64 rows of every query tile that this program fetches."""
    q_bufs, k_bufs, v_bufs, o_bufs = bufs
    q_full, k_full, v_full = bars
    D: gl.constexpr = q_bufs.shape[2]
    SLOTS: gl.constexpr = k_bufs.shape[0]
    dtype: gl.constexpr = q_bufs.dtype
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BLOCK_N, 16])  # scores
    A: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])  # output
    P: gl.constexpr = gl.DotOperandLayout(0, A, 2)  # left factor of P V, in registers
    # q in registers: .580 -> .562 causal, GPT-OSS 1.113 -> 1.053; full 1.10 -> 1.18 (H100, D = 64).
    Q_IN_REGISTERS: gl.constexpr = CAUSAL and D == 64
    ONE: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    K_EMPTY: gl.constexpr = 14 - 2 * SLOTS
    V_EMPTY: gl.constexpr = 14 - SLOTS
    MINE: gl.constexpr = 14 + w
    OTHER: gl.constexpr = 15 - w
    none = gl.zeros([64, BLOCK_N], gl.float32, S)  # not read: use_acc=False
    i = 0  # key tiles so far
    n, row, head = 0, 0, 0  # of the tile before this one; n: its key tiles
    q_parity = 0
    acc = gl.zeros([64, D], gl.float32, A)
    p = none  # stays float32 from round to round: ptxas would unpack and repack 16-bit values
    factor = gl.zeros([64], gl.float32, gl.SliceLayout(1, A))
    mbarrier.wait(q_full.index(w), 0)
    t = hopper.uniform(gl.max(tile_buf.load(ONE), 0))
    while t < tiles:
        new_row, new_head, last, new_n = _place(t, N, tiles, window, CAUSAL, WINDOWED, GROUP)
        new_row += w * 64
        # The first scores of this tile and the last product of the previous one.  The first time
        # that is a product of zeros, which is never used.
        slot, parity = hopper.ring(i, SLOTS)
        v_slot, v_parity = hopper.ring(i - 1, SLOTS)
        mbarrier.wait(k_full.index(slot), parity)
        mbarrier.wait(v_full.index(v_slot), v_parity, pred=i > 0)
        left = gl.convert_layout(p.to(dtype), P)
        q = q_bufs.index(w)
        if Q_IN_REGISTERS:
            q = q.load(gl.DotOperandLayout(0, S, 2))
        if TURNS:
            hopper.bar_sync(MINE, 256)
        k = k_bufs.index(slot).permute((1, 0))
        s = warpgroup_mma(q, k, none, use_acc=False, is_async=True)
        acc = warpgroup_mma(left, v_bufs.index(v_slot), acc, use_acc=n > 1, is_async=True)
        if TURNS:
            hopper.bar_arrive(OTHER, 256)
        s = warpgroup_mma_wait(1, (s,))
        hopper.bar_arrive(K_EMPTY + slot, ALL)
        if new_n == 1:
            hopper.bar_arrive(Q_EMPTY, ALL)
        if CAUSAL or RAGGED:
            s = _masked(s, w * 64 + (t >> 30), N - last * BLOCK_N, window, CAUSAL, WINDOWED)
        m_i = hopper.row_max(s, COLUMNS)  # finite: every row sees something of its rightmost tile
        p = gl.exp2(s * scale - (m_i * scale)[:, None])
        l_i = hopper.partial_sums(p)
        slot, parity = hopper.ring(i + 1, SLOTS)
        mbarrier.wait(k_full.index(slot), parity, pred=new_n > 1)  # rule 3
        acc, left = warpgroup_mma_wait(0, (acc, left))
        if i > 0:
            hopper.bar_arrive(V_EMPTY + v_slot, ALL)
            # t >> 30 is 0, but the compiler does not know that: it keeps no addresses in registers.
            o_buf = o_bufs.index(w + (t >> 30))
            _write(o_desc, o_buf, (acc * factor[:, None]).to(dtype), row, head, HQ)
        i += 1
        for j in range(1, new_n):
            slot, parity = hopper.ring(i, SLOTS)
            v_slot, v_parity = hopper.ring(i - 1, SLOTS)
            left = gl.convert_layout(p.to(dtype), P)
            if TURNS:
                hopper.bar_sync(MINE, 256)
            k = k_bufs.index(slot).permute((1, 0))
            s = warpgroup_mma(q, k, none, use_acc=False, is_async=True)
            mbarrier.wait(v_full.index(v_slot), v_parity)
            acc = warpgroup_mma(left, v_bufs.index(v_slot), acc, use_acc=j > 1, is_async=True)
            if TURNS:
                hopper.bar_arrive(OTHER, 256)
            if UNDER:
                s = warpgroup_mma_wait(1, (s,))  # the scores are there, P V still runs
            else:
                s, acc = warpgroup_mma_wait(0, (s, acc))
            hopper.bar_arrive(K_EMPTY + slot, ALL)
            if j == new_n - 1:
                hopper.bar_arrive(Q_EMPTY, ALL)  # the next q may come during the last softmax
            if WINDOWED:
                if (last - j) * BLOCK_N + window < new_row + 64:
                    s = _masked(s, new_row - (last - j) * BLOCK_N, 0, window, CAUSAL, WINDOWED)
            m_new = gl.maximum(m_i, hopper.row_max(s, COLUMNS))
            p = gl.exp2(s * scale - (m_new * scale)[:, None])
            alpha = gl.exp2(m_i * scale - m_new * scale)
            part = hopper.partial_sums(p)
            SUMS: gl.constexpr = gl.SliceLayout(1, part.type.layout)
            l_i = l_i * gl.convert_layout(alpha, SUMS)[:, None] + part
            m_i = m_new
            slot, parity = hopper.ring(i + 1, SLOTS)
            mbarrier.wait(k_full.index(slot), parity, pred=j < new_n - 1)  # rule 3
            if UNDER:
                acc, left = warpgroup_mma_wait(0, (acc, left))  # keeps left's registers until here
            hopper.bar_arrive(V_EMPTY + v_slot, ALL)
            acc = acc * gl.convert_layout(alpha, gl.SliceLayout(1, A))[:, None]
            i += 1
        row, head, n = new_row + 0, new_head + 0, new_n + 0
        factor = _denominators(LSE, SINK, m_i, l_i, scale, row, head, t >> 30, N, HQ, A)
        q_parity ^= 1
        mbarrier.wait(q_full.index(w), q_parity)
        t = hopper.uniform(gl.max(tile_buf.load(ONE), 0))
    # The last product of the last tile.
    v_slot, v_parity = hopper.ring(i - 1, SLOTS)
    left = gl.convert_layout(p.to(dtype), P)
    mbarrier.wait(v_full.index(v_slot), v_parity)
    acc = warpgroup_mma(left, v_bufs.index(v_slot), acc, use_acc=n > 1, is_async=True)
    acc, left = warpgroup_mma_wait(0, (acc, left))
    _write(o_desc, o_bufs.index(w), (acc * factor[:, None]).to(dtype), row, head, HQ)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["N", "HQ", "group", "tiles", "window"])
def _fwd_kernel(
    q_desc, k_desc, v_desc, o_desc, LSE, SINK, COUNTER, N, HQ, group, tiles, scale, window,
    SLOTS: gl.constexpr, CAUSAL: gl.constexpr, WINDOWED: gl.constexpr,
    RAGGED: gl.constexpr, GROUP: gl.constexpr,
    TURNS: gl.constexpr, UNDER: gl.constexpr, COLUMNS: gl.constexpr,
):
    """Fill o and lse.  Grid: one program per multiprocessor, or fewer if there are fewer tiles."""
    D: gl.constexpr = q_desc.block_type.shape[3]
    dtype: gl.constexpr = q_desc.dtype
    ROWS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, D], dtype)
    KEYS: gl.constexpr = gl.NVMMASharedLayout.get_default_for([BLOCK_N, D], dtype)
    q_bufs = gl.allocate_shared_memory(dtype, [2, 64, D], ROWS)
    k_bufs = gl.allocate_shared_memory(dtype, [SLOTS, BLOCK_N, D], KEYS)
    v_bufs = gl.allocate_shared_memory(dtype, [SLOTS, BLOCK_N, D], KEYS)
    o_bufs = gl.allocate_shared_memory(dtype, [2, 64, D], ROWS)
    tile_buf = gl.allocate_shared_memory(gl.int32, [1], gl.SwizzledSharedLayout(1, 1, 1, [0]))
    bufs = (q_bufs, k_bufs, v_bufs, o_bufs)
    bars = (hopper.new_barriers(2), hopper.new_barriers(SLOTS), hopper.new_barriers(SLOTS))
    scale = scale * hopper.LOG2E
    if TURNS:
        hopper.bar_arrive(14, 256)  # in place of the last warpgroup: the first one begins
    # (function, arguments) a role.  The first runs in the kernel's own 4 warps; the others get
    # warps and registers a thread as listed, and what is left of the 65536 goes to the first.
    gl.warp_specialize([
        (_consume, (0, o_desc, LSE, SINK, bufs, bars, tile_buf, N, HQ, tiles, scale, window,
                    CAUSAL, WINDOWED, RAGGED, GROUP, TURNS, UNDER, COLUMNS)),
        (_consume, (1, o_desc, LSE, SINK, bufs, bars, tile_buf, N, HQ, tiles, scale, window,
                    CAUSAL, WINDOWED, RAGGED, GROUP, TURNS, UNDER, COLUMNS)),
        (_produce, (q_desc, k_desc, v_desc, bufs, bars, tile_buf, COUNTER, N, HQ, group, tiles,
                    window, CAUSAL, WINDOWED, GROUP)),
    ], [4, 1], [240, 24])


# ------------------------------------------------------------------- launch
def forward(
    q, k, v, is_causal, scale, window_size=None, sink_logits=None, o_layout="bhnd", **steps
):
    """Launch the forward kernel.  entry.py has checked the input.

    Args:
        q: (B, HQ, N, D).
        k, v: (B, HKV, N, D).
        window_size, sink_logits, o_layout: as in attention.
        steps: changes to STEPS.

    Returns:
        o (B, HQ, N, D), and lse (B, HQ, N), float32, a natural logarithm with the sink logit.
    """
    (B, HQ, N, D), HKV = q.shape, k.shape[1]
    o = new_like(q, o_layout)
    lse = q.new_empty((B, HQ, N), dtype=torch.float32)
    tiles = -(-N // 128) * B * HQ
    steps = STEPS | steps if steps else STEPS
    programs = min(tiles, hopper.multiprocessors(q.device)) if steps["STAY"] else tiles
    constants = (
        2 if D == 128 else 4,  # slots: at D = 128 two fill the 227 KiB
        is_causal, window_size is not None, N % 128 != 0 and not is_causal,
        8 if is_causal else 1,  # heads side by side; full: 1 to 4 alike, 32 slower by 5 %
        steps["TURNS"], steps["UNDER"], steps["COLUMNS"],
    )
    sinks = None if sink_logits is None else sink_logits.contiguous()
    sink = sinks is not None and (sinks.dtype, sinks.data_ptr() % 16)
    with kept.on(q.device):
        kept.launch(
            (q.device, D, q.dtype, sink, constants), _fwd_kernel, (programs, 1, 1),
            *[kept.describe(x, rows, hopper.tiles)
              for x, rows in ((q, 64), (k, 128), (v, 128), (o, 64))],
            lse, sinks, hopper.counter(q.device), N, HQ, HQ // HKV, tiles, scale,
            window_size or 0, *constants, num_warps=4, maxnreg=168,
        )
    return o, lse
