"""Stage 4 in the original's style: the loop in a jit function of its own, a phase number each."""
# stage: 4
# outcome: pass
import math

import torch
import triton
import triton.language as tl


@triton.jit
def causal_inner(acc, l_i, m_i, q, k_base, v_base, stride_kn, stride_vn, lo, hi, offs_m, qk_scale,
                 N_CTX, HEAD_DIM: tl.constexpr, BLOCK_N: tl.constexpr, ON_DIAGONAL: tl.constexpr):
    offs_d = tl.arange(0, HEAD_DIM)
    for start_n in range(lo, hi, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        k = tl.load(k_base + offs_n[None, :] * stride_kn + offs_d[:, None],
                    mask=offs_n[None, :] < N_CTX, other=0.0)
        qk = tl.dot(q, k)
        qk *= qk_scale
        if ON_DIAGONAL:
            causal_mask = offs_m[:, None] >= offs_n[None, :]
            qk = tl.where(causal_mask, qk, float("-inf"))
        m_ij = tl.maximum(m_i, tl.max(qk, axis=1))
        p = tl.exp2(qk - m_ij[:, None])
        alpha = tl.exp2(m_i - m_ij)
        l_i = l_i * alpha + tl.sum(p, axis=1)
        v = tl.load(v_base + offs_n[:, None] * stride_vn + offs_d[None, :],
                    mask=offs_n[:, None] < N_CTX, other=0.0)
        acc = acc * alpha[:, None]
        acc = tl.dot(p.to(v.dtype), v, acc)
        m_i = m_ij
    return acc, l_i, m_i


@triton.jit
def causal_kernel(
    Q_ptr, K_ptr, V_ptr, O_ptr,
    stride_qb, stride_qh, stride_qn,
    stride_kb, stride_kh, stride_kn,
    stride_vb, stride_vh, stride_vn,
    softmax_scale, N_CTX, H,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    pid_m = tl.program_id(0)
    b, h = tl.program_id(1) // H, tl.program_id(1) % H

    offs_m = pid_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, HEAD_DIM)
    q = tl.load(Q_ptr + b * stride_qb + h * stride_qh + offs_m[:, None] * stride_qn
                + offs_d[None, :], mask=offs_m[:, None] < N_CTX, other=0.0)
    k_base = K_ptr + b * stride_kb + h * stride_kh
    v_base = V_ptr + b * stride_vb + h * stride_vh

    acc = tl.zeros([BLOCK_M, HEAD_DIM], dtype=tl.float32)
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32)
    m_i = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    qk_scale = softmax_scale * 1.44269504

    # Phase 1: all keys before the block of queries, none of them masked
    acc, l_i, m_i = causal_inner(acc, l_i, m_i, q, k_base, v_base, stride_kn, stride_vn,
                                 0, pid_m * BLOCK_M, offs_m, qk_scale, N_CTX,
                                 HEAD_DIM, BLOCK_N, False)
    # Phase 2: the diagonal
    diag_end = tl.minimum((pid_m + 1) * BLOCK_M, N_CTX)
    acc, l_i, m_i = causal_inner(acc, l_i, m_i, q, k_base, v_base, stride_kn, stride_vn,
                                 pid_m * BLOCK_M, diag_end, offs_m, qk_scale, N_CTX,
                                 HEAD_DIM, BLOCK_N, True)

    acc = acc / l_i[:, None]
    tl.store(O_ptr + b * stride_qb + h * stride_qh + offs_m[:, None] * stride_qn
             + offs_d[None, :], acc.to(O_ptr.type.element_ty), mask=offs_m[:, None] < N_CTX)


def flash_attention_forward(q, k, v, is_causal=True):
    assert is_causal, "this kernel is causal"
    B, H, N, D = q.shape
    o = torch.empty_like(q)
    BLOCK_M, BLOCK_N = 128, 64
    causal_kernel[(triton.cdiv(N, BLOCK_M), B * H)](
        q, k, v, o,
        *q.stride()[:3], *k.stride()[:3], *v.stride()[:3],
        1.0 / math.sqrt(D), N, H,
        HEAD_DIM=D, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, num_warps=4, num_stages=2,
    )
    return o
