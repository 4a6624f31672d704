"""Stage 9 with the sink logit as the softmax's first key; gradients added up with atomics."""
# stage: 9
# outcome: pass
import torch
import triton
import triton.language as tl


@triton.jit
def keep_mask(i, j, N, window, sinks, CAUSAL: tl.constexpr):
    keep = (i[:, None] < N) & (j[None, :] < N)
    if CAUSAL:
        near = i[:, None] - j[None, :] < window
        keep = keep & (i[:, None] >= j[None, :]) & (near | (j[None, :] < sinks))
    return keep


@triton.jit
def forward_kernel(
    q, k, v, logits, o, lse, HQ, GROUP, N, window, sinks, scale,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr,
    HAS_LOGITS: tl.constexpr,
):
    """q, k, v contiguous.  Tiles between the sinks and the window are skipped by an if."""
    bh, m0 = tl.program_id(0).to(tl.int64), tl.program_id(1) * BM
    i, d = m0 + tl.arange(0, BM), tl.arange(0, BD)
    at_q = (bh * N + i[:, None]) * D + d[None, :]
    mask_q = (i[:, None] < N) & (d[None, :] < D)
    q_tile = tl.load(q + at_q, mask=mask_q, other=0.0)
    m_i = tl.full([BM], float("-inf"), tl.float32)
    l_i = tl.zeros([BM], tl.float32)
    if HAS_LOGITS:
        m_i = tl.zeros([BM], tl.float32) + tl.load(logits + bh % HQ).to(tl.float32)
        l_i = tl.full([BM], 1.0, tl.float32)
    acc = tl.zeros([BM, BD], tl.float32)
    for n0 in range(0, tl.minimum(m0 + BM, N) if CAUSAL else N, BN):
        if (n0 < sinks) | (n0 + BN > m0 - window + 1) | (not CAUSAL):
            j = n0 + tl.arange(0, BN)
            at_k = (bh // GROUP * N + j[:, None]) * D + d[None, :]
            mask_k = (j[:, None] < N) & (d[None, :] < D)
            k_tile = tl.load(k + at_k, mask=mask_k, other=0.0)
            v_tile = tl.load(v + at_k, mask=mask_k, other=0.0)
            s = tl.dot(q_tile, tl.trans(k_tile)) * scale
            s = tl.where(keep_mask(i, j, N, window, sinks, CAUSAL), s, float("-inf"))
            m_new = tl.maximum(m_i, tl.max(s, 1))
            pivot = tl.where(m_new > float("-inf"), m_new, 0.0)
            p = tl.exp(s - pivot[:, None])
            alpha = tl.exp(m_i - pivot)
            l_i = l_i * alpha + tl.sum(p, 1)
            acc = acc * alpha[:, None] + tl.dot(p.to(v_tile.dtype), v_tile)
            m_i = m_new
    tl.store(o + at_q, (acc / l_i[:, None]).to(o.dtype.element_ty), mask=mask_q)
    tl.store(lse + bh * N + i, m_i + tl.log(l_i), mask=i < N)


@triton.jit
def rows_kernel(o, do, lse, logits, delta, dlogits, HQ, N, D: tl.constexpr, BD: tl.constexpr,
                BM: tl.constexpr, HAS_LOGITS: tl.constexpr):
    """delta = rowsum(do * o), and each tile's share of a head's dlogits."""
    bh = tl.program_id(0).to(tl.int64)
    i, d = tl.program_id(1) * BM + tl.arange(0, BM), tl.arange(0, BD)
    at = (bh * N + i[:, None]) * D + d[None, :]
    mask = (i[:, None] < N) & (d[None, :] < D)
    o_tile = tl.load(o + at, mask=mask, other=0.0).to(tl.float32)
    do_tile = tl.load(do + at, mask=mask, other=0.0).to(tl.float32)
    row = tl.sum(o_tile * do_tile, 1)
    tl.store(delta + bh * N + i, row, mask=i < N)
    if HAS_LOGITS:
        logit = tl.load(logits + bh % HQ).to(tl.float32)
        weight = tl.exp(logit - tl.load(lse + bh * N + i, mask=i < N, other=float("inf")))
        tl.atomic_add(dlogits + bh % HQ, -tl.sum(weight * row, 0))


@triton.jit
def backward_kernel(
    q, k, v, do, lse, delta, dq, dk, dv, GROUP, N, window, sinks, scale,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr,
):
    """One query head and one key tile; dq, dk and dv are float32 and zero at the start."""
    bh, n0 = tl.program_id(0).to(tl.int64), tl.program_id(1) * BN
    j, d = n0 + tl.arange(0, BN), tl.arange(0, BD)
    at_k = (bh // GROUP * N + j[:, None]) * D + d[None, :]
    mask_k = (j[:, None] < N) & (d[None, :] < D)
    k_tile = tl.load(k + at_k, mask=mask_k, other=0.0)
    v_tile = tl.load(v + at_k, mask=mask_k, other=0.0)
    dk_tile = tl.zeros([BN, BD], tl.float32)
    dv_tile = tl.zeros([BN, BD], tl.float32)
    end = N
    if CAUSAL and n0 >= sinks:
        end = tl.minimum(N, n0 + BN - 1 + window)
    for m0 in range(n0 if CAUSAL else 0, end, BM):
        i = m0 + tl.arange(0, BM)
        at_q = (bh * N + i[:, None]) * D + d[None, :]
        mask_q = (i[:, None] < N) & (d[None, :] < D)
        q_tile = tl.load(q + at_q, mask=mask_q, other=0.0)
        do_tile = tl.load(do + at_q, mask=mask_q, other=0.0)
        row_lse = tl.load(lse + bh * N + i, mask=i < N, other=0.0)
        row_delta = tl.load(delta + bh * N + i, mask=i < N, other=0.0)
        s = tl.dot(q_tile, tl.trans(k_tile)) * scale - row_lse[:, None]
        p = tl.where(keep_mask(i, j, N, window, sinks, CAUSAL), tl.exp(s), 0.0)
        ds = p * (tl.dot(do_tile, tl.trans(v_tile)) - row_delta[:, None]) * scale
        dv_tile += tl.dot(tl.trans(p.to(do_tile.dtype)), do_tile)
        dk_tile += tl.dot(tl.trans(ds.to(q_tile.dtype)), q_tile)
        tl.atomic_add(dq + at_q, tl.dot(ds.to(k_tile.dtype), k_tile), mask=mask_q)
    tl.atomic_add(dk + at_k, dk_tile, mask=mask_k)
    tl.atomic_add(dv + at_k, dv_tile, mask=mask_k)


class SWDA(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, logits, window, sinks, causal, scale):
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        B, HQ, N, D = q.shape
        o, lse = torch.empty_like(q), torch.empty(B, HQ, N, device=q.device)
        ctx.mask = N, window, sinks, scale
        ctx.tiles = dict(D=D, BD=max(16, triton.next_power_of_2(D)), num_stages=1)
        ctx.causal = causal
        forward_kernel[(B * HQ, triton.cdiv(N, 64))](
            q, k, v, logits, o, lse, HQ, HQ // k.shape[1], *ctx.mask, **ctx.tiles, BM=64, BN=32,
            CAUSAL=causal, HAS_LOGITS=logits is not None)
        ctx.save_for_backward(q, k, v, logits, o, lse)
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, logits, o, lse = ctx.saved_tensors
        do = do.contiguous()
        (B, HQ, N, _), delta = q.shape, torch.empty_like(lse)
        dq, dk, dv = (torch.zeros_like(x, dtype=torch.float32) for x in (q, k, v))
        dlogits = None if logits is None else torch.zeros(HQ, device=q.device)
        rows_kernel[(B * HQ, triton.cdiv(N, 64))](
            o, do, lse, logits, delta, dlogits, HQ, N, **ctx.tiles, BM=64,
            HAS_LOGITS=logits is not None)
        T = 32 if ctx.tiles["BD"] * q.element_size() < 512 else 16  # for shared memory's sake
        backward_kernel[(B * HQ, triton.cdiv(N, T))](
            q, k, v, do, lse, delta, dq, dk, dv, HQ // k.shape[1], *ctx.mask, **ctx.tiles,
            BM=T, BN=T, CAUSAL=ctx.causal)
        dlogits = None if logits is None else dlogits.to(logits.dtype)
        return (*(g.to(q.dtype) for g in (dq, dk, dv)), dlogits, None, None, None, None)


def flash_swda_with_sink(q, k, v, window_size, sink_size=0, is_causal=True, scale=None, *,
                         sink_logits=None):
    if window_size is not None and (window_size < 1 or not is_causal):
        raise ValueError(f"want a window >= 1 and a causal mask; got {window_size}, {is_causal}")
    N = q.shape[2]
    window = N if window_size is None else min(window_size, N)
    logits = None if sink_logits is None else sink_logits.contiguous()
    return SWDA.apply(q, k, v, logits, window, min(sink_size, N), is_causal,
                      scale or q.shape[3] ** -0.5)
