"""Attention for Hopper, one level below Triton: the backward, in one kernel of five products.

Problem 8 visits the tiles of S twice, with seven products in all, so that every program owns what
it sums into.  Here one visit is enough.  A program owns 128 keys, 64 for each of its 2 warpgroups,
and visits every query tile that sees them, of all heads of the group; dk and dv stay in registers.
A tile has 64 queries at D = 128, 128 at D = 64.  With S^T = k q^T, dP^T = v do^T, keys x queries:

    P^T = exp2(S^T - lse_log2)    dv += P^T do    dS^T = P^T * (dP^T - delta)    dk += dS^T q
    dq += dS k

P^T and dS^T are left factors, in registers, of the products for dv and dk.  But dq sums over the
keys of both warpgroups and of all programs: dS goes through shared memory, and each warpgroup
computes a 64 x 64 half of the tile of dq from both halves of dS and has the copy engine add it to a
float32 array.  The order of these additions varies, so the last bits of dq vary from run to run;
those of dk and dv do not.  deterministic=True leaves dq to a second kernel, as problem 8 does.

    producer   q, do, lse_log2, delta of the next query tile -> a ring of two slots
    consumers  in turns: start dP^T . exp2 . dS . start dv and dk
               dS -> shared memory . start dq of the previous tile and S^T of the next .
               dq -> shared memory, added up in global memory

While one warpgroup computes exponentials, the products of the other run.  dq is one tile late, so
that neither waits for the other's dS, of which shared memory holds three tiles.

P^T is not rounded before dS^T is known: at D = 64 both, in float32, fill the registers.

The three rules of attention_hopper.py hold here, too.
"""

from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)

from . import hopper

Q_EMPTY, DO_EMPTY = gl.constexpr(12), gl.constexpr(14)  # hardware barriers, the first of two each
TURN = gl.constexpr(10)  # the warpgroups' own: the first of two
ALL = gl.constexpr(288)  # threads: the consumers and the producer


@gluon.jit
def _place(pid, N, heads, GROUP: gl.constexpr):
    """Returns a program's first key and head.  The first keys, seen by most queries, come first."""
    blocks = gl.cdiv(N, 128)
    first = pid // (GROUP * blocks) * GROUP
    side = gl.minimum(GROUP, heads - first)
    turn = pid % (GROUP * blocks)
    return turn // side * 128, first + turn % side


@gluon.jit
def _query_tiles(
    start_n, N, window, ROWS: gl.constexpr, CAUSAL: gl.constexpr, WINDOWED: gl.constexpr
):
    """Returns the first query tile that sees these 128 keys, and the one past the last."""
    end = gl.cdiv(N, ROWS)
    if WINDOWED:
        end = gl.minimum(end, gl.cdiv(start_n + 127 + window, ROWS))
    return start_n // ROWS if CAUSAL else start_n * 0, end


@gluon.jit
def _produce(
    descs, bufs, bars, N, HKV, group, heads, window,
    CAUSAL: gl.constexpr, WINDOWED: gl.constexpr, GROUP: gl.constexpr,
):
    """One warp: fetch k and v, then q, lse_log2, do and delta of every query tile."""
    q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc = descs
    q_bufs, k_bufs, v_bufs, do_bufs, lse_bufs, delta_bufs, ds_bufs, dq_bufs = bufs
    kv_full, q_full, do_full, ds_full = bars
    start_n, head = _place(gl.program_id(0), N, heads, GROUP)
    b = head // HKV
    mbarrier.expect(kv_full.index(0), 4 * k_desc.block_type.nbytes)
    for w in gl.static_range(2):
        at = [b, head % HKV, start_n + w * 64, 0]
        hopper.tma_load(k_desc, at, kv_full.index(0), k_bufs.index(w))
        hopper.tma_load(v_desc, at, kv_full.index(0), v_bufs.index(w))
    ROWS: gl.constexpr = q_bufs.shape[1]
    first, end = _query_tiles(start_n, N, window, ROWS, CAUSAL, WINDOWED)
    rows = gl.cdiv(N, ROWS) * ROWS  # lse and delta of a head
    t = 0
    for g in range(group):
        h = head % HKV * group + g
        for i in range(first, end):
            slot, parity = hopper.ring(t, 2)
            if t >= 2:
                hopper.bar_sync(Q_EMPTY + slot, ALL)
            mbarrier.expect(q_full.index(slot), q_desc.block_type.nbytes + 4 * ROWS)
            hopper.tma_load(q_desc, [b, h, i * ROWS, 0], q_full.index(slot), q_bufs.index(slot))
            row = (head * group + g) * rows + i * ROWS
            hopper.tma_load(lse_desc, [row], q_full.index(slot), lse_bufs.index(slot))
            if t >= 2:
                hopper.bar_sync(DO_EMPTY + slot, ALL)
            mbarrier.expect(do_full.index(slot), do_desc.block_type.nbytes + 4 * ROWS)
            hopper.tma_load(do_desc, [b, h, i * ROWS, 0], do_full.index(slot), do_bufs.index(slot))
            hopper.tma_load(delta_desc, [row], do_full.index(slot), delta_bufs.index(slot))
            t += 1


@gluon.jit
def _start_dq(w: gl.constexpr, ds_bufs, k_bufs, t, z):
    """Start warpgroup w's half of dq of the tile before t: half of its columns, at D = 64 rows."""
    DOWN: gl.constexpr = w * (ds_bufs.shape[2] - 64)
    ACROSS: gl.constexpr = w * (k_bufs.shape[2] - 64)
    H: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])
    dq = gl.zeros([64, 64], gl.float32, H)
    for n in gl.static_range(2):  # the keys of both warpgroups
        ds_t = ds_bufs.index((t + 2) % 3 * 2 + n).slice(DOWN, 64, 1).permute((1, 0))
        k = k_bufs.index(n + z).slice(ACROSS, 64, 1)
        dq = warpgroup_mma(ds_t, k, dq, use_acc=n > 0, is_async=True)
    return dq


@gluon.jit
def _add_dq(
    w: gl.constexpr, dq_desc, dq_bufs, dq, t, h, i, first, end, N,
    ROWS: gl.constexpr, ACROSS: gl.constexpr,
):
    """Add that half to dq in global memory.

    Tile t is the i-th of query head h: the one before is i - 1, or the last of head h - 1.  The
    first has none: row N is past the end, so nothing is added.  Row -1 would be an illegal
    instruction.
    """
    tma.store_wait(0)
    hopper.meet()
    dq_bufs.index(w).store(dq)
    fence_async_shared()
    hopper.meet()
    new = i == first
    row = gl.where(t == 0, N, (gl.where(new, end, i) - 1) * ROWS + w * (ROWS - 64))
    h = gl.maximum(h - new.to(gl.int32), 0)
    hopper.tma_add(dq_desc, [h, row, w * ACROSS], dq_bufs.index(w))


@gluon.jit
def _consume(
    w: gl.constexpr, dq_desc, dk_desc, dv_desc, bufs, bars, N, HKV, group, heads, scale, window,
    CAUSAL: gl.constexpr, WINDOWED: gl.constexpr, RAGGED: gl.constexpr, GROUP: gl.constexpr,
    WITH_DQ: gl.constexpr,
):
    """Warpgroup w: compute dk and dv of 64 keys, and half of dq."""
    q_bufs, k_bufs, v_bufs, do_bufs, lse_bufs, delta_bufs, ds_bufs, dq_bufs = bufs
    kv_full, q_full, do_full, ds_full = bars
    D: gl.constexpr = q_bufs.shape[2]
    dtype: gl.constexpr = q_bufs.dtype
    ROWS: gl.constexpr = q_bufs.shape[1]
    DQ_FIRST: gl.constexpr = WITH_DQ and D == 128  # written out while dv and dk are computed
    DQ_LAST: gl.constexpr = WITH_DQ and D == 64  # there are no registers for that at D = 64
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])  # keys x queries
    A: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])  # keys x D: dk, dv
    P: gl.constexpr = gl.DotOperandLayout(0, A, 2)
    QUERY: gl.constexpr = gl.SliceLayout(0, S)
    start_n, head = _place(gl.program_id(0), N, heads, GROUP)
    first, end = _query_tiles(start_n, N, window, ROWS, CAUSAL, WINDOWED)
    start_n += w * 64
    tiles = group * (end - first)
    dk = gl.zeros([64, D], gl.float32, A)
    dv = gl.zeros([64, D], gl.float32, A)
    none = gl.zeros([64, ROWS], gl.float32, S)
    scale_log2e = scale * hopper.LOG2E
    i = first
    h = head * group
    mbarrier.wait(kv_full.index(0), 0)
    mbarrier.wait(q_full.index(0), 0)
    if w == 1:
        hopper.bar_arrive(TURN, 256)  # the first turn is warpgroup 0's
    q_t = q_bufs.index(0).permute((1, 0))
    s = warpgroup_mma(k_bufs.index(w), q_t, none, use_acc=False)
    for t in range(tiles):
        slot, parity = hopper.ring(t, 2)
        z = i >> 24  # 0, unknown to the compiler: else 30 addresses of k and v stay in registers
        k = k_bufs.index(w + z)
        q = q_bufs.index(slot)
        do = do_bufs.index(slot)
        v = v_bufs.index(w + z)
        mbarrier.wait(do_full.index(slot), parity)
        delta = delta_bufs.index(slot).load(QUERY)
        hopper.bar_sync(TURN + w, 256)
        dp = none - delta[None, :]  # the product does the subtraction: no registers for delta
        dp = warpgroup_mma(v, do.permute((1, 0)), dp, is_async=True)
        lse = lse_bufs.index(slot).load(QUERY)
        if CAUSAL:
            cut = i * ROWS < start_n + 64
            if WINDOWED:
                cut |= (i + 1) * ROWS > start_n + window
            if cut:
                tile, row, lane, query = hopper.by_lane(s)
                key = row - lane + start_n - i * ROWS
                keep = query >= key
                if WINDOWED:
                    keep &= query < key + window
                s = hopper.where_kept(keep, tile, s)
        elif RAGGED:
            if start_n + 64 > N:
                tile, row, lane, query = hopper.by_lane(s)
                s = hopper.where_kept(row + lane * 0 + query * 0 < N - start_n - z, tile, s)
        p = gl.exp2(s * scale_log2e - lse[None, :])
        dp = warpgroup_mma_wait(0, (dp,))
        ds = (p * dp).to(dtype)
        p16 = gl.convert_layout(p.to(dtype), P)
        ds16 = gl.convert_layout(ds, P)
        before, before_parity = hopper.ring(t - 1, 2)
        if DQ_FIRST:
            mbarrier.wait(ds_full.index(before), before_parity)
            dq = _start_dq(w, ds_bufs, k_bufs, t, z)
        dv = warpgroup_mma(p16, do, dv, is_async=True)
        dk = warpgroup_mma(ds16, q, dk, is_async=True)
        hopper.bar_arrive(TURN + (1 - w), 256)
        if DQ_LAST:
            mbarrier.wait(ds_full.index(before), before_parity)
        if WITH_DQ:
            ds_bufs.index(t % 3 * 2 + w).store(ds)
            fence_async_shared()
            mbarrier.arrive(ds_full.index(slot))
        if DQ_FIRST:
            dq = warpgroup_mma_wait(2, (dq,))
            _add_dq(w, dq_desc, dq_bufs, dq, t, h, i, first, end, N, ROWS, D - 64)
        dv, p16 = warpgroup_mma_wait(1, (dv, p16))
        hopper.bar_arrive(DO_EMPTY + slot, ALL)
        if DQ_LAST:
            dq = _start_dq(w, ds_bufs, k_bufs, t, z)
        next_slot, next_parity = hopper.ring(t + 1, 2)
        mbarrier.wait(q_full.index(next_slot), next_parity, pred=t < tiles - 1)
        q_t = q_bufs.index(next_slot).permute((1, 0))
        s2 = warpgroup_mma(k, q_t, none, use_acc=False, is_async=True)
        if DQ_LAST:
            dk, dq, ds16 = warpgroup_mma_wait(1, (dk, dq, ds16))
            _add_dq(w, dq_desc, dq_bufs, dq, t, h, i, first, end, N, ROWS, D - 64)
        else:
            dk, ds16 = warpgroup_mma_wait(1, (dk, ds16))
        hopper.bar_arrive(Q_EMPTY + slot, ALL)
        s = warpgroup_mma_wait(0, (s2,))
        wrap = i + 1 == end  # on to the next query head of the group
        i = gl.where(wrap, first, i + 1)
        h += wrap.to(gl.int32)
    if WITH_DQ:
        before, before_parity = hopper.ring(tiles - 1, 2)
        mbarrier.wait(ds_full.index(before), before_parity)
        dq = _start_dq(w, ds_bufs, k_bufs, tiles, i >> 24)
        dq = warpgroup_mma_wait(0, (dq,))
        _add_dq(w, dq_desc, dq_bufs, dq, tiles, h, i, first, end, N, ROWS, D - 64)
    # Computed again, in a way that the compiler does not see through, to keep no registers for it.
    start_n, head = _place(gl.program_id(0) + (i >> 24), N, heads, GROUP)
    start_n += w * 64
    out = v_bufs.index(w + (i >> 24))
    b = head // HKV
    h = head % HKV
    hopper.meet()
    out.store(dv.to(dtype))
    fence_async_shared()
    hopper.tma_store(dv_desc, [b, h, start_n, 0], out)
    tma.store_wait(0)
    hopper.meet()
    out.store((dk * scale).to(dtype))
    fence_async_shared()
    hopper.tma_store(dk_desc, [b, h, start_n, 0], out)
    tma.store_wait(0)


@gluon.jit(do_not_specialize=["N", "HKV", "group", "heads", "window"])
def _bwd_kernel(
    q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc, dq_desc, dk_desc, dv_desc,
    N, HKV, group, heads, scale, window,
    CAUSAL: gl.constexpr, WINDOWED: gl.constexpr, RAGGED: gl.constexpr, GROUP: gl.constexpr,
    WITH_DQ: gl.constexpr,
):
    """Fill 128 rows of dk and dv, add to dq.  Grid: (cdiv(N, 128) * B * HKV,)."""
    D: gl.constexpr = q_desc.block_type.shape[3]
    dtype: gl.constexpr = q_desc.dtype
    ROWS: gl.constexpr = q_desc.block_type.shape[2]
    TILE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, D], dtype)
    q_bufs = gl.allocate_shared_memory(dtype, [2, ROWS, D], TILE)
    do_bufs = gl.allocate_shared_memory(dtype, [2, ROWS, D], TILE)
    lse_bufs = gl.allocate_shared_memory(gl.float32, [2, ROWS], lse_desc.layout)
    delta_bufs = gl.allocate_shared_memory(gl.float32, [2, ROWS], lse_desc.layout)
    k_bufs = gl.allocate_shared_memory(dtype, [2, 64, D], TILE)
    v_bufs = gl.allocate_shared_memory(dtype, [2, 64, D], TILE)
    ds_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, ROWS], dtype)
    ds_bufs = gl.allocate_shared_memory(dtype, [6, 64, ROWS], ds_layout)
    dq_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, 64], gl.float32)
    dq_bufs = gl.allocate_shared_memory(gl.float32, [2, 64, 64], dq_layout)
    bufs = (q_bufs, k_bufs, v_bufs, do_bufs, lse_bufs, delta_bufs, ds_bufs, dq_bufs)
    bars = (hopper.new_barriers(1), hopper.new_barriers(2), hopper.new_barriers(2),
            hopper.new_barriers(2, 2))
    descs = (q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc)
    gl.warp_specialize([
        (_consume, (0, dq_desc, dk_desc, dv_desc, bufs, bars, N, HKV, group, heads, scale,
                    window, CAUSAL, WINDOWED, RAGGED, GROUP, WITH_DQ)),
        (_consume, (1, dq_desc, dk_desc, dv_desc, bufs, bars, N, HKV, group, heads, scale,
                    window, CAUSAL, WINDOWED, RAGGED, GROUP, WITH_DQ)),
        (_produce, (descs, bufs, bars, N, HKV, group, heads, window, CAUSAL, WINDOWED, GROUP)),
    ], [4, 1], [240, 24])
