"""The record of one case, and what reports call it.

case_table.py lists the cases of each stage, inputs.py makes their tensors.
"""

from dataclasses import dataclass, field, replace

import torch

from grader.course.stages import STAGES, Stage
from grader.sandbox.wire import dtype_name

# Their names in a report, short enough for a case to fit on a line.
FAMILIES = {
    "randn": "",
    "shift+": "scores near +128",  # kills a missing max subtraction
    "shift-": "scores near -128",  # kills a max that starts at 0, and a finite mask fill
    "deep": "scores near -1,024",  # kills a finite mask fill that shift- lets pass
    "abyss": "scores near -20,000",  # kills a maximum that starts at -10,000
    "peak": "scores near +20,000",  # kills scores that are clamped
    "rising": "rising maximum",  # kills a missing rescale, and lse in 16 bits
    "steep": "steeply rising maximum",  # by 400 over all keys: kills a maximum of the wrong keys
    "falling": "falling scores",  # falls by 400: a factor that should shrink explodes
    "heavy": "one heavy key",  # the others only matter together: kills sums in 16 bits
    "cancel": "sums that cancel",  # the halves of v cancel: kills a sum in 16 bits
    # Kills a rescale that is skipped while the maximum rises only a little, and sums in float16.
    "creeping": "slowly rising maximum",
    # Each key weighs a fifth less: kills a window that is one key too long.
    "easing": "slowly falling scores",
    "hot": "large inputs",
    "alike": "similar values",  # dP and delta nearly cancel: kills either of them in 16 bits
    "faint": "small numbers",  # kills a product in float16, which ends at 2^-24
    "needles": "one-hot weights",  # at the mask's edges: kills a mask off by one
    "real": "a real model",
    "signs": "both signs",  # for the diagnosis: which maximum is wrong
    "levels": "rising rows",
}
LAYOUTS = {
    "dense": "",
    "guarded": "NaN stored around the inputs",  # a read past the end meets NaN, not a lucky zero
    "transposed": "transposed",  # as .view(B, N, H, D).transpose(1, 2) gives
    "views": "views",  # k in a longer cache, v in wider rows: kills strides of another tensor
    "last": "strided in the last axis",
    "gapped": "with gaps",  # between heads and batch entries, too
    "mixed": "mixed strides",  # k transposed beside a packed q
    "shared": "one head of k shared by all",  # stride 0: kills results that copy its strides
    "far": "offsets past 2^31",  # on a GPU: kills offsets in 32 bits
}
# The same for one tensor, and where a tensor has a layout of its own.
ONE_LAYOUT = {"odd": "not 16-byte aligned", "last": "strided in the last axis",
              "wide": "a slice of a wider tensor", "gapped": "with gaps",
              "transposed": "transposed", "expanded": "expanded", "shared": "shared by all heads"}
UPSTREAM = {"small": "tiny", "faint": "tiny", "large": "large", "loud": "very large"}

LARGEST = 2**31 - 1  # window_size and sink_size
# What only this course promises, in words; case_table.py and Case.kinds.
GRADIENTS, LSE_GRADIENT, SINK_LOGITS = "gradients", "the gradient of lse", "sink logits"
NO_MASK, NO_WINDOW, MANY = "no causal mask", "no window", "windows and sinks of 2^31 - 1"
DEFAULTS, ODD_D, SMALL_D = "omitted arguments", "D not a power of two", "D below 16"
WIDE_F32, LAST = "float32 at D = 128", "a last axis whose stride is not 1"
MIXED, SHARED, GAPPED = "permuted strides", "an expanded input (stride 0)", "rows with gaps"
LAYOUT_KINDS = frozenset({LAST, MIXED, SHARED, GAPPED})
SIZE_KINDS = frozenset({ODD_D, SMALL_D, WIDE_F32})


@dataclass(frozen=True)
class Case:
    """One case.  Stage 2 has x of shape (M, N), the others q, k, v of shape (B, H, N, D)."""

    stage: int
    group: str  # "standard", "robust" or "beyond", which decides nothing
    N: int
    D: int = 16
    B: int = 1
    HQ: int = 1
    HKV: int = 1
    NK: int | None = None  # keys, if their number differs from N
    M: int = 0
    dtype: torch.dtype = torch.float16
    is_causal: bool = False
    window: int | None = None
    sinks: int | None = None
    scale: float | None = None
    sink_logits: bool = False
    level: bool = False  # sink_logits in float32, as large as the scores, or zero
    family: str = "randn"
    layout: str = "dense"
    apart: str = ""  # the tensor whose entries are far apart
    # A layout, or "expanded" (stride 0, as from o.sum().backward()), "small", "large", "loud"; in
    # stage 2 also "faint".
    dout: str = "dense"
    grads: tuple[str, ...] = ()
    unused: str = ""  # an output that gets no gradient
    bare: bool = False  # called without the arguments whose fields hold the default
    repeats: int = 1
    refill: bool = False
    growth: bool = False  # run at N, 2N, 4N: does memory grow with N or with N * N?
    by_contract: bool = False  # made by contract.py, not a row of case_table.py
    course: bool = False  # robust for files that promise it, see kinds; beyond for others
    asks: str = ""  # what it asks beyond the assignment
    of: Stage | None = field(default=None, compare=False)  # its stage, if that is not the course's

    @property
    def course_stage(self) -> Stage:
        """The stage it belongs to."""
        return self.of or STAGES[self.stage]

    @property
    def n_keys(self) -> int:
        return self.N if self.NK is None else self.NK

    @property
    def is_ragged(self) -> bool:
        """Whether its length is no multiple of any tile."""
        return self.N % 16 > 0

    @property
    def kinds(self) -> frozenset[str]:
        """What it asks that only this course promises, as a report calls it."""
        stage, layouts = self.course_stage, {*self.layout.split(".")}
        asked = {
            GRADIENTS: self.gives_gradients,
            LSE_GRADIENT: self.gives_gradients and not stage.needs_triton and self.unused != "lse",
            SINK_LOGITS: self.sink_logits,
            NO_MASK: stage.differentiates and not self.is_causal,
            NO_WINDOW: stage.windowed and self.is_causal and self.window is None,
            MANY: LARGEST in (self.window, self.sinks),
            DEFAULTS: self.bare,
            ODD_D: self.D > 16 and self.D & (self.D - 1) > 0,
            SMALL_D: self.D < 16,
            WIDE_F32: self.D > 64 and self.dtype == torch.float32,
            LAST: "last" in layouts | {self.dout},
            MIXED: bool(layouts & {"mixed", "transposed"}) if stage.sums_rows else
            bool((layouts | {self.dout}) & {"mixed", "wide", "odd"}),
            SHARED: "shared" in layouts,
            GAPPED: "gapped" in layouts,
        }
        return frozenset(kind for kind, is_asked in asked.items() if is_asked)

    @property
    def gives_gradients(self) -> bool:
        """Whether it asks for gradients in a stage where most cases do not."""
        return not self.course_stage.differentiates and bool(self.grads)

    @property
    def some_gradients(self) -> bool:
        """Whether it asks for gradients of some inputs only."""
        return 0 < len(self.grads) < (2 if self.course_stage.sums_rows else 3)

    @property
    def name(self) -> str:
        """Unique within a stage, and readable: robust/HQ8-HKV2-N257-D64-W100-float16."""
        if self.course_stage.sums_rows:
            parts = [f"M{self.M}", f"N{self.N}"]
        else:
            heads = f"H{self.HQ}" if self.HQ == self.HKV else f"HQ{self.HQ}-HKV{self.HKV}"
            length = f"N{self.N}" if self.NK is None else f"NQ{self.N}-NK{self.NK}"
            parts = [f"B{self.B}"] * (self.B > 1) + [heads, length, f"D{self.D}"]
        parts += ["causal"] * (self.course_stage.causal_in_names and self.is_causal)
        parts += ["full"] * (self.by_contract and self.course_stage.is_causal and not self.is_causal
                             and not self.course_stage.causal_in_names)
        parts += [f"W{self.window}"] * (self.window is not None)
        parts += [f"S{self.sinks}"] * (self.sinks is not None)
        parts += [dtype_name(self.dtype)] + [self.family] * (self.family != "randn")
        parts += [f"{self.layout}-{self.apart}".strip("-")] * (self.layout != "dense")
        parts += [f"dout-{self.dout}"] * (self.dout != "dense")
        parts += ["scale"] * (self.scale is not None) + ["sink_logits"] * self.sink_logits
        parts += ["level"] * self.level
        parts += ["refill"] * (self.refill and self.group != "standard")  # standard ones all refill
        parts += [f"x{self.repeats}"] * (self.repeats > 1)
        parts += ["growth"] * self.growth + ["gradients"] * self.gives_gradients
        parts += ["d" + "".join(self.grads)] * self.some_gradients
        parts += [f"no-{self.unused}"] * bool(self.unused) + ["defaults"] * self.bare
        return f"{self.group}/" + "-".join(parts)

    @property
    def label(self) -> str:
        """The shape as the original assignment writes it: B=1, H=8, L=512, D=16."""
        if self.course_stage.sums_rows:
            text = f"M={self.M}, N={self.N}"
        else:
            same = self.HQ == self.HKV
            text = f"B={self.B}, " * (self.group == "standard" or self.B > 1)
            text += f"H={self.HQ}" if same else f"HQ={self.HQ}, HKV={self.HKV}"
            text += f", L={self.N}" if self.NK is None else f", Lq={self.N}, Lk={self.NK}"
            text += f", D={self.D}"
        no_window = self.course_stage.windowed and self.is_causal and self.window is None
        text += ", no window" if no_window else f", W={self.window}" * (self.window is not None)
        text += f", S={self.sinks}" * (self.sinks is not None)
        unusual = self.is_causal != self.course_stage.is_causal
        return text + (", causal" if self.is_causal else ", not causal") * unusual

    @property
    def note(self) -> str:
        """What is special about a robust case, in words."""
        sums_rows = self.course_stage.sums_rows
        if self.layout == "shared" and sums_rows:
            layouts = ["one row of x for all"]
        elif self.layout in LAYOUTS:
            layouts = [LAYOUTS[self.layout]]
        else:
            layouts = [f"{name} {ONE_LAYOUT[layout]}" for name, layout in zip(
                "xw" if sums_rows else "qkv", self.layout.split("."), strict=True)
                if layout != "dense"]
        words = [dtype_name(self.dtype), FAMILIES[self.family], *layouts]
        words += [f"in {self.apart}" * bool(self.apart)]
        words += ["gradients" + f" of {' and '.join(self.grads)} alone" * self.some_gradients] * (
            self.gives_gradients or self.some_gradients)
        if self.dout != "dense":
            name = "dy" if sums_rows else "do"
            words += [f"{UPSTREAM[self.dout]} {name}" if self.dout in UPSTREAM
                      else f"{name} {ONE_LAYOUT[self.dout]}"]
        words += ["explicit scale" * (self.scale is not None), "sink logits" * self.sink_logits]
        words += ["refilled" * self.refill, "memory measured at N and 2N" * self.growth]
        words += ["called twice" * (self.repeats > 1)]
        words += [f"{self.unused} not used" * bool(self.unused),
                  "default arguments" * self.bare]
        return ", ".join(word for word in words if word)

    def mask(self) -> dict:
        """The keyword arguments of reference.attention other than tensors."""
        return {"is_causal": self.is_causal, "window_size": self.window,
                "sink_size": self.sinks or 0, "scale": self.scale}


def longer(case: Case, times: int) -> Case:
    """A growth case at so many times its length."""
    return replace(case, N=times * case.N, NK=None if case.NK is None else times * case.NK)
