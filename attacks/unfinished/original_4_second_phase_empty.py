"""Stage 4 in the original's style: the tiles before the diagonal are walked, the diagonal not."""
# stage: 4
# outcome: wrong, crashed, not_started
import torch
import triton
import triton.language as tl


@triton.jit
def causal_kernel(Q_ptr, K_ptr, V_ptr, O_ptr, stride_b, stride_h, stride_s, softmax_scale, SEQ_LEN,
                  N_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
                  BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    q_block_idx = tl.program_id(0)
    base = tl.program_id(1) // N_HEADS * stride_b + tl.program_id(1) % N_HEADS * stride_h
    m_i = tl.full([BLOCK_M], -float("inf"), dtype=tl.float32)
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], dtype=tl.float32)
    dims = tl.arange(0, HEAD_DIM)
    q_offsets = q_block_idx * BLOCK_M + tl.arange(0, BLOCK_M)
    q = tl.load(Q_ptr + base + q_offsets[:, None] * stride_s + dims[None, :],
                mask=q_offsets[:, None] < SEQ_LEN, other=0.0)

    # --- Phase 1: Off-Diagonal Blocks ---
    for start_n in range(0, q_block_idx * BLOCK_M, BLOCK_N):
        k_offsets = start_n + tl.arange(0, BLOCK_N)
        at = base + k_offsets[:, None] * stride_s + dims[None, :]
        k = tl.load(K_ptr + at, mask=k_offsets[:, None] < SEQ_LEN, other=0.0)
        v = tl.load(V_ptr + at, mask=k_offsets[:, None] < SEQ_LEN, other=0.0)
        s = tl.dot(q, tl.trans(k)) * (softmax_scale * 1.44269504)
        m_new = tl.maximum(m_i, tl.max(s, 1))
        p = tl.exp2(s - m_new[:, None])
        alpha = tl.exp2(m_i - m_new)
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v)
        l_i = l_i * alpha + tl.sum(p, 1)
        m_i = m_new

    # --- Phase 2: Diagonal Blocks ---
    diag_start = q_block_idx * BLOCK_M
    for start_n in range(diag_start, (q_block_idx + 1) * BLOCK_M, BLOCK_N):
        # --- STUDENT IMPLEMENTATION REQUIRED HERE ---
        pass
        # --- END OF STUDENT IMPLEMENTATION ---

    # rows that saw nothing are left at zero
    l_i = tl.where(l_i == 0.0, 1.0, l_i)
    tl.store(O_ptr + base + q_offsets[:, None] * stride_s + dims[None, :],
             (acc / l_i[:, None]).to(q.dtype), mask=q_offsets[:, None] < SEQ_LEN)


def flash_attention_forward(q, k, v, is_causal=True):
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    B, H, N, D = q.shape
    o = torch.empty_like(q)
    causal_kernel[(triton.cdiv(N, 64), B * H)](
        q, k, v, o, q.stride(0), q.stride(1), q.stride(2), D ** -0.5, N,
        N_HEADS=H, HEAD_DIM=D, BLOCK_M=64, BLOCK_N=64)
    return o
