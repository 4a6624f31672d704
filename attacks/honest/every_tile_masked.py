"""Stage 7 that walks all key tiles with one mask, autotuned, its maximum in natural units.

It is right, and most tiles it visits hold no visible key: needless work, for fewer points.
"""
# stage: 7
# outcome: pass
# says: Needless Work
import torch
import triton
import triton.language as tl

LOG2E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.autotune(
    configs=[triton.Config({"BLOCK_M": 64, "BLOCK_N": 32}, num_warps=4, num_stages=2),
             triton.Config({"BLOCK_M": 32, "BLOCK_N": 64}, num_warps=4, num_stages=2)],
    key=["D"],
)
@triton.jit
def attend(
    q_ptr, k_ptr, v_ptr, o_ptr, HQ, group, N, window, sinks, scale,
    q_sb, q_sh, q_sn, q_sd, k_sb, k_sh, k_sn, k_sd, v_sb, v_sh, v_sn, v_sd, o_sb, o_sh, o_sn, o_sd,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    b = tl.program_id(0).to(tl.int64) // HQ
    h = tl.program_id(0).to(tl.int64) % HQ
    m = tl.program_id(1) * BLOCK_M + tl.arange(0, BLOCK_M)
    n = tl.arange(0, BLOCK_N)
    d = tl.arange(0, BLOCK_D)
    m_ok, d_ok = m < N, d < D
    q_ptr += b * q_sb + h * q_sh + m[:, None].to(tl.int64) * q_sn + d[None, :] * q_sd
    k_ptr += b * k_sb + h // group * k_sh + d[:, None] * k_sd
    v_ptr += b * v_sb + h // group * v_sh + d[None, :] * v_sd
    o_ptr += b * o_sb + h * o_sh + m[:, None].to(tl.int64) * o_sn + d[None, :] * o_sd
    q = tl.load(q_ptr, mask=m_ok[:, None] & d_ok[None, :], other=0.0)
    row_max = tl.full([BLOCK_M], float("-inf"), tl.float32)
    row_sum = tl.zeros([BLOCK_M], tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], tl.float32)
    for start in range(0, N, BLOCK_N):
        key = start + n
        far, ok = key.to(tl.int64), key < N
        k = tl.load(k_ptr + far[None, :] * k_sn, mask=d_ok[:, None] & ok[None, :], other=0.0)
        s = tl.dot(q, k) * scale
        causal = m[:, None] >= key[None, :]
        near = m[:, None] - key[None, :] < window
        s = tl.where(causal & (near | (key < sinks)[None, :]), s, float("-inf"))
        seen = tl.maximum(row_max, tl.max(s, 1))
        base = tl.where(seen == float("-inf"), 0.0, seen)
        p = tl.exp2((s - base[:, None]) * LOG2E)
        fade = tl.exp2((row_max - base) * LOG2E)
        v = tl.load(v_ptr + far[:, None] * v_sn, mask=ok[:, None] & d_ok[None, :], other=0.0)
        acc = acc * fade[:, None]
        acc += tl.dot(p.to(v.dtype), v)
        row_sum = row_sum * fade + tl.sum(p, 1)
        row_max = seen
    o = acc / row_sum[:, None]
    tl.store(o_ptr, o.to(o_ptr.dtype.element_ty), mask=m_ok[:, None] & d_ok[None, :])


def flash_attention_forward(q, k, v, is_causal=True, window_size=128, sink_size=4):
    assert is_causal and window_size >= 1 and sink_size >= 0
    B, HQ, N, D = q.shape
    assert HQ % k.shape[1] == 0, "the query heads must be groups of the key heads"
    o = torch.empty_like(q)
    attend[lambda meta: (B * HQ, triton.cdiv(N, meta["BLOCK_M"]))](
        q, k, v, o, HQ, HQ // k.shape[1], N, min(window_size, N), min(sink_size, N), D**-0.5,
        *q.stride(), *k.stride(), *v.stride(), *o.stride(),
        D=D, BLOCK_D=max(16, triton.next_power_of_2(D)))
    return o
