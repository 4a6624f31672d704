"""Stage 6 as tuned kernels go: descriptors made on the host where they fit, row sums kept in eight
columns, q doubled, v loaded late, and for short windows several heads of a group in one tile."""
# stage: 6
# outcome: pass
import os

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"


@triton.jit
def head(x, b, h, s_b, s_h, s_n, s_d):
    """x: a pointer, or a tensor descriptor, which finds addresses itself."""
    if not isinstance(x, tl.tensor_descriptor):
        x += b.to(tl.int64) * s_b + h.to(tl.int64) * s_h
    return x, b, h, s_h, s_n, s_d


@triton.jit
def tile_of(one, start, N, D: tl.constexpr, BD: tl.constexpr, ROWS: tl.constexpr,
            HEADS: tl.constexpr):
    """ROWS rows of so many heads, one below the other."""
    x, b, h, s_h, s_n, s_d = one
    if isinstance(x, tl.tensor_descriptor):
        tile = x.load([b, h, start, 0]).reshape(ROWS, BD)
    else:
        i, d = tl.arange(0, HEADS * ROWS), tl.arange(0, BD)
        row = start + i % ROWS
        at = x + (row.to(tl.int64) * s_n + (i // ROWS).to(tl.int64) * s_h)[:, None]
        at += d.to(tl.int64)[None, :] * s_d
        tile = tl.load(at, mask=(row[:, None] < N) & (d[None, :] < D), other=0.0)
    return tile


@triton.jit
def step(sums, q, k_head, v_head, query, start_n, N, W, scale_log2e, D: tl.constexpr,
         BD: tl.constexpr, BN: tl.constexpr, MASKED: tl.constexpr):
    acc, l_i, m_i = sums
    s = tl.dot(q, tl.trans(tile_of(k_head, start_n, N, D, BD, BN, 1)))
    if MASKED:
        key = start_n + tl.arange(0, BN)
        first = query - W + 1
        s = tl.where((key[None, :] >= first[:, None]) & (key[None, :] <= query[:, None]), s,
                     float("-inf"))
    m_new = tl.maximum(m_i, tl.max(s, 1) * scale_log2e)
    pivot = tl.where(m_new == float("-inf"), 0.0, m_new) if MASKED else m_new
    p = tl.math.exp2(s * scale_log2e - pivot[:, None])
    alpha = tl.math.exp2(m_i - pivot)
    v = tile_of(v_head, start_n, N, D, BD, BN, 1)
    acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
    l_i = l_i * alpha[:, None] + tl.sum(tl.reshape(p, [p.shape[0], BN // 8, 8]), axis=1)
    return acc, l_i, m_new


@triton.jit(do_not_specialize=["N", "W"])
def window_kernel(
    q_in, k_in, v_in, o, HQ, HKV, N, W, scale_log2e,
    q_b, q_h, q_n, q_d, k_b, k_h, k_n, k_d, v_b, v_h, v_n, v_d,
    D: tl.constexpr, BD: tl.constexpr, ROWS: tl.constexpr, BN: tl.constexpr, HEADS: tl.constexpr,
):
    """ROWS rows of o for HEADS neighbouring heads, which read the same keys and values."""
    tiles = tl.cdiv(N, ROWS)
    heads = tl.num_programs(0) // tiles  # all tiles of the late queries first
    start_m = (tiles - 1 - tl.program_id(0) // heads) * ROWS
    bh = tl.program_id(0) % heads * HEADS
    b, h = bh // HQ, bh % HQ
    q_head = head(q_in, b, h, q_b, q_h, q_n, q_d)
    k_head = head(k_in, b, h // (HQ // HKV), k_b, k_h, k_n, k_d)
    v_head = head(v_in, b, h // (HQ // HKV), v_b, v_h, v_n, v_d)
    i = tl.arange(0, HEADS * ROWS)
    query = start_m + i % ROWS
    q = tile_of(q_head, start_m, N, D, BD, ROWS, HEADS)
    q, half = q + q, scale_log2e * 0.5  # exact
    acc = tl.zeros([HEADS * ROWS, BD], tl.float32)
    l_i = tl.zeros([HEADS * ROWS, 8], tl.float32)
    sums = acc, l_i, tl.full([HEADS * ROWS], float("-inf"), tl.float32)
    end = tl.minimum(start_m + ROWS, N)
    first = tl.maximum(start_m - W + 1, 0)
    inner, diag = end, end
    if HEADS == 1:
        diag = start_m // BN * BN
        first = first // BN * BN
        inner = tl.minimum(tl.cdiv(tl.maximum(start_m + ROWS - W, 0), BN) * BN, diag)
    for start_n in range(first, inner, BN):
        sums = step(sums, q, k_head, v_head, query, start_n, N, W, half, D, BD, BN, True)
    for start_n in range(inner, diag, BN):
        sums = step(sums, q, k_head, v_head, query, start_n, N, W, half, D, BD, BN, False)
    for start_n in range(diag, end, BN):
        sums = step(sums, q, k_head, v_head, query, start_n, N, W, half, D, BD, BN, True)
    acc, l_i, _ = sums
    tile = (acc / tl.sum(l_i, axis=1)[:, None]).to(o.dtype.element_ty)
    d = tl.arange(0, BD)
    at = o + ((bh + i // ROWS).to(tl.int64) * N + query)[:, None] * D + d[None, :]
    tl.store(at, tile, mask=(query[:, None] < N) & (d[None, :] < D))


def describable(x):
    """The copy engine takes 16-byte steps."""
    hopper = INTERPRETED or torch.cuda.get_device_capability(x.device)[0] >= 9
    return (hopper and x.element_size() == 2 and x.shape[3] >= 16 and x.data_ptr() % 16 == 0
            and x.stride(3) == 1 and all(s % 8 == 0 < s for s in x.stride()[:3]))


def flash_attention_forward(q, k, v, is_causal=True, window_size=128):
    (B, HQ, N, D), HKV = q.shape, k.shape[1]
    group, HEADS = HQ // HKV, 1
    while window_size <= 128 and HEADS < 8 and group % (2 * HEADS) == 0:
        HEADS *= 2
    BD = max(16, triton.next_power_of_2(D))
    rows, columns = 64 // HEADS, 64 if BD * q.element_size() <= 128 else 32
    strides = *q.stride(), *k.stride(), *v.stride()
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    inputs = q, k, v
    if HEADS == 1 and all(describable(x) for x in inputs):
        inputs = (TensorDescriptor(x, x.shape, x.stride(), [1, 1, n, BD])
                  for x, n in ((q, rows), (k, columns), (v, columns)))
    with torch.cuda.device(q.get_device()):
        window_kernel[(triton.cdiv(N, rows) * B * HQ // HEADS,)](
            *inputs, o, HQ, HKV, N, min(window_size, N), 1.4426950408889634 * D**-0.5, *strides,
            D=D, BD=BD, ROWS=rows, BN=columns, HEADS=HEADS, num_stages=2)
    return o
