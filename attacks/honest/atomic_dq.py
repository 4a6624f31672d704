"""Stage 8 with one backward kernel: a program owns a key tile and adds to dq with atomics."""
# stage: 8
# outcome: pass
import torch
import triton
import triton.language as tl


@triton.jit
def forward_kernel(
    q, k, v, o, lse, HQ, HKV, N, scale, q_b, q_h, q_n, q_d, k_b, k_h, k_n, k_d, v_b, v_h, v_n, v_d,
    D: tl.constexpr, BD: tl.constexpr, T: tl.constexpr, CAUSAL: tl.constexpr,
):
    bh, start = tl.program_id(0).to(tl.int64), tl.program_id(1) * T
    b, h = bh // HQ, bh % HQ
    kv = h // (HQ // HKV)
    i, d = start + tl.arange(0, T), tl.arange(0, BD)
    i64 = i[:, None].to(tl.int64)
    mine = (i[:, None] < N) & (d[None, :] < D)
    qt = tl.load(q + b * q_b + h * q_h + i64 * q_n + d[None, :] * q_d, mask=mine, other=0.0)
    m = tl.full([T], float("-inf"), tl.float32)
    total = tl.zeros([T], tl.float32)
    acc = tl.zeros([T, BD], tl.float32)
    end = tl.minimum(start + T, N) if CAUSAL else N
    for j0 in range(0, end, T):
        j = j0 + tl.arange(0, T)
        j64 = j[:, None].to(tl.int64)
        seen = (j[:, None] < N) & (d[None, :] < D)
        kt = tl.load(k + b * k_b + kv * k_h + j64 * k_n + d[None, :] * k_d, mask=seen, other=0.0)
        vt = tl.load(v + b * v_b + kv * v_h + j64 * v_n + d[None, :] * v_d, mask=seen, other=0.0)
        keep = (j < N)[None, :]
        if CAUSAL:
            keep = keep & (i[:, None] >= j[None, :])
        s = tl.where(keep, tl.dot(qt, tl.trans(kt)) * scale, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        p = tl.exp(s - m_new[:, None])
        alpha = tl.exp(m - m_new)
        acc = acc * alpha[:, None] + tl.dot(p.to(vt.dtype), vt)
        total = total * alpha + tl.sum(p, 1)
        m = m_new
    tl.store(lse + bh * N + i, m + tl.log(total), mask=i < N)
    tl.store(o + (bh * N + i64) * D + d[None, :], (acc / total[:, None]).to(o.dtype.element_ty),
             mask=mine)


@triton.jit
def backward_kernel(
    q, k, v, do, lse, delta, dq, dk, dv, HQ, HKV, N, scale,
    D: tl.constexpr, BD: tl.constexpr, T: tl.constexpr, CAUSAL: tl.constexpr,
):
    """All tensors contiguous; dq float32 and zero at the start."""
    bkv, start = tl.program_id(0).to(tl.int64), tl.program_id(1) * T
    j, d = start + tl.arange(0, T), tl.arange(0, BD)
    in_d = d[None, :] < D
    at_k = (bkv * N + j[:, None]) * D + d[None, :]
    kt = tl.load(k + at_k, mask=(j[:, None] < N) & in_d, other=0.0)
    vt = tl.load(v + at_k, mask=(j[:, None] < N) & in_d, other=0.0)
    dk_tile = tl.zeros([T, BD], tl.float32)
    dv_tile = tl.zeros([T, BD], tl.float32)
    group = HQ // HKV
    for g in range(group):
        bh = bkv * group + g  # groups are contiguous, so this is b * HQ + h
        for i0 in range(start if CAUSAL else 0, N, T):
            i = i0 + tl.arange(0, T)
            at_q = (bh * N + i[:, None]) * D + d[None, :]
            mine = (i[:, None] < N) & in_d
            qt = tl.load(q + at_q, mask=mine, other=0.0)
            dot = tl.load(do + at_q, mask=mine, other=0.0)
            keep = (i[:, None] < N) & (j[None, :] < N)
            if CAUSAL:
                keep = keep & (i[:, None] >= j[None, :])
            row_lse = tl.load(lse + bh * N + i, mask=i < N, other=0.0)
            row_delta = tl.load(delta + bh * N + i, mask=i < N, other=0.0)
            s = tl.dot(qt, tl.trans(kt)) * scale
            p = tl.exp(tl.where(keep, s - row_lse[:, None], float("-inf")))
            dv_tile += tl.dot(tl.trans(p.to(dot.dtype)), dot)
            dp = tl.dot(dot, tl.trans(vt))
            ds = (p * (dp - row_delta[:, None])).to(qt.dtype)
            dk_tile += tl.dot(tl.trans(ds), qt)
            tl.atomic_add(dq + at_q, tl.dot(ds, kt) * scale, mask=mine)
    tl.store(dk + at_k, (dk_tile * scale).to(dk.dtype.element_ty), mask=(j[:, None] < N) & in_d)
    tl.store(dv + at_k, dv_tile.to(dv.dtype.element_ty), mask=(j[:, None] < N) & in_d)


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, is_causal, scale):
        (B, HQ, N, D), HKV = q.shape, k.shape[1]
        BD = max(16, triton.next_power_of_2(D))
        T = 32 if BD * q.element_size() < 512 else 16  # shared memory holds seven tiles
        ctx.tiles = dict(D=D, BD=BD, T=T, CAUSAL=is_causal, num_stages=1)
        ctx.scale = scale
        o = torch.empty(B, HQ, N, D, dtype=q.dtype, device=q.device)
        lse = torch.empty(B, HQ, N, dtype=torch.float32, device=q.device)
        forward_kernel[(B * HQ, triton.cdiv(N, T))](
            q, k, v, o, lse, HQ, HKV, N, scale, *q.stride(), *k.stride(), *v.stride(), **ctx.tiles)
        ctx.save_for_backward(q, k, v, o, lse)
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, o, lse = ctx.saved_tensors
        (B, HQ, N, _), HKV = q.shape, k.shape[1]
        delta = (do.float() * o.float()).sum(-1)
        q, k, v, do = q.contiguous(), k.contiguous(), v.contiguous(), do.contiguous()
        dq = torch.zeros(q.shape, dtype=torch.float32, device=q.device)
        dk, dv = torch.empty_like(k), torch.empty_like(v)
        backward_kernel[(B * HKV, triton.cdiv(N, ctx.tiles["T"]))](
            q, k, v, do, lse, delta, dq, dk, dv, HQ, HKV, N, ctx.scale, **ctx.tiles)
        return dq.to(q.dtype), dk, dv, None, None


def flash_attention_gqa(q, k, v, is_causal=True, softmax_scale=None):
    if q.shape[1] % k.shape[1]:
        raise ValueError(f"want HQ a multiple of HKV; got {q.shape[1]}, {k.shape[1]}")
    scale = q.shape[3] ** -0.5 if softmax_scale is None else softmax_scale
    return Attention.apply(q, k, v, bool(is_causal), float(scale))
