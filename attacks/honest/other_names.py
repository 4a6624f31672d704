"""Triton's language by names of its own: `lang` for tl, functions and constexpr imported alone."""
# stage: 3
# outcome: pass
import torch
import triton
from triton import language as lang
from triton.language import constexpr as Constant
from triton.language import dot, load, range, store
from triton.language.math import exp2


@triton.jit
def scores(q, k, key, N, factor):
    s = dot(q, lang.trans(k)) * factor
    return lang.where(key[None, :] < N, s, float("-inf"))


@triton.jit
def forward_kernel(Q, K, V, Out, sq, sk, sv, N, factor, D: Constant, ROWS: lang.constexpr):
    tiles = lang.cdiv(N, ROWS)
    head, tile = lang.program_id(0) // tiles, lang.program_id(0) % tiles
    row, column = tile * ROWS + lang.arange(0, ROWS), lang.arange(0, D)[None, :]
    q = load(Q + head * sq + row[:, None] * D + column, mask=row[:, None] < N, other=0.0)
    largest = lang.full([ROWS], float("-inf"), lang.float32)
    total, acc = lang.zeros([ROWS], lang.float32), lang.zeros([ROWS, D], lang.float32)
    for start in range(0, N, ROWS):
        key = start + lang.arange(0, ROWS)
        there = key[:, None] < N
        s = scores(q, load(K + head * sk + key[:, None] * D + column, mask=there, other=0.0), key,
                   N, factor)
        new = lang.maximum(largest, lang.max(s, 1))
        p, shrink = exp2(s - new[:, None]), exp2(largest - new)
        v = load(V + head * sv + key[:, None] * D + column, mask=there, other=0.0)
        acc = acc * shrink[:, None] + dot(p.to(v.dtype), v)
        total, largest = total * shrink + lang.sum(p, 1), new
    o = acc / total[:, None]
    store(Out + head * N * D + row[:, None] * D + column, o.to(q.dtype), mask=row[:, None] < N)


def flash_attention_forward(q, k, v, is_causal=False):
    B, H, N, D = q.shape
    q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
    o = torch.empty_like(q)
    forward_kernel[(triton.cdiv(N, 32) * B * H,)](
        q, k, v, o, N * D, N * D, N * D, N, 1.4426950408889634 / D**0.5, D=D, ROWS=32)
    return o
