"""Stage 8 with kernels for delta, dq, dk with dv; jit helpers in jit helpers, classes around."""
# stage: 8
# outcome: pass
import torch
import triton
import triton.language as tl

LOG2E = tl.constexpr(1.4426950408889634)


@triton.jit
def inside(row, col, N, D: tl.constexpr):
    return (row[:, None] < N) & (col[None, :] < D)


@triton.jit
def addresses(base, row, col, stride_n, stride_d):
    return base + row[:, None].to(tl.int64) * stride_n + col[None, :].to(tl.int64) * stride_d


@triton.jit
def get(base, row, N, stride_n, stride_d, D: tl.constexpr, BD: tl.constexpr):
    col = tl.arange(0, BD)
    return tl.load(addresses(base, row, col, stride_n, stride_d), inside(row, col, N, D), 0.0)


@triton.jit
def put(base, tile, row, N, D: tl.constexpr, BD: tl.constexpr):
    col = tl.arange(0, BD)
    tile = tile.to(base.dtype.element_ty)
    tl.store(addresses(base, row, col, D, 1), tile, inside(row, col, N, D))


@triton.jit
def log2_weights(q, k, i, j, N, scale, CAUSAL: tl.constexpr):
    s = tl.dot(q, tl.trans(k)) * (scale * LOG2E)
    keep = (j < N)[None, :] & (i < N)[:, None]
    if CAUSAL:
        keep &= i[:, None] >= j[None, :]
    return tl.where(keep, s, float("-inf"))


@triton.jit
def d_scores(p, do, v, delta):
    return p * (tl.dot(do, tl.trans(v)) - delta[:, None])


@triton.jit
def fwd(q, qb, qh, qn, qd, k, kb, kh, kn, kd, v, vb, vh, vn, vd, o, lse_log2, HQ, G, N, scale,
        D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr,
        CAUSAL: tl.constexpr):
    bh = tl.program_id(0).to(tl.int64)
    q += bh // HQ * qb + bh % HQ * qh
    k += bh // HQ * kb + bh % HQ // G * kh
    v += bh // HQ * vb + bh % HQ // G * vh
    i = tl.program_id(1) * BM + tl.arange(0, BM)
    q_tile = get(q, i, N, qn, qd, D, BD)
    m = tl.full([BM], -1e38, tl.float32)  # finite: rows past N see no key, and are not stored
    total = tl.zeros([BM], tl.float32)
    acc = tl.zeros([BM, BD], tl.float32)
    for start in range(0, tl.program_id(1) * BM + BM if CAUSAL else N, BN):
        j = start + tl.arange(0, BN)
        s = log2_weights(q_tile, get(k, j, N, kn, kd, D, BD), i, j, N, scale, CAUSAL)
        m_new = tl.maximum(m, tl.max(s, 1))
        p, alpha = tl.exp2(s - m_new[:, None]), tl.exp2(m - m_new)
        v_tile = get(v, j, N, vn, vd, D, BD)
        acc = acc * alpha[:, None] + tl.dot(p.to(v_tile.dtype), v_tile)
        total = total * alpha + tl.sum(p, 1)
        m = m_new
    put(o + bh * N * D, acc / total[:, None], i, N, D, BD)
    tl.store(lse_log2 + bh * N + i, m + tl.log2(total), mask=i < N)


@triton.jit
def preprocess(o, do, dob, doh, don, dod, delta, HQ, N,
               D: tl.constexpr, BD: tl.constexpr, BM: tl.constexpr):
    bh = tl.program_id(0).to(tl.int64)
    i = tl.program_id(1) * BM + tl.arange(0, BM)
    do_tile = get(do + bh // HQ * dob + bh % HQ * doh, i, N, don, dod, D, BD).to(tl.float32)
    o_tile = get(o + bh * N * D, i, N, D, 1, D, BD).to(tl.float32)
    tl.store(delta + bh * N + i, tl.sum(do_tile * o_tile, 1), mask=i < N)


@triton.jit
def dq_kernel(q, qb, qh, qn, qd, k, kb, kh, kn, kd, v, vb, vh, vn, vd, do, dob, doh, don, dod,
              lse_log2, delta, dq, HQ, G, N, scale, D: tl.constexpr, BD: tl.constexpr,
              BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr):
    bh = tl.program_id(0).to(tl.int64)
    b, h = bh // HQ, bh % HQ
    k += b * kb + h // G * kh
    v += b * vb + h // G * vh
    i = tl.program_id(1) * BM + tl.arange(0, BM)
    q_tile = get(q + b * qb + h * qh, i, N, qn, qd, D, BD)
    do_tile = get(do + b * dob + h * doh, i, N, don, dod, D, BD)
    row_lse = tl.load(lse_log2 + bh * N + i, i < N, 0.0)
    row_delta = tl.load(delta + bh * N + i, i < N, 0.0)
    grad = tl.zeros([BM, BD], tl.float32)
    for start in range(0, tl.program_id(1) * BM + BM if CAUSAL else N, BN):
        j = start + tl.arange(0, BN)
        k_tile = get(k, j, N, kn, kd, D, BD)
        p = tl.exp2(log2_weights(q_tile, k_tile, i, j, N, scale, CAUSAL) - row_lse[:, None])
        ds = d_scores(p, do_tile, get(v, j, N, vn, vd, D, BD), row_delta)
        grad += tl.dot(ds.to(k_tile.dtype), k_tile)
    put(dq + bh * N * D, grad * scale, i, N, D, BD)


@triton.jit
def dkdv_kernel(q, qb, qh, qn, qd, k, kb, kh, kn, kd, v, vb, vh, vn, vd, do, dob, doh, don, dod,
                lse_log2, delta, dk, dv, HQ, G, N, scale, D: tl.constexpr, BD: tl.constexpr,
                BM: tl.constexpr, BN: tl.constexpr, CAUSAL: tl.constexpr):
    bkv = tl.program_id(0).to(tl.int64)
    b, kv = bkv // (HQ // G), bkv % (HQ // G)
    j = tl.program_id(1) * BN + tl.arange(0, BN)
    k_tile = get(k + b * kb + kv * kh, j, N, kn, kd, D, BD)
    v_tile = get(v + b * vb + kv * vh, j, N, vn, vd, D, BD)
    grad_k, grad_v = tl.zeros([BN, BD], tl.float32), tl.zeros([BN, BD], tl.float32)
    first = tl.program_id(1) * BN // BM * BM if CAUSAL else 0
    for h in range(G):
        bh = bkv * G + h
        q_head, do_head = q + b * qb + (kv * G + h) * qh, do + b * dob + (kv * G + h) * doh
        for start in range(first, N, BM):
            i = start + tl.arange(0, BM)
            q_tile, do_tile = get(q_head, i, N, qn, qd, D, BD), get(do_head, i, N, don, dod, D, BD)
            row_lse = tl.load(lse_log2 + bh * N + i, i < N, 0.0)
            p = tl.exp2(log2_weights(q_tile, k_tile, i, j, N, scale, CAUSAL) - row_lse[:, None])
            ds = d_scores(p, do_tile, v_tile, tl.load(delta + bh * N + i, i < N, 0.0))
            grad_v += tl.dot(tl.trans(p).to(do_tile.dtype), do_tile)
            grad_k += tl.dot(tl.trans(ds).to(q_tile.dtype), q_tile)
    put(dk + bkv * N * D, grad_k * scale, j, N, D, BD)
    put(dv + bkv * N * D, grad_v, j, N, D, BD)


class Launcher:
    """Sizes, tiles and grids of one attention, forward and backward."""

    def __init__(self, q, k, causal, scale):
        self.B, self.HQ, self.N, self.D = q.shape
        self.HKV = k.shape[1]
        self.sizes = self.HQ, self.HQ // self.HKV, self.N, scale
        self.widths = dict(D=self.D, BD=max(16, triton.next_power_of_2(self.D)))
        self.BM, self.BN = (64, 32) if self.widths["BD"] * q.element_size() < 512 else (16, 16)
        self.tiles = dict(**self.widths, BM=self.BM, BN=self.BN, CAUSAL=causal, num_stages=1)
        self.grid = self.B * self.HQ, triton.cdiv(self.N, self.BM)

    @staticmethod
    def strided(*tensors):
        return [argument for x in tensors for argument in (x, *x.stride())]

    def forward(self, q, k, v):
        o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        lse_log2 = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
        fwd[self.grid](*self.strided(q, k, v), o, lse_log2, *self.sizes, **self.tiles)
        return o, lse_log2

    def backward(self, q, k, v, o, lse_log2, do):
        delta = torch.empty_like(lse_log2)
        preprocess[self.grid](
            o, *self.strided(do), delta, self.HQ, self.N, **self.widths, BM=self.BM)
        dq, dk, dv = (torch.empty(x.shape, dtype=x.dtype, device=x.device) for x in (q, k, v))
        tensors = *self.strided(q, k, v, do), lse_log2, delta
        dq_kernel[self.grid](*tensors, dq, *self.sizes, **self.tiles)
        dkdv_kernel[(self.B * self.HKV, triton.cdiv(self.N, self.BN))](
            *tensors, dk, dv, *self.sizes, **self.tiles)
        return dq, dk, dv


class GroupedAttention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal, scale):
        ctx.launcher = Launcher(q, k, causal, scale)
        o, lse_log2 = ctx.launcher.forward(q, k, v)
        ctx.save_for_backward(q, k, v, o, lse_log2)
        return o

    @staticmethod
    def backward(ctx, do):
        return *ctx.launcher.backward(*ctx.saved_tensors, do), None, None


def flash_attention_gqa(q, k, v, is_causal=True, softmax_scale=None):
    scale = q.shape[3] ** -0.5 if softmax_scale is None else softmax_scale
    return GroupedAttention.apply(q, k, v, is_causal, scale)
