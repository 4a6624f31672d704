"""Stage 9 whose forward goes along diagonals, without tl.dot: step t pairs query i, key i - t."""
# stage: 9
# base: problem_9.py
# outcome: pass
# options: --timeout 180
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


class _Diagonals(FlashSWDAWithSinkFunction):
    @staticmethod
    def forward(ctx, q, k, v, window_size, sink_size, is_causal, scale, sink_logits):
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        (B, HQ, N, D), width = q.shape, triton.next_power_of_2(q.shape[3])
        first, rows = 0 if is_causal else 1 - N, min(1024 // width, 64)
        o, lse = torch.empty_like(q), torch.empty(q.shape[:3], device=q.device)
        forward_kernel[(B * HQ, triton.cdiv(N, rows))](
            q, k, v, sink_logits, o, lse, HQ, HQ // k.shape[1], N, first, window_size, sink_size,
            scale, D=D, W=width, T=rows, STEPS=STEPS, LOGITS=sink_logits is not None, num_warps=8)
        ctx.save_for_backward(q, k, v, sink_logits, o, lse)
        ctx.options = window_size, sink_size, scale, is_causal
        return o


FlashSWDAWithSinkFunction = _Diagonals
