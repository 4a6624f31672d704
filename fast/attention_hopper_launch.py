"""What surrounds the backward: sums before it, dq after it, launches."""

import functools

import torch
import triton
import triton.language as tl
from triton.experimental.gluon import language as gl
from triton.experimental.gluon.nvidia.hopper import TensorDescriptor as GluonDescriptor
from triton.tools.tensor_descriptor import TensorDescriptor

from fast import hopper
from fast.attention_hopper_backward import _bwd_kernel


# ------------------------------------------------------------------ kernels
@triton.jit(do_not_specialize=["N", "rows"])
def _prepare_kernel(
    o_ptr, do_ptr, lse_ptr, lse_log2_ptr, delta_ptr, dq_ptr, N, HQ, rows,
    stride_dob, stride_doh, stride_don, D: tl.constexpr,
):
    """delta = rowsum(o * do); lse in base 2; zeros where dq will be summed.  Padded to 64 rows."""
    bh = (tl.program_id(0) // (rows // 64)).to(tl.int64)
    r = tl.program_id(0) % (rows // 64) * 64 + tl.arange(0, 64)
    d = tl.arange(0, D)
    inside = r[:, None] < N
    at = (bh * N + r)[:, None] * D + d[None, :]
    o = tl.load(o_ptr + at, mask=inside, other=0.0).to(tl.float32)
    at_do = bh // HQ * stride_dob + bh % HQ * stride_doh + r.to(tl.int64) * stride_don
    do = tl.load(do_ptr + at_do[:, None] + d[None, :], mask=inside, other=0.0).to(tl.float32)
    lse = tl.load(lse_ptr + bh * N + r, mask=r < N, other=float("inf"))
    tl.store(lse_log2_ptr + bh * rows + r, lse * 1.4426950408889634, mask=r < rows)
    tl.store(delta_ptr + bh * rows + r, tl.sum(o * do, 1), mask=r < rows)
    if dq_ptr is not None:
        tl.store(dq_ptr + at, tl.zeros_like(o), mask=inside)


@triton.jit
def _finish_kernel(sum_ptr, dq_ptr, scale, numel, BLOCK: tl.constexpr):
    """dq from its sums."""
    i = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    dq = tl.load(sum_ptr + i, mask=i < numel) * scale
    tl.store(dq_ptr + i, dq.to(dq_ptr.dtype.element_ty), mask=i < numel)


@triton.jit(do_not_specialize=["N", "HQ", "group", "rows", "window"])
def _dq_kernel(
    q_in, k_in, v_in, do_in, lse_log2_ptr, delta_ptr, dq_ptr, N, HQ, group, rows, scale, window,
    D: tl.constexpr, CAUSAL: tl.constexpr, WINDOWED: tl.constexpr,
):
    """Fill 64 rows of dq: that of kernels.py without its tricks.  The same bits every time."""
    blocks = tl.cdiv(N, 64)
    start_m = (blocks - 1 - tl.program_id(0) % blocks) * 64
    bh = tl.program_id(0) // blocks
    b, h = bh // HQ, bh % HQ
    query = start_m + tl.arange(0, 64)
    q = q_in.load([b, h, start_m, 0]).reshape(64, D)
    do = do_in.load([b, h, start_m, 0]).reshape(64, D)
    lse_log2 = tl.load(lse_log2_ptr + bh.to(tl.int64) * rows + query)
    delta = tl.load(delta_ptr + bh.to(tl.int64) * rows + query)
    dq = tl.zeros([64, D], tl.float32)
    start = tl.maximum(start_m - window + 1, 0) // 64 * 64 if WINDOWED else 0
    end = tl.minimum(start_m + 64, N) if CAUSAL else N
    for start_n in range(start, end, 64):
        k = k_in.load([b, h // group, start_n, 0]).reshape(64, D)
        v = v_in.load([b, h // group, start_n, 0]).reshape(64, D)
        key = start_n + tl.arange(0, 64)
        keep = key[None, :] <= query[:, None] if CAUSAL else key[None, :] < N
        if WINDOWED:
            keep &= query[:, None] - key[None, :] < window
        s = tl.where(keep, tl.dot(q, tl.trans(k)) * (scale * 1.4426950408889634), float("-inf"))
        p = tl.math.exp2(s - lse_log2[:, None])
        ds = p * (tl.dot(do, tl.trans(v)) - delta[:, None])
        dq = tl.dot(ds.to(k.dtype), k, dq)
    at = (bh.to(tl.int64) * N + query)[:, None] * D + tl.arange(0, D)[None, :]
    tl.store(dq_ptr + at, (dq * scale).to(dq_ptr.dtype.element_ty), mask=query[:, None] < N)


# ------------------------------------------------------------------- launch
def backward(
    q, k, v, o, lse, do, is_causal, scale, window_size=None, deterministic=False, **options
):
    """-> dq, dk, dv, delta.  q, o, do (B, HQ, N, D); k, v (B, HKV, N, D); lse (B, HQ, N)."""
    B, HQ, N, D = q.shape
    HKV = k.shape[1]
    rows = -(-N // 64) * 64  # lse_log2 and delta of a head are padded: 64 of them are one copy
    q, k, v, do = (hopper.copyable(x) for x in (q, k, v, do))
    new = functools.partial(torch.empty, device=q.device)
    delta = new(B, HQ, rows, dtype=torch.float32)
    lse_log2 = torch.empty_like(delta)
    dq = new(B, HQ, N, D, dtype=q.dtype)
    dk, dv = new(B, HKV, N, D, dtype=q.dtype), new(B, HKV, N, D, dtype=q.dtype)
    dq_sum = None if deterministic else new(B * HQ, N, D, dtype=torch.float32)
    mask = dict(CAUSAL=is_causal, WINDOWED=window_size is not None)
    # Heads side by side.  4 against 2 and 8: causal 1.34, 1.39, 1.36 ms; Llama-3 5.15, 4.98, 5.19.
    options = dict(GROUP=4 if HQ == HKV else 2) | options
    with torch.cuda.device(q.device):
        _prepare_kernel[(rows // 64 * B * HQ,)](
            o, do, lse, lse_log2, delta, dq_sum, N, HQ, rows, *do.stride()[:3], D=D, num_warps=4,
        )
        _bwd_kernel[(B * HKV * -(-N // 128),)](
            *(hopper.describe(x, 64) for x in (q, k, v, do)),
            *(_describe_line(x) for x in (lse_log2, delta)), _describe_sums(dq_sum),
            *(hopper.describe(x, 64) for x in (dk, dv)),
            N, HKV, HQ // HKV, B * HKV, scale, window_size or 0, **mask, RAGGED=N % 128 != 0,
            WITH_DQ=not deterministic, num_warps=4, maxnreg=168, **options,
        )
        if deterministic:
            tiles = (TensorDescriptor(x, x.shape, x.stride(), [1, 1, 64, D]) for x in (q, k, v, do))
            _dq_kernel[(rows // 64 * B * HQ,)](
                *tiles, lse_log2, delta, dq, N, HQ, HQ // HKV, rows, scale, window_size or 0, D=D,
                **mask, num_warps=4, num_stages=3,
            )
        else:
            _finish_kernel[(-(-q.numel() // 4096),)](
                dq_sum, dq, scale, q.numel(), BLOCK=4096, num_warps=8
            )
    return dq, dk, dv, delta[:, :, :N]


def _describe_line(x):
    """x, contiguous, as a source of 64 numbers in a row."""
    return GluonDescriptor(x, [x.numel()], [1], [64], gl.NVMMASharedLayout(0, 32, rank=1))


def _describe_sums(x):
    """x (heads, N, D) as a target of halves of 64 rows; None where nothing is added up."""
    if x is None:
        return None
    layout = gl.NVMMASharedLayout(128, 32, rank=3)
    block = [1, 64, x.shape[2] // 2]
    return GluonDescriptor(x, list(x.shape), list(x.stride()), block, layout)
