"""Stage 8 in the original's style: o and dq lie as q does; dk and dv over the heads of a group."""
# stage: 8
# outcome: pass
import math

import torch
import triton
import triton.language as tl


@triton.jit
def fwd_kernel(
    Q, K, V, Out, L, qb, qh, qs, kb, kh, ks, vb, vh, vs, sm_scale, N_CTX, H_Q, H_KV,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    pid, bh = tl.program_id(0), tl.program_id(1)
    b, hq = bh // H_Q, bh % H_Q
    hkv = hq // (H_Q // H_KV)
    offs_m = pid * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, D)
    q = tl.load(Q + b * qb + hq * qh + offs_m[:, None] * qs + offs_d[None, :],
                mask=offs_m[:, None] < N_CTX, other=0.0)
    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    end = tl.minimum((pid + 1) * BLOCK_M, N_CTX)
    for start_n in range(0, end, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        k = tl.load(K + b * kb + hkv * kh + offs_n[None, :] * ks + offs_d[:, None],
                    mask=offs_n[None, :] < N_CTX, other=0.0)
        v = tl.load(V + b * vb + hkv * vh + offs_n[:, None] * vs + offs_d[None, :],
                    mask=offs_n[:, None] < N_CTX, other=0.0)
        qk = tl.dot(q, k) * sm_scale
        mask = (offs_n[None, :] < N_CTX) & (offs_m[:, None] >= offs_n[None, :])
        qk = tl.where(mask, qk, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(qk, 1))
        p = tl.exp(qk - m_new[:, None])
        alpha = tl.exp(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v)
        m_i = m_new
    tl.store(Out + b * qb + hq * qh + offs_m[:, None] * qs + offs_d[None, :],
             (acc / l_i[:, None]).to(Out.dtype.element_ty), mask=offs_m[:, None] < N_CTX)
    tl.store(L + bh * N_CTX + offs_m, m_i + tl.log(l_i), mask=offs_m < N_CTX)


@triton.jit
def delta_kernel(Out, DO, Delta, qb, qh, qs, gb, gh, gs, H_Q, N_CTX, D: tl.constexpr,
                 BLOCK_M: tl.constexpr):
    offs_m = tl.program_id(0) * BLOCK_M + tl.arange(0, BLOCK_M)
    bh = tl.program_id(1)
    b, hq = bh // H_Q, bh % H_Q
    offs_d = tl.arange(0, D)[None, :]
    o = tl.load(Out + b * qb + hq * qh + offs_m[:, None] * qs + offs_d,
                mask=offs_m[:, None] < N_CTX, other=0.0).to(tl.float32)
    do = tl.load(DO + b * gb + hq * gh + offs_m[:, None] * gs + offs_d,
                 mask=offs_m[:, None] < N_CTX, other=0.0).to(tl.float32)
    tl.store(Delta + bh * N_CTX + offs_m, tl.sum(o * do, axis=1), mask=offs_m < N_CTX)


@triton.jit
def dq_kernel(
    Q, K, V, DO, L, Delta, DQ, qb, qh, qs, kb, kh, ks, vb, vh, vs, gb, gh, gs,
    sm_scale, N_CTX, H_Q, H_KV,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    pid, bh = tl.program_id(0), tl.program_id(1)
    b, hq = bh // H_Q, bh % H_Q
    hkv = hq // (H_Q // H_KV)
    offs_m = pid * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, D)
    row_ok = offs_m < N_CTX
    q = tl.load(Q + b * qb + hq * qh + offs_m[:, None] * qs + offs_d[None, :],
                mask=row_ok[:, None], other=0.0)
    do = tl.load(DO + b * gb + hq * gh + offs_m[:, None] * gs + offs_d[None, :],
                 mask=row_ok[:, None], other=0.0)
    lse = tl.load(L + bh * N_CTX + offs_m, mask=row_ok, other=0.0)
    delta = tl.load(Delta + bh * N_CTX + offs_m, mask=row_ok, other=0.0)
    dq = tl.zeros([BLOCK_M, D], tl.float32)
    end = tl.minimum((pid + 1) * BLOCK_M, N_CTX)
    for start_n in range(0, end, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        col_ok = offs_n < N_CTX
        k = tl.load(K + b * kb + hkv * kh + offs_n[:, None] * ks + offs_d[None, :],
                    mask=col_ok[:, None], other=0.0)
        v = tl.load(V + b * vb + hkv * vh + offs_n[:, None] * vs + offs_d[None, :],
                    mask=col_ok[:, None], other=0.0)
        s = tl.dot(q, tl.trans(k)) * sm_scale
        mask = row_ok[:, None] & col_ok[None, :] & (offs_m[:, None] >= offs_n[None, :])
        p = tl.exp(tl.where(mask, s - lse[:, None], float("-inf")))
        dp = tl.dot(do, tl.trans(v))
        ds = p * (dp - delta[:, None]) * sm_scale
        dq += tl.dot(ds.to(k.dtype), k)
    tl.store(DQ + b * qb + hq * qh + offs_m[:, None] * qs + offs_d[None, :],
             dq.to(DQ.dtype.element_ty), mask=row_ok[:, None])


@triton.jit
def dkv_kernel(
    Q, K, V, DO, L, Delta, DK, DV, qb, qh, qs, kb, kh, ks, vb, vh, vs, gb, gh, gs,
    sm_scale, N_CTX, H_Q, H_KV,
    D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    pid, bh = tl.program_id(0), tl.program_id(1)
    b, hkv = bh // H_KV, bh % H_KV
    group = H_Q // H_KV
    offs_n = pid * BLOCK_N + tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, D)
    col_ok = offs_n < N_CTX
    k = tl.load(K + b * kb + hkv * kh + offs_n[:, None] * ks + offs_d[None, :],
                mask=col_ok[:, None], other=0.0)
    v = tl.load(V + b * vb + hkv * vh + offs_n[:, None] * vs + offs_d[None, :],
                mask=col_ok[:, None], other=0.0)
    dk = tl.zeros([BLOCK_N, D], tl.float32)
    dv = tl.zeros([BLOCK_N, D], tl.float32)
    begin = pid * BLOCK_N // BLOCK_M * BLOCK_M
    for g in range(0, group):
        hq = hkv * group + g
        stats = (b * H_Q + hq) * N_CTX
        for start_m in range(begin, N_CTX, BLOCK_M):
            offs_m = start_m + tl.arange(0, BLOCK_M)
            row_ok = offs_m < N_CTX
            q = tl.load(Q + b * qb + hq * qh + offs_m[:, None] * qs + offs_d[None, :],
                        mask=row_ok[:, None], other=0.0)
            do = tl.load(DO + b * gb + hq * gh + offs_m[:, None] * gs + offs_d[None, :],
                         mask=row_ok[:, None], other=0.0)
            lse = tl.load(L + stats + offs_m, mask=row_ok, other=0.0)
            delta = tl.load(Delta + stats + offs_m, mask=row_ok, other=0.0)
            s = tl.dot(q, tl.trans(k)) * sm_scale
            mask = row_ok[:, None] & col_ok[None, :] & (offs_m[:, None] >= offs_n[None, :])
            p = tl.exp(tl.where(mask, s - lse[:, None], float("-inf")))
            dv += tl.dot(tl.trans(p.to(do.dtype)), do)
            dp = tl.dot(do, tl.trans(v))
            ds = p * (dp - delta[:, None])
            dk += tl.dot(tl.trans(ds.to(q.dtype)), q)
    out = (bh * N_CTX + offs_n[:, None]) * D + offs_d[None, :]
    tl.store(DK + out, (dk * sm_scale).to(DK.dtype.element_ty), mask=col_ok[:, None])
    tl.store(DV + out, dv.to(DV.dtype.element_ty), mask=col_ok[:, None])


class FlashAttentionGQA(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, is_causal, softmax_scale):
        assert is_causal, "only the causal mask"
        B, H_Q, N, D = q.shape
        o = torch.empty_like(q)
        lse = torch.empty((B, H_Q, N), device=q.device, dtype=torch.float32)
        block = 64 if D <= 64 else 32
        strides = [t.stride(i) for t in (q, k, v) for i in range(3)]
        fwd_kernel[(triton.cdiv(N, block), B * H_Q)](
            q, k, v, o, lse, *strides, softmax_scale, N, H_Q, k.shape[1],
            D=D, BLOCK_M=block, BLOCK_N=block)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.softmax_scale, ctx.block, ctx.strides = softmax_scale, block, strides
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, o, lse = ctx.saved_tensors
        do = do.contiguous()
        B, H_Q, N, D = q.shape
        H_KV = k.shape[1]
        dq = torch.empty_like(q)
        dk = torch.empty(k.shape, device=k.device, dtype=k.dtype)
        dv = torch.empty(v.shape, device=v.device, dtype=v.dtype)
        delta = torch.empty_like(lse)
        meta = dict(D=D, BLOCK_M=ctx.block, BLOCK_N=ctx.block)
        tiles, strides = triton.cdiv(N, ctx.block), [*ctx.strides, *do.stride()[:3]]
        delta_kernel[(tiles, B * H_Q)](o, do, delta, *q.stride()[:3], *do.stride()[:3], H_Q, N,
                                       D=D, BLOCK_M=ctx.block)
        dq_kernel[(tiles, B * H_Q)](q, k, v, do, lse, delta, dq, *strides,
                                    ctx.softmax_scale, N, H_Q, H_KV, **meta)
        dkv_kernel[(tiles, B * H_KV)](q, k, v, do, lse, delta, dk, dv, *strides,
                                      ctx.softmax_scale, N, H_Q, H_KV, **meta)
        return dq, dk, dv, None, None


def flash_attention_gqa(q, k, v, is_causal=True, softmax_scale=None):
    if softmax_scale is None:
        softmax_scale = 1.0 / math.sqrt(q.shape[-1])
    return FlashAttentionGQA.apply(q, k, v, is_causal, softmax_scale)
