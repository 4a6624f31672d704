"""The implementations that are timed: what each cannot do, and how to call it.

Whatever a peer needs once (another layout or dtype, a block mask, a compiler) is done by its
builder, outside the timing.
"""

import functools
import importlib
import importlib.util
import inspect
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

from benchmarks.workloads import Workload

GIB = 2**30
NAIVE_SWEEP_LIMIT = 16 * GIB  # of scores; beyond it a figure would show nothing new
NAIVE_COPIES = {"forward": 4, "backward": 6}  # of the scores that live at once


class Unsupported(Exception):
    """A builder finds that it cannot do the workload.  The text says why, in a word or two."""


@dataclass(frozen=True)
class Tensors:
    """Inputs of a workload.  q, do: (B, HQ, N, D).  k, v: (B, HKV, N, D).  sinks: (HQ,) or None.

    A backward computes the gradients of q, k, v and sinks; in a forward do is None.
    """

    q: torch.Tensor
    k: torch.Tensor
    v: torch.Tensor
    sinks: torch.Tensor | None = None
    do: torch.Tensor | None = None

    def inputs(self) -> tuple[torch.Tensor, ...]:
        return tuple(t for t in (self.q, self.k, self.v, self.sinks) if t is not None)


@dataclass(frozen=True)
class Call:
    """attend(*inputs) -> o.  inputs, o and do are in the peer's own layout and dtype.

    restore turns a tensor of that layout into (B, H, N, D), or a sink gradient into itself.
    """

    attend: Callable
    inputs: tuple[torch.Tensor, ...]
    do: torch.Tensor | None
    restore: Callable = lambda t: t


def make_tensors(work: Workload, device="cuda", dtype=torch.bfloat16, seed=0) -> Tensors:
    """Standard normal inputs, the same for every peer."""
    generator = torch.Generator(device).manual_seed(seed)

    def randn(*shape):
        return torch.randn(shape, generator=generator, device=device).to(dtype)

    q = randn(work.B, work.HQ, work.N, work.D)
    k, v = (randn(work.B, work.HKV, work.N, work.D) for _ in "kv")
    sinks = randn(work.HQ) if work.sink_logits else None
    return Tensors(q, k, v, sinks, randn(*q.shape) if work.is_backward else None)


# ----------------------------------------------------------------- builders
def stages(work: Workload, tensors: Tensors, options) -> Call:
    """The whole public function of the stage's problem file."""
    return _problem(importlib.import_module(f"problem_{work.stage}"), work, tensors)


def baseline(work: Workload, tensors: Tensors, options) -> Call:
    """The same file of another checkout, in the folder given as --baseline."""
    return _problem(_load(options.baseline / f"problem_{work.stage}.py"), work, tensors)


def _problem(problem, work: Workload, tensors: Tensors) -> Call:
    if work.stage == 9:
        def attend(q, k, v, sinks=None):
            return problem.flash_swda_with_sink(
                q, k, v, work.window, work.sinks, work.causal, sink_logits=sinks)
    elif work.stage == 8:
        def attend(q, k, v):
            return problem.flash_attention_gqa(q, k, v, work.causal)
    else:
        mask = {6: (work.window,), 7: (work.window, work.sinks)}.get(work.stage, ())

        def attend(q, k, v):
            return problem.flash_attention_forward(q, k, v, work.causal, *mask)
    return Call(attend, _leaves(tensors), tensors.do)


def fast(work: Workload, tensors: Tensors, options) -> Call:
    """sink_attn/kernels.py, plain Triton."""
    return _fast("triton", work, tensors)


def gluon(work: Workload, tensors: Tensors, options) -> Call:
    """sink_attn/attention_hopper*.py, one level below Triton."""
    from sink_attn.entry import no_gluon

    if tensors.q.is_cuda and (reason := no_gluon(tensors.q.device)):
        raise Unsupported(reason)
    return _fast("gluon", work, tensors)


def _fast(kernel: str, work: Workload, tensors: Tensors) -> Call:
    from sink_attn import attention

    def attend(q, k, v, sinks=None):
        return attention(
            q, k, v, is_causal=work.causal, window_size=work.window, sink_size=work.sinks,
            sink_logits=sinks, kernel=kernel)

    return Call(attend, _leaves(tensors), tensors.do)


def naive(work: Workload, tensors: Tensors, options) -> Call:
    """All scores at once, in the dtype of q, in plain PyTorch."""
    if tensors.q.is_cuda:
        needed = NAIVE_COPIES[work.direction] * work.score_bytes()
        if needed > torch.cuda.mem_get_info()[0]:
            raise Unsupported("memory")
    offs = torch.arange(work.N, device=tensors.q.device)
    hidden = ~work.visible(offs[:, None], offs[None, :]) if work.causal else None
    group = work.HQ // work.HKV

    def attend(q, k, v, sinks=None):
        if group > 1:
            k, v = k.repeat_interleave(group, dim=1), v.repeat_interleave(group, dim=1)
        s = q @ k.transpose(-1, -2) / math.sqrt(work.D)
        if hidden is not None:
            s = s.masked_fill(hidden, -torch.inf)
        if sinks is not None:
            column = sinks[None, :, None, None].expand(*s.shape[:3], 1)
            return torch.softmax(torch.cat([s, column], dim=-1), dim=-1)[..., :-1] @ v
        return torch.softmax(s, dim=-1) @ v

    return Call(attend, _leaves(tensors), tensors.do)


def sdpa(backend: SDPBackend, work: Workload, tensors: Tensors, options) -> Call:
    """PyTorch's own attention, restricted to one of its back ends."""

    def attend(q, k, v):
        with sdpa_kernel([backend]):
            return scaled_dot_product_attention(
                q, k, v, is_causal=work.causal, enable_gqa=work.HQ != work.HKV)

    return Call(attend, _leaves(tensors), tensors.do)


def cudnn_frontend(work: Workload, tensors: Tensors, options) -> Call:
    """cuDNN by its own Python package, which has windows and sink logits."""
    from cudnn import sdpa_torch

    window = -1 if work.window is None else work.window

    def attend(q, k, v, sinks=None):
        o, _ = sdpa_torch(
            q, k, v, is_causal=work.causal, window_left=window, sinks=sinks, return_lse=True)
        return o

    inputs = _leaves(tensors, lambda t: t.float() if t.dim() == 1 else t)
    return Call(attend, inputs, tensors.do)


def flex(work: Workload, tensors: Tensors, options, backend: str = "AUTO") -> Call:
    """torch.compile'd flex_attention.  Sink logits: softmax without them, then o rescaled."""
    import torch._functorch.config as functorch
    from torch.nn.attention.flex_attention import create_block_mask, flex_attention

    torch._dynamo.reset()  # else the limit on recompilations ends in eager, silently
    functorch.donated_buffer = False  # else the graph serves one backward only
    block_mask = None
    if work.causal:
        block_mask = create_block_mask(
            _mask_mod(work.window, work.sinks), None, None, work.N, work.N,
            device=tensors.q.device, _compile=work.N > 16384)  # eager makes all N x N entries
    more = {"enable_gqa": work.HQ != work.HKV}
    if backend != "AUTO":
        more["kernel_options"] = {"BACKEND": backend}

    if work.sink_logits:
        def attend(q, k, v, sinks):
            o, lse = flex_attention(q, k, v, block_mask=block_mask, return_lse=True, **more)
            # lse (B, HQ, N) is a natural logarithm and does not include the sink yet
            share = torch.sigmoid(lse - sinks[None, :, None].float())
            return (o * share[..., None]).to(o.dtype)
    else:
        def attend(q, k, v):
            return flex_attention(q, k, v, block_mask=block_mask, **more)

    compiled = torch.compile(attend, dynamic=False, fullgraph=True)
    return Call(compiled, _leaves(tensors), tensors.do)


def fa4(work: Workload, tensors: Tensors, options) -> Call:
    """FlashAttention-4 (CuTe DSL), tensors (B, N, H, D)."""
    from flash_attn.cute import flash_attn_func

    window = (None, None) if work.window is None else (work.window - 1, 0)  # keys before, after

    def attend(q, k, v, sinks=None):
        o = flash_attn_func(q, k, v, causal=work.causal, window_size=window, learnable_sink=sinks)
        return o[0] if isinstance(o, tuple) else o

    return _rows_first(attend, tensors)


def fla(work: Workload, tensors: Tensors, options) -> Call:
    """parallel_attn of flash-linear-attention, in Triton; tensors (B, N, H, D)."""
    from fla.ops.attn import parallel_attn

    def attend(q, k, v, sinks=None):
        return parallel_attn(q, k, v, window_size=work.window, sink_bias=sinks)

    return _rows_first(attend, tensors)


def tutorial(work: Workload, tensors: Tensors, options) -> Call:
    """Triton's fused-attention tutorial, from the file given as --tutorial, in float16."""
    file = _load(options.tutorial)
    if not hasattr(file, "attention"):
        raise Unsupported("file: no attention in it")
    attention = file.attention
    # attention is the apply of an autograd.Function; newer files take warp_specialize as well
    forward = getattr(getattr(attention, "__self__", None), "forward", attention)
    more = (False,) if "warp_specialize" in inspect.signature(forward).parameters else ()

    def attend(q, k, v):
        return attention(q, k, v, work.causal, 1.0 / math.sqrt(work.D), *more)

    do = None if tensors.do is None else tensors.do.half()
    return Call(attend, _leaves(tensors, torch.Tensor.half), do)


# ------------------------------------------------------ what a peer cannot do
def _cannot_naive(work: Workload, options) -> str:
    too_much = work.group == "sweep" and work.score_bytes() > NAIVE_SWEEP_LIMIT
    return "memory" if too_much else ""


def _cannot_sdpa(work: Workload, options) -> str:
    return "window" if work.window is not None else "sink logits" if work.sink_logits else ""


def _cannot_fa4(work: Workload, options) -> str:
    return "sinks" if work.sinks else _not_installed("flash_attn.cute")


def _cannot_fla(work: Workload, options) -> str:
    if work.sinks or not work.causal:
        return "sinks" if work.sinks else "full"
    return _not_installed("fla.ops.attn")


def _cannot_flex_flash(work: Workload, options) -> str:
    from torch.nn.attention import flex_attention

    if not hasattr(flex_attention, "_Backend"):
        return "not in this PyTorch"
    return _not_installed("flash_attn.cute")


def _cannot_cudnn_frontend(work: Workload, options) -> str:
    if work.sink_logits and work.is_backward:
        return "sink logits"  # its operator has no gradient with them
    return "sinks" if work.sinks else _not_installed("cudnn.sdpa")


def _not_installed(name: str) -> str:
    try:
        installed = importlib.util.find_spec(name) is not None
    except ImportError:
        installed = False
    return "" if installed else "not installed"


def _cannot_tutorial(work: Workload, options) -> str:
    if options.tutorial is None:
        return "no file"
    if work.HQ != work.HKV:
        return "grouped heads"
    if work.D not in (64, 128):
        return f"D={work.D}"
    return _cannot_sdpa(work, options)


def _cannot_gluon(work: Workload, options) -> str:
    return "sinks" if work.sinks else "" if work.D in (64, 128) else f"D={work.D}"


def _cannot_baseline(work: Workload, options) -> str:
    return "" if getattr(options, "baseline", None) else "no folder"


class Peer(NamedTuple):
    """An implementation.

    build(work, tensors, options) returns its Call.  cannot(work, options) returns why it cannot do
    the work, or "".  That needs no GPU, so it leaves out what only the run can tell, such as free
    memory or a kernel that fails.
    """

    build: Callable
    cannot: Callable = lambda work, options: ""


PEERS = {
    "stages": Peer(stages),
    "fast": Peer(fast),
    "gluon": Peer(gluon, _cannot_gluon),
    "baseline": Peer(baseline, _cannot_baseline),
    "naive": Peer(naive, _cannot_naive),
    "fa2": Peer(functools.partial(sdpa, SDPBackend.FLASH_ATTENTION), _cannot_sdpa),
    "cudnn": Peer(functools.partial(sdpa, SDPBackend.CUDNN_ATTENTION), _cannot_sdpa),
    "cudnn_fe": Peer(cudnn_frontend, _cannot_cudnn_frontend),
    "flex": Peer(flex),
    "flex_flash": Peer(functools.partial(flex, backend="FLASH"), _cannot_flex_flash),
    "fa4": Peer(fa4, _cannot_fa4),
    "fla": Peer(fla, _cannot_fla),
    "tutorial": Peer(tutorial, _cannot_tutorial),
}
OURS = ("stages", "fast")  # always timed, and compared with the others
OWN = (*OURS, "gluon", "baseline")  # no competitors; judged by float32, and the others by "fast"
# What is shown, where it is not the name.
TITLES = {"fast": "sink_attn", "gluon": "sink_attn (Gluon)", "cudnn_fe": "cudnn (frontend)",
          "flex_flash": "flex (FLASH)"}
TRITON_PEERS = ("flex", "fla", "tutorial")
HOPPER_PEERS = ("cudnn", "cudnn_fe", "flex_flash", "fa4")


# ------------------------------------------------------------------ helpers
def _leaves(tensors: Tensors, change=lambda t: t) -> tuple[torch.Tensor, ...]:
    """Returns the inputs, changed, as new leaves that require a gradient if there is a backward."""
    wanted = tensors.do is not None
    return tuple(change(t).detach().requires_grad_(wanted) for t in tensors.inputs())


def _rows_first(attend: Callable, tensors: Tensors) -> Call:
    """The call of a peer whose tensors are (B, N, H, D)."""

    def swap(t):
        return t.transpose(1, 2).contiguous() if t.dim() == 4 else t

    do = None if tensors.do is None else swap(tensors.do)
    return Call(attend, _leaves(tensors, swap), do, swap)


def _mask_mod(window: int | None, sinks: int) -> Callable:
    """The mask as flex_attention wants it: of indices and plain integers."""
    if window is None:
        return lambda b, h, query, key: key <= query
    if not sinks:
        return lambda b, h, query, key: (key <= query) & (query - key < window)
    return lambda b, h, query, key: (key <= query) & ((query - key < window) | (key < sinks))


def _load(path: Path):
    """Load a fresh module every time, so that autotuned kernels tune for the workload at hand."""
    spec = importlib.util.spec_from_file_location(f"given_{path.stem}", path)
    module = importlib.util.module_from_spec(spec)
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise Unsupported(f"file: {type(error).__name__}: {error}") from error
    return module
