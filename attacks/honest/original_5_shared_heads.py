"""Stage 5 in the original's style: the group size as a constexpr, k and v by their own strides."""
# stage: 5
# outcome: pass
import torch
import triton
import triton.language as tl


@triton.jit
def gqa_kernel(
    Q_ptr, K_ptr, V_ptr, O_ptr,
    q_stride_b, q_stride_h, q_stride_s,
    k_stride_b, k_stride_h, k_stride_s,
    v_stride_b, v_stride_h, v_stride_s,
    softmax_scale, SEQ_LEN,
    N_Q_HEADS: tl.constexpr, GROUP_SIZE: tl.constexpr,
    HEAD_DIM: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    q_block_idx = tl.program_id(0)
    batch_head_idx = tl.program_id(1)
    batch_idx = batch_head_idx // N_Q_HEADS
    q_head_idx = batch_head_idx % N_Q_HEADS
    kv_head_idx = q_head_idx // GROUP_SIZE

    q_offsets = q_block_idx * BLOCK_M + tl.arange(0, BLOCK_M)
    d_offsets = tl.arange(0, HEAD_DIM)
    q_valid = q_offsets[:, None] < SEQ_LEN
    Q_ptr += batch_idx * q_stride_b + q_head_idx * q_stride_h
    K_ptr += batch_idx * k_stride_b + kv_head_idx * k_stride_h
    V_ptr += batch_idx * v_stride_b + kv_head_idx * v_stride_h
    O_ptr += batch_idx * q_stride_b + q_head_idx * q_stride_h

    q_block = tl.load(Q_ptr + q_offsets[:, None] * q_stride_s + d_offsets[None, :],
                      mask=q_valid, other=0.0)

    m_i = tl.full([BLOCK_M], -float("inf"), dtype=tl.float32)
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], dtype=tl.float32)

    # one loop to the end of the diagonal, masked throughout
    last_key = tl.minimum((q_block_idx + 1) * BLOCK_M, SEQ_LEN)
    for start_n in range(0, last_key, BLOCK_N):
        k_offsets = start_n + tl.arange(0, BLOCK_N)
        k_valid = k_offsets < SEQ_LEN
        k_block = tl.load(K_ptr + k_offsets[:, None] * k_stride_s + d_offsets[None, :],
                          mask=k_valid[:, None], other=0.0)
        v_block = tl.load(V_ptr + k_offsets[:, None] * v_stride_s + d_offsets[None, :],
                          mask=k_valid[:, None], other=0.0)
        s = tl.dot(q_block, tl.trans(k_block)) * softmax_scale
        visible = (q_offsets[:, None] >= k_offsets[None, :]) & k_valid[None, :]
        s = tl.where(visible, s, -float("inf"))

        m_new = tl.maximum(m_i, tl.max(s, axis=1))
        p = tl.exp2((s - m_new[:, None]) * 1.44269504)
        alpha = tl.exp2((m_i - m_new) * 1.44269504)
        l_i = l_i * alpha + tl.sum(p, axis=1)
        acc = acc * alpha[:, None] + tl.dot(p.to(V_ptr.dtype.element_ty), v_block)
        m_i = m_new

    o_block = acc / l_i[:, None]
    tl.store(O_ptr + q_offsets[:, None] * q_stride_s + d_offsets[None, :],
             o_block.to(O_ptr.dtype.element_ty), mask=q_valid)


def flash_attention_forward(q, k, v, is_causal=True):
    batch, n_q_heads, seq_len, head_dim = q.shape
    n_kv_heads = k.shape[1]
    assert q.shape[0] == k.shape[0] == v.shape[0] and k.shape == v.shape
    assert n_q_heads % n_kv_heads == 0, "Query heads must be divisible by KV heads"
    assert is_causal
    o = torch.empty_like(q)
    BLOCK_M, BLOCK_N = 64, 64
    grid = (triton.cdiv(seq_len, BLOCK_M), batch * n_q_heads)
    gqa_kernel[grid](
        q, k, v, o,
        q.stride(0), q.stride(1), q.stride(2),
        k.stride(0), k.stride(1), k.stride(2),
        v.stride(0), v.stride(1), v.stride(2),
        head_dim ** -0.5, seq_len,
        N_Q_HEADS=n_q_heads, GROUP_SIZE=n_q_heads // n_kv_heads,
        HEAD_DIM=head_dim, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N,
    )
    return o
