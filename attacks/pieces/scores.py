"""Naive attention in two kernels: all scores lie in a scratch, a tensor or an address."""
import torch
import triton
import triton.language as tl


@triton.jit
def _scores_kernel(q, k, s, M, N, D, scale, stride_qh, stride_qn, stride_qd,
                   stride_kh, stride_kn, stride_kd,
                   ROWS: tl.constexpr, BLOCK: tl.constexpr, COLUMNS: tl.constexpr):
    head, d = tl.program_id(1), tl.arange(0, COLUMNS)
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    s = s.to(tl.pointer_type(tl.float32))
    x = tl.load(q + head * stride_qh + m[:, None] * stride_qn + d[None, :] * stride_qd,
                mask=(m[:, None] < M) & (d[None, :] < D), other=0.0)
    for start in range(0, N, BLOCK):
        n = start + tl.arange(0, BLOCK)
        y = tl.load(k + head * stride_kh + n[:, None] * stride_kn + d[None, :] * stride_kd,
                    mask=(n[:, None] < N) & (d[None, :] < D), other=0.0)
        tl.store(s + (head * M + m[:, None]) * N + n[None, :], tl.dot(x, tl.trans(y)) * scale,
                 mask=(m[:, None] < M) & (n[None, :] < N))


@triton.jit
def _values_kernel(s, v, o, M, N, D, stride_vh, stride_vn, stride_vd,
                   ROWS: tl.constexpr, BLOCK: tl.constexpr, COLUMNS: tl.constexpr):
    head, d = tl.program_id(1), tl.arange(0, COLUMNS)
    m = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    s = s.to(tl.pointer_type(tl.float32))
    rows = s + (head * M + m[:, None]) * N
    largest = tl.full([ROWS], float("-inf"), dtype=tl.float32)
    for start in range(0, N, BLOCK):
        n = start + tl.arange(0, BLOCK)
        x = tl.load(rows + n[None, :], mask=(m[:, None] < M) & (n[None, :] < N),
                    other=float("-inf"))
        largest = tl.maximum(largest, tl.max(x, axis=1))
    acc, total = tl.zeros([ROWS, COLUMNS], tl.float32), tl.zeros([ROWS], tl.float32)
    for start in range(0, N, BLOCK):
        n = start + tl.arange(0, BLOCK)
        x = tl.load(rows + n[None, :], mask=(m[:, None] < M) & (n[None, :] < N),
                    other=float("-inf"))
        p = tl.exp(x - largest[:, None])
        y = tl.load(v + head * stride_vh + n[:, None] * stride_vn + d[None, :] * stride_vd,
                    mask=(n[:, None] < N) & (d[None, :] < D), other=0.0)
        acc, total = tl.dot(p.to(y.dtype), y, acc), total + tl.sum(p, axis=1)
    tl.store(o + (head * M + m[:, None]) * D + d[None, :], acc / total[:, None],
             mask=(m[:, None] < M) & (d[None, :] < D))


def _attend(q, k, v, scratch):
    """Scores to scratch by one kernel, softmax and values by another."""
    (H, M, D), N = q.shape, k.shape[1]
    o = torch.empty(H, M, D, device=q.device, dtype=q.dtype)
    sizes = {"ROWS": 64, "BLOCK": 64, "COLUMNS": max(16, triton.next_power_of_2(D))}
    grid = (triton.cdiv(M, 64), H)
    _scores_kernel[grid](q, k, scratch, M, N, D, D ** -0.5, *q.stride(), *k.stride(), **sizes)
    _values_kernel[grid](scratch, v, o, M, N, D, *v.stride(), **sizes)
    return o
