"""Stage 9 in the original's style: dk and dv a query head in float32, summed over the group.

No sink logits: its signature ends with scale.  o and dq are stored with q's strides, and delta
comes from PyTorch.
"""
# stage: 9
# outcome: pass
import torch
import triton
import triton.language as tl


@triton.jit
def _visible(rows, cols, N, W, S, CAUSAL: tl.constexpr):
    mask = (rows < N) & (cols < N)
    if CAUSAL:
        mask = mask & (rows >= cols) & ((rows - cols < W) | (cols < S))
    return mask


@triton.jit
def _forward(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, HQ, q_stride_b, q_stride_h, q_stride_s, sm_scale, N, W, S,
    GROUP: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    start_m, head = tl.program_id(0) * BLOCK_M, tl.program_id(1).to(tl.int64)
    rows = start_m + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, D)
    q_at = (head // HQ * q_stride_b + head % HQ * q_stride_h + rows[:, None] * q_stride_s
            + dims[None, :])
    k_ptr += head // GROUP * N * D
    v_ptr += head // GROUP * N * D
    q = tl.load(q_ptr + q_at, mask=rows[:, None] < N, other=0.0)
    m = tl.full([BLOCK_M], float("-inf"), tl.float32)
    l = tl.zeros([BLOCK_M], tl.float32)  # noqa: E741
    acc = tl.zeros([BLOCK_M, D], tl.float32)
    lo, hi, sink_hi = 0, N, 0
    if CAUSAL:
        lo = tl.maximum(start_m - W + 1, 0) // BLOCK_N * BLOCK_N
        hi = tl.minimum(start_m + BLOCK_M, N)
        sink_hi = tl.minimum(tl.cdiv(S, BLOCK_N) * BLOCK_N, lo)
    # one loop for both: first the blocks with sinks, then those of the window
    n_sink = sink_hi // BLOCK_N
    n_window = tl.cdiv(hi - lo, BLOCK_N)
    for i in range(0, n_sink + n_window):
        start_n = tl.where(i < n_sink, i * BLOCK_N, lo + (i - n_sink) * BLOCK_N)
        cols = start_n + tl.arange(0, BLOCK_N)
        at = cols[:, None] * D + dims[None, :]
        k = tl.load(k_ptr + at, mask=cols[:, None] < N, other=0.0)
        v = tl.load(v_ptr + at, mask=cols[:, None] < N, other=0.0)
        s = tl.dot(q, tl.trans(k)) * (sm_scale * 1.44269504)
        s = tl.where(_visible(rows[:, None], cols[None, :], N, W, S, CAUSAL), s, float("-inf"))
        m_new = tl.maximum(m, tl.max(s, 1))
        m_use = tl.where(m_new > float("-inf"), m_new, 0.0)
        p = tl.exp2(s - m_use[:, None])
        alpha = tl.exp2(m - m_use)
        l = l * alpha + tl.sum(p, 1)  # noqa: E741
        acc = acc * alpha[:, None] + tl.dot(p.to(v.dtype), v)
        m = m_new
    inside = rows < N
    l = tl.where(inside, l, 1.0)  # noqa: E741
    tl.store(o_ptr + q_at, (acc / l[:, None]).to(o_ptr.dtype.element_ty), mask=inside[:, None])
    tl.store(lse_ptr + head * N + rows, m + tl.log2(l), mask=inside)  # in base 2


@triton.jit
def _backward_dq(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dq_ptr, HQ, q_stride_b, q_stride_h, q_stride_s,
    sm_scale, N, W, S,
    GROUP: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    start_m, head = tl.program_id(0) * BLOCK_M, tl.program_id(1).to(tl.int64)
    rows = start_m + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, D)
    inside = rows < N
    q_at = (head // HQ * q_stride_b + head % HQ * q_stride_h + rows[:, None] * q_stride_s
            + dims[None, :])
    q = tl.load(q_ptr + q_at, mask=inside[:, None], other=0.0)
    do = tl.load(do_ptr + head * N * D + rows[:, None] * D + dims[None, :],
                 mask=inside[:, None], other=0.0)
    lse = tl.load(lse_ptr + head * N + rows, mask=inside, other=0.0)
    delta = tl.load(delta_ptr + head * N + rows, mask=inside, other=0.0)
    k_ptr += head // GROUP * N * D
    v_ptr += head // GROUP * N * D
    dq = tl.zeros([BLOCK_M, D], tl.float32)
    lo, hi, sink_hi = 0, N, 0
    if CAUSAL:
        lo = tl.maximum(start_m - W + 1, 0) // BLOCK_N * BLOCK_N
        hi = tl.minimum(start_m + BLOCK_M, N)
        sink_hi = tl.minimum(tl.cdiv(S, BLOCK_N) * BLOCK_N, lo)
    n_sink = sink_hi // BLOCK_N
    n_window = tl.cdiv(hi - lo, BLOCK_N)
    for i in range(0, n_sink + n_window):
        start_n = tl.where(i < n_sink, i * BLOCK_N, lo + (i - n_sink) * BLOCK_N)
        cols = start_n + tl.arange(0, BLOCK_N)
        at = cols[:, None] * D + dims[None, :]
        k = tl.load(k_ptr + at, mask=cols[:, None] < N, other=0.0)
        v = tl.load(v_ptr + at, mask=cols[:, None] < N, other=0.0)
        s = tl.dot(q, tl.trans(k)) * (sm_scale * 1.44269504) - lse[:, None]
        seen = _visible(rows[:, None], cols[None, :], N, W, S, CAUSAL)
        p = tl.where(seen, tl.exp2(tl.where(seen, s, 0.0)), 0.0)
        ds = p * (tl.dot(do, tl.trans(v)) - delta[:, None])
        dq += tl.dot(ds.to(k.dtype), k)
    tl.store(dq_ptr + q_at, (dq * sm_scale).to(dq_ptr.dtype.element_ty), mask=inside[:, None])


@triton.jit
def _backward_dkdv(
    q_ptr, k_ptr, v_ptr, do_ptr, lse_ptr, delta_ptr, dk_ptr, dv_ptr, HQ, q_stride_b, q_stride_h,
    q_stride_s, sm_scale, N, W, S,
    GROUP: tl.constexpr, D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """dk and dv of one query head; the wrapper adds the heads of a group."""
    start_n, head = tl.program_id(0) * BLOCK_N, tl.program_id(1).to(tl.int64)
    cols = start_n + tl.arange(0, BLOCK_N)
    dims = tl.arange(0, D)
    inside = cols < N
    kv_at = head // GROUP * N * D + cols[:, None] * D + dims[None, :]
    k = tl.load(k_ptr + kv_at, mask=inside[:, None], other=0.0)
    v = tl.load(v_ptr + kv_at, mask=inside[:, None], other=0.0)
    q_ptr += head // HQ * q_stride_b + head % HQ * q_stride_h
    do_ptr += head * N * D
    dk = tl.zeros([BLOCK_N, D], tl.float32)
    dv = tl.zeros([BLOCK_N, D], tl.float32)
    lo, hi = 0, N
    if CAUSAL:
        lo = start_n // BLOCK_M * BLOCK_M
        if start_n >= S:  # no sink among these keys: the window ends the walk
            hi = tl.minimum(start_n + BLOCK_N - 1 + W, N)
    for start_m in range(lo, hi, BLOCK_M):
        rows = start_m + tl.arange(0, BLOCK_M)
        q = tl.load(q_ptr + rows[:, None] * q_stride_s + dims[None, :], mask=rows[:, None] < N,
                    other=0.0)
        do = tl.load(do_ptr + rows[:, None] * D + dims[None, :], mask=rows[:, None] < N, other=0.0)
        lse = tl.load(lse_ptr + head * N + rows, mask=rows < N, other=0.0)
        delta = tl.load(delta_ptr + head * N + rows, mask=rows < N, other=0.0)
        s_t = tl.dot(k, tl.trans(q)) * (sm_scale * 1.44269504) - lse[None, :]
        seen = _visible(rows[None, :], cols[:, None], N, W, S, CAUSAL)
        p_t = tl.where(seen, tl.exp2(tl.where(seen, s_t, 0.0)), 0.0)
        dv += tl.dot(p_t.to(do.dtype), do)
        ds_t = p_t * (tl.dot(v, tl.trans(do)) - delta[None, :])
        dk += tl.dot(ds_t.to(q.dtype), q)
    at = head * N * D + cols[:, None] * D + dims[None, :]
    tl.store(dk_ptr + at, dk * sm_scale, mask=inside[:, None])
    tl.store(dv_ptr + at, dv, mask=inside[:, None])


class SWDAWithSink(torch.autograd.Function):

    @staticmethod
    def forward(ctx, q, k, v, window_size, sink_size, is_causal, scale):
        k, v = k.contiguous(), v.contiguous()
        B, HQ, N, D = q.shape
        o = torch.empty_like(q)
        lse = torch.empty(B, HQ, N, device=q.device, dtype=torch.float32)
        ctx.options = (HQ, *q.stride()[:3], scale, N, window_size, sink_size)
        ctx.meta = dict(GROUP=HQ // k.shape[1], D=D, BLOCK_M=32, BLOCK_N=32, CAUSAL=is_causal)
        _forward[(triton.cdiv(N, 32), B * HQ)](q, k, v, o, lse, *ctx.options, **ctx.meta)
        ctx.save_for_backward(q, k, v, o, lse)
        return o

    @staticmethod
    def backward(ctx, grad_out):
        q, k, v, o, lse = ctx.saved_tensors
        B, HQ, N, D = q.shape
        do = grad_out.contiguous()
        delta = (do.float() * o.float()).sum(dim=-1)
        dq = torch.empty_like(q)
        dk_h = torch.empty(B, HQ, N, D, device=q.device, dtype=torch.float32)
        dv_h = torch.empty_like(dk_h)
        grid = (triton.cdiv(N, 32), B * HQ)
        _backward_dq[grid](q, k, v, do, lse, delta, dq, *ctx.options, **ctx.meta)
        _backward_dkdv[grid](q, k, v, do, lse, delta, dk_h, dv_h, *ctx.options, **ctx.meta)
        shape = (B, k.shape[1], ctx.meta["GROUP"], N, D)
        dk = dk_h.view(shape).sum(dim=2).to(k.dtype)
        dv = dv_h.view(shape).sum(dim=2).to(v.dtype)
        return dq, dk, dv, None, None, None, None


def flash_swda_with_sink(q, k, v, window_size, sink_size=0, is_causal=True, scale=None):
    if scale is None:
        scale = q.shape[-1] ** -0.5
    if window_size is None:
        window_size = q.shape[2]
    return SWDAWithSink.apply(q, k, v, window_size, sink_size, is_causal, scale)
