"""Problem 3 -- FlashAttention as a Triton kernel, without a mask.

Problem 1 walked the key tiles of one query tile in Python, a dozen PyTorch
operations a step, each a trip to device memory and back.  One kernel does the
whole walk: q, m_i, l_i and acc stay in registers, and only k and v stream in.

Who owns what.  As in problem 2, a program owns a tile of the output.  Here that
is BLOCK_M rows of o and of lse, for one head of one batch entry, and it walks
the keys:

    program  ->  (batch b, head h, query tile)         grid: tiles * B * H
                       start_n = 0        BLOCK_N      2 BLOCK_N
    q tile     @     [ k tile 0 ]^T     [ k tile 1 ]^T   ...      m_i, l_i, acc
    (BLOCK_M, D)     [ v tile 0 ]       [ v tile 1 ]     ...      in float32

No two programs write the same row, and no program waits for another.

Base two.  The GPU has an instruction for 2^x, none for e^x, and exp(x) is
2^(x log2 e).  So the scores are multiplied once by scale * log2(e) and all of
the softmax runs in base 2; m_i is a maximum in those units.  lse goes out as a
natural logarithm:  lse = (m_i + log2(l_i)) * ln 2.

Edges.  N need not be a multiple of anything.  The last query tile may hang over
the end: its extra rows load as 0 and are never stored.  The last key tile may
hang over too: its extra keys would get the score 0, not -inf, and must be
masked.  All other key tiles are whole and run without a mask, which spares the
inner loop a comparison a score; hence two phases.  D is padded with zeros to a
power of two, BLOCK_D, because tl.arange wants one.

Backward.  Given in this file, in tiled PyTorch, as in problem 1.  Problem 8
turns it into kernels.

Shapes      q, k, v, o: (B, H, N, D)    lse: (B, H, N), natural logarithm
Dtypes      float16, bfloat16, float32.  Statistics and sums run in float32; p is
            rounded to the dtype of v before its product.  Float32 tiles are
            multiplied in TF32 (10 bits) where the GPU has it, as Triton does by default.

Check       python autograder.py --p3
Stuck       python autograder.py --hint 3.1      (any step number)
Source      FlashAttention-2, arXiv 2307.08691, Algorithm 1
"""

import math
import os

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

LOG2E = 1.4426950408889634  # exp(x) == exp2(x * LOG2E)
LN2 = tl.constexpr(0.6931471805599453)  # log(x) == log2(x) * LN2

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # kernels run on the CPU, as Python


# -------------------------------------------------------------------- tiles
@triton.jit
def _load_rows(ptr, rows, cols, stride_row, stride_col, N, D: tl.constexpr, RAGGED: tl.constexpr):
    """Load the tile [rows, cols] of an (N, D) matrix; what lies outside reads 0."""
    rows64, cols64 = rows.to(tl.int64), cols.to(tl.int64)  # index * stride can pass 2**31
    ptrs = ptr + rows64[:, None] * stride_row + cols64[None, :] * stride_col
    if RAGGED:
        tile = tl.load(ptrs, mask=(rows[:, None] < N) & (cols[None, :] < D), other=0.0)
    elif cols.shape[0] != D:
        tile = tl.load(ptrs, mask=cols[None, :] < D, other=0.0)
    else:
        tile = tl.load(ptrs)
    return tile


@triton.jit
def _keep(query, key, N):
    """(BLOCK_M, BLOCK_N) booleans: which keys each query sees."""
    # Step 3.1 -- Without a causal mask every query sees every key that exists.
    #   query (BLOCK_M,) and key (BLOCK_N,) are positions; key may pass N - 1.
    #   keep: (BLOCK_M, BLOCK_N) or anything that broadcasts to it.
    # BEGIN SOLUTION 3.1
    keep = key[None, :] < N
    # END SOLUTION 3.1
    return keep


@triton.jit
def _attend_tile(
    acc, l_i, m_i, q, k_ptr, v_ptr, query, key, cols,
    stride_kn, stride_kd, stride_vn, stride_vd, scale_log2e, N,
    D: tl.constexpr, EDGE: tl.constexpr,
):
    """Walk one key tile: (acc, l_i, m_i) -> (acc, l_i, m_i).  EDGE tiles are masked."""
    k = _load_rows(k_ptr, key, cols, stride_kn, stride_kd, N, D, EDGE)  # (BLOCK_N, BLOCK_D)
    v = _load_rows(v_ptr, key, cols, stride_vn, stride_vd, N, D, EDGE)  # (BLOCK_N, BLOCK_D)

    # Step 3.2 -- The scores of this tile, not yet scaled.
    #   s: (BLOCK_M, BLOCK_N), float32.  tl.dot multiplies two tiles on the matrix units.
    # BEGIN SOLUTION 3.2
    s = tl.dot(q, tl.trans(k))
    # END SOLUTION 3.2
    if EDGE:
        s = tl.where(_keep(query, key, N), s, float("-inf"))

    # Step 3.3 -- Online softmax, step 1.3 in base 2.
    #   m_new (BLOCK_M,), in units of s * scale_log2e; p (BLOCK_M, BLOCK_N); alpha (BLOCK_M,).
    #   Write the argument of exp2 as s * scale_log2e - m: one fused multiply-add an element.
    # BEGIN SOLUTION 3.3
    m_new = tl.maximum(m_i, tl.max(s, axis=1) * scale_log2e)
    p = tl.math.exp2(s * scale_log2e - m_new[:, None])
    alpha = tl.math.exp2(m_i - m_new)
    # END SOLUTION 3.3

    # Step 3.4 -- Step 1.4: rescale what is there, add what is new.
    #   tl.dot wants both operands in one dtype: round p to v's.  Its third argument
    #   is an accumulator to add to.
    # BEGIN SOLUTION 3.4
    l_i = l_i * alpha + tl.sum(p, axis=1)
    acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
    # END SOLUTION 3.4
    return acc, l_i, m_new


# ------------------------------------------------------------------- kernel
@triton.jit(do_not_specialize=["N"])
def _fwd_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, H, N,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    scale_log2e,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """Fill BLOCK_M rows of o and lse.  Grid: (cdiv(N, BLOCK_M) * B * H,)."""
    # Step 3.5 -- Which rows of which head are mine?
    #   Programs with neighbouring numbers walk the same k and v: the tile counts fastest.
    #   start_m: first row.  bh = b * H + h, then b and h, in int64: offsets can pass 2**31.
    # BEGIN SOLUTION 3.5
    num_tiles = tl.cdiv(N, BLOCK_M)
    start_m = tl.program_id(0) % num_tiles * BLOCK_M
    bh = (tl.program_id(0) // num_tiles).to(tl.int64)
    b = bh // H
    h = bh % H
    # END SOLUTION 3.5
    q_ptr += b * stride_qb + h * stride_qh
    k_ptr += b * stride_kb + h * stride_kh
    v_ptr += b * stride_vb + h * stride_vh

    scale_log2e = tl.cast(scale_log2e, tl.float32)  # torch.compile passes float64
    query = start_m + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    cols = tl.arange(0, BLOCK_D)
    q = _load_rows(q_ptr, query, cols, stride_qn, stride_qd, N, D, True)  # (BLOCK_M, BLOCK_D)
    m_i = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)

    # Step 3.6 -- Walk the keys: whole tiles first, then the ragged one if there is one.
    #   whole: the number of keys in whole tiles.  Call _attend_tile with key =
    #   start_n + offs_n; EDGE is False for whole tiles and True for the ragged one.
    # BEGIN SOLUTION 3.6
    whole = N // BLOCK_N * BLOCK_N
    for start_n in range(0, whole, BLOCK_N):  # keys 0 ... whole - 1
        acc, l_i, m_i = _attend_tile(
            acc, l_i, m_i, q, k_ptr, v_ptr, query, start_n + offs_n, cols,
            stride_kn, stride_kd, stride_vn, stride_vd, scale_log2e, N, D, False,
        )
    for start_n in range(whole, N, BLOCK_N):  # keys whole ... N - 1: one tile or none
        acc, l_i, m_i = _attend_tile(
            acc, l_i, m_i, q, k_ptr, v_ptr, query, start_n + offs_n, cols,
            stride_kn, stride_kd, stride_vn, stride_vd, scale_log2e, N, D, True,
        )
    # END SOLUTION 3.6

    # Step 3.7 -- Normalise once, and form lse as a natural logarithm.
    #   o (BLOCK_M, BLOCK_D) and lse (BLOCK_M,), float32.
    # BEGIN SOLUTION 3.7
    o = acc / l_i[:, None]
    lse = (m_i + tl.math.log2(l_i)) * LN2
    # END SOLUTION 3.7

    # o and lse are ours and contiguous: row i of head bh is row bh * N + i.
    row = bh * N + query
    o_mask = (query[:, None] < N) & (cols[None, :] < D)
    tl.store(o_ptr + row[:, None] * D + cols[None, :], o.to(o_ptr.dtype.element_ty), mask=o_mask)
    tl.store(lse_ptr + row, lse, mask=query < N)


# ----------------------------------------------------------- launch and autograd
def _tiles(D: int, dtype: torch.dtype, device: torch.device) -> dict:
    """Tile shape and launch options: large enough to reuse k and v, small enough not to spill.

    Timed on an H200 for bfloat16; for other GPUs chosen by what they hold, and compiled only.
    """
    major = torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 9
    BLOCK_D = max(16, triton.next_power_of_2(D))
    row_bytes = BLOCK_D * dtype.itemsize
    num_warps = 4
    if major in (9, 10) and row_bytes == 256:  # D = 128: two groups of warps share k and v
        BLOCK_M, BLOCK_N, num_warps, num_stages = 128, 64, 8, 3
    elif major in (9, 10):  # Hopper, Blackwell B200: 227 KiB of shared memory feed the matrix units
        BLOCK_M, BLOCK_N = 64, 64 if row_bytes <= 128 else 32
        num_stages = 3 if row_bytes <= 128 else 2  # k and v tiles on their way at a time
    elif major >= 8:  # Ampere, Ada, Blackwell RTX: both factors of a product sit in registers
        BLOCK_M, BLOCK_N = 64 if row_bytes <= 256 else 32, 64 if row_bytes <= 128 else 32
        num_stages = 2 if row_bytes <= 128 else 3
    else:  # Turing: Triton multiplies without its matrix units, so everything is in registers
        BLOCK_M, BLOCK_N, num_stages = 32, 16, 2
    return dict(
        BLOCK_D=BLOCK_D, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N,
        num_warps=num_warps, num_stages=num_stages,
    )


def _forward(q, k, v):
    """Launch the kernel.  q, k, v (B, H, N, D) -> o, lse (B, H, N)."""
    B, H, N, D = q.shape
    o = torch.empty(B, H, N, D, device=q.device, dtype=q.dtype)
    lse = torch.empty(B, H, N, device=q.device, dtype=torch.float32)
    tiles = _tiles(D, q.dtype, q.device)
    grid = (triton.cdiv(N, tiles["BLOCK_M"]) * B * H,)
    with torch.cuda.device(q.get_device()):  # launch where the data is; does nothing on a CPU
        _fwd_kernel[grid](
            q, k, v, o, lse, H, N, *q.stride(), *k.stride(), *v.stride(),
            LOG2E / math.sqrt(D), D=D, **tiles,
        )
    return o, lse


# --------------------------------------------------- the backward, given (problem 8 is its kernel)
def _recompute_backward(q, k, v, o, lse, do, is_causal=False, window_size=None, sink_size=0):
    """Return dq, dk, dv, recomputing P from lse for 128 queries at a time.  Memory is linear in N.

    q, o, do (B, HQ, N, D); k, v (B, HKV, N, D); lse (B, HQ, N).  Masks as in problems 4, 6 and 7.
    """
    B, HQ, N, D = q.shape
    HKV = k.shape[1]
    scale = 1.0 / math.sqrt(D)
    # A group's query heads side by side: (B, HKV, group, N, D) against (B, HKV, 1, N, D).
    q, o, do, lse = (x.unflatten(1, (HKV, HQ // HKV)) for x in (q, o, do, lse))
    k, v = k.unsqueeze(2), v.unsqueeze(2)
    dq = torch.empty(q.shape, device=q.device, dtype=q.dtype)
    dk = torch.zeros(k.shape, device=k.device, dtype=torch.float32)
    dv = torch.zeros(v.shape, device=v.device, dtype=torch.float32)

    for start in range(0, N, 128):
        end = min(start + 128, N)
        first = 0 if window_size is None else max(0, start - window_size + 1)
        sinks = torch.arange(min(sink_size, first), device=q.device)
        keys = torch.cat([sinks, torch.arange(first, end if is_causal else N, device=q.device)])
        rows = torch.arange(start, end, device=q.device)
        age = rows[:, None] - keys[None, :]  # how long before its query a key stands
        keep = torch.ones_like(age, dtype=torch.bool) if not is_causal else age >= 0
        if window_size is not None:
            keep &= (age < window_size) | (keys < sink_size)

        q_tile, do_tile = q[..., start:end, :].float(), do[..., start:end, :].float()
        delta = (do_tile * o[..., start:end, :].float()).sum(-1, keepdim=True)
        k_tile, v_tile = k[..., keys, :].float(), v[..., keys, :].float()
        s = q_tile @ k_tile.transpose(-1, -2) * scale
        p = torch.exp(s - lse[..., start:end, None]).masked_fill(~keep, 0.0)
        ds = p * (do_tile @ v_tile.transpose(-1, -2) - delta)
        dq[..., start:end, :] = ds @ k_tile * scale
        dk[..., keys, :] += (ds.transpose(-1, -2) @ q_tile).sum(2, keepdim=True) * scale
        dv[..., keys, :] += (p.transpose(-1, -2) @ do_tile).sum(2, keepdim=True)
    return dq.flatten(1, 2), dk.squeeze(2).to(k.dtype), dv.squeeze(2).to(v.dtype)


class FlashAttentionFunction(torch.autograd.Function):
    """Connects the kernel and the given backward to autograd.  First derivatives only."""

    @staticmethod
    def forward(ctx, q, k, v):
        o, lse = _forward(q, k, v)
        ctx.save_for_backward(q, k, v, o, lse)
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx, do):
        return _recompute_backward(*ctx.saved_tensors, do)


def flash_attention_forward(q, k, v, is_causal=False):
    """Attention without a mask, differentiable.

    Args:
        q, k, v: (B, H, N, D), any strides; float16, bfloat16 or float32; D <= 128.
        is_causal: must be False; the causal mask arrives in problem 4.

    Returns:
        o: (B, H, N, D), contiguous, dtype of q.

    Raises:
        ValueError, TypeError: the input breaks the contract above.
    """
    _check(q, k, v)
    if is_causal:
        raise ValueError("want is_causal=False, the causal mask arrives in problem 4; got True")
    return FlashAttentionFunction.apply(q, k, v)


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Refuse bad input here: inside a kernel it would be a silent wrong read."""
    if q.dim() != 4 or q.numel() == 0 or not q.shape == k.shape == v.shape:
        shapes = f"{list(q.shape)}, {list(k.shape)}, {list(v.shape)}"
        raise ValueError(f"want q, k, v of one shape (B, H, N, D), not empty; got {shapes}")
    if q.shape[3] > 128:
        raise ValueError(f"want D <= 128; got {q.shape[3]}")
    if q.dtype not in (torch.float16, torch.bfloat16, torch.float32):
        raise TypeError(f"want float16, bfloat16 or float32; got {q.dtype}")
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"want one dtype; got {q.dtype}, {k.dtype}, {v.dtype}")
    if not q.device == k.device == v.device:
        raise ValueError(f"want one device; got {q.device}, {k.device}, {v.device}")
    if not q.is_cuda and not INTERPRETED:
        raise ValueError(f"want CUDA tensors, or TRITON_INTERPRET=1 at start; got {q.device}")


if __name__ == "__main__":  # a look, not a test
    device = "cuda" if torch.cuda.is_available() else "cpu"
    q, k, v = torch.randn(3, 1, 2, 100, 16, device=device)
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v)
    difference = (flash_attention_forward(q, k, v) - want).abs().max().item()
    print("largest difference from scaled_dot_product_attention:", difference)
