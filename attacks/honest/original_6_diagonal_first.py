"""Stage 6 in the original's style: the diagonal first, which gives every row its maximum.

Window and group as constexprs, tiles of 128 x 64, the loop written out twice.
"""
# stage: 6
# outcome: pass
import math

import torch
import triton
import triton.language as tl


@triton.jit
def swa_forward_kernel(
    Q_ptr, K_ptr, V_ptr, O_ptr,
    q_stride_b, q_stride_h, q_stride_s,
    k_stride_b, k_stride_h, k_stride_s,
    v_stride_b, v_stride_h, v_stride_s,
    softmax_scale, SEQ_LEN,
    N_Q_HEADS: tl.constexpr, N_KV_HEADS: tl.constexpr, WINDOW_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    q_block_idx = tl.program_id(axis=0)
    batch_head_idx = tl.program_id(axis=1)
    batch_idx = batch_head_idx // N_Q_HEADS
    q_head_idx = batch_head_idx % N_Q_HEADS
    kv_head_idx = q_head_idx // (N_Q_HEADS // N_KV_HEADS)

    q_offsets = q_block_idx * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_DIM)
    q_block = tl.load(
        Q_ptr + batch_idx * q_stride_b + q_head_idx * q_stride_h
        + (q_offsets[:, None] * q_stride_s + dims[None, :]),
        mask=q_offsets[:, None] < SEQ_LEN, other=0.0)
    K_start = K_ptr + batch_idx * k_stride_b + kv_head_idx * k_stride_h
    V_start = V_ptr + batch_idx * v_stride_b + kv_head_idx * v_stride_h

    m_i = tl.full([BLOCK_M], -float("inf"), dtype=tl.float32)
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], dtype=tl.float32)
    qk_scale = softmax_scale * 1.44269504

    # --- the diagonal ---
    diag_start = q_block_idx * BLOCK_M
    for start_n in range(diag_start, tl.minimum(diag_start + BLOCK_M, SEQ_LEN), BLOCK_N):
        k_offsets = start_n + tl.arange(0, BLOCK_N)
        k_block = tl.load(K_start + k_offsets[None, :] * k_stride_s + dims[:, None],
                          mask=k_offsets[None, :] < SEQ_LEN, other=0.0)
        v_block = tl.load(V_start + k_offsets[:, None] * v_stride_s + dims[None, :],
                          mask=k_offsets[:, None] < SEQ_LEN, other=0.0)
        s_ij = tl.dot(q_block, k_block) * qk_scale
        distance = q_offsets[:, None] - k_offsets[None, :]
        s_ij = tl.where((distance >= 0) & (distance < WINDOW_SIZE), s_ij, -float("inf"))
        m_new = tl.maximum(m_i, tl.max(s_ij, axis=1))
        # rows that have not met their own key yet
        m_safe = tl.where(m_new == -float("inf"), 0.0, m_new)
        p_ij = tl.exp2(s_ij - m_safe[:, None])
        l_rescale = tl.exp2(m_i - m_safe)
        l_i = l_i * l_rescale + tl.sum(p_ij, axis=1)
        acc = acc * l_rescale[:, None] + tl.dot(p_ij.to(v_block.dtype), v_block)
        m_i = m_new

    # --- what the window reaches to the left of it ---
    window_start = tl.maximum(0, diag_start - WINDOW_SIZE + 1) // BLOCK_N * BLOCK_N
    for start_n in range(window_start, diag_start, BLOCK_N):
        k_offsets = start_n + tl.arange(0, BLOCK_N)
        k_block = tl.load(K_start + k_offsets[None, :] * k_stride_s + dims[:, None])
        v_block = tl.load(V_start + k_offsets[:, None] * v_stride_s + dims[None, :])
        s_ij = tl.dot(q_block, k_block) * qk_scale
        in_window = q_offsets[:, None] - k_offsets[None, :] < WINDOW_SIZE
        s_ij = tl.where(in_window, s_ij, -float("inf"))
        m_new = tl.maximum(m_i, tl.max(s_ij, axis=1))
        p_ij = tl.exp2(s_ij - m_new[:, None])
        l_rescale = tl.exp2(m_i - m_new)
        l_i = l_i * l_rescale + tl.sum(p_ij, axis=1)
        acc = acc * l_rescale[:, None] + tl.dot(p_ij.to(v_block.dtype), v_block)
        m_i = m_new

    acc = acc / l_i[:, None]
    tl.store(
        O_ptr + batch_idx * q_stride_b + q_head_idx * q_stride_h
        + (q_offsets[:, None] * q_stride_s + dims[None, :]),
        acc.to(O_ptr.dtype.element_ty), mask=q_offsets[:, None] < SEQ_LEN)


def flash_attention_forward(q, k, v, is_causal=True, window_size=128):
    batch, n_q_heads, seq_len, head_dim = q.shape
    n_kv_heads = k.shape[1]
    assert n_q_heads % n_kv_heads == 0
    assert is_causal, "sliding window is causal here"
    o = torch.empty_like(q)
    BLOCK_M, BLOCK_N = 128, 64
    grid = (triton.cdiv(seq_len, BLOCK_M), batch * n_q_heads)
    swa_forward_kernel[grid](
        q, k, v, o,
        q.stride(0), q.stride(1), q.stride(2),
        k.stride(0), k.stride(1), k.stride(2),
        v.stride(0), v.stride(1), v.stride(2),
        1.0 / math.sqrt(head_dim), seq_len,
        N_Q_HEADS=n_q_heads, N_KV_HEADS=n_kv_heads, WINDOW_SIZE=window_size,
        HEAD_DIM=head_dim, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N,
    )
    return o
