"""Problem 6 -- Sliding window: each query sees the last W keys.

With a window of W, query i sees keys i - W + 1 ... i.  *The window counts the
query itself*: W = 1 is a query that sees only its own key.  Mistral and every
second layer of GPT-OSS work so; information still travels further than W,
because each layer looks back W positions into the one below.

W = 3, six tokens (x: visible)          The work is O(N W), no longer O(N^2)

    keys ->   0 1 2 3 4 5
    query 0   x . . . . .
    query 1   x x . . . .
    query 2   x x x . . .
    query 3   . x x x . .
    query 4   . . x x x .
    query 5   . . . x x x

A tile of queries start_m ... start_m + BLOCK_M - 1 meets three kinds of key tile:

    left edge   first ... inner - 1     the window of some rows has moved on     masked
    interior    inner ... start_m - 1   inside every row's window                no mask
    diagonal    start_m ...             some keys come after some rows           masked

    first   first key of the first row's window, down to a tile's border
    inner   first key of the last row's window, up to a tile's border

A window shorter than the tiles leaves no interior, and its left edge cuts
through the diagonal tiles too; the mask of both edges is therefore the same.

A new trap.  On the left edge a row may see no key of a tile at all.  Its
maximum so far is still -inf, and exp2(-inf - (-inf)) is NaN.  Subtract a finite
number instead wherever the maximum is -inf: exp2(-inf - 0) is 0, as it should be.

New here: steps 6.1, 6.3 and 6.4.  Step 6.2 is what you wrote in problem 3.

Shapes      q, o: (B, HQ, N, D)    k, v: (B, HKV, N, D)    lse: (B, HQ, N)
Dtypes      as in problem 3.  Causal and grouped, as in problems 4 and 5.

Check       python autograder.py --p6
Stuck       python autograder.py --hint 6.1      (any step number)
Source      Longformer, arXiv 2004.05150; Mistral 7B, arXiv 2310.06825
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
def _keep(query, key, window_size):
    """(BLOCK_M, BLOCK_N) booleans: which keys each query sees."""
    # Step 6.1 -- Query i sees keys i - window_size + 1 ... i.
    #   age: how many positions before its query a key stands, (BLOCK_M, BLOCK_N).
    #   Both ends of the window are conditions on age alone.
    # BEGIN SOLUTION 6.1
    age = query[:, None] - key[None, :]
    keep = (age >= 0) & (age < window_size)
    # END SOLUTION 6.1
    return keep


@triton.jit
def _attend_tile(
    acc, l_i, m_i, q, k_ptr, v_ptr, query, key, cols,
    stride_kn, stride_kd, stride_vn, stride_vd, scale_log2e, N, window_size,
    D: tl.constexpr, EDGE: tl.constexpr,
):
    """Walk one key tile: (acc, l_i, m_i) -> (acc, l_i, m_i).  EDGE tiles are masked."""
    k = _load_rows(k_ptr, key, cols, stride_kn, stride_kd, N, D, EDGE)  # (BLOCK_N, BLOCK_D)
    v = _load_rows(v_ptr, key, cols, stride_vn, stride_vd, N, D, EDGE)  # (BLOCK_N, BLOCK_D)

    # Step 6.2 -- Carried over: the scores, the mask on EDGE tiles, the new maximum m_new.
    # BEGIN SOLUTION 6.2
    s = tl.dot(q, tl.trans(k))
    if EDGE:
        s = tl.where(_keep(query, key, window_size), s, float("-inf"))
    m_new = tl.maximum(m_i, tl.max(s, axis=1) * scale_log2e)
    # END SOLUTION 6.2

    # Step 6.3 -- The weights, also for a row that has seen no key yet.
    #   pivot (BLOCK_M,): m_new, or 0 where m_new is -inf.  Subtract pivot, not m_new,
    #   in both exponents; then l_i and acc as ever.  Only EDGE tiles need it.
    # BEGIN SOLUTION 6.3
    pivot = tl.where(m_new == float("-inf"), 0.0, m_new) if EDGE else m_new
    p = tl.math.exp2(s * scale_log2e - pivot[:, None])
    alpha = tl.math.exp2(m_i - pivot)
    l_i = l_i * alpha + tl.sum(p, axis=1)
    acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
    # END SOLUTION 6.3
    return acc, l_i, m_new


# ------------------------------------------------------------------- kernel
@triton.jit(do_not_specialize=["N", "window_size"])
def _fwd_kernel(
    q_ptr, k_ptr, v_ptr, o_ptr, lse_ptr, HQ, HKV, N,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    scale_log2e, window_size,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
):
    """Fill BLOCK_M rows of o and lse.  Grid: (cdiv(N, BLOCK_M) * B * HQ,)."""
    tl.static_assert(BLOCK_M % BLOCK_N == 0)  # the diagonal begins at a tile's border
    num_tiles = tl.cdiv(N, BLOCK_M)
    start_m = tl.program_id(0) % num_tiles * BLOCK_M
    bh = (tl.program_id(0) // num_tiles).to(tl.int64)
    b = bh // HQ
    h = bh % HQ
    kv_head = h // (HQ // HKV)
    q_ptr += b * stride_qb + h * stride_qh
    k_ptr += b * stride_kb + kv_head * stride_kh
    v_ptr += b * stride_vb + kv_head * stride_vh

    scale_log2e = tl.cast(scale_log2e, tl.float32)  # torch.compile passes float64
    query = start_m + tl.arange(0, BLOCK_M)
    offs_n = tl.arange(0, BLOCK_N)
    cols = tl.arange(0, BLOCK_D)
    q = _load_rows(q_ptr, query, cols, stride_qn, stride_qd, N, D, True)  # (BLOCK_M, BLOCK_D)
    m_i = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    l_i = tl.zeros([BLOCK_M], dtype=tl.float32)
    acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)

    # Step 6.4 -- The three phases, and where each begins and ends.
    #   first: the first row's first key, down to a multiple of BLOCK_N, not below 0.
    #   inner: the last row's first key, up to a multiple of BLOCK_N, not past start_m.
    #   end: as in problem 4.  Left edge and diagonal are EDGE tiles, the interior is not.
    # BEGIN SOLUTION 6.4
    first = tl.maximum(start_m - window_size + 1, 0) // BLOCK_N * BLOCK_N
    inner = tl.cdiv(tl.maximum(start_m + BLOCK_M - window_size, 0), BLOCK_N) * BLOCK_N
    inner = tl.minimum(inner, start_m)
    end = tl.minimum(start_m + BLOCK_M, N)
    for start_n in range(first, inner, BLOCK_N):  # the left edge
        acc, l_i, m_i = _attend_tile(
            acc, l_i, m_i, q, k_ptr, v_ptr, query, start_n + offs_n, cols,
            stride_kn, stride_kd, stride_vn, stride_vd, scale_log2e, N, window_size, D, True,
        )
    for start_n in range(inner, start_m, BLOCK_N):  # the interior
        acc, l_i, m_i = _attend_tile(
            acc, l_i, m_i, q, k_ptr, v_ptr, query, start_n + offs_n, cols,
            stride_kn, stride_kd, stride_vn, stride_vd, scale_log2e, N, window_size, D, False,
        )
    for start_n in range(start_m, end, BLOCK_N):  # the diagonal
        acc, l_i, m_i = _attend_tile(
            acc, l_i, m_i, q, k_ptr, v_ptr, query, start_n + offs_n, cols,
            stride_kn, stride_kd, stride_vn, stride_vd, scale_log2e, N, window_size, D, True,
        )
    # END SOLUTION 6.4

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


def _forward(q, k, v, window_size):
    """Launch the kernel.  q (B, HQ, N, D), k and v (B, HKV, N, D) -> o, lse (B, HQ, N)."""
    B, HQ, N, D = q.shape
    HKV = k.shape[1]
    o = torch.empty(B, HQ, N, D, device=q.device, dtype=q.dtype)
    lse = torch.empty(B, HQ, N, device=q.device, dtype=torch.float32)
    tiles = _tiles(D, q.dtype, q.device)
    if window_size <= 128:  # a short walk is mostly edges: narrow tiles mask less of them away
        tiles |= dict(BLOCK_N=min(32, tiles["BLOCK_N"]), num_stages=3)
    grid = (triton.cdiv(N, tiles["BLOCK_M"]) * B * HQ,)
    with torch.cuda.device(q.get_device()):  # launch where the data is; does nothing on a CPU
        _fwd_kernel[grid](
            q, k, v, o, lse, HQ, HKV, N, *q.stride(), *k.stride(), *v.stride(),
            LOG2E / math.sqrt(D), min(window_size, N), D=D, **tiles,
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
    def forward(ctx, q, k, v, window_size):
        o, lse = _forward(q, k, v, window_size)
        ctx.save_for_backward(q, k, v, o, lse)
        ctx.window_size = window_size
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx, do):
        grads = _recompute_backward(*ctx.saved_tensors, do, True, ctx.window_size)
        return *grads, None


def flash_attention_forward(q, k, v, is_causal=True, window_size=128):
    """Sliding-window attention, differentiable.

    Args:
        q: (B, HQ, N, D), any strides; float16, bfloat16 or float32; D <= 128.
        k, v: (B, HKV, N, D), any strides; HQ a multiple of HKV; dtype and device of q.
        is_causal: must be True; problem 3 is the kernel without a mask.
        window_size: how many keys a query sees, itself included; >= 1, may exceed N.

    Returns:
        o: (B, HQ, N, D), contiguous, dtype of q.

    Raises:
        ValueError, TypeError: the input breaks the contract above.
    """
    _check(q, k, v)
    if not is_causal:
        raise ValueError("want is_causal=True, problem 3 has no mask; got False")
    if not isinstance(window_size, int) or window_size < 1:
        raise ValueError(f"want an integer window_size >= 1; got {window_size!r}")
    return FlashAttentionFunction.apply(q, k, v, window_size)


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Refuse bad input here: inside a kernel it would be a silent wrong read."""
    shapes = f"{list(q.shape)}, {list(k.shape)}, {list(v.shape)}"
    if q.dim() != 4 or k.dim() != 4 or k.shape != v.shape or 0 in (*q.shape, *k.shape):
        raise ValueError(f"want q (B, HQ, N, D), k and v (B, HKV, N, D), not empty; got {shapes}")
    if q.shape[0] != k.shape[0] or q.shape[2:] != k.shape[2:]:
        raise ValueError(f"want q (B, HQ, N, D), k and v (B, HKV, N, D); got {shapes}")
    if q.shape[1] % k.shape[1] != 0:
        raise ValueError(f"want HQ a multiple of HKV; got {q.shape[1]}, {k.shape[1]}")
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
    i = torch.arange(100, device=device)
    age = i[:, None] - i[None, :]
    keep = (age >= 0) & (age < 17)
    want = torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=keep)
    difference = (flash_attention_forward(q, k, v, window_size=17) - want).abs().max().item()
    print("largest difference from scaled_dot_product_attention:", difference)
