"""Attention for Hopper, one level below Triton: what the last 20 % takes.  Forward.

Stages 3 to 9 say what a program computes, and Triton decides who does it and when.  Its choice
leaves a gap: between a product q k^T and the softmax that needs it the tensor cores wait.  Gluon,
the level below (triton.experimental.gluon), lets a kernel place the work itself.  This one gives
every warp a role, for good:

    producer, one warp        copies tiles of q, k and v into shared memory (TMA, asynchronous)
    consumers, 2 warpgroups   64 query rows each: products, softmax, output      (D = 64: 3)

A ring of two slots for k and two for v stands between them.  Who waits for whom:

               "full": an mbarrier in shared memory, flipped by the last byte of the copy
    producer ------------------------------------------------------------------> consumers
             <------------------------------------------------------------------
               "empty": a hardware barrier; all warps have arrived, the slot can be filled again

The products themselves are asynchronous as well.  In a round a warpgroup starts the scores of
key tile j and, behind them, the product P V of tile j - 1; it waits for the scores only, and does
their softmax while P V still runs.  And while one warpgroup is in its softmax the other has its
turn at the tensor cores:

    tensor cores   | S(j) PV(j-1) | S(j) PV(j-1) | S(j+1)  PV(j) | S(j+1)  PV(j) |
    warpgroup 0    | starts       | softmax j            | starts        | softmax j+1
    warpgroup 1    | its turn comes      | starts        | softmax j             | starts

Programs stay, one a multiprocessor, and fetch the number of their next query tile from a counter
in global memory; the last product and the output of a tile happen under the first softmax of the
next.  Key tiles run from the right end leftwards, so that what the mask cuts comes first.

P never leaves the registers: the layout of the scores in an accumulator is, register by register,
what the second product takes as its left factor.

Three rules of ptxas shape the code.  Break one, and nothing is wrong but twice as slow; `ptxas -v`
then says C7510 ... C7519, and tests/test_expert.py looks for that:
  1. no product is in flight where a loop begins or ends;
  2. an accumulator is touched by other instructions only after the wait for its product;
  3. a wait has no operands, so ptxas may move it up over the softmax: a wait on an mbarrier, which
     is a loop, holds it in its place.

Shapes      q, o: (B, HQ, N, D)    k, v: (B, HKV, N, D)    lse: (B, HQ, N), float32
            D is 64 or 128; N is any; bfloat16 or float16
Needs       compute capability 9.0; Triton 3.6 to 3.9
Read first  problem_5.py, and README.md beside this file for the way from there to here
"""

import functools
import math

import torch
import triton

if not (3, 6) <= tuple(map(int, triton.__version__.split(".")[:2])) <= (3, 9):
    raise ImportError(f"want Triton 3.6 to 3.9; got {triton.__version__}")

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

LOG2E = gl.constexpr(1.4426950408889634)  # exp(x) == exp2(x * LOG2E)
LN2 = gl.constexpr(0.6931471805599453)  # log(x) == log2(x) * LN2
BLOCK_M = gl.constexpr(128)  # queries a tile, 64 for each warpgroup
BLOCK_N = gl.constexpr(128)  # keys a tile

# What Triton has renamed: the first in 3.7, the others in 3.8.
meet = getattr(gl, "barrier", None) or gl.thread_barrier  # all warps of this role
tma_load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared
tma_store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global


# ----------------------------------------------------------------- barriers
@gluon.jit
def new_barriers(n: gl.constexpr):
    """n mbarriers of one arrival each."""
    bars = gl.allocate_shared_memory(gl.int64, [n, 1], mbarrier.MBarrierLayout())
    for i in gl.static_range(n):
        mbarrier.init(bars.index(i), count=1)
    return bars


@gluon.jit
def bar_arrive(number, threads: gl.constexpr):
    """Arrive at a hardware barrier (there are 16; Triton uses the first few) and go on.

    Every warp arrives for itself; Gluon's mbarrier.arrive first makes the warpgroup meet.
    """
    gl.inline_asm_elementwise(
        "bar.arrive $1, $2; mov.u32 $0, 0;", "=r,r,r,~{memory}", [number, threads], gl.int32,
        is_pure=False, pack=1,
    )


@gluon.jit
def bar_sync(number, threads: gl.constexpr):
    """Wait until that many threads, these included, have arrived."""
    gl.inline_asm_elementwise(
        "bar.sync $1, $2; mov.u32 $0, 0;", "=r,r,r,~{memory}", [number, threads], gl.int32,
        is_pure=False, pack=1,
    )


@gluon.jit
def uniform(x):
    """The same number in every lane, said in a way that ptxas understands."""
    return gl.inline_asm_elementwise(
        "shfl.sync.idx.b32 $0, $1, 0, 0x1f, 0xffffffff;", "=r,r", [x], gl.int32,
        is_pure=False, pack=1,
    )


@gluon.jit
def ring(i, SLOTS: gl.constexpr):
    """Slot of the i-th tile that goes through a ring of 2 or 4, and the parity of its barrier.

    A barrier's parity flips every time the ring has gone round.
    """
    return i & (SLOTS - 1), (i >> (SLOTS // 2)) & 1


# -------------------------------------------------------------------- tiles
@gluon.jit
def _place(
    t, N, tiles, window,
    CAUSAL: gl.constexpr, WINDOWED: gl.constexpr, GROUP: gl.constexpr,
):
    """Number of a query tile -> its first row, its head, its rightmost key tile, how many there are.

    As _longest_first of problem 5: the heavy tiles of GROUP heads, whose keys fit the L2 cache.
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
def by_lane(s):
    """s (64, n) as (64, n / 8, 4, 2), its row numbers, and its column numbers in two parts.

    A thread holds columns lane + column, where lane is one number, 0, 2, 4 or 6, and column is
    known to the compiler.  Comparing only that with a limit saves a register for every column.
    """
    tile = gl.reshape(s, [64, s.shape[1] // 8, 4, 2])
    L: gl.constexpr = tile.type.layout
    L0: gl.constexpr = gl.SliceLayout(1, gl.SliceLayout(2, gl.SliceLayout(3, L)))
    L1: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(2, gl.SliceLayout(3, L)))
    L2: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(3, L)))
    L3: gl.constexpr = gl.SliceLayout(0, gl.SliceLayout(1, gl.SliceLayout(2, L)))
    row = gl.arange(0, 64, L0)[:, None, None, None]
    lane = gl.arange(0, 4, L2)[None, None, :, None] * 2
    column = gl.arange(0, s.shape[1] // 8, L1)[None, :, None, None] * 8
    return tile, row, lane, column + gl.arange(0, 2, L3)[None, None, None, :]


@gluon.jit
def where_kept(keep, tile, s):
    """s where keep, of the shape of by_lane, and -inf elsewhere."""
    s_kept = gl.reshape(gl.where(keep, tile, float("-inf")), s.shape)
    return gl.convert_layout(s_kept, s.type.layout)


@gluon.jit
def _masked(s, ahead, left, window, CAUSAL: gl.constexpr, WINDOWED: gl.constexpr):
    """Scores of a tile, -inf where a query does not see a key.

    ahead: how far the first query lies behind the first key.  left: keys from there to the end.
    """
    tile, row, lane, key = by_lane(s)
    if CAUSAL:
        query = row + ahead - lane
        keep = key <= query
        if WINDOWED:
            keep &= key > query - window
    else:
        keep = key < row * 0 + left - lane
    return where_kept(keep, tile, s)


@gluon.jit
def _row_max(s, COLUMNS: gl.constexpr):
    """In two steps, COLUMNS partial maxima a row: short chains of instructions, not one long one."""
    if COLUMNS > 1:
        s_max = gl.max(gl.max(gl.reshape(s, [s.shape[0], s.shape[1] // COLUMNS, COLUMNS]), 1), 1)
    else:
        s_max = gl.max(s, 1)
    return gl.convert_layout(s_max, gl.SliceLayout(1, s.type.layout))


@gluon.jit
def _partial_sums(p):
    """Row sums of p still spread over 4 columns: every thread adds what it holds of its rows."""
    return gl.sum(gl.sum(gl.reshape(p, [p.shape[0], p.shape[1] // 8, 4, 2]), 3), 1)


# ----------------------------------------------------------------- producer
@gluon.jit
def _fetch_v(
    v_desc, v_bufs, v_full, i, b, head, row, EMPTY: gl.constexpr, ALL: gl.constexpr
):
    slot, parity = ring(i, v_bufs.shape[0])
    if i >= v_bufs.shape[0]:
        bar_sync(EMPTY + slot, ALL)
    mbarrier.expect(v_full.index(slot), v_desc.block_type.nbytes)
    tma_load(v_desc, [b, head, row, 0], v_full.index(slot), v_bufs.index(slot))


@gluon.jit
def _produce(
    q_desc, k_desc, v_desc, bufs, bars, tile_buf, COUNTER, N, HQ, group, tiles, window,
    CAUSAL: gl.constexpr, WINDOWED: gl.constexpr, GROUP: gl.constexpr,
):
    """One warp: fetch the number of a query tile, then its q and all its k and v, in that order.

    k of tile j, then v of tile j - 1: that is how they are needed.
    """
    q_bufs, k_bufs, v_bufs, o_bufs = bufs
    q_full, k_full, v_full = bars
    SLOTS: gl.constexpr = k_bufs.shape[0]
    K_EMPTY: gl.constexpr = 14 - 2 * SLOTS
    V_EMPTY: gl.constexpr = 14 - SLOTS
    Q_EMPTY: gl.constexpr = 5
    ALL: gl.constexpr = 288  # threads: the consumers and this warp
    ONE: gl.constexpr = gl.BlockedLayout([1], [32], [1], [0])
    i = 0  # key tiles so far
    v_b = 0  # the v tile that is due: that of the k tile before
    v_head = 0
    v_row = 0
    t = gl.program_id(0)
    while t < tiles:
        row, head, last, n = _place(t, N, tiles, window, CAUSAL, WINDOWED, GROUP)
        b = head // HQ
        h = head % HQ
        for j in range(n):
            key = (last - j) * BLOCK_N
            slot, parity = ring(i, SLOTS)
            if i >= SLOTS:
                bar_sync(K_EMPTY + slot, ALL)
            mbarrier.expect(k_full.index(slot), k_desc.block_type.nbytes)
            tma_load(k_desc, [b, h // group, key, 0], k_full.index(slot), k_bufs.index(slot))
            if i > 0:
                _fetch_v(v_desc, v_bufs, v_full, i - 1, v_b, v_head, v_row, V_EMPTY, ALL)
            if j == 0:  # the number of the tile travels with its queries
                if i > 0:
                    bar_sync(Q_EMPTY, ALL)
                tile_buf.store(gl.full([1], t, gl.int32, ONE))
                for w in gl.static_range(2):
                    mbarrier.expect(q_full.index(w), q_desc.block_type.nbytes)
                    tma_load(q_desc, [b, h, row + w * 64, 0], q_full.index(w), q_bufs.index(w))
            v_b = b + 0  # + 0: a plain copy of what changes is not carried round the loop
            v_head = h // group
            v_row = key + 0
            i += 1
        fetched = uniform(gl.atomic_add(COUNTER, 1))
        if fetched == tiles - 1:  # every tile brings one fetch: the last leaves zero for the next launch
            gl.store(COUNTER, 0)
        t = fetched + gl.num_programs(0)
    _fetch_v(v_desc, v_bufs, v_full, i - 1, v_b, v_head, v_row, V_EMPTY, ALL)
    bar_sync(Q_EMPTY, ALL)
    tile_buf.store(gl.full([1], t, gl.int32, ONE))  # a number past the end: stop
    for w in gl.static_range(2):
        mbarrier.arrive(q_full.index(w), count=1)


# ----------------------------------------------------------------- consumer
@gluon.jit
def _denominators(LSE, SINK, m_i, l_i, scale, row, head, zero, N, HQ, A: gl.constexpr):
    """Store lse of 64 rows; -> what to multiply their acc with."""
    l_i = gl.convert_layout(gl.sum(l_i, 1), m_i.type.layout)
    rows = row + zero + gl.arange(0, 64, m_i.type.layout)
    m_i = m_i * scale
    factor = 1.0 / l_i
    if SINK is not None:  # one more logit, whose value is no row of v
        sink = gl.load(SINK + head % HQ).to(gl.float32) * LOG2E
        m_new = gl.maximum(m_i, sink)
        alpha = gl.exp2(m_i - m_new)
        l_i = gl.fma(l_i, alpha, gl.exp2(sink - m_new))
        factor = alpha / l_i
        m_i = m_new
    gl.store(LSE + head.to(gl.int64) * N + rows, (m_i + gl.log2(l_i)) * LN2, mask=rows < N)
    return gl.convert_layout(factor, gl.SliceLayout(1, A))


@gluon.jit
def _write(o_desc, o_buf, o, row, head, HQ):
    """Send 64 rows of o off; nobody waits for them before the next tile does the same."""
    tma.store_wait(0)
    meet()
    o_buf.store(o)
    fence_async_shared()
    tma_store(o_desc, [head // HQ, head % HQ, row, 0], o_buf)  # not past row N - 1


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
    ONE: gl.constexpr = gl.BlockedLayout([1], [32], [4], [0])
    K_EMPTY: gl.constexpr = 14 - 2 * SLOTS
    V_EMPTY: gl.constexpr = 14 - SLOTS
    MINE: gl.constexpr = 14 + w
    OTHER: gl.constexpr = 15 - w
    Q_EMPTY: gl.constexpr = 5
    ALL: gl.constexpr = 288
    # P goes round the loop as it is and is rounded behind the next scores; as bfloat16 it cost 32
    # permutations a round.
    q = q_bufs.index(w)
    none = gl.zeros([64, BLOCK_N], gl.float32, S)  # not read: use_acc=False
    i = 0  # key tiles so far
    n = 0  # key tiles of the tile before this one
    row = 0
    head = 0
    q_parity = 0
    acc = gl.zeros([64, D], gl.float32, A)
    p = none
    factor = gl.zeros([64], gl.float32, gl.SliceLayout(1, A))
    mbarrier.wait(q_full.index(w), 0)
    t = uniform(gl.max(tile_buf.load(ONE), 0))
    while t < tiles:
        new_row, new_head, last, new_n = _place(
            t, N, tiles, window, CAUSAL, WINDOWED, GROUP
        )
        new_row += w * 64
        # The first scores of this tile, the last product of the tile before.  The first time that
        # is a product of zeros, which nobody reads.
        slot, parity = ring(i, SLOTS)
        v_slot, v_parity = ring(i - 1, SLOTS)
        mbarrier.wait(k_full.index(slot), parity)
        mbarrier.wait(v_full.index(v_slot), v_parity, pred=i > 0)
        left = gl.convert_layout(p.to(dtype), P)
        if TURNS:
            bar_sync(MINE, 256)
        s = warpgroup_mma(q, k_bufs.index(slot).permute((1, 0)), none, use_acc=False, is_async=True)
        acc = warpgroup_mma(left, v_bufs.index(v_slot), acc, use_acc=n > 1, is_async=True)
        if TURNS:
            bar_arrive(OTHER, 256)
        s = warpgroup_mma_wait(1, (s,))
        bar_arrive(K_EMPTY + slot, ALL)
        if new_n == 1:
            bar_arrive(Q_EMPTY, ALL)
        if CAUSAL or RAGGED:
            s = _masked(s, w * 64 + (t >> 30), N - last * BLOCK_N, window, CAUSAL, WINDOWED)
        m_i = _row_max(s, COLUMNS)  # finite: every row sees something of its rightmost tile
        p = gl.exp2(s * scale - (m_i * scale)[:, None])
        l_i = _partial_sums(p)
        slot, parity = ring(i + 1, SLOTS)
        mbarrier.wait(k_full.index(slot), parity, pred=new_n > 1)  # rule 3
        acc, left = warpgroup_mma_wait(0, (acc, left))
        if i > 0:
            bar_arrive(V_EMPTY + v_slot, ALL)
            # t >> 30 is 0, but the compiler does not know: no addresses kept in registers.
            o_buf = o_bufs.index(w + (t >> 30))
            _write(o_desc, o_buf, (acc * factor[:, None]).to(dtype), row, head, HQ)
        i += 1
        for j in range(1, new_n):
            slot, parity = ring(i, SLOTS)
            v_slot, v_parity = ring(i - 1, SLOTS)
            left = gl.convert_layout(p.to(dtype), P)
            if TURNS:
                bar_sync(MINE, 256)
            k = k_bufs.index(slot).permute((1, 0))
            s = warpgroup_mma(q, k, none, use_acc=False, is_async=True)
            mbarrier.wait(v_full.index(v_slot), v_parity)
            acc = warpgroup_mma(left, v_bufs.index(v_slot), acc, use_acc=j > 1, is_async=True)
            if TURNS:
                bar_arrive(OTHER, 256)
            if UNDER:
                s = warpgroup_mma_wait(1, (s,))  # the scores are there, P V still runs
            else:
                s, acc = warpgroup_mma_wait(0, (s, acc))
            bar_arrive(K_EMPTY + slot, ALL)
            if j == new_n - 1:
                bar_arrive(Q_EMPTY, ALL)  # the next q can come while this tile's last softmax runs
            if WINDOWED:
                if (last - j) * BLOCK_N + window < new_row + 64:
                    s = _masked(s, new_row - (last - j) * BLOCK_N, 0, window, CAUSAL, WINDOWED)
            m_new = gl.maximum(m_i, _row_max(s, COLUMNS))
            p = gl.exp2(s * scale - (m_new * scale)[:, None])
            alpha = gl.exp2(m_i * scale - m_new * scale)
            part = _partial_sums(p)
            l_i = l_i * gl.convert_layout(alpha, gl.SliceLayout(1, part.type.layout))[:, None] + part
            m_i = m_new
            slot, parity = ring(i + 1, SLOTS)
            mbarrier.wait(k_full.index(slot), parity, pred=j < new_n - 1)  # rule 3
            if UNDER:
                acc, left = warpgroup_mma_wait(0, (acc, left))  # left: its registers live until here
            bar_arrive(V_EMPTY + v_slot, ALL)
            acc = acc * gl.convert_layout(alpha, gl.SliceLayout(1, A))[:, None]
            i += 1
        row = new_row + 0
        head = new_head + 0
        n = new_n + 0
        factor = _denominators(LSE, SINK, m_i, l_i, scale, row, head, t >> 30, N, HQ, A)
        q_parity ^= 1
        mbarrier.wait(q_full.index(w), q_parity)
        t = uniform(gl.max(tile_buf.load(ONE), 0))
    # The last product of the last tile.
    v_slot, v_parity = ring(i - 1, SLOTS)
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
    """Fill o and lse.  Grid: one program a multiprocessor, or fewer if there are fewer tiles."""
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
    bars = (new_barriers(2), new_barriers(SLOTS), new_barriers(SLOTS))
    scale = scale * LOG2E
    if TURNS:
        bar_arrive(14, 256)  # in place of the last warpgroup: the first one begins
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
class _Place:
    """What a kept descriptor needs of a tensor: where it lies.  Does not keep it alive."""

    def __init__(self, x):
        self.dtype, self.address = x.dtype, x.data_ptr()

    def data_ptr(self):
        return self.address


_descriptors = {}  # making one takes 10 us, and a program's tensors come back to the same places


def describe(x, rows):
    """x (B, H, N, D) as the copy engine sees it: a source of (1, 1, rows, D) tiles."""
    key = x.data_ptr(), x.shape, x.stride(), x.dtype, rows
    found = _descriptors.get(key)
    if found is None:
        if len(_descriptors) >= 1000:
            _descriptors.clear()
        layout = gl.NVMMASharedLayout(128, 16, rank=4)
        block = [1, 1, rows, x.shape[3]]
        found = TensorDescriptor(_Place(x), list(x.shape), list(x.stride()), block, layout)
        _descriptors[key] = found
    return found


def copyable(x):
    """x, or a copy where the copy engine cannot step through it: it takes 16-byte steps."""
    steps = x.stride()
    if steps[3] == 1 and x.data_ptr() % 16 == 0 and all(n > 0 == n % 8 for n in steps[:3]):
        return x
    return x.clone(memory_format=torch.contiguous_format)


_counters = {}


def _counter(device):
    """A zero for the kernel, which leaves it at zero: one a stream.  A graph gets its own."""
    if torch.cuda.is_current_stream_capturing():
        return torch.zeros(1, dtype=torch.int32, device=device)
    key = device, torch.cuda.current_stream(device).cuda_stream
    if key not in _counters:
        _counters[key] = torch.zeros(1, dtype=torch.int32, device=device)
    return _counters[key]


@functools.cache
def _multiprocessors(device):
    """How many this GPU has.  Refuses all but Hopper: there the compiler would abort the process."""
    capability = torch.cuda.get_device_capability(device)
    if capability != (9, 0):
        raise ValueError(f"want a GPU of compute capability 9.0 (Hopper); got {capability}")
    return torch.cuda.get_device_properties(device).multi_processor_count


def check(q, k, v, is_causal, window_size, sink_logits):
    """Refuse bad input here: inside a kernel it would be a silent wrong read, or worse."""
    of_q, of_k = q.shape, k.shape
    shapes = "want q (B, HQ, N, D), k and v (B, HKV, N, D)"
    if len(of_q) != 4 or len(of_k) != 4 or of_k != v.shape or 0 in of_q or 0 in of_k:
        raise ValueError(f"{shapes}, not empty; got {list(of_q)}, {list(of_k)}, {list(v.shape)}")
    if of_q[0] != of_k[0] or of_q[2:] != of_k[2:]:
        raise ValueError(f"{shapes}; got {list(of_q)}, {list(of_k)}, {list(v.shape)}")
    if of_q[1] % of_k[1] != 0:
        raise ValueError(f"want HQ a multiple of HKV; got {of_q[1]}, {of_k[1]}")
    if of_q[3] not in (64, 128):
        raise ValueError(f"want D 64 or 128; got {of_q[3]}")
    if q.dtype not in (torch.float16, torch.bfloat16):
        raise TypeError(f"want float16 or bfloat16; got {q.dtype}")
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"want one dtype; got {q.dtype}, {k.dtype}, {v.dtype}")
    if not q.device == k.device == v.device:
        raise ValueError(f"want one device; got {q.device}, {k.device}, {v.device}")
    if not q.is_cuda:
        raise ValueError(f"want CUDA tensors; got {q.device}")
    _multiprocessors(q.device)
    if window_size is not None and (window_size < 1 or not is_causal):
        raise ValueError(
            f"want window_size >= 1 and the causal mask, or None; got {window_size}, {is_causal=}"
        )
    if sink_logits is not None and (
        sink_logits.shape != of_q[1:2] or sink_logits.device != q.device
    ):
        raise ValueError(
            f"want sink_logits (HQ,) on {q.device}; got {list(sink_logits.shape)}"
            f" on {sink_logits.device}"
        )


def checked_scale(softmax_scale, D):
    """The factor of the scores."""
    scale = 1.0 / math.sqrt(D) if softmax_scale is None else float(softmax_scale)
    if not 0.0 < scale < float("inf"):
        raise ValueError(f"want softmax_scale > 0 and finite; got {softmax_scale}")
    return scale


# Both shapes keep 2 warpgroups; a ring of 2 fills the 227 KiB at D = 128.  What the switches bring
# on the H200 at D = 128 stands in README.md; only to measure it are they switches.
STEPS = dict(STAY=True, TURNS=True, UNDER=True, COLUMNS=16)


def forward(q, k, v, is_causal, scale, window_size=None, sink_logits=None, **steps):
    """Launch the kernel.  Checked q (B, HQ, N, D), k, v (B, HKV, N, D) -> o, lse (B, HQ, N)."""
    B, HQ, N, D = q.shape
    HKV = k.shape[1]
    o = torch.empty(B, HQ, N, D, device=q.device, dtype=q.dtype)
    lse = torch.empty(B, HQ, N, device=q.device, dtype=torch.float32)
    q, k, v = copyable(q), copyable(k), copyable(v)
    tiles = -(-N // 128) * B * HQ
    options = STEPS | steps if steps else STEPS
    programs = min(tiles, _multiprocessors(q.device)) if options["STAY"] else tiles
    with torch.cuda.device(q.device):
        _fwd_kernel[(programs,)](
            describe(q, 64), describe(k, 128), describe(v, 128), describe(o, 64), lse, sink_logits,
            _counter(q.device), N, HQ, HQ // HKV, tiles, scale, window_size or 0,
            SLOTS=2 if D == 128 else 4, CAUSAL=is_causal, WINDOWED=window_size is not None,
            RAGGED=N % 128 != 0, GROUP=8 if is_causal else 1, TURNS=options["TURNS"],
            UNDER=options["UNDER"], COLUMNS=options["COLUMNS"], num_warps=4, maxnreg=168,
        )
    return o, lse


def attention_forward(
    q, k, v, is_causal=True, window_size=None, sink_logits=None, softmax_scale=None
):
    """Attention of grouped query heads, without a gradient.

    Args:
        q: (B, HQ, N, D), any strides; float16 or bfloat16; D 64 or 128.
        k, v: (B, HKV, N, D), any strides; HQ a multiple of HKV; dtype and device of q.
        is_causal: hide keys after the query.
        window_size: how many keys a query sees, itself included; None for all.
        sink_logits: (HQ,), one more logit in the softmax of each head; None for none.
        softmax_scale: factor of the scores, > 0; None for 1 / sqrt(D).

    Returns:
        o: (B, HQ, N, D), contiguous, dtype of q.
        lse: (B, HQ, N), float32, natural logarithm, the sink logit included.

    Raises:
        ValueError, TypeError: the input breaks the contract above, or the GPU is no Hopper.
    """
    check(q, k, v, is_causal, window_size, sink_logits)
    scale = checked_scale(softmax_scale, q.shape[3])
    return forward(q, k, v, bool(is_causal), scale, window_size, sink_logits)
