"""Stage 9 along diagonals, without tl.dot: step t pairs every query i of a tile with key i - t."""
# stage: 9
# outcome: pass
# options: --timeout 180
import torch
import triton
import triton.language as tl

STEPS = 16  # diagonals, or sinks, at a time


@triton.jit
def gather(x, row, seen, D: tl.constexpr, W: tl.constexpr):
    """Rows of a contiguous head, each entry of row (T, STEPS) its own -> (T, STEPS, W) float32."""
    d = tl.arange(0, W)[None, None, :]
    return tl.load(x + row[:, :, None] * D + d, mask=seen[:, :, None] & (d < D), other=0.0).to(
        tl.float32)


@triton.jit
def load_rows(x, row, N, D: tl.constexpr, W: tl.constexpr):
    d = tl.arange(0, W)[None, :]
    return tl.load(x + row * D + d, mask=(row < N) & (d < D), other=0.0).to(tl.float32)


@triton.jit
def products(rows, gathered):
    """(T, W), (T, STEPS, W) -> the scalar products (T, STEPS)."""
    return tl.sum(rows[:, None, :] * gathered, 2)


@triton.jit
def partners(i, step, N, first, last, sinks, WINDOW: tl.constexpr):
    """Keys that queries i (T, 1) meet at these steps (1, STEPS), and which of them they see."""
    if WINDOW:
        key = i - step
        seen = (step < last) & (key >= 0) & (key < N) & (i < N)
    else:
        key = tl.zeros_like(i) + step
        seen = (key < sinks) & (i - key >= last) & (i < N)
    return key, seen


@triton.jit
def forward_kernel(q, k, v, logits, o, lse, HQ, G, N, first, last, sinks, scale,
                   D: tl.constexpr, W: tl.constexpr, T: tl.constexpr, STEPS: tl.constexpr,
                   LOGITS: tl.constexpr):
    """Query i sees keys i - t with first <= t < last, and sinks further away."""
    bh, start = tl.program_id(0).to(tl.int64), tl.program_id(1) * T
    i, step = start + tl.arange(0, T)[:, None], tl.arange(0, STEPS)[None, :]
    k_head, v_head = k + bh // G * N * D, v + bh // G * N * D
    qt = load_rows(q + bh * N * D, i, N, D, W) * scale
    acc, total = tl.zeros([T, W], tl.float32), tl.zeros([T, 1], tl.float32)
    m = tl.full([T, 1], float("-inf"), tl.float32)
    if LOGITS:  # a key that carries no value
        m = tl.zeros([T, 1], tl.float32) + tl.load(logits + bh % HQ).to(tl.float32)
        total = tl.full([T, 1], 1.0, tl.float32)
    for window in tl.static_range(2):
        begin = first if window else 0
        end = tl.minimum(last, start + T) if window else tl.minimum(sinks, start + T - last)
        for t in range(begin, end, STEPS):
            key, seen = partners(i, t + step, N, first, last, sinks, window)
            s = tl.where(seen, products(qt, gather(k_head, key, seen, D, W)), float("-inf"))
            m_new = tl.maximum(m, tl.max(s, 1, keep_dims=True))
            pivot = tl.where(m_new == float("-inf"), 0.0, m_new)
            p, alpha = tl.exp(s - pivot), tl.exp(m - pivot)
            acc = acc * alpha + tl.sum(p[:, :, None] * gather(v_head, key, seen, D, W), 1)
            total = total * alpha + tl.sum(p, 1, keep_dims=True)
            m = m_new
    d = tl.arange(0, W)[None, :]
    tl.store(lse + bh * N + i, m + tl.log(total), mask=i < N)
    tl.store(o + (bh * N + i) * D + d, (acc / total).to(o.dtype.element_ty), mask=(i < N) & (d < D))


@triton.jit
def dq_kernel(q, k, v, do, logits, lse, delta, dq, dlogits, HQ, G, N, first, last, sinks, scale,
              D: tl.constexpr, W: tl.constexpr, T: tl.constexpr, STEPS: tl.constexpr,
              LOGITS: tl.constexpr):
    bh, start = tl.program_id(0).to(tl.int64), tl.program_id(1) * T
    i, step = start + tl.arange(0, T)[:, None], tl.arange(0, STEPS)[None, :]
    k_head, v_head = k + bh // G * N * D, v + bh // G * N * D
    qt, dot = load_rows(q + bh * N * D, i, N, D, W), load_rows(do + bh * N * D, i, N, D, W)
    li = tl.load(lse + bh * N + i, mask=i < N, other=float("inf"))
    di = tl.load(delta + bh * N + i, mask=i < N, other=0.0)
    grad = tl.zeros([T, W], tl.float32)
    for window in tl.static_range(2):
        begin = first if window else 0
        end = tl.minimum(last, start + T) if window else tl.minimum(sinks, start + T - last)
        for t in range(begin, end, STEPS):
            key, seen = partners(i, t + step, N, first, last, sinks, window)
            kt = gather(k_head, key, seen, D, W)
            p = tl.where(seen, tl.exp(products(qt, kt) * scale - li), 0.0)
            ds = p * (products(dot, gather(v_head, key, seen, D, W)) - di)
            grad += tl.sum(ds[:, :, None] * kt, 1)
    d = tl.arange(0, W)[None, :]
    tl.store(dq + (bh * N + i) * D + d, (grad * scale).to(dq.dtype.element_ty),
             mask=(i < N) & (d < D))
    if LOGITS:
        share = -tl.exp(tl.load(logits + bh % HQ).to(tl.float32) - li) * di
        tl.store(dlogits + bh * N + i, share, mask=i < N)


@triton.jit
def dkdv_kernel(q, k, v, do, lse, delta, dk, dv, HQ, G, N, first, last, sinks, scale,
                D: tl.constexpr, W: tl.constexpr, T: tl.constexpr, STEPS: tl.constexpr):
    """The same diagonals seen from the keys: step t pairs key j with query j + t."""
    bkv, start = tl.program_id(0).to(tl.int64), tl.program_id(1) * T
    j, step = start + tl.arange(0, T)[:, None], tl.arange(0, STEPS)[None, :]
    kt, vt = load_rows(k + bkv * N * D, j, N, D, W), load_rows(v + bkv * N * D, j, N, D, W)
    dkt, dvt = tl.zeros([T, W], tl.float32), tl.zeros([T, W], tl.float32)
    end = tl.minimum(last, N - start)
    if start < sinks:  # every later query sees a sink
        end = N - start
    for g in range(G):
        head = bkv * G + g
        for t0 in range(first, end, STEPS):
            i, t = j + t0 + step, t0 + step
            seen = (i >= 0) & (i < N) & (j < N) & ((t < last) | (j < sinks))
            qt = gather(q + head * N * D, i, seen, D, W)
            dot = gather(do + head * N * D, i, seen, D, W)
            li = tl.load(lse + head * N + i, mask=seen, other=float("inf"))
            di = tl.load(delta + head * N + i, mask=seen, other=0.0)
            p = tl.exp(products(kt, qt) * scale - li)
            ds = p * (products(vt, dot) - di)
            dvt += tl.sum(p[:, :, None] * dot, 1)
            dkt += tl.sum(ds[:, :, None] * qt, 1)
    d = tl.arange(0, W)[None, :]
    at, mask = (bkv * N + j) * D + d, (j < N) & (d < D)
    tl.store(dk + at, (dkt * scale).to(dk.dtype.element_ty), mask=mask)
    tl.store(dv + at, dvt.to(dv.dtype.element_ty), mask=mask)


class Diagonals(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, logits, first, last, sinks, scale):
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        B, HQ, N, D = q.shape
        width = triton.next_power_of_2(D)
        ctx.sizes = HQ, HQ // k.shape[1], N, first, last, sinks, scale
        ctx.tile = dict(D=D, W=width, T=min(1024 // width, 64), STEPS=STEPS, num_warps=8)
        o, lse = torch.empty_like(q), torch.empty(q.shape[:3], device=q.device)
        forward_kernel[(B * HQ, triton.cdiv(N, ctx.tile["T"]))](
            q, k, v, logits, o, lse, *ctx.sizes, **ctx.tile, LOGITS=logits is not None)
        ctx.save_for_backward(q, k, v, logits, o, lse)
        return o

    @staticmethod
    def backward(ctx, do):
        q, k, v, logits, o, lse = ctx.saved_tensors
        delta = (do.float() * o.float()).sum(-1)
        do, tiles = do.contiguous(), triton.cdiv(q.shape[2], ctx.tile["T"])
        dq, dk, dv, dlogits = (torch.empty_like(x) for x in (q, k, v, lse))
        dq_kernel[(q.shape[0] * q.shape[1], tiles)](
            q, k, v, do, logits, lse, delta, dq, dlogits, *ctx.sizes, **ctx.tile,
            LOGITS=logits is not None)
        dkdv_kernel[(k.shape[0] * k.shape[1], tiles)](
            q, k, v, do, lse, delta, dk, dv, *ctx.sizes, **ctx.tile)
        dlogits = None if logits is None else dlogits.sum((0, 2)).to(logits.dtype)
        return dq, dk, dv, dlogits, None, None, None, None


def flash_swda_with_sink(q, k, v, window_size, sink_size=0, is_causal=True, scale=None, *,
                         sink_logits=None):
    if window_size is not None and (window_size < 1 or not is_causal):
        raise ValueError(f"want a window >= 1 and a causal mask; got {window_size}, {is_causal}")
    N, D = q.shape[2:]
    first, last = 0 if is_causal else 1 - N, N if window_size is None else min(window_size, N)
    logits = None if sink_logits is None else sink_logits.contiguous()
    scale = D**-0.5 if scale is None else scale
    return Diagonals.apply(q, k, v, logits, first, last, min(sink_size, N), scale)
