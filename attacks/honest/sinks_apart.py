"""Stage 9 with sink tokens in loops of their own, and the sink logit joining in the epilogue."""
# stage: 9
# outcome: pass
import torch
import triton
import triton.language as tl


@triton.jit
def load(base, row, N, stride_n, stride_d, D: tl.constexpr, BD: tl.constexpr):
    d = tl.arange(0, BD)
    at = base + row[:, None].to(tl.int64) * stride_n + d[None, :].to(tl.int64) * stride_d
    return tl.load(at, mask=(row[:, None] < N) & (d[None, :] < D), other=0.0)


@triton.jit
def store(base, tile, row, N, D: tl.constexpr, BD: tl.constexpr):
    """base: a head of a contiguous tensor."""
    d = tl.arange(0, BD)
    tl.store(base + row[:, None].to(tl.int64) * D + d[None, :], tile.to(base.dtype.element_ty),
             mask=(row[:, None] < N) & (d[None, :] < D))


@triton.jit
def scores(q, k, i, j, N, W, S, scale, CAUSAL: tl.constexpr, AS_SINK: tl.constexpr):
    """AS_SINK: keys that are visible as sinks alone.  Otherwise those of the window."""
    age = i[:, None] - j[None, :]
    if AS_SINK:
        keep = (age >= W) & (j < S)[None, :]
    elif CAUSAL:
        keep = (age >= 0) & (age < W) & (j < N)[None, :]
    else:
        keep = (age < N) & (j < N)[None, :]
    return tl.where(keep, tl.dot(q, tl.trans(k)) * scale, float("-inf"))


@triton.jit
def absorb(acc, total, m, q, k_head, v_head, i, j0, N, W, S, scale, kn, kd, vn, vd,
           D: tl.constexpr, BD: tl.constexpr, T: tl.constexpr, CAUSAL: tl.constexpr,
           AS_SINK: tl.constexpr):
    j = j0 + tl.arange(0, T)
    s = scores(q, load(k_head, j, N, kn, kd, D, BD), i, j, N, W, S, scale, CAUSAL, AS_SINK)
    v = load(v_head, j, N, vn, vd, D, BD)
    m_new = tl.maximum(m, tl.max(s, 1))
    pivot = tl.where(m_new == float("-inf"), 0.0, m_new)
    p, alpha = tl.exp(s - pivot[:, None]), tl.exp(m - pivot)
    return tl.dot(p.to(v.dtype), v, acc * alpha[:, None]), total * alpha + tl.sum(p, 1), m_new


@triton.jit
def forward_kernel(q, k, v, sink, o, lse, HQ, G, N, W, S, scale,
                   qb, qh, qn, qd, kb, kh, kn, kd, vb, vh, vn, vd,
                   D: tl.constexpr, BD: tl.constexpr, T: tl.constexpr, CAUSAL: tl.constexpr,
                   HAS_SINK: tl.constexpr):
    bh, start = tl.program_id(0).to(tl.int64), tl.program_id(1) * T
    b, h = bh // HQ, bh % HQ
    k += b * kb + h // G * kh
    v += b * vb + h // G * vh
    i = start + tl.arange(0, T)
    q_tile = load(q + b * qb + h * qh, i, N, qn, qd, D, BD)
    acc = tl.zeros([T, BD], tl.float32)
    total = tl.zeros([T], tl.float32)
    m = tl.full([T], float("-inf"), tl.float32)
    if CAUSAL:
        for j0 in range(0, tl.minimum(S, start + T - W), T):
            acc, total, m = absorb(acc, total, m, q_tile, k, v, i, j0, N, W, S, scale,
                                   kn, kd, vn, vd, D, BD, T, CAUSAL, True)
    lo = tl.maximum(start - W + 1, 0) // T * T if CAUSAL else 0
    for j0 in range(lo, tl.minimum(start + T, N) if CAUSAL else N, T):
        acc, total, m = absorb(acc, total, m, q_tile, k, v, i, j0, N, W, S, scale,
                               kn, kd, vn, vd, D, BD, T, CAUSAL, False)
    weight = 1.0 / total
    row_lse = m + tl.log(total)
    if HAS_SINK:  # o was normalised without the logit; its share is what is left of the weights
        logit = tl.load(sink + h).to(tl.float32)
        top = tl.maximum(row_lse, logit)
        both = top + tl.log(tl.exp(row_lse - top) + tl.exp(logit - top))
        weight *= tl.exp(row_lse - both)
        row_lse = both
    store(o + bh * N * D, acc * weight[:, None], i, N, D, BD)
    tl.store(lse + bh * N + i, row_lse, mask=i < N)


@triton.jit
def add_dq(dq, q, do, row_lse, row_delta, k_head, v_head, i, j0, N, W, S, scale, kn, kd, vn, vd,
           D: tl.constexpr, BD: tl.constexpr, T: tl.constexpr, CAUSAL: tl.constexpr,
           AS_SINK: tl.constexpr):
    j = j0 + tl.arange(0, T)
    k, v = load(k_head, j, N, kn, kd, D, BD), load(v_head, j, N, vn, vd, D, BD)
    p = tl.exp(scores(q, k, i, j, N, W, S, scale, CAUSAL, AS_SINK) - row_lse[:, None])
    ds = p * (tl.dot(do, tl.trans(v)) - row_delta[:, None])
    return tl.dot(ds.to(k.dtype), k, dq)


@triton.jit
def dq_kernel(q, k, v, do, sink, lse, delta, dq, dsink, HQ, G, N, W, S, scale,
              qb, qh, qn, qd, kb, kh, kn, kd, vb, vh, vn, vd, db, dh, dn, dd,
              D: tl.constexpr, BD: tl.constexpr, T: tl.constexpr, CAUSAL: tl.constexpr,
              HAS_SINK: tl.constexpr):
    bh, start = tl.program_id(0).to(tl.int64), tl.program_id(1) * T
    b, h = bh // HQ, bh % HQ
    k += b * kb + h // G * kh
    v += b * vb + h // G * vh
    i = start + tl.arange(0, T)
    q_tile = load(q + b * qb + h * qh, i, N, qn, qd, D, BD)
    do_tile = load(do + b * db + h * dh, i, N, dn, dd, D, BD)
    row_lse = tl.load(lse + bh * N + i, mask=i < N, other=float("inf"))
    row_delta = tl.load(delta + bh * N + i, mask=i < N, other=0.0)
    grad = tl.zeros([T, BD], tl.float32)
    if CAUSAL:
        for j0 in range(0, tl.minimum(S, start + T - W), T):
            grad = add_dq(grad, q_tile, do_tile, row_lse, row_delta, k, v, i, j0, N, W, S, scale,
                          kn, kd, vn, vd, D, BD, T, CAUSAL, True)
    lo = tl.maximum(start - W + 1, 0) // T * T if CAUSAL else 0
    for j0 in range(lo, tl.minimum(start + T, N) if CAUSAL else N, T):
        grad = add_dq(grad, q_tile, do_tile, row_lse, row_delta, k, v, i, j0, N, W, S, scale,
                      kn, kd, vn, vd, D, BD, T, CAUSAL, False)
    store(dq + bh * N * D, grad * scale, i, N, D, BD)
    if HAS_SINK:  # one number a query; PyTorch adds them up
        share = tl.exp(tl.load(sink + h).to(tl.float32) - row_lse) * row_delta
        tl.store(dsink + bh * N + i, -share, mask=i < N)


@triton.jit
def dkdv_kernel(q, k, v, do, lse, delta, dk, dv, HQ, G, N, W, S, scale,
                qb, qh, qn, qd, kb, kh, kn, kd, vb, vh, vn, vd, db, dh, dn, dd,
                D: tl.constexpr, BD: tl.constexpr, T: tl.constexpr, CAUSAL: tl.constexpr):
    bkv, start = tl.program_id(0).to(tl.int64), tl.program_id(1) * T
    b, kv = bkv // (HQ // G), bkv % (HQ // G)
    j = start + tl.arange(0, T)
    k_tile = load(k + b * kb + kv * kh, j, N, kn, kd, D, BD)
    v_tile = load(v + b * vb + kv * vh, j, N, vn, vd, D, BD)
    dk_tile, dv_tile = tl.zeros([T, BD], tl.float32), tl.zeros([T, BD], tl.float32)
    end = tl.minimum(start + T - 1 + W, N) if CAUSAL else N
    if start < S:
        end = N
    for g in range(G):
        h = kv * G + g
        q_head, do_head, rows = q + b * qb + h * qh, do + b * db + h * dh, (b * HQ + h) * N
        for i0 in range(start if CAUSAL else 0, end, T):
            i = i0 + tl.arange(0, T)
            q_tile, do_tile = load(q_head, i, N, qn, qd, D, BD), load(do_head, i, N, dn, dd, D, BD)
            row_lse = tl.load(lse + rows + i, mask=i < N, other=float("inf"))[:, None]
            p = tl.exp(scores(q_tile, k_tile, i, j, N, W, S, scale, CAUSAL, False) - row_lse)
            if CAUSAL:
                p += tl.exp(scores(q_tile, k_tile, i, j, N, W, S, scale, CAUSAL, True) - row_lse)
            dp = tl.dot(do_tile, tl.trans(v_tile))
            ds = p * (dp - tl.load(delta + rows + i, mask=i < N, other=0.0)[:, None])
            dv_tile += tl.dot(tl.trans(p.to(do_tile.dtype)), do_tile)
            dk_tile += tl.dot(tl.trans(ds.to(q_tile.dtype)), q_tile)
    store(dk + bkv * N * D, dk_tile * scale, j, N, D, BD)
    store(dv + bkv * N * D, dv_tile, j, N, D, BD)


class WindowAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, sink, W, S, causal, scale):
        B, HQ, N, D = q.shape
        ctx.sizes = HQ, HQ // k.shape[1], N, W, S, scale
        ctx.tiles = dict(D=D, BD=max(16, triton.next_power_of_2(D)), T=32, CAUSAL=causal)
        o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
        forward_kernel[(B * HQ, triton.cdiv(N, 32))](
            q, k, v, sink, o, lse, *ctx.sizes, *q.stride(), *k.stride(), *v.stride(), **ctx.tiles,
            HAS_SINK=sink is not None)
        ctx.save_for_backward(q, k, v, sink, o, lse)
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, sink, o, lse = ctx.saved_tensors
        tiles = triton.cdiv(q.shape[2], 32)
        strides = *q.stride(), *k.stride(), *v.stride(), *do.stride()
        delta = (do.float() * o.float()).sum(-1)
        dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
        dsink = None if sink is None else torch.empty_like(lse)
        dq_kernel[(q.shape[0] * q.shape[1], tiles)](
            q, k, v, do, sink, lse, delta, dq, dsink, *ctx.sizes, *strides, **ctx.tiles,
            HAS_SINK=sink is not None)
        dkdv_kernel[(k.shape[0] * k.shape[1], tiles)](
            q, k, v, do, lse, delta, dk, dv, *ctx.sizes, *strides, **ctx.tiles)
        dsink = None if sink is None else dsink.sum((0, 2)).to(sink.dtype)
        return dq, dk, dv, dsink, None, None, None, None


def flash_swda_with_sink(q, k, v, window_size, sink_size=0, is_causal=True, scale=None, *,
                         sink_logits=None):
    N, D = q.shape[2:]
    if window_size is not None and (window_size < 1 or not is_causal):
        raise ValueError(f"want a window >= 1 and a causal mask; got {window_size}, {is_causal}")
    window = N if window_size is None else min(window_size, N)
    scale = D**-0.5 if scale is None else scale
    sink = None if sink_logits is None else sink_logits.contiguous()
    return WindowAttention.apply(q, k, v, sink, window, min(sink_size, N), is_causal, scale)
