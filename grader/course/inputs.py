"""Makes the tensors of a case, and the call that sends them.

The same seed and case give the same bytes.  Inputs are half of the verdict: each family shows a
mistake that plain randn lets pass.
"""

import functools
import hashlib
import math
import secrets
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
import torch

from grader.course.calls import Call, OutputSpec, TensorInput
from grader.course.cases import Case
from grader.sandbox.wire import FEW_MULTIPROCESSORS, MULTIPROCESSORS

REAL_FILE = Path(__file__).with_name("minilm_qkv.npz")  # q, k, v float16 (6, 256, 32)
FAR = 2**30  # elements between entries: 32 bits cannot reach the third
SMALL = 2.0**-24  # factor of dO, as a mean over many tokens has: kills gradients in float16
LARGE = 10.0  # added to dO: dP and delta become large, their difference does not
LOUD = 20000.0  # added to some columns: do * o, 3.5 times this, overflows float16
FAINT = 2.0**-20  # size of dy: float16 holds its products with only a bit or two
GUARD = 64  # NaN elements on each side of a tensor; 16-byte aligned in any dtype
ONE_BY_ONE = {  # layouts that differ from tensor to tensor
    "views": {"q": "guarded", "k": "cached", "v": "wide", "sink_logits": "last"},
    "mixed": {"q": "packed", "k": "transposed", "v": "gapped", "x": "transposed", "w": "last"},
    "last": {"q": "last", "k": "third", "v": "last", "x": "last", "w": "third"},
    "shared": {"q": "packed", "k": "expanded", "v": "packed", "x": "expanded", "w": "dense"},
}
DIFFERENTIABLE = "weighted_row_sum"  # stage 2's differentiable entry point; only this course has it
UPSTREAM = {"o": "dout", "lse": "dlse", "y": "dy"}  # output -> its gradient, in reference.py


@dataclass
class Built:
    """A case with its numbers.  tensors: the inputs as sent, on the CPU; upstream: the gradients of
    the outputs, by their names in reference.py; seed: the one that gives these numbers."""

    case: Case
    call: Call
    tensors: dict[str, torch.Tensor]
    upstream: dict[str, torch.Tensor] = field(default_factory=dict)
    refilled: dict[str, torch.Tensor] = field(default_factory=dict)
    seed: int | None = None

    @property
    def dout(self) -> torch.Tensor | None:
        return self.upstream.get("dout")


def build(case: Case, seed: int, salt: str = "") -> Built:
    """Make the tensors of a case and its call; another salt gives other numbers."""
    tensors = _tensors(case, _generator(seed, case.name + salt))
    tensors = {name: _shared(t) if _layout_of(case, name, t) == "expanded" else t
               for name, t in tensors.items()}
    inputs = {name: lay_out(t, _layout_of(case, name, t)) for name, t in tensors.items()}
    args, kwargs, outputs = _signature(case)
    built = Built(case, None, tensors, seed=seed)
    douts, refill = {}, None
    if case.grads:
        douts = _douts(case, outputs, _generator(seed, case.name + salt + "/dout"))
        built.upstream = {UPSTREAM[name]: sent.view() for name, sent in douts.items()}
    if case.unused == "o":  # as autograd gives for an unused output
        built.upstream["dout"] = torch.zeros_like(tensors["q"])
    if case.refill:
        built.refilled = _tensors(case, _generator(seed, case.name + "/refill"))
        refill = {name: lay_out(t, _layout_of(case, name, t))
                  for name, t in built.refilled.items()}
    entry = DIFFERENTIABLE * (case.course_stage.sums_rows and bool(case.grads))
    # Reading the outputs late takes a wait, and a few cases are enough to show unfinished work.
    late = case.group == "standard" or case.repeats > 1 or case.refill
    built.call = Call(inputs, args, kwargs, outputs, douts=douts, grads=case.grads, refill=refill,
                      repeats=case.repeats, entry=entry, late=late,
                      multiprocessors=FEW_MULTIPROCESSORS if case.by_contract else MULTIPROCESSORS,
                      between=_signature(_with_other_options(case))[:2])
    return built


def other_numbers(case: Case, seed: int) -> Built:
    """The same call, made once, with other numbers: those of its refill if it has one.

    Otherwise they come from a fresh seed, which cannot be derived from this one.
    """
    if case.refill:
        built = build(case, seed, "/refill")
    elif case.family == "real":  # there is only one real model
        built = replace(build(replace(case, family="randn"), secrets.randbits(48)), seed=seed)
    else:
        built = build(case, secrets.randbits(48))
    built.call = replace(built.call, refill=None, repeats=1)
    return built


def _layout_of(case: Case, name: str, tensor: torch.Tensor) -> str:
    if case.layout in ONE_BY_ONE:
        return ONE_BY_ONE[case.layout][name]
    if "." in case.layout:  # one for each of q, k and v, or x and w
        return dict(zip("xw" if case.course_stage.sums_rows else "qkv", case.layout.split("."),
                        strict=True)).get(name, "dense")
    if case.layout == "far":
        return "far" if name == case.apart else "dense"
    return case.layout if tensor.dim() > 1 or case.layout == "guarded" else "dense"


def _shared(t: torch.Tensor) -> torch.Tensor:
    """The first head, or the first row, expanded to all."""
    return t.narrow(0 if t.dim() == 2 else 1, 0, 1).expand_as(t)


def _with_other_options(case: Case) -> Case:
    """The case with another mask and scale.  Stage 8 keeps its causal mask, because the original
    assignment's wrapper has no other."""
    stage, other = case.course_stage, {}
    if stage.chooses_mask and not stage.windowed and case.N == case.n_keys:
        other["is_causal"] = stage.differentiates or not case.is_causal
    if case.window is not None:
        other |= {"window": 2 if case.window > 2 else 5, "sinks": 3 if case.sinks == 2 else 2}
    if stage.takes_scale:
        other["scale"] = 2 * _scale(case)
    return replace(case, **other)


def _generator(seed: int, salt: str) -> torch.Generator:
    digest = hashlib.sha256(f"{seed}/{salt}".encode()).digest()
    return torch.Generator().manual_seed(int.from_bytes(digest[:7], "little"))


def _signature(case: Case):
    """-> positional arguments, keywords and outputs of the stage's entry point."""
    stage = case.course_stage
    if stage.sums_rows:
        return ("@x", "@w"), {}, (OutputSpec("y", (case.M,), case.dtype),)
    args = ("@q", "@k", "@v")
    o = OutputSpec("o", (case.B, case.HQ, case.N, case.D), case.dtype)
    if stage.attribute:  # Function.apply takes no keywords, and returns lse as well
        lse = OutputSpec("lse", (case.B, case.HQ, case.N), torch.float32)
        return args + (() if case.bare else (case.is_causal,)), {}, (o, lse)
    given = {"is_causal": case.is_causal, "window_size": case.window, "sink_size": case.sinks,
             "softmax_scale": case.scale, "scale": case.scale,
             "sink_logits": "@sink_logits" if case.sink_logits else None}
    if stage.windowed and "window_size" not in stage.keywords:
        args += (case.window, case.sinks or 0)
    kwargs = {name: given[name] for name in stage.keywords if given[name] is not None}
    if case.bare:  # a positional window is always passed
        args, kwargs = args[:4], {}
    return args, kwargs, (o,)


def _tensors(case: Case, gen: torch.Generator) -> dict[str, torch.Tensor]:
    if case.course_stage.sums_rows:
        x, w = _randn(gen, case.M, case.N), _randn(gen, case.N)
        match case.family:
            case "hot":
                x *= 30
            case "faint":
                x, w = x * 2.0**-10, w * 2.0**-10
            case "cancel":  # the running sum grows up to N / 2, then falls back
                x += torch.where(torch.arange(case.N) < case.N // 2, 1.0, -1.0)
                w = 1 + w / 8
            case "needles":  # one column decides; often the last, which tails forget
                w = torch.zeros(case.N).index_fill_(0, torch.tensor([case.N - 1]), 1.0)
        return {"x": x.to(case.dtype), "w": w.to(case.dtype)}
    q = _randn(gen, case.B, case.HQ, case.N, case.D)
    k = _randn(gen, case.B, case.HKV, case.n_keys, case.D)
    v = _randn(gen, case.B, case.HKV, case.n_keys, case.D)
    if case.family in _PLANTED:
        of_q, of_k = _PLANTED[case.family]
        q[..., 0] = _from_to(of_q, case.N)
        k[..., 0] = _from_to(of_k, case.n_keys) / _scale(case)
        k[..., 0] = k[..., 0].half()  # so that TF32 does not round it
        if case.dtype != torch.float32 and not isinstance(of_q, tuple):
            # Else kernels that round q after scaling it would move all scores of a row together,
            # just as an lse in 16 bits does.
            pair = _exact_if_scaled(of_q, _scale(case), case.dtype)
            q[..., :2] = pair
            k[..., :2] = k[..., :1] * of_q / pair.sum()
    elif case.family != "randn":
        q, k, v = _MAKERS[case.family](case, q, k, v)
    made = {name: t.to(case.dtype) for name, t in (("q", q), ("k", k), ("v", v))}
    if case.sink_logits:  # as parameters often are
        dtype = torch.float32 if case.layout == "views" or case.level else case.dtype
        planted = case.level and case.dtype == torch.float32 and (
            case.family in ("shift+", "shift-"))
        level = math.prod(_PLANTED[case.family]) if planted else 0.0
        logits = _randn(gen, case.HQ) + level
        if case.level and not planted:  # as a new parameter is
            logits.zero_()
        made["sink_logits"] = logits.to(dtype)
    return made


def _randn(gen: torch.Generator, *shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=gen)


def _scale(case: Case) -> float:
    return case.D**-0.5 if case.scale is None else case.scale


# Values of feature 0 of q, and of k times the scale; in 16 bits, two features share them.  Their
# product is added to each logit, which is about N(0, 1) otherwise.  A pair of numbers: evenly from
# the first position to the last.
_PLANTED = {
    "shift+": (16.0, 8.0),  # the same for all, so the softmax does not change
    "shift-": (16.0, -8.0),
    "deep": (16.0, -64.0),
    "abyss": (16.0, -1250.0),
    "peak": (16.0, 1250.0),
    "rising": (4.0, (0.0, 10.0)),  # every tile brings a larger maximum
    "steep": (4.0, (0.0, 100.0)),  # a maximum over hidden keys overflows
    "falling": (4.0, (50.0, 0.0)),
    "signs": (4.0, (-50.0, 15.0)),
    "levels": ((0.0, 20.0), 20.0),  # each row has its own level
}


@functools.cache
def _exact_if_scaled(near: float, scale: float, dtype: torch.dtype) -> torch.Tensor:
    """Two numbers near this one whose sum is the most exact if both are rounded to 16 bits after
    they are multiplied by the scale, with or without log2(e)."""
    numbers = torch.linspace(0.75 * near, 1.5 * near, 385).to(dtype).double()
    exact = numbers[:, None] * scale * torch.tensor([1, 1 / math.log(2)])
    lost = exact.to(dtype) - exact
    most = (lost[:, None] + lost).abs().amax(-1)
    return numbers[list(divmod(int(most.argmin()), len(numbers)))]


def _from_to(ends: float | tuple[float, float], n: int) -> float | torch.Tensor:
    return torch.linspace(*ends, n) if isinstance(ends, tuple) else ends


def _heavy(case, q, k, v):
    """The first key weighs 2**18.5 times as much as any other, so that 16 bits lose whole tiles; in
    bfloat16, which has fewer digits and wider limits, 2**16 times."""
    q, k = torch.ones_like(q), torch.zeros_like(k)
    k[..., 0, 0] = (16 if case.dtype == torch.bfloat16 else 18.5) * math.log(2) / _scale(case)
    v = 2 + v / 10
    v[..., 0, :] -= 1
    return q, k, v


def _cancel(case, q, k, v):
    """Nearly equal weights, and values near +16, then -16: sums grow, then fall back."""
    v += torch.where(torch.arange(case.n_keys) < case.n_keys // 2, 16.0, -16.0)[:, None]
    return q / 4, k, v


def _creeping(case, q, k, v):
    """Each key weighs a little more than the one before: 0.4 % over 128 of 8192 keys.  Values are
    near +10,240, then -10,240, so that a sum over eight keys overflows float16 before it falls."""
    q, k = torch.zeros_like(q), torch.zeros_like(k)
    q[..., 0] = 1.0
    k[..., 0] = torch.linspace(0.0, 0.25, case.n_keys) / _scale(case)
    v += torch.where(torch.arange(case.n_keys) < case.n_keys // 2, 20.0, -20.0)[:, None]
    return q, k, 512 * v


def _easing(case, q, k, v):
    """Each of 160 keys weighs about a fifth less than the one before.  The first key that a window
    hides would weigh most, and yet no key outweighs all others."""
    q = q / 2
    q[..., 0] = 4.0
    k[..., 0] = torch.linspace(10.0, 0.0, case.n_keys) / _scale(case)
    return q, k, v


def _needles(case, q, k, v):
    """Each query points at one key at an edge of the mask, just visible or just hidden; V is
    one-hot.  If the mask is off by one there, the whole row of the output changes."""
    rows = torch.arange(case.N)
    edges = [rows, torch.full_like(rows, case.n_keys - 1), torch.full_like(rows, 64)]
    if case.is_causal:
        edges = [rows, rows + 1, rows - 1]
    if case.window is not None:
        edges += [rows - case.window + 1, rows - case.window]
    if case.sinks:
        edges += [torch.full_like(rows, case.sinks - 1), torch.full_like(rows, case.sinks)]
    k = k * (case.D**0.5 / torch.linalg.vector_norm(k, dim=-1, keepdim=True))
    targets = torch.stack(edges).clamp(0, case.n_keys - 1)
    for h in range(case.HQ):
        target = targets[(rows + h) % len(edges), rows]
        # The planted logit is 8, the others are about N(0, 8 / sqrt(D)).
        q[:, h] = k[:, h // (case.HQ // case.HKV), target] * (8 / (case.D * _scale(case)))
    v = torch.eye(case.D)[torch.arange(case.n_keys) % case.D].expand_as(v).clone()
    return q, k, v


def _real(case, q, k, v):
    """One layer of a language model on real text; its six heads are cut to the shape needed."""
    stored = _real_activations()

    def served(name, like):
        heads = torch.arange(like.shape[1]) % stored[name].shape[0]
        return stored[name][heads, : like.shape[2]].expand_as(like).clone()

    return served("q", q), served("k", k), served("v", v)


@functools.cache
def _real_activations() -> dict[str, torch.Tensor]:
    with np.load(REAL_FILE) as arrays:
        return {name: torch.from_numpy(arrays[name]).float() for name in ("q", "k", "v")}


def _alike(case, q, k, v):
    """dP and delta are above 2048, where float16 is coarse, and o is below 4, where it is fine; the
    weights are nearly equal, so that no single rounding matters."""
    return q / 4, k, 3.5 + v / 8


_MAKERS = {"heavy": _heavy, "cancel": _cancel, "creeping": _creeping, "easing": _easing,
           "needles": _needles, "real": _real, "alike": _alike,
           # 2 with gradients: at 4, right kernels that round the scaled q to 16 bits went over the
           # limit with 6 of 200 seeds in stage 9; at 2 they reach 0.7 of it at most.
           "hot": lambda case, q, k, v: ((2 if case.grads else 4) * q, k, v)}


def _douts(case: Case, outputs: tuple[OutputSpec, ...], gen: torch.Generator) -> dict:
    """The gradient of every output, laid out as the case says."""
    sent = {}
    for spec in outputs:
        if spec.name == case.unused:
            continue
        dout, layout = _randn(gen, *spec.shape), "dense"
        match case.dout:
            case "expanded":
                one = torch.full((1,), 3.0, dtype=spec.dtype)
                sent[spec.name] = TensorInput(one, spec.shape, (0,) * len(spec.shape))
                continue
            case "small":
                dout *= SMALL
            case "large":
                dout[..., dout.shape[-2] // 2:, :] += LARGE
            case "loud":
                dout[..., dout.shape[-2] // 2:, ::16] += LOUD
            case "faint":  # of both signs: a sum grows, then falls back
                signs = torch.where(torch.arange(case.M) < case.M // 2, 1.0, -1.0)
                dout = FAINT * signs * (1 + dout / 8)
            case _ if case.layout == "far":
                layout = _layout_of(case, "do", dout)
            case "shared" if dout.dim() == 4:
                layout = "expanded"
            case given if dout.dim() == 4 or given == "last":
                layout = given
        sent[spec.name] = lay_out(dout.to(spec.dtype), layout)
    return sent


def lay_out(t: torch.Tensor, layout: str) -> TensorInput:
    """Lay t out in a storage, with NaN in every element that t does not cover."""
    dims = t.dim()
    order, gaps, step, guard = list(range(dims)), [0] * dims, 1, GUARD
    match layout:
        case "dense":
            return TensorInput.dense(t)
        case "expanded":
            axis = 0 if dims == 2 else 1
            sent = lay_out(t.narrow(axis, 0, 1).contiguous(), "dense")
            stride = (*sent.stride[:axis], 0, *sent.stride[axis + 1:])
            return replace(sent, shape=tuple(t.shape), stride=stride)
        case "far":
            dense = TensorInput.dense(t)
            return replace(dense, stride=(FAR, *dense.stride[1:]), apart=FAR)
        case "transposed" if dims == 2:
            order, gaps = [1, 0], [3, 0]
        case "transposed":  # (B, N, H, D) in memory
            order[-3:-1] = order[-3:-1][::-1]
        case "packed":  # (B, N, 3, H, D), as from one projection to q, k and v
            order, gaps = [0, 2, 1, 3], [0, 2 * t.shape[1], 0, 0]
        case "cached":  # the first rows of a longer cache
            gaps = [0, 1, 5, 0]
        case "wide":  # half of each row of a tensor twice as wide
            gaps = [0, 0, 0, t.shape[-1]]
        case "gapped":
            gaps = [0, 1, 3, 5][-dims:]
        case "odd":  # as "cached", at addresses that are not 16-byte aligned
            gaps, guard = [0, 1, 5, 0][-dims:] if dims > 2 else gaps, GUARD + 1
        case "last" | "third":
            gaps, step = [int(dims > 1), *gaps[1:]], 2 if layout == "last" else 3
    stride, size = [0] * dims, step
    for axis in reversed(order):
        stride[axis] = size
        size *= t.shape[axis] + gaps[axis]
    storage = torch.full((size + 2 * guard,), math.nan, dtype=t.dtype)
    storage.as_strided(t.shape, stride, guard).copy_(t)
    return TensorInput(storage, tuple(t.shape), tuple(stride), guard)
