"""sink_attn.attention and sink_attn.attention_varlen: check the input, choose and call a kernel.

Under autocast the input is cast first.  The table in policy.py chooses between plain Triton
(launcher.py) and Gluon (attention_hopper*.py), separately for forward and backward.  _forward and
_backward do the rest.  They are connected to autograd twice: as a Function for eager calls, where
every microsecond of the host counts, and as operators, which torch.compile does not look into.
"""

import functools
import itertools
import math

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.autograd.function import once_differentiable
from torch.utils.weak import WeakIdKeyDictionary
from triton import JITFunction
from triton import language as tl

from . import launcher, policy

LN2 = 0.6931471805599453  # a natural logarithm is one in base 2 times this

# Whether kernels run on the CPU, as Python; TRITON_INTERPRET=1 must be set before the import.
INTERPRETED = not any(isinstance(f, JITFunction) for f in (tl.cdiv, launcher._fwd_kernel))

DTYPES = (torch.float16, torch.bfloat16, torch.float32)


def attention(
    q, k, v, *, is_causal=True, window_size=None, sink_size=0, softmax_scale=None,
    sink_logits=None, deterministic=None, kernel=None, return_lse=False, o_layout="bhnd",
):
    """Attention with any of the stages' masks, differentiable.

    Works under torch.compile (fullgraph, dynamic shapes) and in CUDA graphs.  Under autocast q, k
    and v are cast to its dtype first, as for torch's scaled_dot_product_attention.

    Args:
        q: (B, HQ, N, D), any strides; float16, bfloat16 or float32; D <= 128.
        k, v: (B, HKV, N, D), any strides; HQ a multiple of HKV; dtype and device of q.
        is_causal: hide keys after the query.  A window needs it.
        window_size: how many keys a query sees, its own included, >= 1; None for all.
        sink_size: how many of the first keys stay visible outside the window, >= 0.
        softmax_scale: factor of the scores, > 0; None for 1 / sqrt(D).
        sink_logits: (HQ,), any float dtype, device of q: one more logit in each head's
            softmax denominator, without a value; or None.
        deterministic: make the gradients bit for bit the same in every run.  Otherwise only the
            last bits of Gluon's dq vary.  None: as torch.use_deterministic_algorithms says.
        kernel: "triton" or "gluon", for forward and backward; None chooses by policy.py.  Gluon
            needs compute capability 9.0, D 64 or 128, float16 or bfloat16, and no sink tokens.
        return_lse: also return lse.
        o_layout: the order of o's dimensions in memory: "bhnd" is contiguous; "bnhd", the order
            that a projection reads, is contiguous as o.transpose(1, 2).

    Returns:
        o: (B, HQ, N, D), dtype of q, in o_layout.  Its incoming gradient may have any strides.
        Those of q, k and v have no gaps, and the layout of these two that is nearer their input's.
        lse: (B, HQ, N), float32, only with return_lse: the natural logarithm of each softmax's
        denominator, with the sink logit's share; differentiable like o.

    Raises:
        ValueError, TypeError: the input breaks the contract above.
    """
    return _attention(
        q, k, v, sink_logits, None, None, is_causal, window_size, sink_size, softmax_scale,
        deterministic, return_lse, kernel, o_layout,
    )


def attention_varlen(
    q, k, v, cu_seqlens_q, cu_seqlens_k, max_seqlen, *, is_causal=True, window_size=None,
    sink_size=0, sink_logits=None, scale=None, deterministic=None, return_lse=False,
):
    """Attention of packed sequences, each of which attends only to itself.

    All sequences share one launch of each plain Triton kernel, whose gradients are bit for bit the
    same in every run.  On Hopper, outside torch.compile and CUDA graphs, long sequences are passed
    to attention one by one instead (policy.are_long).

    Args:
        q: (T, HQ, D), any strides; dtypes and D as in attention.
        k, v: (T, HKV, D).
        cu_seqlens_q: (S + 1,) int32, device of q: the first row of every sequence, from 0 on, and
            T at the end.  A sequence may be empty.
        cu_seqlens_k: the same tensor, or one with the same numbers: every query has its key.
        max_seqlen: at least the longest length.  Masks and tiles are chosen by it.
        is_causal, window_size, sink_size, sink_logits: as in attention, within each sequence.
        scale: factor of the scores, > 0; None for 1 / sqrt(D).
        deterministic, return_lse: as in attention.

    Returns:
        o: (T, HQ, D), contiguous, dtype of q.
        lse: (HQ, T), only with return_lse: as attention's.

    Raises:
        ValueError, TypeError: the input breaks the contract above.  To check the lengths, each
        cu_seqlens is read once, and again after a change in place, which waits for the GPU.  While
        a CUDA graph is captured they are not checked.
    """
    shapes = "want q (T, HQ, D), k and v (T, HKV, D), not empty"
    if not q.dim() == k.dim() == v.dim() == 3 or 0 in q.shape:
        raise ValueError(f"{shapes}; got {list(q.shape)}, {list(k.shape)}, {list(v.shape)}")
    for cu_seqlens in (cu_seqlens_q, cu_seqlens_k):
        if cu_seqlens.dim() != 1 or len(cu_seqlens) < 2 or cu_seqlens.dtype != torch.int32:
            got = f"{list(cu_seqlens.shape)}, {cu_seqlens.dtype}"
            raise ValueError(f"want cu_seqlens (S + 1,), int32, at least one sequence; got {got}")
        if cu_seqlens.device != q.device:
            raise ValueError(f"want one device; got q {q.device}, cu_seqlens {cu_seqlens.device}")
    if cu_seqlens_k is not cu_seqlens_q:
        if len(cu_seqlens_k) != len(cu_seqlens_q):
            raise ValueError(
                f"want cu_seqlens_k of the length of cu_seqlens_q, {len(cu_seqlens_q)}; got "
                f"{len(cu_seqlens_k)}"
            )
        cu_seqlens_q = torch.stack([cu_seqlens_q, cu_seqlens_k])  # compared when they are read
    if not isinstance(max_seqlen, int | torch.SymInt) or max_seqlen < 1:
        raise ValueError(f"want an integer max_seqlen >= 1; got {max_seqlen!r}")
    q, k, v = (x.transpose(0, 1)[None] for x in (q, k, v))
    out = _attention(
        q, k, v, sink_logits, cu_seqlens_q.contiguous(), max_seqlen, is_causal, window_size,
        sink_size, scale, deterministic, return_lse, None, "bnhd",
    )
    o, lse = out if return_lse else (out, None)
    o = o[0].transpose(0, 1)
    return (o, lse[0]) if return_lse else o


def _attention(
    q, k, v, sink_logits, cu_seqlens, max_seqlen, is_causal, window_size, sink_size,
    softmax_scale, deterministic, return_lse, kernel, o_layout,
):
    """Check, cast, choose a kernel and connect it to autograd.

    Returns o, of q's shape (B, HQ, N, D); with return_lse, lse (B, HQ, N) as well.
    """
    q, k, v, scale = checked(
        q, k, v, sink_logits, is_causal, window_size, sink_size, softmax_scale
    )
    if kernel not in (None, "triton", "gluon"):
        raise ValueError(f"want kernel None, 'triton' or 'gluon'; got {kernel!r}")
    if o_layout not in ("bhnd", "bnhd"):
        raise ValueError(f"want o_layout 'bhnd' or 'bnhd'; got {o_layout!r}")
    if deterministic is None:
        deterministic = torch.are_deterministic_algorithms_enabled()
    options = (max_seqlen, bool(is_causal), window_size, sink_size, bool(deterministic), scale,
               bool(return_lse))
    if cu_seqlens is not None:
        kernel = "triton"
    if torch.compiler.is_compiling() or isinstance(q, FakeTensor):
        out = _forward_operator(q, k, v, sink_logits, cu_seqlens, *options, kernel, o_layout)
        return out if return_lse else out[0]
    if cu_seqlens is not None:
        _, HQ, T, D = q.shape
        lengths = _read_sequences(cu_seqlens, max_seqlen, T)
        long = policy.are_long(lengths, T, max_seqlen, HQ, D, is_causal, window_size)
        if long and not _not_for_gluon(q, sink_size):
            # Cut and joined as they lie in memory, with no copy to another layout.
            parts = zip(*(x.transpose(1, 2).split(lengths, 1) for x in (q, k, v)), strict=True)
            outs = [
                _attention(
                    *(x.transpose(1, 2) for x in part), sink_logits, None, None, is_causal,
                    window_size, sink_size, scale, deterministic, return_lse, None, o_layout,
                )
                for part in parts if part[0].shape[1]
            ]
            outs, *lses = zip(*outs, strict=True) if return_lse else [outs]
            o = torch.cat([x.transpose(1, 2) for x in outs], 1).transpose(1, 2)
            return (o, torch.cat(*lses, 2)) if return_lse else o
    kernels = picked(q, k, kernel, *options)
    wanted = q.requires_grad or k.requires_grad or v.requires_grad
    wanted = wanted or sink_logits is not None and sink_logits.requires_grad
    if not wanted or not torch.is_grad_enabled():  # autograd costs the host some microseconds
        out = _forward(q, k, v, sink_logits, cu_seqlens, *options, kernels, o_layout)
        return out if return_lse else out[0]
    return AttentionFunction.apply(q, k, v, sink_logits, cu_seqlens, *options, kernels, o_layout)


def checked(
    q, k, v, sink_logits, is_causal, window_size, sink_size, softmax_scale
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, float]:
    """Returns q, k and v, cast under autocast, and the scale; raises if attention refuses them."""
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
    return q, k, v, scale


def _check(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> None:
    """Raise for bad input, with which a kernel would silently read wrong addresses."""
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


_READ = WeakIdKeyDictionary()  # cu_seqlens -> its version then, lengths, their sum, the longest


def _read_sequences(cu_seqlens: torch.Tensor, max_seqlen: int, T: int | None) -> list[int]:
    """Returns the lengths of the sequences; [] while a CUDA graph is captured.

    Raises ValueError if they are not T rows in all: a kernel would read outside the tensors.
    T: None for any number.
    """
    if cu_seqlens.is_cuda and torch.cuda.is_current_stream_capturing():
        return []
    version = None if cu_seqlens.is_inference() else cu_seqlens._version
    seen = _READ.get(cu_seqlens)
    if seen is None or version is None or seen[0] != version:
        of_q, *of_k = cu_seqlens.reshape(-1, cu_seqlens.shape[-1]).tolist()
        lengths = [b - a for a, b in itertools.pairwise(of_q)]
        if of_q[0] != 0 or min(lengths) < 0:
            raise ValueError(f"want cu_seqlens that begin with 0 and never fall; got {of_q}")
        if of_k not in ([], [of_q]):
            raise ValueError(f"want cu_seqlens_k equal to cu_seqlens_q, {of_q}; got {of_k[0]}")
        seen = _READ[cu_seqlens] = version, lengths, of_q[-1], max(lengths)
    _, lengths, end, longest = seen
    if end != T and T is not None:
        raise ValueError(f"want cu_seqlens that end with T = {T}; got {end}")
    if longest > max_seqlen:
        raise ValueError(f"want max_seqlen >= {longest}, the longest sequence; got {max_seqlen}")
    return lengths


# ------------------------------------------------------------------ which kernel
def _not_for_gluon(q: torch.Tensor, sink_size: int) -> str:
    """Returns why the Gluon kernels cannot do this; "" if they can."""
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
    """Returns why Gluon, whose compiler would kill the process, must not run here; else ""."""
    capability = torch.cuda.get_device_capability(device)
    if capability != (9, 0):
        return f"want a GPU of compute capability 9.0 (Hopper); got {capability}"
    try:
        from .attention_hopper_launch import backward  # noqa: F401
    except ImportError as error:
        return str(error)
    return ""


def picked(
    q, k, kernel, max_seqlen, is_causal, window_size, sink_size, deterministic, *_
) -> tuple[str, str]:
    """Returns the kernels, "triton" or "gluon", for forward and backward.  q (B, HQ, N, D)."""
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
    q, k, v, sink_logits, cu_seqlens, max_seqlen, is_causal, window_size, sink_size,
    deterministic, scale, return_lse, kernels, o_layout="bhnd",
):
    """Returns o (B, HQ, N, D) and lse (B, HQ, N), float32.

    lse is a natural logarithm; only without return_lse, Triton's is in base 2, as its backward
    takes it.
    """
    if kernels[0] == "gluon":
        from .attention_hopper import forward

        return forward(q, k, v, is_causal, scale, window_size, sink_logits, o_layout)
    o, lse_log2 = launcher.forward(
        q, k, v, sink_logits, cu_seqlens, max_seqlen, is_causal, window_size, sink_size, scale,
        o_layout,
    )
    return o, lse_log2 * LN2 if return_lse else lse_log2


def _backward(
    q, k, v, sink_logits, cu_seqlens, o, lse, do, dlse, max_seqlen, is_causal, window_size,
    sink_size, deterministic, scale, return_lse, kernels, needs, sums=None,
):
    """Returns dq, dk, dv, dsink_logits; those that needs does not ask for may be None.

    lse: what _forward returned.  do, dlse: None for zeros.  sums: the dtype of Triton's dq, dk
    and dv; None for q's.
    """
    do = torch.zeros_like(o) if do is None else do
    dlse = None if dlse is None else dlse.contiguous()
    natural = return_lse or kernels[0] == "gluon"
    if kernels[1] == "triton":
        return launcher.backward(
            q, k, v, sink_logits, cu_seqlens, o, lse / LN2 if natural else lse, do, dlse,
            max_seqlen, is_causal, window_size, sink_size, scale, needs, sums,
        )
    from .attention_hopper_launch import backward

    return backward(
        q, k, v, sink_logits, o, lse if natural else lse * LN2, do, is_causal, scale, window_size,
        deterministic, needs[3], dlse,
    )


class AttentionFunction(torch.autograd.Function):
    """Connects the kernels to autograd.  First derivatives only."""

    @staticmethod
    def forward(ctx, q, k, v, sink_logits, cu_seqlens, *options):
        o, lse = _forward(q, k, v, sink_logits, cu_seqlens, *options)
        ctx.save_for_backward(q, k, v, sink_logits, cu_seqlens, o, lse)
        ctx.options = options[:8]  # without o_layout
        ctx.set_materialize_grads(False)
        return (o, lse) if options[6] else o  # return_lse

    @staticmethod
    @once_differentiable
    def backward(ctx, do, dlse=None):
        grads = _backward(*ctx.saved_tensors, do, dlse, *ctx.options, ctx.needs_input_grad[:4])
        return *grads, *[None] * (2 + len(ctx.options))  # cu_seqlens, options, o_layout


# ------------------------------------------------- the same as operators of PyTorch
# Hugging Face's kernels loads each version of this package under a name of its own.
INPUTS = "Tensor q, Tensor k, Tensor v, Tensor? sink_logits, Tensor? cu_seqlens"
OPTIONS = (
    "SymInt? max_seqlen, bool is_causal, SymInt? window_size, SymInt sink_size, "
    "bool deterministic, float scale, bool return_lse, str? kernel"
)


@torch.library.custom_op(
    f"{__package__}::attention", mutates_args=(), schema=
    f"({INPUTS}, {OPTIONS}, str o_layout) -> (Tensor, Tensor)",
)
def _forward_operator(q, k, v, sink_logits, cu_seqlens, *options):
    *options, kernel, o_layout = options
    if cu_seqlens is not None:
        _read_sequences(cu_seqlens, options[0], q.shape[2])
    kernels = picked(q, k, kernel, *options)
    return _forward(q, k, v, sink_logits, cu_seqlens, *options, kernels, o_layout)


@_forward_operator.register_fake
def _(q, k, v, sink_logits, cu_seqlens, *options):
    return launcher.new_like(q, options[-1]), q.new_empty(q.shape[:3], dtype=torch.float32)


@torch.library.custom_op(
    f"{__package__}::attention_backward", mutates_args=(), schema=
    f"({INPUTS}, Tensor o, Tensor lse, Tensor? do, Tensor? dlse, {OPTIONS}, bool[] needs) "
    "-> Tensor[]",
)
def _backward_operator(q, k, v, sink_logits, cu_seqlens, o, lse, do, dlse, *options):
    *options, kernel, needs = options
    kernels = picked(q, k, kernel, *options)
    grads = _backward(q, k, v, sink_logits, cu_seqlens, o, lse, do, dlse, *options, kernels, needs)
    return [grad for grad, need in zip(grads, needs, strict=True) if need]


@_backward_operator.register_fake
def _(q, k, v, sink_logits, cu_seqlens, o, lse, do, dlse, *options):
    inputs, needs = (q, k, v), options[-1]
    grads = [launcher.new_like(x) for x, need in zip(inputs, needs[:3], strict=True) if need]
    return [*grads, sink_logits.new_empty(sink_logits.shape)] if needs[3] else grads


def _set_up(ctx, inputs, output) -> None:
    if not inputs[-3]:  # return_lse
        ctx.mark_non_differentiable(output[1])
    ctx.set_materialize_grads(False)
    ctx.save_for_backward(*inputs[:5], *output)
    ctx.options = inputs[5:-1]  # without o_layout


def _differentiate(ctx, do, dlse):
    needs = ctx.needs_input_grad[:4]
    grads = iter(_backward_operator(*ctx.saved_tensors, do, dlse, *ctx.options, needs))
    grads = [next(grads) if need else None for need in needs]
    return *grads, *[None] * (2 + len(ctx.options))  # cu_seqlens, options, o_layout


_forward_operator.register_autograd(_differentiate, setup_context=_set_up)
