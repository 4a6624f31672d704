"""Stage 5 with all query heads of a group in one program, interleaved as the rows of its tile."""
# stage: 5
# outcome: pass
import torch
import triton
import triton.language as tl


@triton.jit
def grouped_kernel(
    q, k, v, o, HKV, GROUP, N, scale,
    stride_qb, stride_qh, stride_qn, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd, stride_ob, stride_oh, stride_on,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_R: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """Row r of a key/value head is query r // GROUP of query head kv * GROUP + r % GROUP."""
    b = tl.program_id(0).to(tl.int64) // HKV
    kv = tl.program_id(0).to(tl.int64) % HKV
    first = tl.program_id(1) * BLOCK_R
    r = first + tl.arange(0, BLOCK_R)
    query = r // GROUP
    head = kv * GROUP + r % GROUP
    d = tl.arange(0, BLOCK_D)
    real = (query[:, None] < N) & (d[None, :] < D)
    rows = b * stride_qb + head * stride_qh + query.to(tl.int64) * stride_qn
    q_tile = tl.load(q + rows[:, None] + d[None, :] * stride_qd, mask=real, other=0.0)

    m_i = tl.full([BLOCK_R], float("-inf"), tl.float32)
    l_i = tl.zeros([BLOCK_R], tl.float32)
    acc = tl.zeros([BLOCK_R, BLOCK_D], tl.float32)
    end = tl.minimum((first + BLOCK_R - 1) // GROUP + 1, N)
    for start in range(0, end, BLOCK_N):
        key = start + tl.arange(0, BLOCK_N)
        far = key.to(tl.int64)
        seen = (key[:, None] < N) & (d[None, :] < D)
        k_tile = tl.load(k + b * stride_kb + kv * stride_kh + far[:, None] * stride_kn
                         + d[None, :] * stride_kd, mask=seen, other=0.0)
        v_tile = tl.load(v + b * stride_vb + kv * stride_vh + far[:, None] * stride_vn
                         + d[None, :] * stride_vd, mask=seen, other=0.0)
        s = tl.dot(q_tile, tl.trans(k_tile)) * scale
        s = tl.where(key[None, :] <= query[:, None], s, float("-inf"))
        m_new = tl.maximum(m_i, tl.max(s, 1))
        p = tl.exp(s - m_new[:, None])
        alpha = tl.exp(m_i - m_new)
        acc = acc * alpha[:, None] + tl.dot(p.to(v_tile.dtype), v_tile)
        l_i = l_i * alpha + tl.sum(p, 1)
        m_i = m_new
    rows = b * stride_ob + head * stride_oh + query.to(tl.int64) * stride_on
    tl.store(o + rows[:, None] + d[None, :], (acc / l_i[:, None]).to(o.dtype.element_ty), mask=real)


def flash_attention_forward(q, k, v, is_causal=True):
    (B, HQ, N, D), HKV = q.shape, k.shape[1]
    if not is_causal or HQ % HKV:
        raise ValueError(f"want is_causal, HQ % HKV == 0; got {is_causal}, {HQ}, {HKV}")
    o = torch.empty((B, HQ, N, D), dtype=q.dtype, device=q.device)
    grouped_kernel[(B * HKV, triton.cdiv(HQ // HKV * N, 64))](
        q, k, v, o, HKV, HQ // HKV, N, D**-0.5, *q.stride(), *k.stride(), *v.stride(),
        *o.stride()[:3], D=D, BLOCK_D=max(16, triton.next_power_of_2(D)), BLOCK_R=64, BLOCK_N=32,
        num_stages=2)
    return o
