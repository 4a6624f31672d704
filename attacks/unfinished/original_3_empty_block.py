"""Stage 3 in the original's style: the inner loop loads nothing yet, 0 / 0 is stored."""
# stage: 3
# outcome: wrong, crashed, not_started
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
    softmax_scale, SEQ_LEN,
    N_HEADS: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    q_block_idx = tl.program_id(axis=0)
    batch_idx = tl.program_id(axis=1) // N_HEADS
    head_idx = tl.program_id(axis=1) % N_HEADS
    m_i = tl.full([BLOCK_M], -float("inf"), dtype=tl.float32)
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], dtype=tl.float32)

    q_offsets = q_block_idx * BLOCK_M + tl.arange(0, BLOCK_M)
    q_ptrs = (Q_ptr + batch_idx * q_stride_b + head_idx * q_stride_h
              + q_offsets[:, None] * q_stride_s + tl.arange(0, HEAD_DIM)[None, :])
    q_block = tl.load(q_ptrs, mask=q_offsets[:, None] < SEQ_LEN, other=0.0)
    qk_scale = softmax_scale * 1.44269504

    for start_n in range(0, SEQ_LEN, BLOCK_N):
        k_offsets = start_n + tl.arange(0, BLOCK_N)
        k_ptrs = (K_ptr + batch_idx * k_stride_b + head_idx * k_stride_h
                  + k_offsets[None, :] * k_stride_s + tl.arange(0, HEAD_DIM)[:, None])
        k_block = tl.load(k_ptrs, mask=k_offsets[None, :] < SEQ_LEN, other=0.0)
        s_ij = tl.dot(q_block, k_block) * qk_scale
        # --- STUDENT IMPLEMENTATION REQUIRED HERE ---
        # Implement the online softmax update.

        # --- END OF STUDENT IMPLEMENTATION ---

    acc = acc / l_i[:, None]
    o_ptrs = (O_ptr + batch_idx * q_stride_b + head_idx * q_stride_h
              + q_offsets[:, None] * q_stride_s + tl.arange(0, HEAD_DIM)[None, :])
    tl.store(o_ptrs, acc.to(O_ptr.dtype.element_ty), mask=q_offsets[:, None] < SEQ_LEN)


def flash_attention_forward(q, k, v, is_causal=False):
    batch, n_heads, seq_len, head_dim = q.shape
    o = torch.empty_like(q)
    grid = (triton.cdiv(seq_len, 128), batch * n_heads)
    _flash_attention_forward_kernel[grid](
        q, k, v, o,
        q.stride(0), q.stride(1), q.stride(2),
        k.stride(0), k.stride(1), k.stride(2),
        v.stride(0), v.stride(1), v.stride(2),
        1.0 / math.sqrt(head_dim), seq_len,
        N_HEADS=n_heads, HEAD_DIM=head_dim, BLOCK_M=128, BLOCK_N=64,
    )
    return o
