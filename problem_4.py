"""Problem 4 -- The causal mask, in two phases.

In a language model a token must not see what comes after it: query i sees keys
0 ... i.  Half of S is then -inf, and a kernel that computes it and throws it
away does twice the work.  So the walk is cut where the mask is, tile by tile:

    keys ->     0       1       2       3
    q tile 0  [ diag |       |       |      ]      diag: the mask cuts through
    q tile 1  [ full | diag  |       |      ]      full: every query sees every key
    q tile 2  [ full | full  | diag  |      ]      blank: nobody sees anything
    q tile 3  [ full | full  | full  | diag ]

    phase 1   keys 0 ... diag - 1                   no mask needed, none computed
    phase 2   keys diag ... start_m + BLOCK_M - 1   the mask, element by element
    beyond    never visited

diag is where the query tile begins, start_m, or the last border of a key tile
before it where key tiles are the larger: no key tile lies across the two phases.

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
from triton.tools.tensor_descriptor import TensorDescriptor

LOG2E = 1.4426950408889634  # exp(x) == exp2(x * LOG2E)
LN2 = tl.constexpr(0.6931471805599453)  # log(x) == log2(x) * LN2

GROUP = tl.constexpr(16)  # heads whose programs run side by side; 8 to 32 alike on an H200

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
def _keep(query, key):
    """(BLOCK_M, BLOCK_N) booleans: which keys each query sees."""
    # Step 4.1 -- A query sees itself and everything before it.
    #   query (BLOCK_M,) and key (BLOCK_N,) are positions; keep: (BLOCK_M, BLOCK_N).
    # BEGIN SOLUTION 4.1
    keep = key[None, :] <= query[:, None]
    # END SOLUTION 4.1
    return keep


@triton.jit
def _partial_sums(p):
    """Row sums of p still spread over 8 columns, (BLOCK_M, 8): every thread adds what it holds."""
    return tl.sum(tl.reshape(p, [p.shape[0], p.shape[1] // 8, 8]), axis=1)


@triton.jit
def _attend_tile(
    sums, q, k_head, v_head, query, start_n, scale_log2e, N,
    BLOCK_N: tl.constexpr, BLOCK_D: tl.constexpr, D: tl.constexpr,
    EDGE: tl.constexpr, RAGGED: tl.constexpr, LATE_V: tl.constexpr,
):
    """Walk one key tile: sums (acc, l_i, m_i) -> sums.  EDGE tiles are masked."""
    acc, l_i, m_i = sums
    key = start_n + tl.arange(0, BLOCK_N)
    k = _load_rows(k_head, start_n, N, BLOCK_N, BLOCK_D, D, RAGGED)
    if not LATE_V:
        v = _load_rows(v_head, start_n, N, BLOCK_N, BLOCK_D, D, RAGGED)

    # Step 4.2 -- Carried over: steps 3.2 and 3.3, with the mask between scores and softmax.
    # BEGIN SOLUTION 4.2
    s = tl.dot(q, tl.trans(k))
    if EDGE:
        s = tl.where(_keep(query, key), s, float("-inf"))
    m_new = tl.maximum(m_i, tl.max(s, axis=1) * scale_log2e)
    p = tl.math.exp2(s * scale_log2e - m_new[:, None])
    alpha = tl.math.exp2(m_i - m_new)
    l_i = l_i * alpha[:, None] + _partial_sums(p)
    # END SOLUTION 4.2

    if LATE_V:  # into the shared memory that k has left
        v = _load_rows(v_head, start_n, N, BLOCK_N, BLOCK_D, D, RAGGED)
    acc = tl.dot(p.to(v.dtype), v, acc * alpha[:, None])
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
    q_in, k_in, v_in, o_ptr, lse_ptr, H, N,
    stride_qb, stride_qh, stride_qn, stride_qd,
    stride_kb, stride_kh, stride_kn, stride_kd,
    stride_vb, stride_vh, stride_vn, stride_vd,
    scale_log2e,
    D: tl.constexpr, BLOCK_D: tl.constexpr, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr,
    RAGGED: tl.constexpr, Q_IN_REGISTERS: tl.constexpr, LATE_V: tl.constexpr,
):
    """Fill BLOCK_M rows of o and lse.  Grid: (cdiv(N, BLOCK_M) * B * H,).

    RAGGED: N is no multiple of BLOCK_M.
    """
    num_tiles = tl.cdiv(N, BLOCK_M)
    turn, bh = _longest_first(num_tiles, GROUP)
    start_m = (num_tiles - 1 - turn) * BLOCK_M  # the last queries see the most keys
    b = bh // H
    h = bh % H
    q_head = _head(q_in, b, h, stride_qb, stride_qh, stride_qn, stride_qd)
    k_head = _head(k_in, b, h, stride_kb, stride_kh, stride_kn, stride_kd)
    v_head = _head(v_in, b, h, stride_vb, stride_vh, stride_vn, stride_vd)

    scale_log2e = tl.cast(scale_log2e, tl.float32)  # torch.compile passes float64
    query = start_m + tl.arange(0, BLOCK_M)
    q = _load_rows(q_head, start_m, N, BLOCK_M, BLOCK_D, D, RAGGED)
    if Q_IN_REGISTERS:  # an exact doubling keeps q there: 0.60 instead of 0.66 ms at D = 64
        q, scale_log2e = q + q, scale_log2e * 0.5
    acc = tl.zeros([BLOCK_M, BLOCK_D], dtype=tl.float32)
    l_i = tl.zeros([BLOCK_M, 8], dtype=tl.float32)
    m_i = tl.full([BLOCK_M], float("-inf"), dtype=tl.float32)
    sums = acc, l_i, m_i

    # Step 4.3 -- Two phases: tiles before the diagonal, then the tiles the mask cuts through.
    #   diag: first key of phase 2, start_m down to a tile's border.  end: one past the last key
    #   that any existing row of this tile sees.  EDGE is False in phase 1 and True in phase 2;
    #   only phase 2 can be RAGGED, phase 1 never is.  LATE_V is handed through.
    # BEGIN SOLUTION 4.3
    diag = start_m // BLOCK_N * BLOCK_N
    for start_n in range(0, diag, BLOCK_N):  # keys 0 ... diag - 1
        sums = _attend_tile(
            sums, q, k_head, v_head, query, start_n, scale_log2e, N,
            BLOCK_N, BLOCK_D, D, False, False, LATE_V,
        )
    end = tl.minimum(start_m + BLOCK_M, N)
    for start_n in range(diag, end, BLOCK_N):  # keys diag ... end - 1
        sums = _attend_tile(
            sums, q, k_head, v_head, query, start_n, scale_log2e, N,
            BLOCK_N, BLOCK_D, D, True, RAGGED, LATE_V,
        )
    # END SOLUTION 4.3

    acc, l_i, m_i = sums
    l_i = tl.sum(l_i, axis=1)
    _store_rows(o_ptr, acc / l_i[:, None], bh, start_m, N, BLOCK_M, BLOCK_D, D)
    lse = (m_i + tl.math.log2(l_i)) * LN2
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
    unstaged = tiles["num_stages"] == 1
    if descriptors:
        BLOCK_D, BLOCK_N = tiles["BLOCK_D"], tiles["BLOCK_N"]
        q = _describe(q, tiles["BLOCK_M"], BLOCK_D)
        k, v = _describe(k, BLOCK_N, BLOCK_D), _describe(v, BLOCK_N, BLOCK_D)
    with torch.cuda.device(o.get_device()):  # launch where the data is; does nothing on a CPU
        _fwd_kernel[(-(-N // tiles["BLOCK_M"]) * B * H,)](
            q, k, v, o, lse, H, N, *strides, LOG2E / math.sqrt(D), D=D,
            RAGGED=N % tiles["BLOCK_M"] != 0, Q_IN_REGISTERS=descriptors and not unstaged,
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
