"""Stage 3 with tiles of 128 x 32, natural exponentials, and P kept in float32 for P @ V."""
# stage: 3
# outcome: pass
import math

import torch
import triton
import triton.language as tl


@triton.jit
def kernel(q, k, v, o, sqb, sqh, sqn, sqd, skb, skh, skn, skd, svb, svh, svn, svd, H, N, sm_scale,
           D: tl.constexpr, DP: tl.constexpr, BM: tl.constexpr, BN: tl.constexpr):
    tile = tl.program_id(0)
    tiles = tl.cdiv(N, BM)
    bh = (tile // tiles).to(tl.int64)
    i = (tile % tiles) * BM + tl.arange(0, BM)
    d = tl.arange(0, DP)
    q += bh // H * sqb + bh % H * sqh
    k += bh // H * skb + bh % H * skh
    v += bh // H * svb + bh % H * svh
    i64, d64 = i.to(tl.int64), d.to(tl.int64)
    rows = (i < N)[:, None] & (d < D)[None, :]
    qt = tl.load(q + i64[:, None] * sqn + d64[None, :] * sqd, mask=rows, other=0.0)

    mx = tl.full([BM], -float("inf"), tl.float32)
    sm = tl.zeros([BM], tl.float32)
    out = tl.zeros([BM, DP], tl.float32)
    for j0 in range(0, N, BN):
        j = j0 + tl.arange(0, BN)
        j64 = j.to(tl.int64)
        cols = (j < N)[:, None] & (d < D)[None, :]
        kt = tl.load(k + j64[:, None] * skn + d64[None, :] * skd, mask=cols, other=0.0)
        vt = tl.load(v + j64[:, None] * svn + d64[None, :] * svd, mask=cols, other=0.0)
        s = tl.dot(qt, kt.T) * sm_scale
        s = tl.where((j < N)[None, :], s, -float("inf"))
        hi = tl.maximum(mx, tl.max(s, axis=1))
        p = tl.exp(s - hi[:, None])
        fade = tl.exp(mx - hi)
        sm = sm * fade + tl.sum(p, axis=1)
        out = out * fade[:, None] + tl.dot(p, vt.to(tl.float32))
        mx = hi
    out = (out / sm[:, None]).to(o.dtype.element_ty)
    tl.store(o + (bh * N + i64)[:, None] * D + d[None, :], out, mask=rows)


class FlashAttention2Function(torch.autograd.Function):
    @staticmethod
    def forward(ctx, q, k, v, is_causal):
        B, H, N, D = q.shape
        o = torch.empty((B, H, N, D), dtype=q.dtype, device=q.device)
        kernel[(B * H * triton.cdiv(N, 128),)](
            q, k, v, o, *q.stride(), *k.stride(), *v.stride(), H, N, 1.0 / math.sqrt(D),
            D=D, DP=max(triton.next_power_of_2(D), 16), BM=128, BN=32, num_warps=8, num_stages=2)
        return o


def flash_attention_forward(q, k, v, is_causal=False):
    assert not is_causal, "this stage has no causal mask"
    return FlashAttention2Function.apply(q, k, v, is_causal)
