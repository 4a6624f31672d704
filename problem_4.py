"""Problem 4 -- The causal mask, in two phases.

In a language model a token must not see what comes after it: query i sees keys
0 ... i.  Half of S is then -inf, and a kernel that computes it and throws it
away does twice the work.  So the walk is cut where the mask is, tile by tile:

    keys ->     0       1       2       3
    q tile 0  [ diag |       |       |      ]      diag: the mask cuts through
    q tile 1  [ full | diag  |       |      ]      full: every query sees every key
    q tile 2  [ full | full  | diag  |      ]      blank: nobody sees anything
    q tile 3  [ full | full  | full  | diag ]

    phase 1   keys 0 ... start_m - 1                no mask needed, none computed
    phase 2   keys start_m ... start_m + BLOCK_M - 1    the mask, element by element
    beyond    never visited

Phase 1 ends exactly where the query tile begins, so BLOCK_M must be a multiple
of BLOCK_N: then no key tile lies across the border.

Edges.  In phase 1 every key exists.  In phase 2 the tile may hang over the end
of the sequence, but a key that does not exist comes after every query that
does, so the causal mask hides it without being asked to.

Order.  Walks now differ in length: the last query tile's is the longest.  Started
last, it would run alone at the end while the rest of the GPU waits, so the
programs with long walks come first (_longest_first, given).  On an H200 (Triton
3.6, November 2026) that took the original shape, 16 heads of 4096 x 16 in
bfloat16, from 0.083 to 0.063 ms.

New here: steps 4.1 and 4.3.  Step 4.2 is what you wrote in problem 3.

Shapes      q, k, v, o: (B, H, N, D)    lse: (B, H, N), natural logarithm
Dtypes      as in problem 3

Check       python autograder.py --p4
Stuck       python autograder.py --hint 4.1      (any step number)
Source      FlashAttention-2, arXiv 2307.08691, section 3.1 (causal masking)
"""

import math
import os

import torch
import triton
import triton.language as tl
from torch.autograd.function import once_differentiable

LOG2E = 1.4426950408889634  # exp(x) == exp2(x * LOG2E)
LN2 = tl.constexpr(0.6931471805599453)  # log(x) == log2(x) * LN2

GROUP = tl.constexpr(16)  # heads whose programs run side by side; 8 to 32 alike on an H200

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
def _keep(query, key):
    """(BLOCK_M, BLOCK_N) booleans: which keys each query sees."""
    # Step 4.1 -- A query sees itself and everything before it.
    #   query (BLOCK_M,) and key (BLOCK_N,) are positions; keep: (BLOCK_M, BLOCK_N).
    # BEGIN SOLUTION 4.1
    keep = key[None, :] <= query[:, None]
    # END SOLUTION 4.1
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

    # Step 4.2 -- Carried over: steps 3.2 to 3.4, with the mask between the scores and the softmax.
    # BEGIN SOLUTION 4.2
    s = tl.dot(q, tl.trans(k))
    if EDGE:
        s = tl.where(_keep(query, key), s, float("-inf"))
    m_new = tl.maximum(m_i, tl.max(s, axis=1) * scale_log2e)
    p = tl.math.exp2(s * scale_log2e - m_new[:, None])
    alpha = tl.math.exp2(m_i - m_new)
    l_i = l_i * alpha + tl.sum(p, axis=1)
    acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
    # END SOLUTION 4.2
    return acc, l_i, m_new


@triton.jit
def _longest_first(num_tiles, GROUP: tl.constexpr):
    """This program's turn: (how many tiles from the longest walk, number of the head).

    Programs start in the order of their numbers.  Long walks come first, so that none is left
    over at the end, and GROUP heads at a time, so that their k and v stay in the L2 cache.
    """
    num_heads = tl.num_programs(0) // num_tiles
    first_head = tl.program_id(0) // (GROUP * num_tiles) * GROUP
    heads = tl.minimum(GROUP, num_heads - first_head)
    turn = tl.program_id(0) % (GROUP * num_tiles)
    return turn // heads, first_head + turn % heads


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
    tl.static_assert(BLOCK_M % BLOCK_N == 0)  # the diagonal begins at a tile's border
    num_tiles = tl.cdiv(N, BLOCK_M)
    turn, bh = _longest_first(num_tiles, GROUP)
    start_m = (num_tiles - 1 - turn) * BLOCK_M  # the last queries see the most keys
    bh = bh.to(tl.int64)
    b = bh // H
    h = bh % H
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

    # Step 4.3 -- Two phases: tiles before the diagonal, then the tiles the mask cuts through.
    #   end: one past the last key that any existing row of this tile sees.
    #   EDGE is False in phase 1 and True in phase 2.
    # BEGIN SOLUTION 4.3
    for start_n in range(0, start_m, BLOCK_N):  # keys 0 ... start_m - 1
        acc, l_i, m_i = _attend_tile(
            acc, l_i, m_i, q, k_ptr, v_ptr, query, start_n + offs_n, cols,
            stride_kn, stride_kd, stride_vn, stride_vd, scale_log2e, N, D, False,
        )
    end = tl.minimum(start_m + BLOCK_M, N)
    for start_n in range(start_m, end, BLOCK_N):  # keys start_m ... end - 1
        acc, l_i, m_i = _attend_tile(
            acc, l_i, m_i, q, k_ptr, v_ptr, query, start_n + offs_n, cols,
            stride_kn, stride_kd, stride_vn, stride_vd, scale_log2e, N, D, True,
        )
    # END SOLUTION 4.3

    o = acc / l_i[:, None]
    lse = (m_i + tl.math.log2(l_i)) * LN2

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
        return _recompute_backward(*ctx.saved_tensors, do, is_causal=True)


def flash_attention_forward(q, k, v, is_causal=True):
    """Causal attention, differentiable.

    Args:
        q, k, v: (B, H, N, D), any strides; float16, bfloat16 or float32; D <= 128.
        is_causal: must be True; problem 3 is the kernel without a mask.

    Returns:
        o: (B, H, N, D), contiguous, dtype of q.

    Raises:
        ValueError, TypeError: the input breaks the contract above.
    """
    _check(q, k, v)
    if not is_causal:
        raise ValueError("want is_causal=True, problem 3 has no mask; got False")
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
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
    difference = (flash_attention_forward(q, k, v) - want).abs().max().item()
    print("largest difference from scaled_dot_product_attention:", difference)
