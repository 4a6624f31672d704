"""Stage 8 that saves q, k and v alone; its backward finds lse and delta anew, in a kernel."""
# stage: 8
# outcome: pass
import torch
import triton
import triton.language as tl


@triton.jit
def load(x, b, h, row, N, s_b, s_h, s_n, s_d, D: tl.constexpr, BD: tl.constexpr):
    d = tl.arange(0, BD)
    at = x + b.to(tl.int64) * s_b + tl.cast(h, tl.int64) * s_h
    at += row[:, None].to(tl.int64) * s_n + d[None, :].to(tl.int64) * s_d
    return tl.load(at, mask=(row[:, None] < N) & (d[None, :] < D), other=0.0)


@triton.jit
def save(x, tile, bh, row, N, D: tl.constexpr, BD: tl.constexpr):
    d = tl.arange(0, BD)
    at = x + (bh.to(tl.int64) * N + row[:, None]) * D + d[None, :]
    tl.store(at, tile.to(x.dtype.element_ty), mask=(row[:, None] < N) & (d[None, :] < D))


@triton.jit
def masked_scores(q, k, i, j, N, scale, CAUSAL: tl.constexpr):
    last = tl.where(i < N, i, N - 1) if CAUSAL else tl.zeros_like(i) + N - 1
    return tl.where(j[None, :] <= last[:, None], tl.dot(q, tl.trans(k)) * scale, float("-inf"))


@triton.jit
def forward_kernel(q, k, v, o, HQ, G, N, scale, qb, qh, qn, qd, kb, kh, kn, kd, vb, vh, vn, vd,
                   D: tl.constexpr, BD: tl.constexpr, T: tl.constexpr, CAUSAL: tl.constexpr):
    bh, t = tl.program_id(0), tl.program_id(1)
    b, h = bh // HQ, bh % HQ
    i = t * T + tl.arange(0, T)
    qt = load(q, b, h, i, N, qb, qh, qn, qd, D, BD)
    m, total = tl.full([T], float("-inf"), tl.float32), tl.zeros([T], tl.float32)
    acc = tl.zeros([T, BD], tl.float32)
    for start in range(0, tl.minimum(t * T + T, N) if CAUSAL else N, T):
        j = start + tl.arange(0, T)
        s = masked_scores(qt, load(k, b, h // G, j, N, kb, kh, kn, kd, D, BD), i, j, N, scale,
                          CAUSAL)
        vt = load(v, b, h // G, j, N, vb, vh, vn, vd, D, BD)
        m_new = tl.maximum(m, tl.max(s, 1))
        p, fade = tl.exp(s - m_new[:, None]), tl.exp(m - m_new)
        acc = tl.dot(p.to(vt.dtype), vt, acc * fade[:, None])
        total = total * fade + tl.sum(p, 1)
        m = m_new
    save(o, acc / total[:, None], bh, i, N, D, BD)


@triton.jit
def rows_kernel(q, k, v, do, lse, delta, HQ, G, N, scale,
                qb, qh, qn, qd, kb, kh, kn, kd, vb, vh, vn, vd, db, dh, dn, dd,
                D: tl.constexpr, BD: tl.constexpr, T: tl.constexpr, CAUSAL: tl.constexpr):
    """lse, and delta = sum_j p_ij (do_i . v_j), an online sum like the softmax's own."""
    bh, t = tl.program_id(0), tl.program_id(1)
    b, h = bh // HQ, bh % HQ
    i = t * T + tl.arange(0, T)
    qt = load(q, b, h, i, N, qb, qh, qn, qd, D, BD)
    dot = load(do, b, h, i, N, db, dh, dn, dd, D, BD)
    m, total = tl.full([T], float("-inf"), tl.float32), tl.zeros([T], tl.float32)
    mean = tl.zeros([T], tl.float32)
    for start in range(0, tl.minimum(t * T + T, N) if CAUSAL else N, T):
        j = start + tl.arange(0, T)
        s = masked_scores(qt, load(k, b, h // G, j, N, kb, kh, kn, kd, D, BD), i, j, N, scale,
                          CAUSAL)
        dp = tl.dot(dot, tl.trans(load(v, b, h // G, j, N, vb, vh, vn, vd, D, BD)))
        m_new = tl.maximum(m, tl.max(s, 1))
        p, fade = tl.exp(s - m_new[:, None]), tl.exp(m - m_new)
        total, mean = total * fade + tl.sum(p, 1), mean * fade + tl.sum(p * dp, 1)
        m = m_new
    at = bh.to(tl.int64) * N + i
    tl.store(lse + at, m + tl.log(total), mask=i < N)
    tl.store(delta + at, mean / total, mask=i < N)


@triton.jit
def dq_kernel(q, k, v, do, lse, delta, dq, HQ, G, N, scale,
              qb, qh, qn, qd, kb, kh, kn, kd, vb, vh, vn, vd, db, dh, dn, dd,
              D: tl.constexpr, BD: tl.constexpr, T: tl.constexpr, CAUSAL: tl.constexpr):
    bh, t = tl.program_id(0), tl.program_id(1)
    b, h = bh // HQ, bh % HQ
    i = t * T + tl.arange(0, T)
    qt = load(q, b, h, i, N, qb, qh, qn, qd, D, BD)
    dot = load(do, b, h, i, N, db, dh, dn, dd, D, BD)
    li = tl.load(lse + bh.to(tl.int64) * N + i, mask=i < N, other=float("inf"))
    di = tl.load(delta + bh.to(tl.int64) * N + i, mask=i < N, other=0.0)
    total = tl.zeros([T, BD], tl.float32)
    for start in range(0, tl.minimum(t * T + T, N) if CAUSAL else N, T):
        j = start + tl.arange(0, T)
        kt = load(k, b, h // G, j, N, kb, kh, kn, kd, D, BD)
        vt = load(v, b, h // G, j, N, vb, vh, vn, vd, D, BD)
        p = tl.exp(masked_scores(qt, kt, i, j, N, scale, CAUSAL) - li[:, None])
        ds = p * (tl.dot(dot, tl.trans(vt)) - di[:, None])
        total = tl.dot(ds.to(kt.dtype), kt, total)
    save(dq, total * scale, bh, i, N, D, BD)


@triton.jit
def dkdv_kernel(q, k, v, do, lse, delta, dk, dv, HQ, G, N, scale,
                qb, qh, qn, qd, kb, kh, kn, kd, vb, vh, vn, vd, db, dh, dn, dd,
                D: tl.constexpr, BD: tl.constexpr, T: tl.constexpr, CAUSAL: tl.constexpr):
    """One program for all keys of a key/value head: tile by tile, head by head."""
    bkv = tl.program_id(0)
    b, kv = bkv // (HQ // G), bkv % (HQ // G)
    for first in range(0, N, T):
        j = first + tl.arange(0, T)
        kt = load(k, b, kv, j, N, kb, kh, kn, kd, D, BD)
        vt = load(v, b, kv, j, N, vb, vh, vn, vd, D, BD)
        dkt, dvt = tl.zeros([T, BD], tl.float32), tl.zeros([T, BD], tl.float32)
        for h in range(kv * G, kv * G + G):
            row = lse + (b * HQ + h).to(tl.int64) * N
            row_delta = delta + (b * HQ + h).to(tl.int64) * N
            for start in range(first if CAUSAL else 0, N, T):
                i = start + tl.arange(0, T)
                qt = load(q, b, h, i, N, qb, qh, qn, qd, D, BD)
                dot = load(do, b, h, i, N, db, dh, dn, dd, D, BD)
                li = tl.load(row + i, mask=i < N, other=float("inf"))
                di = tl.load(row_delta + i, mask=i < N, other=0.0)
                p = tl.exp(masked_scores(qt, kt, i, j, N, scale, CAUSAL) - li[:, None])
                ds = p * (tl.dot(dot, tl.trans(vt)) - di[:, None])
                dvt += tl.dot(tl.trans(p.to(dot.dtype)), dot)
                dkt += tl.dot(tl.trans(ds.to(qt.dtype)), qt)
        save(dk, dkt * scale, bkv, j, N, D, BD)
        save(dv, dvt, bkv, j, N, D, BD)


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal, scale):
        B, HQ, N, D = q.shape
        ctx.save_for_backward(q, k, v)
        ctx.sizes = HQ, HQ // k.shape[1], N, scale
        ctx.tiles = dict(D=D, BD=max(16, triton.next_power_of_2(D)), T=32, CAUSAL=causal)
        ctx.grid = B * HQ, triton.cdiv(N, 32)
        o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        strides = *q.stride(), *k.stride(), *v.stride()
        forward_kernel[ctx.grid](q, k, v, o, *ctx.sizes, *strides, **ctx.tiles)
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v = ctx.saved_tensors
        lse, delta = torch.empty(2, *q.shape[:3], dtype=torch.float32, device=q.device).unbind()
        dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
        more = *ctx.sizes, *q.stride(), *k.stride(), *v.stride(), *do.stride()
        rows_kernel[ctx.grid](q, k, v, do, lse, delta, *more, **ctx.tiles)
        dq_kernel[ctx.grid](q, k, v, do, lse, delta, dq, *more, **ctx.tiles)
        dkdv_kernel[(k.shape[0] * k.shape[1],)](q, k, v, do, lse, delta, dk, dv, *more, **ctx.tiles)
        return dq, dk, dv, None, None


def flash_attention_gqa(q, k, v, is_causal=True, softmax_scale=None):
    scale = q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale
    return Attention.apply(q, k, v, is_causal, scale)
