"""Attention for Hopper, one level below Triton.  Backward, in one kernel of five products.

Stage 8 walks the tiles of S twice, seven products in all, so that every program owns what it sums
into.  Here one walk is enough.  A program owns 128 keys, 64 for each of its 2 warpgroups, and meets
every query tile that sees them, of all heads of the group; dk and dv stay in registers.  With
S^T = k q^T and dP^T = v do^T, keys x queries:

    P^T = exp2(S^T - lse2)    dv += P^T do    dS^T = P^T * (dP^T - delta)    dk += dS^T q
    dq += dS k

P^T and dS^T are left factors, in registers, of the products for dv and dk.  But dq sums over keys,
those of both warpgroups and of all programs: dS goes through shared memory, each warpgroup computes
half of dq's columns from both halves of dS, and a warp of its own has the copy engine add the tile
to a float32 array.  It adds in the order in which tiles come, so the last bits of dq vary from run
to run; dk and dv do not.  deterministic=True leaves dq to a second kernel, as stage 8 does.

    producer   q, do, lse2, delta of the next query tile -> a ring of two slots
    consumers  start dP^T . exp2 . start dv . dS . start dk . dS -> shared memory . meet .
               start dq and the next S^T . dq -> shared memory
    adders     one warp for each half of dq: shared memory -> added up in global memory

The three rules of attention_hopper.py hold here, too.
"""

import functools

import torch
import triton
import triton.language as tl
from triton.experimental import gluon
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.language.nvidia.hopper import (
    fence_async_shared,
    mbarrier,
    tma,
    warpgroup_mma,
    warpgroup_mma_wait,
)
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
from triton.tools.tensor_descriptor import TensorDescriptor

from expert import hopper

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
    """One warp: the keys' k and v, then of every query tile q with lse2 and do with delta."""
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


@triton.jit(do_not_specialize=["N", "rows"])
def _prepare_kernel(
    o_ptr, do_ptr, lse_ptr, lse2_ptr, delta_ptr, dq_ptr, N, HQ, rows,
    stride_dob, stride_doh, stride_don, D: tl.constexpr,
):
    """delta = rowsum(o * do); lse in base 2; zeros where dq will be summed.  Padded to 64 rows."""
    bh = (tl.program_id(0) // (rows // 64)).to(tl.int64)
    r = tl.program_id(0) % (rows // 64) * 64 + tl.arange(0, 64)
    d = tl.arange(0, D)
    inside = r[:, None] < N
    at = (bh * N + r)[:, None] * D + d[None, :]
    o = tl.load(o_ptr + at, mask=inside, other=0.0).to(tl.float32)
    at_do = bh // HQ * stride_dob + bh % HQ * stride_doh + r.to(tl.int64) * stride_don
    do = tl.load(do_ptr + at_do[:, None] + d[None, :], mask=inside, other=0.0).to(tl.float32)
    lse = tl.load(lse_ptr + bh * N + r, mask=r < N, other=float("inf"))
    tl.store(lse2_ptr + bh * rows + r, lse * 1.4426950408889634, mask=r < rows)
    tl.store(delta_ptr + bh * rows + r, tl.sum(o * do, 1), mask=r < rows)
    if dq_ptr is not None:
        tl.store(dq_ptr + at, tl.zeros_like(o), mask=inside)


@triton.jit
def _finish_kernel(sum_ptr, dq_ptr, scale, numel, BLOCK: tl.constexpr):
    """dq from its sums."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    dq = tl.load(sum_ptr + i, mask=i < numel) * scale
    tl.store(dq_ptr + i, dq.to(dq_ptr.dtype.element_ty), mask=i < numel)


@triton.jit(do_not_specialize=["N", "HQ", "group", "rows", "window"])
def _dq_kernel(
    q_in, k_in, v_in, do_in, lse2_ptr, delta_ptr, dq_ptr, N, HQ, group, rows, scale, window,
    D: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr,
):
    """Fill 64 rows of dq: stage 8's kernel, in plain Triton.  The same bits every time."""
    blocks = tl.cdiv(N, 64)
    start_m = (blocks - 1 - tl.program_id(0) % blocks) * 64
    bh = tl.program_id(0) // blocks
    b, h = bh // HQ, bh % HQ
    query = start_m + tl.arange(0, 64)
    q = q_in.load([b, h, start_m, 0]).reshape(64, D)
    do = do_in.load([b, h, start_m, 0]).reshape(64, D)
    lse2 = tl.load(lse2_ptr + bh.to(tl.int64) * rows + query)
    delta = tl.load(delta_ptr + bh.to(tl.int64) * rows + query)
    dq = tl.zeros([64, D], tl.float32)
    start = tl.maximum(start_m - window + 1, 0) // 64 * 64 if WINDOWED else 0
    end = tl.minimum(start_m + 64, N) if CAUSAL else N
    for start_n in range(start, end, 64):
        k = k_in.load([b, h // group, start_n, 0]).reshape(64, D)
        v = v_in.load([b, h // group, start_n, 0]).reshape(64, D)
        key = start_n + tl.arange(0, 64)
        keep = key[None, :] <= query[:, None] if CAUSAL else key[None, :] < N
        if WINDOWED:
            keep &= query[:, None] - key[None, :] < window
        s = tl.where(keep, tl.dot(q, tl.trans(k)) * (scale * 1.4426950408889634), float("-inf"))
        p = tl.math.exp2(s - lse2[:, None])
        ds = p * (tl.dot(do, tl.trans(v)) - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq)
    at = (bh.to(tl.int64) * N + query)[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(dq_ptr + at, (dq * scale).to(dq_ptr.dtype.element_ty), mask=query[:, None] < N)


# ------------------------------------------------------------------- launch
def backward(
    q, k, v, o, lse, do, is_causal, scale, window_size=None, deterministic=False, **options
):
    """-> dq, dk, dv, delta.  q, o, do (B, HQ, N, D); k, v (B, HKV, N, D); lse (B, HQ, N)."""
    B, HQ, N, D = q.shape
    HKV = k.shape[1]
    rows = -(-N // 64) * 64  # lse2 and delta of a head are padded: 64 of them are one copy
    q, k, v, do = (hopper.copyable(x) for x in (q, k, v, do))
    new = functools.partial(torch.empty, device=q.device)
    delta = new(B, HQ, rows, dtype=torch.float32)
    lse2 = torch.empty_like(delta)
    dq = new(B, HQ, N, D, dtype=q.dtype)
    dk, dv = new(B, HKV, N, D, dtype=q.dtype), new(B, HKV, N, D, dtype=q.dtype)
    dq_sum = None if deterministic else new(B * HQ, N, D, dtype=torch.float32)
    mask = dict(CAUSAL=is_causal, WINDOWED=window_size is not None)
    # Heads side by side.  4 against 2 and 8: causal 1.34, 1.39, 1.36 ms; Llama-3 5.15, 4.98, 5.19.
    options = dict(GROUP=4 if HQ == HKV else 2) | options
    with torch.cuda.device(q.device):
        _prepare_kernel[(rows // 64 * B * HQ,)](
            o, do, lse, lse2, delta, dq_sum, N, HQ, rows, *do.stride()[:3], D=D, num_warps=4,
        )
        _bwd_kernel[(B * HKV * -(-N // 128),)](
            *(hopper.describe(x, 64) for x in (q, k, v, do)),
            *(_describe_line(x) for x in (lse2, delta)), _describe_sums(dq_sum),
            *(hopper.describe(x, 64) for x in (dk, dv)),
            N, HKV, HQ // HKV, B * HKV, scale, window_size or 0, **mask, RAGGED=N % 128 != 0,
            WITH_DQ=not deterministic, num_warps=4, maxnreg=168, **options,
        )
        if deterministic:
            tiles = (TensorDescriptor(x, x.shape, x.stride(), [1, 1, 64, D]) for x in (q, k, v, do))
            _dq_kernel[(rows // 64 * B * HQ,)](
                *tiles, lse2, delta, dq, N, HQ, HQ // HKV, rows, scale, window_size or 0, D=D,
                **mask, num_warps=4, num_stages=3,
            )
        else:
            _finish_kernel[(-(-q.numel() // 4096),)](
                dq_sum, dq, scale, q.numel(), BLOCK=4096, num_warps=8
            )
    return dq, dk, dv, delta[:, :, :N]


def _describe_line(x):
    """x, contiguous, as a source of 64 numbers in a row."""
    return GluonDescriptor(x, [x.numel()], [1], [64], gl.NVMMASharedLayout(0, 32, rank=1))


def _describe_sums(x):
    """x (heads, N, D) as a target of halves of 64 rows; None where nothing is added up."""
    if x is None:
        return None
    layout = gl.NVMMASharedLayout(128, 32, rank=3)
    block = [1, 64, x.shape[2] // 2]
    return GluonDescriptor(x, list(x.shape), list(x.stride()), block, layout)
