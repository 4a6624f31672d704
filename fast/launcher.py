"""Launches the kernels of kernels.py as policy.py says, and connects them to autograd.

    o = flash_attention(q, k, v, is_causal=True, window_size=128, sink_size=4, sink_logits=x)
"""

import math
import os

import torch
from torch.autograd.function import once_differentiable
from triton.tools.tensor_descriptor import TensorDescriptor

from fast import policy
from fast.kernels import _dkdv_kernel, _dq_kernel, _fwd_kernel

LOG2E = 1.4426950408889634  # exp(x) == exp2(x * LOG2E)

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # kernels run on the CPU, as Python


# ------------------------------------------------------------------- launch
def _major(x: torch.Tensor) -> int:
    """First number of the GPU's compute capability; 9 (Hopper) where kernels run on the CPU."""
    return torch.cuda.get_device_capability(x.device)[0] if x.device.type == "cuda" else 9


def _describe(x: torch.Tensor, rows: int, BLOCK_D: int) -> TensorDescriptor:
    """x (B, H, N, D) as the copy engine sees it: a source of (1, 1, rows, BLOCK_D) tiles."""
    return TensorDescriptor(x, x.shape, x.stride(), [1, 1, rows, BLOCK_D])


def _forward(q, k, v, sink_logits, mask, window_size, sink_size, scale):
    """Launch the kernel.  q (B, HQ, N, D), k and v (B, HKV, N, D) -> o, lse_log2 (B, HQ, N)."""
    B, HQ, N, D = q.shape
    HKV = k.shape[1]
    o = torch.empty(B, HQ, N, D, device=q.device, dtype=q.dtype)
    lse_log2 = torch.empty(B, HQ, N, device=q.device, dtype=torch.float32)
    sinks = lse_log2 if sink_logits is None else sink_logits.contiguous()  # lse_log2: never read
    strides = *q.stride(), *k.stride(), *v.stride()
    narrow = policy.is_narrow(mask, window_size)
    packed = policy.is_packed(mask, window_size, HQ // HKV)
    major = _major(q)
    described = not packed and policy.can_describe(major, q, k, v)
    options = policy.forward_options(
        major, D, q.element_size(), N, mask, narrow, packed, described
    )
    rows = options["BLOCK_M"]
    if described:
        BLOCK_D, BLOCK_N = options["BLOCK_D"], options["BLOCK_N"]
        q = _describe(q, rows, BLOCK_D)
        k, v = _describe(k, BLOCK_N, BLOCK_D), _describe(v, BLOCK_N, BLOCK_D)
    if options["TWO_TILES"]:
        rows *= 2
    programs = -(-N // rows) * B * HQ // options["HEADS"]
    with torch.cuda.device(o.get_device()):  # launch where the data is; does nothing on a CPU
        _fwd_kernel[(programs,)](
            q, k, v, sinks, o, lse_log2, HQ, HKV, N, *strides, scale * LOG2E,
            window_size, sink_size, D=D, HAS_SINK_LOGITS=sink_logits is not None, **options,
        )
    return o, lse_log2


def _backward(q, k, v, sink_logits, o, lse_log2, do, mask, window_size, sink_size, scale, needs):
    """Launch both kernels.  needs: are dq, dk, dv, dsink_logits wanted?  Else None, but for dq."""
    B, HQ, N, D = q.shape
    HKV = k.shape[1]
    strides = *q.stride(), *k.stride(), *v.stride(), *do.stride()
    limits = scale, window_size, sink_size
    narrow = policy.is_narrow(mask, window_size)
    major = _major(q)
    described = policy.can_describe(major, q, k, v, do)
    dq_options, dkdv_options = policy.backward_options(
        major, D, q.element_size(), N, mask, narrow, described
    )
    delta = torch.empty(B, HQ, N, device=q.device, dtype=torch.float32)
    dq = torch.empty(B, HQ, N, D, device=q.device, dtype=q.dtype)
    dk = dv = dsink_logits = None
    dq_programs = -(-N // dq_options["BLOCK_M"])  # of a head
    dsink_parts = delta  # never written
    if needs[3]:
        dsink_parts = torch.empty(B, HQ, dq_programs, device=q.device, dtype=torch.float32)
    sinks = delta if sink_logits is None else sink_logits.contiguous()
    if needs[1] or needs[2]:
        dkdv = torch.empty(2, B, HKV, N, D, device=k.device, dtype=k.dtype)
        dk, dv = dkdv.unbind()
    if described:  # all tiles of both kernels have 64 rows then
        q, k, v, do = (_describe(x, 64, dq_options["BLOCK_D"]) for x in (q, k, v, do))
    with torch.cuda.device(dq.get_device()):
        # Always, even if nobody asked for dq: dkdv and dsink_logits need its delta.
        _dq_kernel[(dq_programs * B * HQ,)](
            q, k, v, o, do, sinks, lse_log2, delta, dq, dsink_parts, HQ, HKV, N, *strides, *limits,
            D=D, WANT_DSINK=needs[3], **dq_options,
        )
        if needs[1] or needs[2]:
            BLOCK_N = dkdv_options["BLOCK_N"]
            tiles = -(-N // BLOCK_N)
            sink_tiles, parts = -(-sink_size // BLOCK_N), N // (window_size + BLOCK_N)
            if not 0 < sink_tiles <= 4 or sink_tiles == tiles or parts < 2:
                sink_tiles = 0

            def launch(dk, dv, first_tile, num_tiles, rows_out, parts):
                _dkdv_kernel[(num_tiles * B * HKV, parts)](
                    q, k, v, do, lse_log2, delta, dk, dv, HQ, HKV, N, *strides, *limits,
                    first_tile, num_tiles, rows_out,
                    D=D, GROUPED=HQ != HKV, SPLIT=parts > 1, **dkdv_options,
                )

            launch(dk, dv, sink_tiles, tiles - sink_tiles, N, 1)
            if sink_tiles:
                # All later queries see a sink: its tile's walk is N long where the others' are W.
                # Cut into parts of about that length, it has as many sums, which are added here.
                parts, rows = min(parts, 32), sink_tiles * BLOCK_N
                shape = 2, parts, B, HKV, rows, D
                sums = torch.empty(shape, device=dkdv.device, dtype=torch.float32)
                launch(*sums.unbind(), 0, sink_tiles, rows, parts)
                dkdv[:, :, :, :rows] = sums.sum(1)[..., :N, :]
    if needs[3]:
        dsink_logits = dsink_parts.sum(dim=(0, 2)).to(sink_logits.dtype)
    return dq, dk, dv, dsink_logits


class FlashAttentionFunction(torch.autograd.Function):
    """Connects the kernels to autograd.  First derivatives only."""

    @staticmethod
    def forward(ctx, q, k, v, sink_logits, mask, window_size, sink_size, scale):
        options = mask, window_size, sink_size, scale
        o, lse_log2 = _forward(q, k, v, sink_logits, *options)
        ctx.save_for_backward(q, k, v, sink_logits, o, lse_log2)
        ctx.options = options
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx, do):
        needs = [ctx.needs_input_grad[i] for i in range(4)]
        grads = _backward(*ctx.saved_tensors, do, *ctx.options, needs)
        return *grads, None, None, None, None


def flash_attention(
    q, k, v, *, is_causal=True, window_size=None, sink_size=0, softmax_scale=None, sink_logits=None
):
    """Attention with any of the stages' masks, differentiable.

    Args:
        q: (B, HQ, N, D), any strides; float16, bfloat16 or float32; D <= 128.
        k, v: (B, HKV, N, D), any strides; HQ a multiple of HKV; dtype and device of q.
        is_causal: hide keys after the query.  A window needs it.
        window_size: how many keys a query sees, itself included, >= 1; None for all.
        sink_size: how many first keys stay visible beyond the window, >= 0.
        softmax_scale: factor of the scores, > 0; None for 1 / sqrt(D).
        sink_logits: (HQ,), any float dtype, device of q: one more logit in each head's
            softmax denominator, without a value.  None for none.

    Returns:
        o: (B, HQ, N, D), contiguous, dtype of q.  The gradient that arrives for it
        may have any strides.

    Raises:
        ValueError, TypeError: the input breaks the contract above.
    """
    _check(q, k, v)
    N, D = q.shape[2:]
    if window_size is not None and (not isinstance(window_size, int) or window_size < 1):
        raise ValueError(f"want an integer window_size >= 1, or None; got {window_size!r}")
    if window_size is not None and not is_causal:
        raise ValueError("want is_causal=True with a window; got is_causal=False")
    if not isinstance(sink_size, int) or sink_size < 0:
        raise ValueError(f"want an integer sink_size >= 0; got {sink_size!r}")
    scale = 1.0 / math.sqrt(D) if softmax_scale is None else float(softmax_scale)
    if not 0.0 < scale < float("inf"):
        raise ValueError(f"want softmax_scale > 0 and finite; got {softmax_scale}")
    if sink_logits is not None:
        if sink_logits.shape != (q.shape[1],) or not sink_logits.is_floating_point():
            got = f"{list(sink_logits.shape)}, {sink_logits.dtype}"
            raise ValueError(f"want sink_logits (HQ,) = ({q.shape[1]},), a float dtype; got {got}")
        if sink_logits.device != q.device:
            raise ValueError(f"want one device; got q {q.device}, sinks {sink_logits.device}")
    window_size = N if window_size is None else min(window_size, N)
    mask = "full"
    if is_causal:
        mask = "causal" if window_size == N else "sinks" if sink_size else "window"
    options = mask, window_size, min(sink_size, N), scale
    if not torch.is_grad_enabled():  # autograd costs the host some microseconds
        return _forward(q, k, v, sink_logits, *options)[0]
    return FlashAttentionFunction.apply(q, k, v, sink_logits, *options)


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
