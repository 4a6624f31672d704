"""How far a stage's kernels are from float64, over settings that cover all pairs of their axes."""

import importlib
import math
from dataclasses import dataclass, replace

import covertable
import torch

from grader.course import correctness
from grader.course.cases import Case
from grader.course.inputs import Built
from grader.course.stages import STAGES

# all_pairs() makes settings in which every pair of values of two axes occurs.
GPU_AXES = {
    "N": (1, 2, 63, 64, 65, 127, 129, 257, 1000),
    "D": (16, 40, 64, 80, 128),
    "heads": ((1, 1), (4, 4), (8, 2), (6, 1), (8, 1)),
    "window_size": (1, 17, 128, 5000, None),
    "sink_size": (0, 1, 4, 70),
    "dtype": ("float16", "bfloat16", "float32"),
    "layout": ("dense", "strided", "columns"),
    "dout": ("dense", "expanded", "strided"),
    "causal": (True, False),
    "sink_logits": (False, True),
}
# Small: a tile operation takes about a millisecond in the interpreter.  It has no bfloat16.
CPU_AXES = GPU_AXES | {
    "N": (1, 2, 64, 65, 130),
    "D": (16, 80),
    "heads": ((1, 1), (4, 2), (3, 1), (8, 1)),
    "window_size": (1, 17, 70, 5000, None),
    "dtype": ("float16", "float32"),
}


@dataclass(frozen=True)
class Setting:
    """One call.  heads: (HQ, HKV); layout, dout: the layouts of the inputs and of the gradient."""

    stage: int
    N: int
    D: int
    heads: tuple[int, int] = (1, 1)
    window_size: int | None = None
    sink_size: int = 0
    dtype: str = "float32"
    layout: str = "dense"
    dout: str = "dense"
    causal: bool = True
    sink_logits: bool = False

    def __str__(self) -> str:
        hq, hkv = self.heads
        words = [f"P{self.stage}", f"N{self.N}", f"D{self.D}", f"HQ{hq}", f"HKV{hkv}"]
        words += [f"W{self.window_size}", f"S{self.sink_size}", self.dtype, self.layout]
        words += [f"do_{self.dout}", "causal" if self.causal else "full"]
        return "-".join(words + ["logits"] * self.sink_logits)


def all_pairs(axes: dict[str, tuple]) -> list[dict]:
    """A short list of settings with every pair of values of two axes."""
    return covertable.make({name: list(values) for name, values in axes.items()})


def settings(number: int, axes: dict[str, tuple]) -> list[Setting]:
    """The settings for one stage; axes that its contract does not have are fixed."""
    stage, mine = STAGES[number], dict(axes)
    if not stage.shares_keys:
        mine["heads"] = tuple((hq, hq) for hq in sorted({hq for hq, _ in axes["heads"]}))
    if not stage.chooses_mask:
        mine["causal"] = (stage.is_causal,)
        mine["window_size"] = tuple(w for w in axes["window_size"] if w is not None)
    if not stage.windowed:
        mine["window_size"] = (None,)
    if not stage.has_sinks:
        mine["sink_size"] = (0,)
    if "sink_logits" not in stage.keywords:
        mine["sink_logits"] = (False,)
    cover = [Setting(number, **row) for row in all_pairs(mine)]
    # A window needs the causal mask.
    return [s if s.causal else replace(s, window_size=None) for s in cover]


def place(x: torch.Tensor, layout: str) -> torch.Tensor:
    """The values of x (B, H, N, D) in another layout, in storage full of NaN."""
    B, H, N, D = x.shape
    if layout == "dense":
        return x.clone()
    if layout == "expanded":  # a single number, as from sum().backward()
        return x[:1, :1, :1, :1].clone().expand(B, H, N, D)
    if layout == "strided":  # (B, N, H, D) in memory, with NaN around it
        storage = torch.full((B, N + 2, H + 1, D + 3), math.nan, dtype=x.dtype, device=x.device)
        view = storage[:, 1 : N + 1, :H, 2 : D + 2].transpose(1, 2)
    else:  # columns: D is not the last axis in memory
        storage = torch.full((B, H, D + 1, N + 1), math.nan, dtype=x.dtype, device=x.device)
        view = storage[:, :, :D, :N].transpose(2, 3)
    return view.copy_(x)


def call(setting: Setting, q, k, v, sink_logits=None):
    """Call the stage's entry point and return what it returns."""
    stage = STAGES[setting.stage]
    entry = getattr(importlib.import_module(f"problem_{setting.stage}"), stage.entry)
    if stage.attribute:  # an autograd.Function takes no keywords
        return getattr(entry, stage.attribute)(q, k, v, setting.causal)
    options = {"is_causal": setting.causal, "window_size": setting.window_size,
               "sink_size": setting.sink_size, "sink_logits": sink_logits}
    return entry(q, k, v, **{name: value for name, value in options.items()
                             if name in (*stage.positional, *stage.keywords)})


def error_over_limit(setting: Setting, device: str, seed: int = 0) -> dict[str, float]:
    """The largest error over its limit for o and every gradient; right if at most 1; NaN is inf."""
    torch.manual_seed(seed)
    dtype = getattr(torch, setting.dtype)
    (HQ, HKV), N, D = setting.heads, setting.N, setting.D

    def make(heads: int, layout: str) -> torch.Tensor:
        return place(torch.randn(2, heads, N, D, device=device).to(dtype), layout)

    tensors = {"q": make(HQ, setting.layout), "k": make(HKV, setting.layout)}
    tensors["v"] = make(HKV, setting.layout)
    dout = make(HQ, setting.dout)
    if setting.sink_logits:
        tensors["sink_logits"] = torch.randn(HQ, device=device)
    for x in tensors.values():
        x.requires_grad_()

    o = call(setting, **tensors)
    o = o[0] if setting.stage == 1 else o
    grads = torch.autograd.grad(o, list(tensors.values()), dout)
    got = {"o": o.detach()} | dict(zip([f"d_{name}" for name in tensors], grads, strict=True))

    inputs = {name: x.detach() for name, x in tensors.items()}
    case = Case(
        setting.stage, "robust", N, D, 2, HQ, HKV, dtype=dtype, is_causal=setting.causal,
        window=setting.window_size, sinks=setting.sink_size, sink_logits=setting.sink_logits,
        grads=tuple(inputs),
    )
    answer = correctness.answer(Built(case, None, inputs, {"dout": dout}), device)

    worst = {}
    for name, x in got.items():
        want = inputs[name[2:]] if name.startswith("d_") else inputs["q"]
        assert x.shape == want.shape and x.dtype == want.dtype, (name, x.shape, x.dtype)
        worst[name] = answer.judge(name, x).times
    return worst
