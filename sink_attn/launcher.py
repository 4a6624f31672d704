"""Launches the kernels of kernels.py, in the form and with the tiles that policy.py says.

Input is checked: entry.py does that.
"""

import torch
from triton.tools.tensor_descriptor import TensorDescriptor

from . import policy
from .kernels import _dkdv_kernel, _dq_kernel, _fwd_kernel

LOG2E = 1.4426950408889634  # exp(x) == exp2(x * LOG2E)


def _major(x: torch.Tensor) -> int:
    """First number of the GPU's compute capability; 9 (Hopper) where kernels run on the CPU."""
    return torch.cuda.get_device_capability(x.device)[0] if x.device.type == "cuda" else 9


def _describe(x: torch.Tensor, rows: int, BLOCK_D: int) -> TensorDescriptor:
    """x (B, H, N, D) as the copy engine sees it: a source of (1, 1, rows, BLOCK_D) tiles."""
    return TensorDescriptor(x, x.shape, x.stride(), [1, 1, rows, BLOCK_D])


def _packing(N: int, cu_seqlens, max_seqlen) -> tuple:
    """-> the longest sequence, S or None, and N where a tile may divide it, else None."""
    if cu_seqlens is None:
        return N, None, N
    return max_seqlen, cu_seqlens.shape[-1] - 1, None


def _tiles(N: int, rows: int, S: int | None) -> int:
    """Tiles of a head.  S packed sequences have one more each, for the rows left over."""
    return -(-N // rows) if S is None else N // rows + S


def forward(
    q, k, v, sink_logits, cu_seqlens, max_seqlen, is_causal, window_size, sink_size, scale
):
    """q (B, HQ, N, D), k and v (B, HKV, N, D), sink_logits (HQ,) or None -> o, lse_log2.

    cu_seqlens, max_seqlen: None, or those of attention_varlen, with B = 1.
    """
    B, HQ, N, D = q.shape
    longest, S, even_N = _packing(N, cu_seqlens, max_seqlen)
    mask, window_size, sink_size = policy.limits(longest, is_causal, window_size, sink_size)
    HKV = k.shape[1]
    o = torch.empty(B, HQ, N, D, device=q.device, dtype=q.dtype)
    lse_log2 = torch.empty(B, HQ, N, device=q.device, dtype=torch.float32)
    sinks = lse_log2 if sink_logits is None else sink_logits.contiguous()  # lse_log2: never read
    strides = *q.stride(), *k.stride(), *v.stride()
    narrow = policy.is_narrow(mask, window_size)
    packed = policy.is_packed(mask, window_size, HQ // HKV)
    major = _major(q)
    described = S is None and not packed and policy.can_describe(major, q, k, v)
    options = policy.forward_options(
        major, D, q.element_size(), even_N, mask, narrow, packed, described
    )
    rows = options["BLOCK_M"]
    if described:
        BLOCK_D, BLOCK_N = options["BLOCK_D"], options["BLOCK_N"]
        q = _describe(q, rows, BLOCK_D)
        k, v = _describe(k, BLOCK_N, BLOCK_D), _describe(v, BLOCK_N, BLOCK_D)
    if options["TWO_TILES"]:
        rows *= 2
    programs = _tiles(N, rows, S) * B * HQ // options["HEADS"]
    with torch.cuda.device(o.get_device()):  # launch where the data is; does nothing on a CPU
        _fwd_kernel[(programs,)](
            q, k, v, sinks, o, lse_log2, HQ, HKV, N, cu_seqlens, S, *strides, scale * LOG2E,
            window_size, sink_size, D=D, HAS_SINK_LOGITS=sink_logits is not None, **options,
        )
    return o, lse_log2


def backward(
    q, k, v, sink_logits, cu_seqlens, o, lse_log2, do, max_seqlen, is_causal, window_size,
    sink_size, scale, needs,
):
    """-> dq, dk, dv, dsink_logits.  needs: which are wanted?  Others may be None.

    Nothing is added up in an order that varies: the same bits every time.
    """
    B, HQ, N, D = q.shape
    longest, S, even_N = _packing(N, cu_seqlens, max_seqlen)
    mask, window_size, sink_size = policy.limits(longest, is_causal, window_size, sink_size)
    HKV = k.shape[1]
    strides = *q.stride(), *k.stride(), *v.stride(), *do.stride()
    limits = scale, window_size, sink_size
    narrow = policy.is_narrow(mask, window_size)
    major = _major(q)
    described = S is None and policy.can_describe(major, q, k, v, do)
    dq_options, dkdv_options = policy.backward_options(
        major, D, q.element_size(), even_N, mask, narrow, described
    )
    delta = torch.empty(B, HQ, N, device=q.device, dtype=torch.float32)
    dq = torch.empty(B, HQ, N, D, device=q.device, dtype=q.dtype)
    dk = dv = dsink_logits = None
    dq_programs = _tiles(N, dq_options["BLOCK_M"], S)  # of a head
    dsink_parts = delta  # never written
    if needs[3]:  # zeros: not every tile of packed sequences has rows
        new = torch.empty if S is None else torch.zeros
        dsink_parts = new(B, HQ, dq_programs, device=q.device, dtype=torch.float32)
    sinks = delta if sink_logits is None else sink_logits.contiguous()
    if needs[1] or needs[2]:
        dk, dv = (torch.empty(B, HKV, N, D, device=k.device, dtype=k.dtype) for _ in "kv")
    if described:  # all tiles of both kernels have 64 rows then
        q, k, v, do = (_describe(x, 64, dq_options["BLOCK_D"]) for x in (q, k, v, do))
    with torch.cuda.device(dq.get_device()):
        # Always, even if nobody asked for dq: dkdv and dsink_logits need its delta.
        _dq_kernel[(dq_programs * B * HQ,)](
            q, k, v, o, do, sinks, lse_log2, delta, dq, dsink_parts, HQ, HKV, N, cu_seqlens, S,
            *strides, *limits, D=D, WANT_DSINK=needs[3], **dq_options,
        )
        if needs[1] or needs[2]:
            BLOCK_N = dkdv_options["BLOCK_N"]
            tiles = _tiles(N, BLOCK_N, S)
            sink_tiles, parts = -(-sink_size // BLOCK_N), N // (window_size + BLOCK_N)
            if S is not None or not 0 < sink_tiles <= 4 or sink_tiles == tiles or parts < 2:
                sink_tiles = 0

            def launch(dk, dv, first_tile, num_tiles, rows_out, parts):
                _dkdv_kernel[(num_tiles * B * HKV, parts)](
                    q, k, v, do, lse_log2, delta, dk, dv, HQ, HKV, N, cu_seqlens, S, *strides,
                    *limits, first_tile, num_tiles, rows_out,
                    D=D, GROUPED=HQ != HKV, SPLIT=parts > 1, **dkdv_options,
                )

            launch(dk, dv, sink_tiles, tiles - sink_tiles, N, 1)
            if sink_tiles:
                # All later queries see a sink: its tile's walk is N long where the others' are W.
                # Cut into parts of about that length, it has as many sums, which are added here.
                parts, rows = min(parts, 32), sink_tiles * BLOCK_N
                shape = 2, parts, B, HKV, rows, D
                sums = torch.empty(shape, device=dq.device, dtype=torch.float32)
                launch(*sums.unbind(), 0, sink_tiles, rows, parts)
                for grad, total in zip((dk, dv), sums.sum(1), strict=True):
                    grad[:, :, :rows] = total[:, :, :N]
    if needs[3]:
        dsink_logits = dsink_parts.sum(dim=(0, 2)).to(sink_logits.dtype)
    return dq, dk, dv, dsink_logits
