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
    interior    inner ... diag - 1      inside every row's window                no mask
    diagonal    diag ...                some keys come after some rows           masked

    first   first key of the first row's window, down to a tile's border
    inner   first key of the last row's window, up to a tile's border

A window shorter than the tiles leaves no interior, and its left edge cuts
through the diagonal tiles too; the mask of both edges is therefore the same.

A new trap.  On the left edge a row may see no key of a tile at all.  Its
maximum so far is still -inf, and exp2(-inf - (-inf)) is NaN.  Subtract a finite
number instead wherever the maximum is -inf: exp2(-inf - 0) is 0, as it should be.

Short windows (given code).  A tile of 64 queries and W = 128 sees 191 keys, 128 of
them each.  Where eight heads share k and v, a tile of 16 positions of eight heads
has as many rows and sees 143: it is all edge, and one masked walk does it.  The
original shape on an H200 (Triton 3.6, November 2026): 0.019 -> 0.013 ms.

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
    return x, b, h, stride_h, stride_row, stride_col


@triton.jit
def _load_rows(
    head, start, N,
    ROWS: tl.constexpr, BLOCK_D: tl.constexpr, D: tl.constexpr, RAGGED: tl.constexpr,
    HEADS: tl.constexpr = 1,
):
    """Rows start ... start + ROWS - 1 of a head, (ROWS, BLOCK_D); what lies outside reads 0.

    RAGGED: some of the rows may lie past N - 1.  HEADS: so many heads, one below the other.
    """
    x, b, h, stride_h, stride_row, stride_col = head
    if isinstance(x, tl.tensor_descriptor):  # the copy engine finds addresses and borders
        tile = x.load([b, h, start, 0]).reshape(ROWS, BLOCK_D)
    else:
        i, cols = tl.arange(0, HEADS * ROWS), tl.arange(0, BLOCK_D)
        rows = start + i % ROWS
        ptrs = x + rows.to(tl.int64)[:, None] * stride_row + cols.to(tl.int64)[None, :] * stride_col
        if HEADS > 1:
            ptrs += (i // ROWS).to(tl.int64)[:, None] * stride_h
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
    ptr, tile, bh, start, N,
    ROWS: tl.constexpr, BLOCK_D: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr = 1,
):
    """Store a tile in a tensor of ours: contiguous, row i of head bh is row bh * N + i."""
    i, cols = tl.arange(0, HEADS * ROWS), tl.arange(0, BLOCK_D)
    rows = start + i % ROWS
    ptrs = ptr + ((bh + i // ROWS).to(tl.int64) * N + rows)[:, None] * D + cols[None, :]
    mask = rows[:, None] < N
    if BLOCK_D != D:
        mask &= cols[None, :] < D
    tl.store(ptrs, tile.to(ptr.dtype.element_ty), mask=mask)


@triton.jit
def _keep(query, key, window_size):
    """(BLOCK_M, BLOCK_N) booleans: which keys each query sees."""
    # Step 6.1 -- Query i sees keys i - window_size + 1 ... i.
    #   query (BLOCK_M,) and key (BLOCK_N,) are positions; keep: (BLOCK_M, BLOCK_N).
    #   Compare the key with the two ends of its query's window: no arithmetic a score.
    # BEGIN SOLUTION 6.1
    first, last = query - window_size + 1, query
    keep = (key[None, :] >= first[:, None]) & (key[None, :] <= last[:, None])
    # END SOLUTION 6.1
    return keep


@triton.jit
def _scores(q, k, query, key, window_size, EDGE: tl.constexpr):
    """Scores of a query tile and a key tile, (BLOCK_M, BLOCK_N); EDGE tiles are masked."""
    # Step 6.2 -- Carried over: step 3.2, and on EDGE tiles the mask.
    # BEGIN SOLUTION 6.2
    s = tl.dot(q, tl.trans(k))
    if EDGE:
        s = tl.where(_keep(query, key, window_size), s, float("-inf"))
    # END SOLUTION 6.2
    return s


@triton.jit
def _partial_sums(p):
    """Row sums of p still spread over 8 columns, (BLOCK_M, 8): every thread adds what it holds."""
    return tl.sum(tl.reshape(p, [p.shape[0], p.shape[1] // 8, 8]), axis=1)


@triton.jit
def _softmax(s, l_i, m_i, scale_log2e, EDGE: tl.constexpr):
    """Weights of a tile against the new maximum, what the old sums are worth, the new l_i."""
    # Step 6.3 -- The weights, also for a row that has seen no key yet.
    #   pivot (BLOCK_M,): m_new, or 0 where m_new is -inf.  Subtract pivot, not m_new,
    #   in both exponents; then l_i as ever.  Only EDGE tiles need it.
    # BEGIN SOLUTION 6.3
    m_new = tl.maximum(m_i, tl.max(s, axis=1) * scale_log2e)
    pivot = tl.where(m_new == float("-inf"), 0.0, m_new) if EDGE else m_new
    p = tl.math.exp2(s * scale_log2e - pivot[:, None])
    alpha = tl.math.exp2(m_i - pivot)
    l_i = l_i * alpha[:, None] + _partial_sums(p)
    # END SOLUTION 6.3
    return p, alpha, l_i, m_new


@triton.jit
def _attend_tile(
    sums, q, k_head, v_head, query, start_n, scale_log2e, N, window_size,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, D: tl.constexpr,
    EDGE: tl.constexpr, RAGGED: tl.constexpr, LATE_V: tl.constexpr,
):
    """Walk one key tile: sums (acc, l_i, m_i) -> sums.  EDGE tiles are masked."""
    acc, l_i, m_i = sums
    key = start_n + tl.arange(0, BLOCK_N)
    k = _load_rows(k_head, start_n, N, BLOCK_N, BLOCK_D, D, RAGGED)
    if not LATE_V:
        v = _load_rows(v_head, start_n, N, BLOCK_N, BLOCK_D, D, RAGGED)
    s = _scores(q, k, query, key, window_size, EDGE)
    p, alpha, l_i, m_i = _softmax(s, l_i, m_i, scale_log2e, EDGE)
    if LATE_V:  # into the shared memory that k has left
        v = _load_rows(v_head, start_n, N, BLOCK_N, BLOCK_D, D, RAGGED)
    acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
    return acc, l_i, m_i


# ------------------------------------------------------------------- kernel
@triton.jit(do_not_specialize=["N", "window_size"])
def _fwd_kernel(
    q_in, k_in, v_in, o_ptr, lse_ptr, HQ, HKV, N,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    scale_log2e, window_size,
    D: tl.constexpr, BLOCK_D: tl.constexpr, ROWS: tl.constexpr, BLOCK_N: tl.constexpr,
    RAGGED: tl.constexpr, Q_IN_REGISTERS: tl.constexpr, LATE_V: tl.constexpr,
    HEADS: tl.constexpr, SHORT: tl.constexpr,
):
    """Fill ROWS rows of o and lse for HEADS heads of a group.

    Grid: (cdiv(N, ROWS) * B * HQ / HEADS,).  RAGGED: N is no multiple of ROWS.
    """
    num_tiles = tl.cdiv(N, ROWS)
    start_m = tl.program_id(0) % num_tiles * ROWS
    bh = tl.program_id(0) // num_tiles * HEADS
    b = bh // HQ
    h = bh % HQ
    kv_head = h // (HQ // HKV)
    q_head = _head(q_in, b, h, stride_qb, stride_qh, stride_qn, stride_qd)
    k_head = _head(k_in, b, kv_head, stride_kb, stride_kh, stride_kn, stride_kd)
    v_head = _head(v_in, b, kv_head, stride_vb, stride_vh, stride_vn, stride_vd)

    scale_log2e = tl.cast(scale_log2e, tl.float32)  # torch.compile passes float64
    i = tl.arange(0, HEADS * ROWS)
    query = start_m + i % ROWS
    q = _load_rows(q_head, start_m, N, ROWS, BLOCK_D, D, RAGGED, HEADS)
    if Q_IN_REGISTERS:  # an exact doubling: what comes from arithmetic, not a load, stays there
        q, scale_log2e = q + q, scale_log2e * 0.5
    acc = tl.zeros([HEADS * ROWS, BLOCK_D], dtype=tl.float32)
    l_i = tl.zeros([HEADS * ROWS, 8], dtype=tl.float32)
    m_i = tl.full([HEADS * ROWS], float("-inf"), dtype=tl.float32)
    sums = acc, l_i, m_i

    end = tl.minimum(start_m + ROWS, N)
    if SHORT:  # a window of a few tiles is all edge: one masked walk, from its very first key
        first = tl.maximum(start_m - window_size + 1, 0)
        inner, diag = end, end
    else:
        diag = start_m // BLOCK_N * BLOCK_N
        # Step 6.4 -- Where the three phases begin and end.
        #   first: the first row's first key, down to a multiple of BLOCK_N, not below 0.
        #   inner: the last row's first key, up to a multiple of BLOCK_N, not past diag.
        # BEGIN SOLUTION 6.4
        first = tl.maximum(start_m - window_size + 1, 0) // BLOCK_N * BLOCK_N
        inner = tl.cdiv(tl.maximum(start_m + ROWS - window_size, 0), BLOCK_N) * BLOCK_N
        inner = tl.minimum(inner, diag)
        # END SOLUTION 6.4
    for start_n in range(first, inner, BLOCK_N):  # the left edge
        sums = _attend_tile(
            sums, q, k_head, v_head, query, start_n, scale_log2e, N, window_size,
            BLOCK_N, BLOCK_D, D, True, RAGGED or SHORT, LATE_V,
        )
    for start_n in range(inner, diag, BLOCK_N):  # the interior
        sums = _attend_tile(
            sums, q, k_head, v_head, query, start_n, scale_log2e, N, window_size,
            BLOCK_N, BLOCK_D, D, False, False, LATE_V,
        )
    for start_n in range(diag, end, BLOCK_N):  # the diagonal
        sums = _attend_tile(
            sums, q, k_head, v_head, query, start_n, scale_log2e, N, window_size,
            BLOCK_N, BLOCK_D, D, True, RAGGED, LATE_V,
        )

    _finish(sums, o_ptr, lse_ptr, bh, start_m, N, ROWS, BLOCK_D, D, HEADS)


@triton.jit
def _finish(
    sums, o_ptr, lse_ptr, bh, start_m, N,
    ROWS: tl.constexpr, BLOCK_D: tl.constexpr, D: tl.constexpr, HEADS: tl.constexpr,
):
    """Normalise the sums of a query tile and store its rows of o and lse."""
    acc, l_i, m_i = sums
    l_i = tl.sum(l_i, axis=1)  # (BLOCK_M, 8) -> (BLOCK_M,)
    lse = (m_i + tl.math.log2(l_i)) * LN2
    _store_rows(o_ptr, acc / l_i[:, None], bh, start_m, N, ROWS, BLOCK_D, D, HEADS)
    i = tl.arange(0, HEADS * ROWS)
    query = start_m + i % ROWS
    tl.store(lse_ptr + (bh + i // ROWS).to(tl.int64) * N + query, lse, mask=query < N)


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


def _forward(q, k, v, window_size):
    """Launch the kernel.  q (B, HQ, N, D), k and v (B, HKV, N, D) -> o, lse (B, HQ, N)."""
    B, HQ, N, D = q.shape
    HKV = k.shape[1]
    o = torch.empty(B, HQ, N, D, device=q.device, dtype=q.dtype)
    lse = torch.empty(B, HQ, N, device=q.device, dtype=torch.float32)
    strides = *q.stride(), *k.stride(), *v.stride()
    short = window_size <= 128 and HQ // HKV % 8 == 0  # eight heads fill a tile's rows
    descriptors = not short and _can_describe(q, k, v)
    tiles = _tiles(D, q.dtype, q.device, descriptors)
    if window_size <= 128:  # a short walk is mostly edges: narrow tiles mask less of them away
        tiles |= dict(BLOCK_N=min(32, tiles["BLOCK_N"]), num_stages=3)
    unstaged = tiles["num_stages"] == 1
    rows = tiles.pop("BLOCK_M")
    if short:
        tiles.pop("maxnreg", None)
        rows = 2 * rows // 8 if tiles["BLOCK_D"] * q.element_size() <= 128 else rows // 8
    if descriptors:
        BLOCK_D, BLOCK_N = tiles["BLOCK_D"], tiles["BLOCK_N"]
        q = _describe(q, rows, BLOCK_D)
        k, v = _describe(k, BLOCK_N, BLOCK_D), _describe(v, BLOCK_N, BLOCK_D)
    heads = 8 if short else 1
    programs = -(-N // rows) * B * HQ // heads
    with torch.cuda.device(o.get_device()):  # launch where the data is; does nothing on a CPU
        _fwd_kernel[(programs,)](
            q, k, v, o, lse, HQ, HKV, N, *strides, LOG2E / math.sqrt(D),
            min(window_size, N), D=D, ROWS=rows, RAGGED=N % rows != 0,
            Q_IN_REGISTERS=descriptors and not unstaged, HEADS=heads, SHORT=short,
            LATE_V=unstaged, **tiles,
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
    of_q, of_k = q.shape, k.shape
    shapes = "want q (B, HQ, N, D), k and v (B, HKV, N, D)"
    if len(of_q) != 4 or len(of_k) != 4 or of_k != v.shape or 0 in of_q or 0 in of_k:
        raise ValueError(f"{shapes}, not empty; got {list(of_q)}, {list(of_k)}, {list(v.shape)}")
    if of_q[0] != of_k[0] or of_q[2:] != of_k[2:]:
        raise ValueError(f"{shapes}; got {list(of_q)}, {list(of_k)}, {list(v.shape)}")
    if of_q[1] % of_k[1] != 0:
        raise ValueError(f"want HQ a multiple of HKV; got {of_q[1]}, {of_k[1]}")
    if of_q[3] > 128:
        raise ValueError(f"want D <= 128; got {of_q[3]}")
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
