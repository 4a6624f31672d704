"""Stage 4 with the mask as a bias, 0 or minus infinity, made in the kernel and added to scores."""
# stage: 4
# outcome: pass
import math

import torch
import triton
import triton.language as tl


@triton.jit
def causal_bias(i, j):
    """0 where query i sees key j, -inf elsewhere.  Keys past the end come after every query."""
    return tl.where(i[:, None] < j[None, :], float("-inf"), 0.0)


@triton.jit
def load_tile(x, rows, cols, n_rows, n_cols, row_stride, col_stride):
    at = x + rows.to(tl.int64)[:, None] * row_stride + cols.to(tl.int64)[None, :] * col_stride
    return tl.load(at, mask=(rows < n_rows)[:, None] & (cols < n_cols)[None, :], other=0.0)


@triton.jit
def kernel(
    Q, K, V, OUT, H, N, D, scale,
    stride_qb, stride_qh, stride_qm, stride_qk,
    stride_kb, stride_kh, stride_kn, stride_kk,
    stride_vb, stride_vh, stride_vn, stride_vk,
    stride_ob, stride_oh, stride_om, stride_ok,
    BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr,
):
    # Long rows first: the last query tile has the most keys to walk.
    start_m = (tl.num_programs(1) - 1 - tl.program_id(1)) * BLOCK_M
    b, h = (tl.program_id(0) // H).to(tl.int64), (tl.program_id(0) % H).to(tl.int64)
    i, d = start_m + tl.arange(0, BLOCK_M), tl.arange(0, BLOCK_D)
    q = load_tile(Q + b * stride_qb + h * stride_qh, i, d, N, D, stride_qm, stride_qk)
    m = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    total = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    for start_n in range(0, start_m + BLOCK_M, BLOCK_N):
        j = start_n + tl.arange(0, BLOCK_N)
        k = load_tile(K + b * stride_kb + h * stride_kh, j, d, N, D, stride_kn, stride_kk)
        v = load_tile(V + b * stride_vb + h * stride_vh, j, d, N, D, stride_vn, stride_vk)
        s = tl.dot(q, tl.trans(k)) * scale + causal_bias(i, j)
        # Every query sees key 0, which the first tile holds: the maximum is finite.
        m_new = tl.maximum(m, tl.max(s, 1))
        alpha = tl.math.exp(m - m_new)
        p = tl.math.exp(s - m_new[:, None])
        acc = tl.dot(p.to(v.dtype), v, acc=acc * alpha[:, None])
        total = total * alpha + tl.sum(p, 1)
        m = m_new
    out = OUT + b * stride_ob + h * stride_oh + i.to(tl.int64)[:, None] * stride_om
    tl.store(out + d[None, :] * stride_ok, (acc / total[:, None]).to(OUT.dtype.element_ty),
             mask=(i < N)[:, None] & (d < D)[None, :])


def flash_attention_forward(q, k, v, is_causal=True):
    if not is_causal:
        raise ValueError("want is_causal=True; got False")
    B, H, N, D = q.shape
    o = torch.zeros(B, H, N, D, dtype=q.dtype, device=q.device)
    grid = (B * H, triton.cdiv(N, 64))
    kernel[grid](q, k, v, o, H, N, D, 1 / math.sqrt(D),
                 *q.stride(), *k.stride(), *v.stride(), *o.stride(),
                 BLOCK_M=64, BLOCK_N=16, BLOCK_D=max(16, triton.next_power_of_2(D)))
    return o
