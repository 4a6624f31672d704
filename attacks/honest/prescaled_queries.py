"""Stage 6 with q scaled by scale * log2(e) and rounded to its dtype before the product with K."""
# stage: 6
# outcome: pass
import math

import torch
import triton
import triton.language as tl


@triton.jit
def window_kernel(
    Q, K, V, Out, HQ, HKV, N, W, qk_scale,
    q_b, q_h, q_m, q_d, k_b, k_h, k_n, k_d, v_b, v_h, v_n, v_d,
    HEAD: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    off_b = (tl.program_id(0) // HQ).to(tl.int64)
    off_h = (tl.program_id(0) % HQ).to(tl.int64)
    off_kv = off_h // (HQ // HKV)
    start_m = tl.program_id(1) * BLOCK_M
    offs_m = start_m + tl.arange(0, BLOCK_M)
    offs_d = tl.arange(0, BLOCK_D)
    mask_q = (offs_m[:, None] < N) & (offs_d[None, :] < HEAD)
    q = tl.load(Q + off_b * q_b + off_h * q_h + offs_m[:, None].to(tl.int64) * q_m
                + offs_d[None, :] * q_d, mask=mask_q, other=0.0)
    q = (q.to(tl.float32) * qk_scale).to(Q.dtype.element_ty)

    m_i = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    # The oldest key that the tile's first query sees, rounded down to a tile.
    lo = tl.maximum(start_m - W + 1, 0) // BLOCK_N * BLOCK_N
    hi = tl.minimum(start_m + BLOCK_M, N)
    for start_n in range(lo, hi, BLOCK_N):
        offs_n = start_n + tl.arange(0, BLOCK_N)
        mask_n = (offs_n[:, None] < N) & (offs_d[None, :] < HEAD)
        k = tl.load(K + off_b * k_b + off_kv * k_h + offs_n[:, None].to(tl.int64) * k_n
                    + offs_d[None, :] * k_d, mask=mask_n, other=0.0)
        v = tl.load(V + off_b * v_b + off_kv * v_h + offs_n[:, None].to(tl.int64) * v_n
                    + offs_d[None, :] * v_d, mask=mask_n, other=0.0)
        age = offs_m[:, None] - offs_n[None, :]
        s = tl.where((age >= 0) & (age < W), tl.dot(q, tl.trans(k)), float("-inf"))
        m_new = tl.maximum(m_i, tl.max(s, 1))
        # A row whose window begins in a later tile has seen nothing yet.
        pivot = tl.where(m_new == float("-inf"), 0.0, m_new)
        p = tl.exp2(s - pivot[:, None])
        alpha = tl.exp2(m_i - pivot)
        l_i = l_i * alpha + tl.sum(p, 1)
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v)
        m_i = m_new
    offs_o = (tl.program_id(0).to(tl.int64) * N + offs_m[:, None]) * HEAD + offs_d[None, :]
    tl.store(Out + offs_o, (acc / l_i[:, None]).to(Out.dtype.element_ty), mask=mask_q)


def flash_attention_forward(q, k, v, is_causal=True, window_size=128):
    batch, heads, seq_len, head_dim = q.shape
    if not is_causal:
        raise ValueError("want is_causal=True; got False")
    if window_size < 1:
        raise ValueError(f"want window_size >= 1; got {window_size}")
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    window_kernel[(batch * heads, triton.cdiv(seq_len, 32))](
        q, k, v, o, heads, k.shape[1], seq_len, min(window_size, seq_len),
        math.log2(math.e) / head_dim**0.5, *q.stride(), *k.stride(), *v.stride(), HEAD=head_dim,
        BLOCK_D=max(16, triton.next_power_of_2(head_dim)), BLOCK_M=32, BLOCK_N=32)
    return o
