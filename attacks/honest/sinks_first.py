"""Stage 7 with the sinks in tiles of their own before the window's, and (o, lse) returned."""
# stage: 7
# outcome: pass
import torch
import triton
import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)


@triton.jit
def head_of(x, b, h, stride_b, stride_h):
    return x + b.to(tl.int64) * stride_b + h.to(tl.int64) * stride_h


@triton.jit
def rows_of(x, row, N, stride_n, stride_d, D: tl.constexpr, BD: tl.constexpr):
    col = tl.arange(0, BD)
    at = x + row[:, None].to(tl.int64) * stride_n + col[None, :].to(tl.int64) * stride_d
    return tl.load(at, mask=(row[:, None] < N) & (col[None, :] < D), other=0.0)


@triton.jit
def absorb(acc, l_i, m_i, q, k, v, keep, scale_log2):
    s = tl.where(keep, tl.dot(q, tl.trans(k)) * scale_log2, float("-inf"))
    m_new = tl.maximum(m_i, tl.max(s, axis=1))
    safe = tl.where(m_new > float("-inf"), m_new, 0.0)
    p = tl.exp2(s - safe[:, None])
    alpha = tl.exp2(m_i - safe)
    return acc * alpha[:, None] + tl.dot(p.to(v.dtype), v), l_i * alpha + tl.sum(p, axis=1), m_new


@triton.jit
def sink_kernel(
    q, k, v, o, lse, HQ, HKV, N, W, S, scale_log2,
    qb, qh, qn, qd, kb, kh, kn, kd, vb, vh, vn, vd,
    D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
):
    tiles = tl.cdiv(N, BM)
    bh = tl.program_id(0) // tiles
    start = tl.program_id(0) % tiles * BM
    b, h = bh // HQ, bh % HQ
    kv = h // (HQ // HKV)
    k, v = head_of(k, b, kv, kb, kh), head_of(v, b, kv, vb, vh)
    i = start + tl.arange(0, BM)
    q_tile = rows_of(head_of(q, b, h, qb, qh), i, N, qn, qd, D, BD)
    acc = tl.zeros([BM, BD], tl.float32)
    l_i = tl.zeros([BM], tl.float32)
    m_i = tl.full([BM], float("-inf"), tl.float32)

    # Sinks that some query of the tile sees only as sinks; later ones count with the window.
    for j0 in range(0, tl.minimum(S, start + BM - W), BN):
        j = j0 + tl.arange(0, BN)
        keep = (j[None, :] < S) & (i[:, None] - j[None, :] >= W)
        acc, l_i, m_i = absorb(acc, l_i, m_i, q_tile, rows_of(k, j, N, kn, kd, D, BD),
                               rows_of(v, j, N, vn, vd, D, BD), keep, scale_log2)
    for j0 in range(tl.maximum(start - W + 1, 0) // BN * BN, start + BM, BN):
        j = j0 + tl.arange(0, BN)
        keep = (j[None, :] <= i[:, None]) & (i[:, None] - j[None, :] < W)
        acc, l_i, m_i = absorb(acc, l_i, m_i, q_tile, rows_of(k, j, N, kn, kd, D, BD),
                               rows_of(v, j, N, vn, vd, D, BD), keep, scale_log2)

    d = tl.arange(0, BD)
    at = bh.to(tl.int64) * N + i
    tl.store(lse + at, (m_i + tl.log2(l_i)) * LN2, mask=i < N)
    tl.store(o + at[:, None] * D + d[None, :], (acc / l_i[:, None]).to(o.dtype.element_ty),
             mask=(i[:, None] < N) & (d[None, :] < D))


def flash_attention_forward(q, k, v, is_causal=True, window_size=128, sink_size=4):
    B, HQ, N, D = q.shape
    if not is_causal or window_size < 1 or sink_size < 0:
        raise ValueError(f"want a causal mask, window_size >= 1, sink_size >= 0; got {is_causal}, "
                         f"{window_size}, {sink_size}")
    o = torch.empty(B, HQ, N, D, dtype=q.dtype, device=q.device)
    lse = torch.empty(B, HQ, N, dtype=torch.float32, device=q.device)
    sink_kernel[(triton.cdiv(N, 64) * B * HQ,)](
        q, k, v, o, lse, HQ, k.shape[1], N, min(window_size, N), min(sink_size, N),
        D**-0.5 * 1.4426950408889634,
        *q.stride(), *k.stride(), *v.stride(),
        D=D, BD=max(16, triton.next_power_of_2(D)), BM=64, BN=16)
    return o, lse
