"""Stage 7 in the original's style: -1e9 for hidden scores, sinks and window as three loops.

A row whose first tiles hide every key counts them, until its own key on the diagonal, walked last,
rescales all that to zero.
"""
# stage: 7
# outcome: pass
import torch
import triton
import triton.language as tl


@triton.jit
def one_block(q, K, V, start_n, offs_m, offs_d, k_stride, v_stride, scale2, N, m_i, l_i, acc,
              W: tl.constexpr, S: tl.constexpr, BLOCK_N: tl.constexpr, SINKS_ONLY: tl.constexpr):
    offs_n = start_n + tl.arange(0, BLOCK_N)
    inside = offs_n < N
    k = tl.load(K + offs_n[:, None] * k_stride + offs_d[None, :], mask=inside[:, None], other=0.0)
    v = tl.load(V + offs_n[:, None] * v_stride + offs_d[None, :], mask=inside[:, None], other=0.0)
    causal = offs_n[None, :] <= offs_m[:, None]
    if SINKS_ONLY:
        mask = causal & (offs_n[None, :] < S)
    else:
        mask = causal & ((offs_m[:, None] - offs_n[None, :] < W) | (offs_n[None, :] < S))
    qk = tl.where(mask & inside[None, :], tl.dot(q, tl.trans(k)) * scale2, -1.0e9)
    m_new = tl.maximum(m_i, tl.max(qk, 1))
    p = tl.exp2(qk - m_new[:, None])
    alpha = tl.exp2(m_i - m_new)
    acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v)
    l_i = l_i * alpha + tl.sum(p, 1)
    return m_new, l_i, acc


@triton.jit
def sink_attention_kernel(
    Q, K, V, Out,
    sqb, sqh, sqs, skb, skh, sks, svb, svh, svs,
    softmax_scale, N, HQ, HKV,
    W: tl.constexpr, S: tl.constexpr, D: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    block = tl.program_id(0)
    b = tl.program_id(1) // HQ
    hq = tl.program_id(1) % HQ
    hkv = hq // (HQ // HKV)
    offs_m = block * BLOCK_M + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, D)
    q = tl.load(Q + b * sqb + hq * sqh + offs_m[:, None] * sqs + offs_d[None, :],
                mask=offs_m[:, None] < N, other=0.0)
    K += b * skb + hkv * skh
    V += b * svb + hkv * svh
    m_i = tl.full([BLOCK_M], -1.0e9, dtype=tl.float32)
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, D], dtype=tl.float32)
    scale2 = softmax_scale * 1.44269504

    q_start = block * BLOCK_M
    window_start = tl.maximum(q_start - W + 1, 0) // BLOCK_N * BLOCK_N

    # Phase 0: the sinks, up to where the window's blocks begin
    for start_n in range(0, tl.minimum(S, window_start), BLOCK_N):
        m_i, l_i, acc = one_block(q, K, V, start_n, offs_m, offs_d, sks, svs, scale2, N,
                                  m_i, l_i, acc, W, S, BLOCK_N, True)
    # Phase 1: the window before the diagonal
    for start_n in range(window_start, q_start, BLOCK_N):
        m_i, l_i, acc = one_block(q, K, V, start_n, offs_m, offs_d, sks, svs, scale2, N,
                                  m_i, l_i, acc, W, S, BLOCK_N, False)
    # Phase 2: the diagonal
    for start_n in range(q_start, tl.minimum(q_start + BLOCK_M, N), BLOCK_N):
        m_i, l_i, acc = one_block(q, K, V, start_n, offs_m, offs_d, sks, svs, scale2, N,
                                  m_i, l_i, acc, W, S, BLOCK_N, False)

    tl.store(Out + b * sqb + hq * sqh + offs_m[:, None] * sqs + offs_d[None, :],
             (acc / l_i[:, None]).to(q.dtype), mask=offs_m[:, None] < N)


def flash_attention_forward(q, k, v, is_causal=True, window_size=128, sink_size=4):
    B, HQ, N, D = q.shape
    HKV = k.shape[1]
    assert is_causal and HQ % HKV == 0
    o = torch.empty_like(q)
    BLOCK_M, BLOCK_N = 64, 32
    sink_attention_kernel[(triton.cdiv(N, BLOCK_M), B * HQ)](
        q, k, v, o,
        q.stride(0), q.stride(1), q.stride(2), k.stride(0), k.stride(1), k.stride(2),
        v.stride(0), v.stride(1), v.stride(2), D ** -0.5, N, HQ, HKV,
        W=window_size, S=sink_size, D=D, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N,
    )
    return o
