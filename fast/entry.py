"""fast.attention: the one entry to the kernels of this folder.

It checks its input, casts it under autocast, and picks between plain Triton (launcher.py) and Gluon
(attention_hopper*.py), by the table in policy.py, forward and backward apart.  Two functions do the
rest, _forward and _backward.  They are connected to autograd twice: for calls as they come, where
every microsecond of the host counts, and as operators, which torch.compile does not look into.
"""

import functools
import math
import os

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import once_differentiable

from fast import launcher, policy

LOG2E = 1.4426950408889634  # a logarithm in base 2 is a natural one times this

INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"  # kernels run on the CPU, as Python

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def attention(
    q, k, v, *, is_causal=True, window_size=None, sink_size=0, softmax_scale=None,
    sink_logits=None, deterministic=None, kernel=None,
):
    """Attention with any of the stages' masks, differentiable.

    Works under torch.compile (fullgraph, dynamic shapes) and in CUDA graphs.  Under autocast q, k
    and v are cast to its dtype first, as for torch's scaled_dot_product_attention.

    Args:
        q: (B, HQ, N, D), any strides; float16, bfloat16 or float32; D <= 128.
        k, v: (B, HKV, N, D), any strides; HQ a multiple of HKV; dtype and device of q.
        is_causal: hide keys after the query.  A window needs it.
        window_size: how many keys a query sees, itself included, >= 1; None for all.
        sink_size: how many first keys stay visible beyond the window, >= 0.
        softmax_scale: factor of the scores, > 0; None for 1 / sqrt(D).
        sink_logits: (HQ,), any float dtype, device of q: one more logit in each head's
            softmax denominator, without a value.  None for none.
        deterministic: the same gradients bit for bit every time.  Without it the last bits of
            Gluon's dq vary; nothing else does.  None: as torch.use_deterministic_algorithms says.
        kernel: "triton" or "gluon", forward and backward; None picks.  Gluon is for compute
            capability 9.0, D 64 or 128, 16 bits, no sink tokens.

    Returns:
        o: (B, HQ, N, D), contiguous, dtype of q.  The gradient that arrives for it
        may have any strides.

    Raises:
        ValueError, TypeError: the input breaks the contract above.
    """
    place = q.device.type
    if place in ("cuda", "cpu") and torch.is_autocast_enabled(place):
        dtype = torch.get_autocast_dtype(place)
        q, k, v = (x.to(dtype) if x.dtype in DTYPES else x for x in (q, k, v))
    _check(q, k, v)
    if window_size is not None and (not isinstance(window_size, int) or window_size < 1):
        raise ValueError(f"want an integer window_size >= 1, or None; got {window_size!r}")
    if window_size is not None and not is_causal:
        raise ValueError("want is_causal=True with a window; got is_causal=False")
    if not isinstance(sink_size, int) or sink_size < 0:
        raise ValueError(f"want an integer sink_size >= 0; got {sink_size!r}")
    scale = 1.0 / math.sqrt(q.shape[3]) if softmax_scale is None else float(softmax_scale)
    if not 0.0 < scale < float("inf"):
        raise ValueError(f"want softmax_scale > 0 and finite; got {softmax_scale}")
    if sink_logits is not None:
        if sink_logits.shape != (q.shape[1],) or not sink_logits.is_floating_point():
            got = f"{list(sink_logits.shape)}, {sink_logits.dtype}"
            raise ValueError(f"want sink_logits (HQ,) = ({q.shape[1]},), a float dtype; got {got}")
        if sink_logits.device != q.device:
            raise ValueError(f"want one device; got q {q.device}, sinks {sink_logits.device}")
    if kernel not in (None, "triton", "gluon"):
        raise ValueError(f"want kernel None, 'triton' or 'gluon'; got {kernel!r}")
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    options = bool(is_causal), window_size, sink_size, bool(deterministic), scale
    if torch.compiler.is_compiling() or isinstance(q, FakeTensor):
        return _forward_operator(q, k, v, sink_logits, *options, kernel)[0]
    kernels = picked(q, k, kernel, *options)
    if not torch.is_grad_enabled():  # autograd costs the host some microseconds
        return _forward(q, k, v, sink_logits, *options, kernels)[0]
    return AttentionFunction.apply(q, k, v, sink_logits, *options, kernels)


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
    if q.dtype not in DTYPES:
        raise TypeError(f"want float16, bfloat16 or float32; got {q.dtype}")
    if not q.dtype == k.dtype == v.dtype:
        raise TypeError(f"want one dtype; got {q.dtype}, {k.dtype}, {v.dtype}")
    if not q.device == k.device == v.device:
        raise ValueError(f"want one device; got {q.device}, {k.device}, {v.device}")
    if not q.is_cuda and not INTERPRETED:
        raise ValueError(f"want CUDA tensors, or TRITON_INTERPRET=1 at start; got {q.device}")


# ------------------------------------------------------------------ which kernel
def _not_for_gluon(q: torch.Tensor, sink_size: int) -> str:
    """Why the Gluon kernels cannot do this; "" if they can."""
    if q.shape[3] not in (64, 128):
        return f"want D 64 or 128; got {q.shape[3]}"
    if q.dtype == torch.float32:
        return f"want float16 or bfloat16; got {q.dtype}"
    if sink_size:
        return f"want no sink tokens; got sink_size={sink_size}"
    if not q.is_cuda:
        return f"want CUDA tensors; got {q.device}"
    return no_gluon(q.device)


@functools.cache
def no_gluon(device: torch.device) -> str:
    """Why there is no Gluon on this device; elsewhere its compiler would end the process."""
    capability = torch.cuda.get_device_capability(device)
    if capability != (9, 0):
        return f"want a GPU of compute capability 9.0 (Hopper); got {capability}"
    try:
        import fast.attention_hopper_launch  # noqa: F401
    except ImportError as error:
        return str(error)
    return ""


def picked(q, k, kernel, is_causal, window_size, sink_size, deterministic, *_) -> tuple[str, str]:
    """The kernel, "triton" or "gluon", of the forward and of the backward.  q (B, HQ, N, D)."""
    fault = kernel != "triton" and _not_for_gluon(q, sink_size)
    if kernel == "gluon" and fault:
        raise ValueError(f"kernel='gluon': {fault}")
    if kernel or fault:
        return kernel or "triton", kernel or "triton"
    work = k.shape[0] * k.shape[1], *q.shape[2:], is_causal, window_size
    backward = "triton" if deterministic else policy.pick("backward", *work)
    return policy.pick("forward", *work), backward


# ------------------------------------------------------------ forward and backward
def _forward(
    q, k, v, sink_logits, is_causal, window_size, sink_size, deterministic, scale, kernels
):
    """-> o (B, HQ, N, D), lse (B, HQ, N), of Gluon a natural logarithm, of Triton in base 2."""
    if kernels[0] == "gluon":
        from fast.attention_hopper import forward

        return forward(q, k, v, is_causal, scale, window_size, sink_logits)
    return launcher.forward(q, k, v, sink_logits, is_causal, window_size, sink_size, scale)


def _backward(
    q, k, v, sink_logits, o, lse, do, is_causal, window_size, sink_size, deterministic, scale,
    kernels, needs,
):
    """-> dq, dk, dv, dsink_logits.  needs: which are wanted?  Others may be None."""
    if kernels[1] == "triton":
        lse_log2 = lse if kernels[0] == "triton" else lse * LOG2E
        return launcher.backward(
            q, k, v, sink_logits, o, lse_log2, do, is_causal, window_size, sink_size, scale, needs
        )
    from fast.attention_hopper_launch import backward

    lse = lse if kernels[0] == "gluon" else lse / LOG2E
    return backward(
        q, k, v, sink_logits, o, lse, do, is_causal, scale, window_size, deterministic, needs[3]
    )


class AttentionFunction(torch.autograd.Function):
    """Connects the kernels to autograd.  First derivatives only."""

    @staticmethod
    def forward(ctx, q, k, v, sink_logits, *options):
        o, lse = _forward(q, k, v, sink_logits, *options)
        ctx.save_for_backward(q, k, v, sink_logits, o, lse)
        ctx.options = options
        return o

    @staticmethod
    @once_differentiable
    def backward(ctx, do):
        grads = _backward(*ctx.saved_tensors, do, *ctx.options, ctx.needs_input_grad[:4])
        return *grads, None, None, None, None, None, None


# ------------------------------------------------- the same as operators of PyTorch
OPTIONS = (
    "bool is_causal, SymInt? window_size, SymInt sink_size, bool deterministic, float scale, "
    "str? kernel"
)


@torch.library.custom_op(
    "fast::attention", mutates_args=(), schema=
    f"(Tensor q, Tensor k, Tensor v, Tensor? sink_logits, {OPTIONS}) -> (Tensor, Tensor)",
)
def _forward_operator(q, k, v, sink_logits, *options):
    *options, kernel = options
    return _forward(q, k, v, sink_logits, *options, picked(q, k, kernel, *options))


@_forward_operator.register_fake
def _(q, k, v, sink_logits, *options):
    return q.new_empty(q.shape), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op(
    "fast::attention_backward", mutates_args=(), schema=
    "(Tensor q, Tensor k, Tensor v, Tensor? sink_logits, Tensor o, Tensor lse, Tensor do, "
    f"{OPTIONS}, bool[] needs) -> Tensor[]",
)
def _backward_operator(q, k, v, sink_logits, o, lse, do, *options):
    *options, kernel, needs = options
    kernels = picked(q, k, kernel, *options)
    grads = _backward(q, k, v, sink_logits, o, lse, do, *options, kernels, needs)
    return [grad for grad, need in zip(grads, needs, strict=True) if need]


@_backward_operator.register_fake
def _(q, k, v, sink_logits, o, lse, do, *options):
    inputs, needs = (q, k, v, sink_logits), options[-1]
    return [x.new_empty(x.shape) for x, need in zip(inputs, needs, strict=True) if need]


def _set_up(ctx, inputs, output) -> None:
    ctx.mark_non_differentiable(output[1])
    ctx.save_for_backward(*inputs[:4], *output)
    ctx.options = inputs[4:]


def _differentiate(ctx, do, dlse):
    needs = ctx.needs_input_grad[:4]
    grads = iter(_backward_operator(*ctx.saved_tensors, do, *ctx.options, needs))
    return *(next(grads) if need else None for need in needs), *[None] * len(ctx.options)


_forward_operator.register_autograd(_differentiate, setup_context=_set_up)
