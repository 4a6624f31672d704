"""Stage 3 in the original's style: o is stored with q's strides, the last one taken as 1."""
# stage: 3
# outcome: pass
import math

import torch
import triton
import triton.language as tl


@triton.jit
def _flash_attention_forward_kernel(
    Q_ptr, K_ptr, V_ptr, O_ptr,
    q_stride_b, q_stride_h, q_stride_s,
    k_stride_b, k_stride_h, k_stride_s,
    v_stride_b, v_stride_h, v_stride_s,
    softmax_scale,
    SEQ_LEN,
    N_HEADS: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
):
    # 1. Which block of queries, of which head, is this program's?
    q_block_idx = tl.program_id(axis=0)
    batch_head_idx = tl.program_id(axis=1)
    batch_idx = batch_head_idx // N_HEADS
    head_idx = batch_head_idx % N_HEADS

    # 2. Running statistics, in SRAM.
    m_i = tl.full([BLOCK_M], -float("inf"), dtype=tl.float32)
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], dtype=tl.float32)

    # 3. The block of queries stays for the whole walk.
    offs_d = tl.arange(0, HEAD_DIM)
    q_offsets = q_block_idx * BLOCK_M + tl.arange(0, BLOCK_M)
    q_ptrs = (Q_ptr + batch_idx * q_stride_b + head_idx * q_stride_h
              + q_offsets[:, None] * q_stride_s + offs_d[None, :])
    q_block = tl.load(q_ptrs, mask=q_offsets[:, None] < SEQ_LEN, other=0.0)

    # exp2 is what the hardware has: log2(e) goes into the scale
    qk_scale = softmax_scale * 1.44269504

    # 4. Walk over the keys.
    for start_n in range(0, SEQ_LEN, BLOCK_N):
        k_offsets = start_n + tl.arange(0, BLOCK_N)
        kv_mask = k_offsets < SEQ_LEN
        k_ptrs = (K_ptr + batch_idx * k_stride_b + head_idx * k_stride_h
                  + k_offsets[None, :] * k_stride_s + offs_d[:, None])
        k_block = tl.load(k_ptrs, mask=kv_mask[None, :], other=0.0)
        s_ij = tl.dot(q_block, k_block) * qk_scale
        s_ij = tl.where(kv_mask[None, :], s_ij, -float("inf"))

        v_ptrs = (V_ptr + batch_idx * v_stride_b + head_idx * v_stride_h
                  + k_offsets[:, None] * v_stride_s + offs_d[None, :])
        v_block = tl.load(v_ptrs, mask=kv_mask[:, None], other=0.0)

        m_new = tl.maximum(m_i, tl.max(s_ij, axis=1))
        correction = tl.exp2(m_i - m_new)
        p_ij = tl.exp2(s_ij - m_new[:, None])
        acc = acc * correction[:, None] + tl.dot(p_ij.to(v_block.dtype), v_block)
        l_i = l_i * correction + tl.sum(p_ij, axis=1)
        m_i = m_new

    # 5. Normalise and write.
    acc = acc / (l_i[:, None] + 1e-8)
    o_ptrs = (O_ptr + batch_idx * q_stride_b + head_idx * q_stride_h
              + q_offsets[:, None] * q_stride_s + offs_d[None, :])
    tl.store(o_ptrs, acc.to(O_ptr.dtype.element_ty), mask=q_offsets[:, None] < SEQ_LEN)


def flash_attention_forward(q, k, v, is_causal=False):
    """Non-causal FlashAttention."""
    batch, n_heads, seq_len, head_dim = q.shape
    assert not is_causal
    o = torch.empty_like(q)
    softmax_scale = 1.0 / math.sqrt(head_dim)
    BLOCK_M, BLOCK_N = 128, 64
    grid = (triton.cdiv(seq_len, BLOCK_M), batch * n_heads)
    _flash_attention_forward_kernel[grid](
        q, k, v, o,
        q.stride(0), q.stride(1), q.stride(2),
        k.stride(0), k.stride(1), k.stride(2),
        v.stride(0), v.stride(1), v.stride(2),
        softmax_scale,
        seq_len,
        N_HEADS=n_heads,
        HEAD_DIM=head_dim,
        BLOCK_M=BLOCK_M,
        BLOCK_N=BLOCK_N,
    )
    return o
