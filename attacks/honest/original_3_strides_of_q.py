"""Stage 3 in the original's style: inputs made contiguous, one set of strides for all, natural exp.

The sum gets an epsilon, and the grid one axis a head and one a batch entry.
"""
# stage: 3
# outcome: pass
import torch
import triton
import triton.language as tl


@triton.jit
def attn_fwd(Q, K, V, Out, sm_scale, stride_z, stride_h, stride_m, N_CTX,
             D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    start_m = tl.program_id(0)
    base = tl.program_id(2).to(tl.int64) * stride_z + tl.program_id(1).to(tl.int64) * stride_h

    offs_m = start_m * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    offs_d = tl.arange(0, D)

    q = tl.load(Q + base + offs_m[:, None] * stride_m + offs_d[None, :],
                mask=offs_m[:, None] < N_CTX, other=0.0)
    k_ptrs = K + base + offs_n[:, None] * stride_m + offs_d[None, :]
    v_ptrs = V + base + offs_n[:, None] * stride_m + offs_d[None, :]

    m_i = tl.zeros([BLOCK_M], tl.float32) - float("inf")
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, D], tl.float32)

    for n in range(0, tl.cdiv(N_CTX, BLOCK_N)):
        in_range = (n * BLOCK_N + offs_n) < N_CTX
        k = tl.load(k_ptrs, mask=in_range[:, None], other=0.0)
        v = tl.load(v_ptrs, mask=in_range[:, None], other=0.0)
        qk = tl.zeros([BLOCK_M, BLOCK_N], tl.float32)
        qk += tl.dot(q, tl.trans(k))
        qk = qk * sm_scale + tl.where(in_range[None, :], 0.0, float("-inf"))

        m_ij = tl.max(qk, 1)
        m_next = tl.maximum(m_i, m_ij)
        alpha = tl.exp(m_i - m_next)
        p = tl.exp(qk - m_next[:, None])
        l_i = alpha * l_i + tl.sum(p, 1)
        acc = acc * alpha[:, None]
        acc += tl.dot(p.to(v.dtype), v)
        m_i = m_next

        k_ptrs += BLOCK_N * stride_m
        v_ptrs += BLOCK_N * stride_m

    acc = acc / (l_i + 1e-6)[:, None]
    tl.store(Out + base + offs_m[:, None] * stride_m + offs_d[None, :],
             acc.to(q.dtype), mask=offs_m[:, None] < N_CTX)


def flash_attention_forward(q, k, v, is_causal=False):
    if is_causal:
        raise NotImplementedError("causal comes in problem 4")
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    o = torch.empty_like(q)
    Z, H, N_CTX, D = q.shape
    BLOCK = 64
    attn_fwd[(triton.cdiv(N_CTX, BLOCK), H, Z)](
        q, k, v, o, D ** -0.5, q.stride(0), q.stride(1), q.stride(2), N_CTX,
        D=D, BLOCK_M=BLOCK, BLOCK_N=BLOCK,
    )
    return o
