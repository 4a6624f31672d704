"""Attention for Hopper, one level below Triton.  Backward, in one kernel of five products.

Stage 8 walks the tiles of S twice, seven products in all, so that every program owns what it sums
into.  Here one walk is enough.  A program owns 128 keys, 64 for each of its 2 warpgroups, and meets
every query tile that sees them, of all heads of the group; dk and dv stay in registers.  With
S^T = k q^T and dP^T = v do^T, keys x queries:

    P^T = exp2(S^T - lse_log2)    dv += P^T do    dS^T = P^T * (dP^T - delta)    dk += dS^T q
    dq += dS k

P^T and dS^T are left factors, in registers, of the products for dv and dk.  But dq sums over keys,
those of both warpgroups and of all programs: dS goes through shared memory, each warpgroup computes
half of dq's columns from both halves of dS, and a warp of its own has the copy engine add the tile
to a float32 array.  It adds in the order in which tiles come, so the last bits of dq vary from run
to run; dk and dv do not.  deterministic=True leaves dq to a second kernel, as stage 8 does.

    producer   q, do, lse_log2, delta of the next query tile -> a ring of two slots
    consumers  start dP^T . exp2 . start dv . dS . start dk . dS -> shared memory . meet .
               start dq and the next S^T . dq -> shared memory
    adders     one warp for each half of dq: shared memory -> added up in global memory

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

from fast import hopper

# Numbers of hardware barriers, the first of two each: for slots, for warpgroups.
DQ_EMPTY, DQ_FULL, Q_EMPTY, DO_EMPTY = (gl.constexpr(n) for n in (7, 9, 12, 14))
MEETING = gl.constexpr(11)  # the warpgroups' own
ALL = gl.constexpr(288)  # threads: the consumers and the producer


@gluon.jit
def _place(pid, N, heads, GROUP: gl.constexpr):
    """Number of a program -> (first key, key/value head).  The first keys are seen the most."""
    blocks = gl.cdiv(N, 128)
    first = pid // (GROUP * blocks) * GROUP
    side = gl.minimum(GROUP, heads - first)
    turn = pid % (GROUP * blocks)
    return turn // side * 128, first + turn % side


@gluon.jit
def _query_tiles(start_n, N, window, CAUSAL: gl.constexpr, WINDOWED: gl.constexpr):
    """The first query tile that sees these 128 keys, and the one past the last."""
    end = gl.cdiv(N, 64)
    if WINDOWED:
        end = gl.minimum(end, gl.cdiv(start_n + 127 + window, 64))
    return start_n // 64 if CAUSAL else start_n * 0, end


@gluon.jit
def _produce(
    descs, bufs, bars, N, HKV, group, heads, window,
    CAUSAL: gl.constexpr, WINDOWED: gl.constexpr, GROUP: gl.constexpr,
):
    """One warp: the keys' k and v, then of every query tile q with lse_log2 and do with delta."""
    q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc = descs
    q_bufs, k_bufs, v_bufs, do_bufs, lse_bufs, delta_bufs, ds_bufs, dq_bufs = bufs
    kv_full, q_full, do_full = bars
    start_n, head = _place(gl.program_id(0), N, heads, GROUP)
    b = head // HKV
    mbarrier.expect(kv_full.index(0), 4 * k_desc.block_type.nbytes)
    for w in gl.static_range(2):
        at = [b, head % HKV, start_n + w * 64, 0]
        hopper.tma_load(k_desc, at, kv_full.index(0), k_bufs.index(w))
        hopper.tma_load(v_desc, at, kv_full.index(0), v_bufs.index(w))
    first, end = _query_tiles(start_n, N, window, CAUSAL, WINDOWED)
    rows = gl.cdiv(N, 64) * 64  # lse and delta of a head
    t = 0
    for g in range(group):
        h = head % HKV * group + g
        for i in range(first, end):
            slot, parity = hopper.ring(t, 2)
            if t >= 2:
                hopper.bar_sync(Q_EMPTY + slot, ALL)
            mbarrier.expect(q_full.index(slot), q_desc.block_type.nbytes + 256)
            hopper.tma_load(q_desc, [b, h, i * 64, 0], q_full.index(slot), q_bufs.index(slot))
            row = (head * group + g) * rows + i * 64
            hopper.tma_load(lse_desc, [row], q_full.index(slot), lse_bufs.index(slot))
            if t >= 2:
                hopper.bar_sync(DO_EMPTY + slot, ALL)
            mbarrier.expect(do_full.index(slot), do_desc.block_type.nbytes + 256)
            hopper.tma_load(do_desc, [b, h, i * 64, 0], do_full.index(slot), do_bufs.index(slot))
            hopper.tma_load(delta_desc, [row], do_full.index(slot), delta_bufs.index(slot))
            t += 1


@gluon.jit
def _add(
    w: gl.constexpr, dq_desc, bufs, N, group, heads, window,
    CAUSAL: gl.constexpr, WINDOWED: gl.constexpr, GROUP: gl.constexpr,
):
    """One warp: send warpgroup w's half of every dq tile to be added up in global memory."""
    dq_bufs = bufs[7]
    HALF: gl.constexpr = dq_bufs.shape[2]
    start_n, head = _place(gl.program_id(0), N, heads, GROUP)
    first, end = _query_tiles(start_n, N, window, CAUSAL, WINDOWED)
    for g in range(group):
        for i in range(first, end):
            hopper.bar_sync(DQ_FULL + w, 160)
            hopper.tma_add(dq_desc, [head * group + g, i * 64, w * HALF], dq_bufs.index(w))
            tma.store_wait(0)
            hopper.bar_arrive(DQ_EMPTY + w, 160)


@gluon.jit
def _consume(
    w: gl.constexpr, dq_desc, dk_desc, dv_desc, bufs, bars, N, HKV, group, heads, scale, window,
    CAUSAL: gl.constexpr, WINDOWED: gl.constexpr, RAGGED: gl.constexpr, GROUP: gl.constexpr,
    WITH_DQ: gl.constexpr,
):
    """Warpgroup w: dk and dv of 64 keys, half of the columns of dq."""
    q_bufs, k_bufs, v_bufs, do_bufs, lse_bufs, delta_bufs, ds_bufs, dq_bufs = bufs
    kv_full, q_full, do_full = bars
    D: gl.constexpr = q_bufs.shape[2]
    dtype: gl.constexpr = q_bufs.dtype
    HALF: gl.constexpr = D // 2
    S: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 64, 16])  # keys x queries
    A: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])  # keys x D: dk, dv
    H: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, HALF, 16])  # queries x D / 2
    P: gl.constexpr = gl.DotOperandLayout(0, A, 2)
    QUERY: gl.constexpr = gl.SliceLayout(0, S)
    start_n, head = _place(gl.program_id(0), N, heads, GROUP)
    first, end = _query_tiles(start_n, N, window, CAUSAL, WINDOWED)
    start_n += w * 64
    tiles = group * (end - first)
    dk = gl.zeros([64, D], gl.float32, A)
    dv = gl.zeros([64, D], gl.float32, A)
    none = gl.zeros([64, 64], gl.float32, S)
    dq_none = gl.zeros([64, HALF], gl.float32, H)
    scale_log2e = scale * hopper.LOG2E
    i = first
    mbarrier.wait(kv_full.index(0), 0)
    mbarrier.wait(q_full.index(0), 0)
    q_t = q_bufs.index(0).permute((1, 0))
    s = warpgroup_mma(k_bufs.index(w), q_t, none, use_acc=False)
    for t in range(tiles):
        slot, parity = hopper.ring(t, 2)
        z = i >> 24  # 0, but the compiler does not know: no 30 addresses of k and v in registers
        k = k_bufs.index(w + z)
        q = q_bufs.index(slot)
        do = do_bufs.index(slot)
        v = v_bufs.index(w + z)
        mbarrier.wait(do_full.index(slot), parity)
        dp = warpgroup_mma(v, do.permute((1, 0)), none, use_acc=False, is_async=True)
        lse = lse_bufs.index(slot).load(QUERY)
        if CAUSAL:
            cut = i * 64 < start_n + 64
            if WINDOWED:
                cut |= i * 64 + 63 >= start_n + window
            if cut:
                tile, row, lane, query = hopper.by_lane(s)
                key = row - lane + start_n - i * 64
                keep = query >= key
                if WINDOWED:
                    keep &= query < key + window
                s = hopper.where_kept(keep, tile, s)
        elif RAGGED:
            if start_n + 64 > N:
                tile, row, lane, query = hopper.by_lane(s)
                s = hopper.where_kept(row + lane * 0 + query * 0 < N - start_n - z, tile, s)
        p = gl.exp2(s * scale_log2e - lse[None, :])
        p16 = gl.convert_layout(p.to(dtype), P)
        dv = warpgroup_mma(p16, do, dv, is_async=True)
        delta = delta_bufs.index(slot).load(QUERY)
        dp = warpgroup_mma_wait(1, (dp,))
        ds = (p * (dp - delta[None, :])).to(dtype)
        ds16 = gl.convert_layout(ds, P)
        dk = warpgroup_mma(ds16, q, dk, is_async=True)
        if WITH_DQ:
            pair = slot * 2
            ds_bufs.index(pair + w).store(ds)
            fence_async_shared()
            hopper.bar_sync(MEETING, 256)
            dv, p16 = warpgroup_mma_wait(1, (dv, p16))
            hopper.bar_arrive(DO_EMPTY + slot, ALL)
            k0 = k_bufs.index(z).slice(w * HALF, HALF, 1)
            k1 = k_bufs.index(1 + z).slice(w * HALF, HALF, 1)
            ds0 = ds_bufs.index(pair).permute((1, 0))
            ds1 = ds_bufs.index(pair + 1).permute((1, 0))
            dq = warpgroup_mma(ds0, k0, dq_none, use_acc=False, is_async=True)
            dq = warpgroup_mma(ds1, k1, dq, is_async=True)
        # The scores of the next round run while dq is written out.
        next_slot, next_parity = hopper.ring(t + 1, 2)
        mbarrier.wait(q_full.index(next_slot), next_parity, pred=t < tiles - 1)
        q_t = q_bufs.index(next_slot).permute((1, 0))
        s2 = warpgroup_mma(k, q_t, none, use_acc=False, is_async=True)
        if WITH_DQ:
            dk, dq, ds16 = warpgroup_mma_wait(1, (dk, dq, ds16))
            hopper.bar_arrive(Q_EMPTY + slot, ALL)
            if t > 0:
                hopper.bar_sync(DQ_EMPTY + w, 160)
            dq_bufs.index(w).store(dq)
            fence_async_shared()
            hopper.bar_arrive(DQ_FULL + w, 160)
        else:
            dk, dv, p16, ds16 = warpgroup_mma_wait(1, (dk, dv, p16, ds16))
            hopper.bar_arrive(DO_EMPTY + slot, ALL)
            hopper.bar_arrive(Q_EMPTY + slot, ALL)
        s = warpgroup_mma_wait(0, (s2,))
        wrap = i + 1 == end  # on to the next query head of the group
        i = gl.where(wrap, first, i + 1)
    # Anew, and so that the compiler does not notice: nothing is kept in registers for it.
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
    TILE: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, D], dtype)
    q_bufs = gl.allocate_shared_memory(dtype, [2, 64, D], TILE)
    do_bufs = gl.allocate_shared_memory(dtype, [2, 64, D], TILE)
    lse_bufs = gl.allocate_shared_memory(gl.float32, [2, 64], lse_desc.layout)
    delta_bufs = gl.allocate_shared_memory(gl.float32, [2, 64], lse_desc.layout)
    k_bufs = gl.allocate_shared_memory(dtype, [2, 64, D], TILE)
    v_bufs = gl.allocate_shared_memory(dtype, [2, 64, D], TILE)
    ds_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, 64], dtype)
    ds_bufs = gl.allocate_shared_memory(dtype, [4, 64, 64], ds_layout)
    dq_layout: gl.constexpr = gl.NVMMASharedLayout.get_default_for([64, D // 2], gl.float32)
    dq_bufs = gl.allocate_shared_memory(gl.float32, [2, 64, D // 2], dq_layout)
    bufs = (q_bufs, k_bufs, v_bufs, do_bufs, lse_bufs, delta_bufs, ds_bufs, dq_bufs)
    bars = (hopper.new_barriers(1), hopper.new_barriers(2), hopper.new_barriers(2))
    descs = (q_desc, k_desc, v_desc, do_desc, lse_desc, delta_desc)
    if WITH_DQ:
        gl.warp_specialize([
            (_consume, (0, dq_desc, dk_desc, dv_desc, bufs, bars, N, HKV, group, heads, scale,
                        window, CAUSAL, WINDOWED, RAGGED, GROUP, WITH_DQ)),
            (_consume, (1, dq_desc, dk_desc, dv_desc, bufs, bars, N, HKV, group, heads, scale,
                        window, CAUSAL, WINDOWED, RAGGED, GROUP, WITH_DQ)),
            (_produce, (descs, bufs, bars, N, HKV, group, heads, window, CAUSAL, WINDOWED, GROUP)),
            (_add, (0, dq_desc, bufs, N, group, heads, window, CAUSAL, WINDOWED, GROUP)),
            (_add, (1, dq_desc, bufs, N, group, heads, window, CAUSAL, WINDOWED, GROUP)),
        ], [4, 1, 1, 1], [240, 24, 24, 24])
    else:
        gl.warp_specialize([
            (_consume, (0, dq_desc, dk_desc, dv_desc, bufs, bars, N, HKV, group, heads, scale,
                        window, CAUSAL, WINDOWED, RAGGED, GROUP, WITH_DQ)),
            (_consume, (1, dq_desc, dk_desc, dv_desc, bufs, bars, N, HKV, group, heads, scale,
                        window, CAUSAL, WINDOWED, RAGGED, GROUP, WITH_DQ)),
            (_produce, (descs, bufs, bars, N, HKV, group, heads, window, CAUSAL, WINDOWED, GROUP)),
        ], [4, 1], [240, 24])
