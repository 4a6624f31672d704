"""Stage 4 in two passes: one kernel finds each row's log-sum-exp, the next one sums the values."""
# stage: 4
# outcome: pass
import torch
import triton
import triton.language as tl


@triton.jit
def scores(q, k_head, j, d, N, i, sk_n, sk_d, scale, D: tl.constexpr):
    k = tl.load(k_head + j[None, :] * sk_n + d[:, None] * sk_d,
                mask=(j[None, :] < N) & (d[:, None] < D), other=0.0)
    return tl.where(j[None, :] <= i[:, None], tl.dot(q, k) * scale, float("-inf"))


@triton.jit
def lse_kernel(q_ptr, k_ptr, lse_ptr, H, N, scale, sq_b, sq_h, sq_n, sq_d, sk_b, sk_h, sk_n, sk_d,
               D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    head = tl.program_id(0).to(tl.int64)
    b, h = head // H, head % H
    i = tl.program_id(1).to(tl.int64) * BM + tl.arange(0, BM)
    d = tl.arange(0, DP).to(tl.int64)
    q = tl.load(q_ptr + b * sq_b + h * sq_h + i[:, None] * sq_n + d[None, :] * sq_d,
                mask=(i[:, None] < N) & (d[None, :] < D), other=0.0)
    lse = tl.full([BM], float("-inf"), tl.float32)
    for start in range(0, tl.program_id(1) * BM + BM, BN):
        j = start + tl.arange(0, BN).to(tl.int64)
        s = scores(q, k_ptr + b * sk_b + h * sk_h, j, d, N, i, sk_n, sk_d, scale, D)
        # log(exp(lse) + sum(exp(s))), without a sum of its own to carry
        top = tl.maximum(lse, tl.max(s, 1))
        lse = top + tl.log(tl.exp(lse - top) + tl.sum(tl.exp(s - top[:, None]), 1))
    tl.store(lse_ptr + head * N + i, lse, mask=i < N)


@triton.jit
def values_kernel(q_ptr, k_ptr, v_ptr, lse_ptr, o_ptr, H, N, scale,
                  sq_b, sq_h, sq_n, sq_d, sk_b, sk_h, sk_n, sk_d, sv_b, sv_h, sv_n, sv_d,
                  D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    head = tl.program_id(0).to(tl.int64)
    b, h = head // H, head % H
    i = tl.program_id(1).to(tl.int64) * BM + tl.arange(0, BM)
    d = tl.arange(0, DP).to(tl.int64)
    inside = (i[:, None] < N) & (d[None, :] < D)
    q = tl.load(q_ptr + b * sq_b + h * sq_h + i[:, None] * sq_n + d[None, :] * sq_d,
                mask=inside, other=0.0)
    lse = tl.load(lse_ptr + head * N + i, mask=i < N, other=0.0)
    o = tl.zeros([BM, DP], tl.float32)
    for start in range(0, tl.program_id(1) * BM + BM, BN):
        j = start + tl.arange(0, BN).to(tl.int64)
        s = scores(q, k_ptr + b * sk_b + h * sk_h, j, d, N, i, sk_n, sk_d, scale, D)
        v = tl.load(v_ptr + b * sv_b + h * sv_h + j[:, None] * sv_n + d[None, :] * sv_d,
                    mask=(j[:, None] < N) & (d[None, :] < D), other=0.0)
        o += tl.dot(tl.exp(s - lse[:, None]).to(v.dtype), v)
    tl.store(o_ptr + (head * N + i[:, None]) * D + d[None, :], o.to(o_ptr.dtype.element_ty),
             mask=inside)


def flash_attention_forward(q, k, v, is_causal=True):
    B, H, N, D = q.shape
    lse = torch.empty(B * H, N, dtype=torch.float32, device=q.device)
    o = torch.empty(B, H, N, D, dtype=q.dtype, device=q.device)
    tiles = dict(D=D, DP=max(16, triton.next_power_of_2(D)), BM=64, BN=16)
    grid = (B * H, triton.cdiv(N, 64))
    lse_kernel[grid](q, k, lse, H, N, D**-0.5, *q.stride(), *k.stride(), **tiles)
    values_kernel[grid](
        q, k, v, lse, o, H, N, D**-0.5, *q.stride(), *k.stride(), *v.stride(), **tiles)
    return o
