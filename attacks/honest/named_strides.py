"""Stage 3 with strides in a named tuple, libdevice's exp2, a maximum of its own, and autotuning.

What is known when a kernel is compiled is asserted there.
"""
# stage: 3
# outcome: pass
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

NO_SCALE = tl.constexpr(None)


class Strides(NamedTuple):
    batch: int
    head: int
    row: int
    column: int


class Tile(NamedTuple):
    at: object
    there: object


@triton.jit
def larger(a, b):
    return tl.maximum(a, b)


@triton.jit
def tile_of(ptr: torch.Tensor, strides, b, h, rows, columns, n_rows, n_columns) -> Tile:
    at = ptr + b * strides.batch + h * strides.head
    at += rows.to(tl.int64)[:, None] * strides.row + columns[None, :] * strides.column
    return Tile(at, (rows < n_rows)[:, None] & (columns < n_columns)[None, :])


@triton.autotune([triton.Config({"ROWS": 32, "KEYS": 32}), triton.Config({"ROWS": 64, "KEYS": 16})],
                 key=["N"])
@triton.jit
def attend(q_ptr, k_ptr, v_ptr, o_ptr, q_strides, k_strides, v_strides, o_strides, H, N, scale,
           D: tl.constexpr, WIDTH: tl.constexpr, ROWS: tl.constexpr, KEYS: tl.constexpr):
    assert WIDTH >= D, f"{WIDTH} columns are too few for {D}"
    tl.static_assert(q_ptr.dtype.element_ty.primitive_bitwidth <= 32 and NO_SCALE is None)
    bh = tl.program_id(1).to(tl.int64)
    b, h = bh // H, bh % H
    rows, columns = tl.program_id(0) * ROWS + tl.arange(0, ROWS), tl.arange(0, WIDTH)
    mine = tile_of(q_ptr, q_strides, b, h, rows, columns, N, D)
    q = tl.load(mine.at, mask=mine.there, other=0.0)
    tl.static_assert(q.numel.value == ROWS * WIDTH and not q.dtype.is_ptr())
    top = tl.full([ROWS], float("-inf"), tl.float32)
    total, acc = tl.zeros([ROWS], tl.float32), tl.zeros([ROWS, WIDTH], tl.float32)
    for start in range(0, N, KEYS):
        keys = start + tl.arange(0, KEYS)
        theirs = tile_of(k_ptr, k_strides, b, h, keys, columns, N, D)
        k = tl.load(theirs.at, mask=theirs.there, other=0.0)
        s = tl.where((keys < N)[None, :], tl.dot(q, k.T) * scale, float("-inf"))
        new_top = tl.maximum(top, tl.reduce(s, 1, larger))
        p, alpha = libdevice.exp2(s - new_top[:, None]), libdevice.exp2(top - new_top)
        theirs = tile_of(v_ptr, v_strides, b, h, keys, columns, N, D)
        v = tl.load(theirs.at, mask=theirs.there, other=0.0)
        acc = tl.dot(p.to(v.type.scalar), v, acc * alpha[:, None])
        total, top = total * alpha + tl.sum(p, 1), new_top
    mine = tile_of(o_ptr, o_strides, b, h, rows, columns, N, D)
    tl.store(mine.at, (acc / total[:, None]).to(o_ptr.dtype.element_ty), mask=mine.there)


def flash_attention_forward(q, k, v, is_causal=False):
    if is_causal:
        raise ValueError("want is_causal=False; got True")
    B, H, N, D = q.shape
    o = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    attend[lambda meta: (triton.cdiv(N, meta["ROWS"]), B * H)](
        q, k, v, o, *(Strides(*x.stride()) for x in (q, k, v, o)), H, N,
        D**-0.5 * 1.4426950408889634, D=D, WIDTH=max(16, triton.next_power_of_2(D)))
    return o
