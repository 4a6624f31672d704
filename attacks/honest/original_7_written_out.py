"""Stage 7 in the original's style: sinks, window and diagonal written out, one below the other.

A copy of the loop a phase, all of the inputs made contiguous, minus infinity with a pivot.
"""
# stage: 7
# outcome: pass
import math

import torch
import triton
import triton.language as tl

LOG2_E = 1.4426950408889634


@triton.jit
def swa_sink_fwd(
    q_ptr, k_ptr, v_ptr, o_ptr, qk_scale, SEQ_LEN, WINDOW_SIZE, SINK_SIZE,
    N_Q_HEADS: tl.constexpr, GROUP: tl.constexpr, HEAD_DIM: tl.constexpr,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    q_block = tl.program_id(0)
    bh = tl.program_id(1)
    # contiguous, so batch and head go into one index
    q_base = bh.to(tl.int64) * SEQ_LEN * HEAD_DIM
    kv_base = (bh // GROUP).to(tl.int64) * SEQ_LEN * HEAD_DIM

    rows = q_block * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, HEAD_DIM)
    row_ok = rows[:, None] < SEQ_LEN
    q = tl.load(q_ptr + q_base + rows[:, None] * HEAD_DIM + dims[None, :], mask=row_ok, other=0.0)

    m_i = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, HEAD_DIM], tl.float32)

    diag = q_block * BLOCK_M
    left = tl.maximum(diag - (WINDOW_SIZE - 1), 0)
    left = (left // BLOCK_N) * BLOCK_N
    sink_end = tl.minimum(SINK_SIZE, left)

    # ---- sinks: keys 0 ... sink_end - 1
    for start in range(0, sink_end, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        ok = cols < sink_end
        k = tl.load(k_ptr + kv_base + cols[None, :] * HEAD_DIM + dims[:, None],
                    mask=ok[None, :], other=0.0)
        v = tl.load(v_ptr + kv_base + cols[:, None] * HEAD_DIM + dims[None, :],
                    mask=ok[:, None], other=0.0)
        s = tl.where(ok[None, :], tl.dot(q, k) * qk_scale, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(s, 1))
        p = tl.exp2(s - m_new[:, None])
        alpha = tl.exp2(m_i - m_new)
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v)
        m_i = m_new

    # ---- window, all of it before my first row
    for start in range(left, diag, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        k = tl.load(k_ptr + kv_base + cols[None, :] * HEAD_DIM + dims[:, None],
                    mask=cols[None, :] < SEQ_LEN, other=0.0)
        v = tl.load(v_ptr + kv_base + cols[:, None] * HEAD_DIM + dims[None, :],
                    mask=cols[:, None] < SEQ_LEN, other=0.0)
        near = rows[:, None] - cols[None, :] < WINDOW_SIZE
        seen = near | (cols[None, :] < SINK_SIZE)
        s = tl.where(seen, tl.dot(q, k) * qk_scale, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(s, 1))
        pivot = tl.where(m_new == float("-inf"), 0.0, m_new)
        p = tl.exp2(s - pivot[:, None])
        alpha = tl.exp2(m_i - pivot)
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v)
        m_i = m_new

    # ---- diagonal
    for start in range(diag, diag + BLOCK_M, BLOCK_N):
        cols = start + tl.arange(0, BLOCK_N)
        k = tl.load(k_ptr + kv_base + cols[None, :] * HEAD_DIM + dims[:, None],
                    mask=cols[None, :] < SEQ_LEN, other=0.0)
        v = tl.load(v_ptr + kv_base + cols[:, None] * HEAD_DIM + dims[None, :],
                    mask=cols[:, None] < SEQ_LEN, other=0.0)
        past = rows[:, None] >= cols[None, :]
        near = rows[:, None] < cols[None, :] + WINDOW_SIZE
        seen = past & (near | (cols[None, :] < SINK_SIZE))
        s = tl.where(seen, tl.dot(q, k) * qk_scale, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(s, 1))
        pivot = tl.where(m_new == float("-inf"), 0.0, m_new)
        p = tl.exp2(s - pivot[:, None])
        alpha = tl.exp2(m_i - pivot)
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v)
        m_i = m_new

    o = acc / l_i[:, None]
    tl.store(o_ptr + q_base + rows[:, None] * HEAD_DIM + dims[None, :],
             o.to(o_ptr.dtype.element_ty), mask=row_ok)


def flash_attention_forward(q, k, v, is_causal=True, window_size=128, sink_size=4):
    assert is_causal, "Only causal attention is supported"
    batch, n_q_heads, seq_len, head_dim = q.shape
    group = n_q_heads // k.shape[1]
    assert group * k.shape[1] == n_q_heads
    q, k, v = [t.contiguous() for t in (q, k, v)]
    o = torch.empty_like(q)
    BLOCK_M = BLOCK_N = 64 if head_dim <= 64 else 32
    swa_sink_fwd[(triton.cdiv(seq_len, BLOCK_M), batch * n_q_heads)](
        q, k, v, o, LOG2_E / math.sqrt(head_dim), seq_len, window_size, sink_size,
        N_Q_HEADS=n_q_heads, GROUP=group, HEAD_DIM=head_dim, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N,
    )
    return o
