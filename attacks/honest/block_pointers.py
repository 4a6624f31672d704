"""Stage 3 with block pointers: tl.make_block_ptr, tl.advance and boundary checks alone."""
# stage: 3
# outcome: pass
import torch
import triton
import triton.language as tl


@triton.jit
def attention_kernel(
    Q, K, V, Out, H, N,
    q_b, q_h, q_n, q_d, k_b, k_h, k_n, k_d, v_b, v_h, v_n, v_d, o_b, o_h, o_n, o_d, scale,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    b = (tl.program_id(0) // H).to(tl.int64)
    h = (tl.program_id(0) % H).to(tl.int64)
    start = tl.program_id(1) * BLOCK_M
    q_block = tl.make_block_ptr(
        base=Q + b * q_b + h * q_h, shape=(N, D), strides=(q_n, q_d), offsets=(start, 0),
        block_shape=(BLOCK_M, BLOCK_D), order=(1, 0))
    k_block = tl.make_block_ptr(  # transposed by its strides
        base=K + b * k_b + h * k_h, shape=(D, N), strides=(k_d, k_n), offsets=(0, 0),
        block_shape=(BLOCK_D, BLOCK_N), order=(0, 1))
    v_block = tl.make_block_ptr(
        base=V + b * v_b + h * v_h, shape=(N, D), strides=(v_n, v_d), offsets=(0, 0),
        block_shape=(BLOCK_N, BLOCK_D), order=(1, 0))
    o_block = tl.make_block_ptr(
        base=Out + b * o_b + h * o_h, shape=(N, D), strides=(o_n, o_d), offsets=(start, 0),
        block_shape=(BLOCK_M, BLOCK_D), order=(1, 0))

    q = tl.load(q_block, boundary_check=(0, 1), padding_option="zero")
    m_i = tl.full((BLOCK_M,), float("-inf"), tl.float32)
    l_i = tl.zeros((BLOCK_M,), tl.float32)
    acc = tl.zeros((BLOCK_M, BLOCK_D), tl.float32)
    for j in range(0, N, BLOCK_N):
        k = tl.load(k_block, boundary_check=(0, 1), padding_option="zero")
        s = tl.dot(q, k) * (scale * 1.4426950408889634)
        s += tl.where(j + tl.arange(0, BLOCK_N) < N, 0.0, float("-inf"))[None, :]
        m_new = tl.maximum(m_i, tl.max(s, 1))
        alpha = tl.exp2(m_i - m_new)
        p = tl.exp2(s - m_new[:, None])
        l_i = l_i * alpha + tl.sum(p, 1)
        v = tl.load(v_block, boundary_check=(0, 1), padding_option="zero")
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v)
        m_i = m_new
        k_block = tl.advance(k_block, (0, BLOCK_N))
        v_block = tl.advance(v_block, (BLOCK_N, 0))
    o = acc / l_i[:, None]
    tl.store(o_block, o.to(Out.dtype.element_ty), boundary_check=(0, 1))


def flash_attention_forward(q, k, v, is_causal=False):
    if is_causal:
        raise ValueError("want is_causal=False; got True")
    B, H, N, D = q.shape
    o = torch.empty_like(q)  # keeps the strides of a transposed q, which the kernel is told
    grid = (B * H, triton.cdiv(N, 32))
    attention_kernel[grid](
        q, k, v, o, H, N, *q.stride(), *k.stride(), *v.stride(), *o.stride(), D**-0.5,
        D=D, BLOCK_D=max(16, triton.next_power_of_2(D)), BLOCK_M=32, BLOCK_N=32)
    return o
