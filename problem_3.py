"""Problem 3 -- FlashAttention as a Triton kernel, without a mask.

Problem 1 walked the key tiles of one query tile in Python, a dozen PyTorch
operations a step, each a trip to device memory and back.  One kernel does the
whole walk: q, m_i, l_i and acc stay in registers, and only k and v stream in.

Who owns what.  As in problem 2, a program owns a tile of the output.  Here that
is BLOCK_M rows of o and of lse, or two such tiles, for one head of one batch
entry, and it walks the keys:

    program  ->  (batch b, head h, query rows)         grid: tiles * B * H
                       start_n = 0        BLOCK_N      2 BLOCK_N
    q tile     @     [ k tile 0 ]^T     [ k tile 1 ]^T   ...      sums: acc, l_i,
    (BLOCK_M, D)     [ v tile 0 ]       [ v tile 1 ]     ...      m_i, in float32

No two programs write the same row, and no program waits for another.

Base two.  The GPU has an instruction for 2^x, none for e^x, and exp(x) is
2^(x log2 e).  So the scores are multiplied once by scale * log2(e) and all of
the softmax runs in base 2, m_i included.  lse goes out as a
natural logarithm:  lse = (m_i + log2(l_i)) * ln 2.

Edges.  N need not be a multiple of anything.  The last query tile may hang over
the end: its extra rows load as 0 and are never stored.  The last key tile may
hang over too: its extra keys would get the score 0, not -inf, and must be
masked.  All other key tiles are whole and run without a mask; hence two phases.
D is padded with zeros to a power of two, BLOCK_D, because tl.arange wants one.

Fast on Hopper, D > 32 (given code).  A *tensor descriptor* tells the GPU's copy
engine the shape and strides of a tensor once; tiles are then fetched by their
coordinates, and what lies outside reads 0.  And a program takes two query tiles, q
and q2, against every k and v: while the matrix units add p v of one, the softmax of
the other runs.  l_i has 8 columns, which a thread can add to without asking others.

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
from triton.tools.tensor_descriptor import TensorDescriptor

LOG2E = 1.4426950408889634  # exp(x) == exp2(x * LOG2E)
LN2 = tl.constexpr(0.6931471805599453)  # log(x) == log2(x) * LN2

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # kernels run on the CPU, as Python


# -------------------------------------------------------------------- tiles
@triton.jit
def _head(x, b, h, stride_b, stride_h, stride_row, stride_col):
    """Head h of batch entry b, for _load_rows.  x is a pointer or a tensor descriptor."""
    if not isinstance(x, tl.tensor_descriptor):
        x += b.to(tl.int64) * stride_b + h.to(tl.int64) * stride_h  # can pass 2**31
    return x, b, h, stride_row, stride_col


@triton.jit
def _load_rows(
    head, start, N,
    ROWS: tl.constexpr, BLOCK_D: tl.constexpr, D: tl.constexpr, RAGGED: tl.constexpr,
):
    """Rows start ... start + ROWS - 1 of a head, (ROWS, BLOCK_D); what lies outside reads 0.

    RAGGED: some of the rows may lie past N - 1.
    """
    x, b, h, stride_row, stride_col = head
    if isinstance(x, tl.tensor_descriptor):  # the copy engine finds addresses and borders
        tile = x.load([b, h, start, 0]).reshape(ROWS, BLOCK_D)
    else:
        rows, cols = start + tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
        ptrs = x + rows.to(tl.int64)[:, None] * stride_row + cols.to(tl.int64)[None, :] * stride_col
        if RAGGED and BLOCK_D != D:
            tile = tl.load(ptrs, mask=(rows[:, None] < N) & (cols[None, :] < D), other=0.0)
        elif RAGGED:
            tile = tl.load(ptrs, mask=rows[:, None] < N, other=0.0)
        elif BLOCK_D != D:
            tile = tl.load(ptrs, mask=cols[None, :] < D, other=0.0)
        else:
            tile = tl.load(ptrs)
    return tile


@triton.jit
def _store_rows(
    ptr, tile, bh, start, N, ROWS: tl.constexpr, BLOCK_D: tl.constexpr, D: tl.constexpr
):
    """Store a tile in a tensor of ours: contiguous, row i of head bh is row bh * N + i."""
    rows, cols = start + tl.arange(0, ROWS), tl.arange(0, BLOCK_D)
    ptrs = ptr + (bh.to(tl.int64) * N + rows)[:, None] * D + cols[None, :]
    mask = rows[:, None] < N
    if BLOCK_D != D:
        mask &= cols[None, :] < D
    tl.store(ptrs, tile.to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def _keep(key, N):
    """Booleans that broadcast to (BLOCK_M, BLOCK_N): which keys a query sees."""
    # Step 3.1 -- Without a causal mask every query sees every key that exists.
    #   key (BLOCK_N,): positions, which may pass N - 1.
    # BEGIN SOLUTION 3.1
    keep = key[None, :] < N
    # END SOLUTION 3.1
    return keep


@triton.jit
def _scores(q, k, key, N, EDGE: tl.constexpr):
    """Scores of a query tile and a key tile, (BLOCK_M, BLOCK_N); EDGE tiles are masked."""
    # Step 3.2 -- The scores of this tile, not yet scaled.
    #   s: (BLOCK_M, BLOCK_N), float32.  tl.dot multiplies two tiles on the matrix units.
    # BEGIN SOLUTION 3.2
    s = tl.dot(q, tl.trans(k))
    # END SOLUTION 3.2
    if EDGE:
        s = tl.where(_keep(key, N), s, float("-inf"))
    return s


@triton.jit
def _partial_sums(p):
    """Row sums of p still spread over 8 columns, (BLOCK_M, 8): every thread adds what it holds."""
    return tl.sum(tl.reshape(p, [p.shape[0], p.shape[1] // 8, 8]), axis=1)


@triton.jit
def _softmax(s, l_i, m_i, scale_log2e):
    """Weights of a tile against the new maximum, what the old sums are worth, the new l_i."""
    # Step 3.3 -- Online softmax, steps 1.3 and 1.4 in base 2.
    #   m_new (BLOCK_M,), in units of s * scale_log2e; p (BLOCK_M, BLOCK_N); alpha (BLOCK_M,).
    #   Write the argument of exp2 as s * scale_log2e - m: one fused multiply-add an element.
    #   l_i is (BLOCK_M, 8) and adds up _partial_sums(p).
    # BEGIN SOLUTION 3.3
    m_new = tl.maximum(m_i, tl.max(s, axis=1) * scale_log2e)
    p = tl.math.exp2(s * scale_log2e - m_new[:, None])
    alpha = tl.math.exp2(m_i - m_new)
    l_i = l_i * alpha[:, None] + _partial_sums(p)
    # END SOLUTION 3.3
    return p, alpha, l_i, m_new


@triton.jit
def _add_values(acc, p, alpha, v):
    """Rescale the weighted sum of values acc (BLOCK_M, BLOCK_D), and add this tile's share."""
    # Step 3.4 -- Step 1.4 for acc: rescale what is there, add what is new.
    #   tl.dot wants both operands in one dtype: round p to v's.  Its third argument is an
    #   accumulator to add to.
    # BEGIN SOLUTION 3.4
    acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
    # END SOLUTION 3.4
    return acc


@triton.jit
def _attend_tile(
    sums, sums2, q, q2, k_head, v_head, start_n, scale_log2e, N,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, D: tl.constexpr,
    TWO_TILES: tl.constexpr, EDGE: tl.constexpr,
):
    """Walk one key tile: sums (acc, l_i, m_i) of q -> sums; with TWO_TILES those of q2, too."""
    acc, l_i, m_i = sums
    acc2, l_i2, m_i2 = sums2
    key = start_n + tl.arange(0, BLOCK_N)
    k = _load_rows(k_head, start_n, N, BLOCK_N, BLOCK_D, D, EDGE)
    s = _scores(q, k, key, N, EDGE)
    if TWO_TILES:
        s2 = _scores(q2, k, key, N, EDGE)
    p, alpha, l_i, m_i = _softmax(s, l_i, m_i, scale_log2e)
    # v is read only now: earlier, it would need registers, or shared memory of its own.
    v = _load_rows(v_head, start_n, N, BLOCK_N, BLOCK_D, D, EDGE)
    acc = _add_values(acc, p, alpha, v)
    if TWO_TILES:
        p2, alpha2, l_i2, m_i2 = _softmax(s2, l_i2, m_i2, scale_log2e)
        acc2 = _add_values(acc2, p2, alpha2, v)
    return (acc, l_i, m_i), (acc2, l_i2, m_i2)


# ------------------------------------------------------------------- kernel
@triton.jit(do_not_specialize=["N"])
def _fwd_kernel(
    q_in, k_in, v_in, o_ptr, lse_ptr, H, N,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    scale_log2e,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    RAGGED: tl.constexpr, TWO_TILES: tl.constexpr, Q_IN_REGISTERS: tl.constexpr,
):
    """Fill BLOCK_M rows of o and lse, or twice as many.  Grid: (cdiv(N, rows) * B * H,).

    RAGGED: N is no multiple of BLOCK_N.
    """
    rows = 2 * BLOCK_M if TWO_TILES else BLOCK_M
    # Step 3.5 -- Which rows of which head are mine?
    #   Programs with neighbouring numbers walk the same k and v: the tile counts fastest.
    #   start_m: the first of my `rows` rows.  bh = b * H + h, then b and h.
    # BEGIN SOLUTION 3.5
    num_tiles = tl.cdiv(N, rows)
    start_m = tl.program_id(0) % num_tiles * rows
    bh = tl.program_id(0) // num_tiles
    b = bh // H
    h = bh % H
    # END SOLUTION 3.5
    q_head = _head(q_in, b, h, stride_qb, stride_qh, stride_qn, stride_qd)
    k_head = _head(k_in, b, h, stride_kb, stride_kh, stride_kn, stride_kd)
    v_head = _head(v_in, b, h, stride_vb, stride_vh, stride_vn, stride_vd)

    scale_log2e = tl.cast(scale_log2e, tl.float32)  # torch.compile passes float64
    q = _load_rows(q_head, start_m, N, BLOCK_M, BLOCK_D, D, True)
    q2 = q
    if TWO_TILES:
        q2 = _load_rows(q_head, start_m + BLOCK_M, N, BLOCK_M, BLOCK_D, D, True)
    if Q_IN_REGISTERS:  # an exact doubling: what comes from arithmetic, not a load, stays there
        q, q2, scale_log2e = q + q, q2 + q2, scale_log2e * 0.5
    acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    l_i = tl.zeros([BLOCK_M, 8], dtype=tl.float32)
    m_i = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    sums, sums2 = (acc, l_i, m_i), (acc, l_i, m_i)

    # Step 3.6 -- Walk the keys: whole tiles first, then the ragged one if there is one.
    #   whole: the number of keys in whole tiles.  Both sums go into _attend_tile and come
    #   back; EDGE is False for whole tiles, True for the ragged
    #   one.  RAGGED: there is one.
    # BEGIN SOLUTION 3.6
    whole = N // BLOCK_N * BLOCK_N
    for start_n in range(0, whole, BLOCK_N):  # keys 0 ... whole - 1
        sums, sums2 = _attend_tile(
            sums, sums2, q, q2, k_head, v_head, start_n, scale_log2e, N,
            BLOCK_N, BLOCK_D, D, TWO_TILES, False,
        )
    if RAGGED:
        for start_n in range(whole, N, BLOCK_N):  # keys whole ... N - 1: one tile
            sums, sums2 = _attend_tile(
                sums, sums2, q, q2, k_head, v_head, start_n, scale_log2e, N,
                BLOCK_N, BLOCK_D, D, TWO_TILES, True,
            )
    # END SOLUTION 3.6

    _finish(sums, o_ptr, lse_ptr, bh, start_m, N, BLOCK_D, D)
    if TWO_TILES:
        _finish(sums2, o_ptr, lse_ptr, bh, start_m + BLOCK_M, N, BLOCK_D, D)


@triton.jit
def _finish(sums, o_ptr, lse_ptr, bh, start_m, N, BLOCK_D: tl.constexpr, D: tl.constexpr):
    """Normalise the sums of a query tile and store its rows of o and lse."""
    acc, l_i, m_i = sums
    l_i = tl.sum(l_i, axis=1)  # (BLOCK_M, 8) -> (BLOCK_M,)
    # Step 3.7 -- Normalise once, and form lse as a natural logarithm.
    #   o (BLOCK_M, BLOCK_D) and lse (BLOCK_M,), float32.
    # BEGIN SOLUTION 3.7
    o = acc / l_i[:, None]
    lse = (m_i + tl.math.log2(l_i)) * LN2
    # END SOLUTION 3.7
    _store_rows(o_ptr, o, bh, start_m, N, acc.shape[0], BLOCK_D, D)
    query = start_m + tl.arange(0, acc.shape[0])
    tl.store(lse_ptr + bh.to(tl.int64) * N + query, lse, mask=query < N)


# ----------------------------------------------------------- launch and autograd
def _can_describe(*tensors: torch.Tensor) -> bool:
    """Whether the GPU's copy engine can fetch tiles of these (B, H, N, D), and it pays.

    It takes 16-byte steps.  Timed on an H200: faster by 15 % at D = 128, slower at D = 16.
    """
    x = tensors[0]
    if x.shape[3] <= 32 or x.element_size() != 2 or torch.compiler.is_compiling():
        return False
    if x.is_cuda and not INTERPRETED and torch.cuda.get_device_capability(x.device)[0] != 9:
        return False  # Hopper is where this was tried
    return all(
        x.data_ptr() % 16 == 0 and x.stride(3) == 1 and all(s % 8 == 0 < s for s in x.stride()[:3])
        for x in tensors
    )


def _describe(x: torch.Tensor, rows: int, BLOCK_D: int) -> TensorDescriptor:
    """x (B, H, N, D) as the copy engine sees it: a source of (1, 1, rows, BLOCK_D) tiles."""
    return TensorDescriptor(x, x.shape, x.stride(), [1, 1, rows, BLOCK_D])


def _tiles(D: int, dtype: torch.dtype, device: torch.device, descriptors: bool) -> dict:
    """Tile shape and launch options: large enough to reuse k and v, small enough not to spill.

    Timed on an H200 for bfloat16; for other GPUs chosen by what they hold, and compiled only.
    """
    major = torch.cuda.get_device_capability(device)[0] if device.type == "cuda" else 9
    BLOCK_D = max(16, 1 << (D - 1).bit_length())  # a power of two, for tl.arange
    row_bytes = BLOCK_D * dtype.itemsize
    options = dict(num_warps=4, num_stages=3)  # stages: k and v tiles on their way at a time
    if descriptors and BLOCK_D == 128:  # no stages, but three programs at a time: 0.97 -> 0.92 ms
        BLOCK_M, BLOCK_N = 64, 128
        options |= dict(num_stages=1, maxnreg=168)
    elif descriptors or (major == 9 and row_bytes <= 64):  # small programs, several at a time
        BLOCK_M, BLOCK_N = 64, 64
        if BLOCK_D == 16:
            options["maxnreg"] = 96  # registers a thread: five programs fit a multiprocessor
    elif major in (9, 10) and row_bytes == 256:  # two groups of warps share k and v
        BLOCK_M, BLOCK_N = 128, 64
        options["num_warps"] = 8
    elif major in (9, 10):  # Hopper, Blackwell B200: 227 KiB of shared memory feed the matrix units
        BLOCK_M, BLOCK_N = 64, 64 if row_bytes <= 128 else 32
        options["num_stages"] = 3 if row_bytes <= 128 else 2
    elif major >= 8:  # Ampere, Ada, Blackwell RTX: both factors of a product sit in registers
        BLOCK_M, BLOCK_N = 64 if row_bytes <= 256 else 32, 64 if row_bytes <= 128 else 32
        options["num_stages"] = 2 if row_bytes <= 128 else 3
    else:  # Turing: Triton multiplies without its matrix units, so everything is in registers
        BLOCK_M, BLOCK_N = 32, 16
        options["num_stages"] = 2
    return dict(BLOCK_D=BLOCK_D, BLOCK_M=BLOCK_M, BLOCK_N=BLOCK_N, **options)


def _forward(q, k, v):
    """Launch the kernel.  q, k, v (B, H, N, D) -> o, lse (B, H, N)."""
    B, H, N, D = q.shape
    o = torch.empty(B, H, N, D, device=q.device, dtype=q.dtype)
    lse = torch.empty(B, H, N, device=q.device, dtype=torch.float32)
    strides = *q.stride(), *k.stride(), *v.stride()
    descriptors = _can_describe(q, k, v)
    tiles = _tiles(D, q.dtype, q.device, descriptors)
    two_tiles = descriptors and tiles["BLOCK_D"] == 64
    if two_tiles:
        tiles |= dict(BLOCK_N=128)
    elif tiles.get("maxnreg") == 96:  # D = 16: four programs with wide tiles, 0.104, not 0.111 ms
        tiles |= dict(BLOCK_N=128, maxnreg=128)
    ragged = N % tiles["BLOCK_N"] != 0
    if two_tiles and ragged:  # its second loop takes the registers that q and a stage would need
        tiles |= dict(num_stages=2)
    if descriptors:
        BLOCK_D, BLOCK_N = tiles["BLOCK_D"], tiles["BLOCK_N"]
        q = _describe(q, tiles["BLOCK_M"], BLOCK_D)
        k, v = _describe(k, BLOCK_N, BLOCK_D), _describe(v, BLOCK_N, BLOCK_D)
    rows = tiles["BLOCK_M"] * (2 if two_tiles else 1)
    with torch.cuda.device(o.get_device()):  # launch where the data is; does nothing on a CPU
        _fwd_kernel[(-(-N // rows) * B * H,)](
            q, k, v, o, lse, H, N, *strides, LOG2E / math.sqrt(D), D=D,
            RAGGED=ragged, TWO_TILES=two_tiles, Q_IN_REGISTERS=two_tiles and not ragged, **tiles,
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
