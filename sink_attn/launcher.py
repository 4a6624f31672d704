"""Launch the kernels of kernels.py, in the form and with the tiles that policy.py chooses.

entry.py has checked the input.  All that follows from the form of the tensors and the options is a
plan, made once and kept (kept.py), because most calls repeat the form of an earlier one.
"""

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from . import kept, policy
from .kernels import _dkdv_kernel, _dq_kernel, _fwd_kernel

LOG2E = 1.4426950408889634  # exp(x) == exp2(x * LOG2E)


def _major(x: torch.Tensor) -> int:
    """Returns the first number of the compute capability; 9 (Hopper) if kernels run on the CPU."""
    return torch.cuda.get_device_capability(x.device)[0] if x.device.type == "cuda" else 9


def _source(x: torch.Tensor, block: tuple[int, int]) -> TensorDescriptor:
    """Describe x (B, H, N, D) to the copy engine, as a source of (1, 1, rows, BLOCK_D) tiles."""
    return TensorDescriptor(x, x.shape, x.stride(), [1, 1, *block])


def _describe(x: torch.Tensor, block: tuple[int, int]) -> TensorDescriptor:
    """As _source, but kept on a GPU; Triton's interpreter needs the tensor itself."""
    return kept.describe(x, block, _source) if x.is_cuda else _source(x, block)


def new_like(x: torch.Tensor, layout: str | None = None, dtype=None) -> torch.Tensor:
    """Returns a new tensor of x's shape (B, H, N, D), without gaps.

    layout: the order of its dimensions in memory, "bhnd" or "bnhd"; None for the one nearer x's.
    dtype: None for x's.
    """
    B, H, N, D = x.shape
    if layout == "bnhd" or layout is None and x.stride(1) < x.stride(2):
        return x.new_empty_strided(x.shape, (N * H * D, D, H * D, 1), dtype=dtype)
    return x.new_empty(x.shape, dtype=dtype)


def _packing(N: int, cu_seqlens, max_seqlen) -> tuple:
    """Returns the longest length, S (None unpacked), and N (None packed: tiles are ragged)."""
    if cu_seqlens is None:
        return N, None, N
    return max_seqlen, cu_seqlens.shape[-1] - 1, None


def _tiles(N: int, rows: int, S: int | None) -> int:
    """Returns tiles per head.  Each of S packed sequences has one more, for its last rows."""
    return -(-N // rows) if S is None else N // rows + S


def _constants(kernel, **values) -> tuple[tuple, dict]:
    """Returns values in the order of the kernel's last parameters, and the launch options."""
    names = [name for name in kernel.arg_names if name in values]
    return tuple(values.pop(name) for name in names), values


# ------------------------------------------------------------------ forward
def _plan_forward(
    q, k, v, sink_logits, cu_seqlens, max_seqlen, is_causal, window_size, sink_size
):
    """Returns what forward launches: grid, blocks of q and of k and v (None without descriptors),
    S, strides, (window_size, sink_size), constexprs, launch options."""
    B, HQ, N, D = q.shape
    longest, S, even_N = _packing(N, cu_seqlens, max_seqlen)
    mask, window_size, sink_size = policy.limits(longest, is_causal, window_size, sink_size)
    narrow = policy.is_narrow(mask, window_size)
    packed = policy.is_packed(mask, window_size, HQ // k.shape[1])
    major = _major(q)
    described = S is None and not packed and policy.can_describe(major, q, k, v)
    options = policy.forward_options(
        major, D, q.element_size(), even_N, mask, narrow, packed, described
    )
    rows = options["BLOCK_M"]
    blocks = None
    if described:
        blocks = (rows, options["BLOCK_D"]), (options["BLOCK_N"], options["BLOCK_D"])
    if options["TWO_TILES"]:
        rows *= 2
    grid = _tiles(N, rows, S) * B * HQ // options["HEADS"], 1, 1
    strides = *q.stride(), *k.stride(), *v.stride()
    return grid, blocks, S, strides, (window_size, sink_size), *_constants(
        _fwd_kernel, D=D, HAS_SINK_LOGITS=sink_logits is not None, **options
    )


def forward(
    q, k, v, sink_logits, cu_seqlens, max_seqlen, is_causal, window_size, sink_size, scale,
    o_layout="bhnd",
):
    """Launch the forward kernel.

    Args:
        q: (B, HQ, N, D).
        k, v: (B, HKV, N, D).
        sink_logits: (HQ,) or None.
        cu_seqlens, max_seqlen: None, or those of attention_varlen, with B = 1.
        o_layout: as in attention.

    Returns:
        o (B, HQ, N, D), dtype of q, and lse_log2 (B, HQ, N), float32, in base 2.
    """
    (B, HQ, N, _), HKV, device = q.shape, k.shape[1], q.device
    options = max_seqlen, is_causal, window_size, sink_size
    key = device, kept.form(q, k, v, sink_logits, cu_seqlens), options, o_layout
    grid, blocks, S, strides, limits, constants, options = kept.plan(
        key, _plan_forward, q, k, v, sink_logits, cu_seqlens, *options
    )
    o = new_like(q, o_layout)
    lse_log2 = q.new_empty((B, HQ, N), dtype=torch.float32)
    sinks = lse_log2 if sink_logits is None else sink_logits.contiguous()  # lse_log2: never read
    if blocks is not None:
        q, k, v = _describe(q, blocks[0]), _describe(k, blocks[1]), _describe(v, blocks[1])
    with kept.on(device):  # launch where the data is
        kept.launch(
            (_fwd_kernel, key), _fwd_kernel, grid, q, k, v, sinks, o, lse_log2, HQ, HKV, N,
            cu_seqlens, S, *strides, *o.stride(), scale * LOG2E, *limits, *constants, **options,
        )
    return o, lse_log2


# ----------------------------------------------------------------- backward
def _plan_backward(
    q, k, v, do, cu_seqlens, max_seqlen, is_causal, window_size, sink_size, needs
):
    """Returns what backward launches: the block of q, k, v and do (None without descriptors), S,
    strides, (window_size, sink_size); for dq its tiles, constexprs and launch options; for each
    launch of dkdv: first tile, tiles, parts, rows, constexprs, launch options."""
    N, D = q.shape[2:]
    HKV = k.shape[1]
    longest, S, even_N = _packing(N, cu_seqlens, max_seqlen)
    mask, window_size, sink_size = policy.limits(longest, is_causal, window_size, sink_size)
    narrow = policy.is_narrow(mask, window_size)
    major = _major(q)
    described = S is None and policy.can_describe(major, q, k, v, do)
    dq_options, dkdv_options = policy.backward_options(
        major, D, q.element_size(), even_N, mask, narrow, described
    )
    dq = _tiles(N, dq_options["BLOCK_M"], S), *_constants(
        _dq_kernel, D=D, WANT_DSINK=needs[3], **dq_options
    )
    BLOCK_N = dkdv_options["BLOCK_N"]
    tiles = _tiles(N, BLOCK_N, S)
    sink_tiles, parts = -(-sink_size // BLOCK_N), N // (window_size + BLOCK_N)
    if S is not None or not 0 < sink_tiles <= 4 or sink_tiles == tiles or parts < 2:
        sink_tiles = 0
    # All later queries see a sink: the loop of its tile covers N queries, that of the others about
    # W.  It is cut into parts of about W, each with sums of its own, which backward() adds.
    launches = [
        (first, number, parts, number * BLOCK_N, *_constants(
            _dkdv_kernel, D=D, GROUPED=q.shape[1] != HKV, SPLIT=parts > 1, **dkdv_options
        ))
        for first, number, parts in (
            (sink_tiles, tiles - sink_tiles, 1), (0, sink_tiles, min(parts, 32))
        ) if number
    ]
    block = (64, dq_options["BLOCK_D"]) if described else None  # all tiles have 64 rows then
    strides = *q.stride(), *k.stride(), *v.stride(), *do.stride()
    return block, S, strides, (window_size, sink_size), dq, launches


def backward(
    q, k, v, sink_logits, cu_seqlens, o, lse_log2, do, dlse, max_seqlen, is_causal, window_size,
    sink_size, scale, needs, sums=None,
):
    """Launch the backward kernels.  The order of every sum is fixed, so the bits never vary.

    Args:
        lse_log2: as forward returned it.
        o, do: (B, HQ, N, D), any strides.
        dlse: (B, HQ, N), contiguous, float32, of the natural logarithm; None for zeros.
        needs: which of the four gradients are wanted; the others may be None.
        sums: dtype of dq, dk and dv; None for that of q.

    Returns:
        dq, dk, dv, dsink_logits, of the shapes, dtypes and layouts of their inputs.
    """
    (B, HQ, N, D), HKV, device = q.shape, k.shape[1], q.device
    options = max_seqlen, is_causal, window_size, sink_size, tuple(needs)
    key = device, kept.form(q, k, v, do, o, lse_log2, sink_logits, cu_seqlens, dlse), options, sums
    block, S, strides, limits, (dq_tiles, constants, options), launches = kept.plan(
        key, _plan_backward, q, k, v, do, cu_seqlens, *options
    )
    delta = lse_log2.new_empty(B, HQ, N)
    dq = new_like(q, dtype=sums)
    dk = dv = dsink_logits = None
    if needs[1] or needs[2]:
        dk, dv = new_like(k, dtype=sums), new_like(v, dtype=sums)
    dsink_parts = delta  # never written
    if needs[3]:  # zeros: not every tile of packed sequences has rows
        new = lse_log2.new_empty if S is None else lse_log2.new_zeros
        dsink_parts = new(B, HQ, dq_tiles)
    sinks = delta if sink_logits is None else sink_logits.contiguous()
    if block is not None:
        q, k, v, do = (_describe(x, block) for x in (q, k, v, do))
    with kept.on(device):
        # Always, even if dq is not wanted: dkdv and dsink_logits need its delta.
        kept.launch(
            (_dq_kernel, key), _dq_kernel, (dq_tiles * B * HQ, 1, 1), q, k, v, o, do, dlse,
            sinks, lse_log2, delta, dq, dsink_parts, HQ, HKV, N, cu_seqlens, S, *strides,
            *o.stride(), *dq.stride(), scale, *limits, *constants, **options,
        )
        for first, tiles, parts, rows, constants, options in launches if dk is not None else ():
            out, out_strides = (dk, dv), (*dk.stride(), *dv.stride())
            if parts > 1:
                out = delta.new_empty(2, parts, B, HKV, rows, D)
                out_strides = 2 * out.stride()[2:]
            kept.launch(
                (_dkdv_kernel, key, parts > 1), _dkdv_kernel, (tiles * B * HKV, parts, 1), q, k, v,
                do, lse_log2, delta, *out, HQ, HKV, N, cu_seqlens, S, *strides, *out_strides, scale,
                *limits, first, tiles, *constants, **options,
            )
            if parts > 1:
                for grad, total in zip((dk, dv), out.sum(1), strict=True):
                    grad[:, :, :rows] = total[:, :, :N]
    if needs[3]:
        dsink_logits = dsink_parts.sum(dim=(0, 2)).to(sink_logits.dtype)
    return dq, dk, dv, dsink_logits
