"""Stage 8 with dk and dv of every query head in float32, which PyTorch adds up over the group.

The forward takes exp, the backward exp2: they do not round the scores alike.
"""
# stage: 8
# outcome: pass
import math

import torch
import torch.nn.functional as F
import triton
import triton.language as tl

LOG2E = tl.constexpr(math.log2(math.e))
T = 32  # rows and columns of a tile, and what N is padded to


@triton.jit
def tile_scores(q, k, i, j, N, scale, CAUSAL: tl.constexpr):
    s = tl.dot(q, tl.trans(k)) * scale
    if CAUSAL:
        s = tl.where(i[:, None] >= j[None, :], s, float("-inf"))
    else:
        s = tl.where(j[None, :] < N, s, float("-inf"))
    return s


@triton.jit
def forward_kernel(q, k, v, o, lse, HQ, HKV, N, tiles, scale, W: tl.constexpr, T: tl.constexpr,
                   CAUSAL: tl.constexpr):
    """q, k, v, o (heads, tiles * T, W), contiguous; the rows from N on are zero."""
    bh, mine = tl.program_id(0).to(tl.int64), tl.program_id(1)
    kv = bh // HQ * HKV + bh % HQ // (HQ // HKV)
    n = tl.arange(0, T)
    tile = n[:, None] * W + tl.arange(0, W)[None, :]
    i = mine * T + n
    at_q, at_k = (bh * tiles + mine) * T * W + tile, kv * tiles * T * W + tile
    qt = tl.load(q + at_q)
    m = tl.full([T], float("-inf"), tl.float32)
    total = tl.zeros([T], tl.float32)
    acc = tl.zeros([T, W], tl.float32)
    for t in range(mine + 1 if CAUSAL else tiles):
        kt, vt = tl.load(k + at_k), tl.load(v + at_k)
        s = tile_scores(qt, kt, i, t * T + n, N, scale, CAUSAL)
        m_new = tl.maximum(m, tl.max(s, 1))
        p, alpha = tl.exp(s - m_new[:, None]), tl.exp(m - m_new)
        acc = acc * alpha[:, None] + tl.dot(p.to(vt.dtype), vt)
        total = total * alpha + tl.sum(p, 1)
        m = m_new
        at_k += T * W
    tl.store(o + at_q, (acc / total[:, None]).to(o.dtype.element_ty))
    tl.store(lse + bh * tiles * T + i, m + tl.log(total))


@triton.jit
def backward_kernel(q, k, v, do, lse, delta, dq, dk, dv, HQ, HKV, N, tiles, scale,
                    W: tl.constexpr, T: tl.constexpr, CAUSAL: tl.constexpr):
    """Tile `mine` of one query head twice: as queries, for dq; as keys, for dk and dv."""
    bh, mine = tl.program_id(0).to(tl.int64), tl.program_id(1)
    kv = bh // HQ * HKV + bh % HQ // (HQ // HKV)
    n = tl.arange(0, T)
    own = mine * T + n
    tile = n[:, None] * W + tl.arange(0, W)[None, :]
    q_head, k_head = bh * tiles * T * W + tile, kv * tiles * T * W + tile
    shift = mine.to(tl.int64) * T * W

    qt, dot = tl.load(q + q_head + shift), tl.load(do + q_head + shift)
    row_lse, row_delta = tl.load(lse + bh * tiles * T + own), tl.load(delta + bh * tiles * T + own)
    sum_q = tl.zeros([T, W], tl.float32)
    at = k_head
    for t in range(mine + 1 if CAUSAL else tiles):
        kt, vt = tl.load(k + at), tl.load(v + at)
        s = tile_scores(qt, kt, own, t * T + n, N, scale * LOG2E, CAUSAL)
        p = tl.exp2(s - row_lse[:, None] * LOG2E)
        dp = tl.dot(dot, tl.trans(vt)) - row_delta[:, None]
        sum_q += tl.dot((p * dp).to(kt.dtype), kt)
        at += T * W
    tl.store(dq + q_head + shift, (sum_q * scale).to(dq.dtype.element_ty))

    key, value = tl.load(k + k_head + shift), tl.load(v + k_head + shift)
    sum_k, sum_v = tl.zeros([T, W], tl.float32), tl.zeros([T, W], tl.float32)
    for t in range(mine if CAUSAL else 0, tiles):
        i = t * T + n
        far = tl.cast(t, tl.int64) * T * W
        # Rows from N on have dO = 0 and delta = 0, and so no share in dk and dv.
        qt, dot = tl.load(q + q_head + far), tl.load(do + q_head + far)
        s = tile_scores(qt, key, i, own, N, scale * LOG2E, CAUSAL)
        p = tl.exp2(s - tl.load(lse + bh * tiles * T + i)[:, None] * LOG2E)
        dp = tl.dot(dot, tl.trans(value)) - tl.load(delta + bh * tiles * T + i)[:, None]
        sum_v += tl.dot(tl.trans(p.to(dot.dtype)), dot)
        sum_k += tl.dot(tl.trans((p * dp).to(qt.dtype)), qt)
    tl.store(dk + q_head + shift, sum_k * scale)
    tl.store(dv + q_head + shift, sum_v)


def pad(x):
    B, H, N, D = x.shape
    width = max(16, triton.next_power_of_2(D))
    return F.pad(x, (0, width - D, 0, -N % T)).contiguous()


class Attention(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, causal, scale):
        ctx.shape, (B, HQ, N, D), HKV = q.shape, q.shape, k.shape[1]
        q, k, v = pad(q), pad(k), pad(v)
        o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
        ctx.grid = B * HQ, triton.cdiv(N, T)
        ctx.more = HQ, HKV, N, ctx.grid[1], scale, q.shape[3], T, causal
        forward_kernel[ctx.grid](q, k, v, o, lse, *ctx.more)
        ctx.save_for_backward(q, k, v, o, lse)
        return o[:, :, :N, :D]

    @staticmethod
    def backward(ctx, do):
        q, k, v, o, lse = ctx.saved_tensors
        do = pad(do)
        delta = (do.float() * o.float()).sum(-1)
        dq = torch.empty_like(q)
        dk, dv = torch.empty(2, *q.shape, dtype=torch.float32, device=q.device).unbind()
        backward_kernel[ctx.grid](q, k, v, do, lse, delta, dq, dk, dv, *ctx.more)
        _, _, N, D = ctx.shape
        dk, dv = (x.unflatten(1, (k.shape[1], -1)).sum(2).to(k.dtype) for x in (dk, dv))
        return dq[:, :, :N, :D], dk[:, :, :N, :D], dv[:, :, :N, :D], None, None


def flash_attention_gqa(q, k, v, is_causal=True, softmax_scale=None):
    scale = 1.0 / math.sqrt(q.shape[-1]) if softmax_scale is None else softmax_scale
    return Attention.apply(q, k, v, is_causal, scale)
