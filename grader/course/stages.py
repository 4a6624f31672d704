"""The table of stages: title, file, entry point, points, steps, and what each is about.

No other file compares stage numbers.  The cases of a stage are in case_table.py;
docs/architecture.md says how to add a stage.
"""

import contextlib
import importlib.util
import re
from dataclasses import dataclass, field
from importlib import metadata

ASSIGNMENTS = ("original", "this")  # for which a file without step markers may have been written
TRITON = (3, 6)  # the oldest that works, as in pyproject.toml; PyTorch 2.10 pins it
NO_TRITON = (
    "Triton is not installed, and this needs it. It exists for Linux only: on Windows use WSL, on "
    "a Mac a Linux container, or else GitHub Codespaces or Colab; there, pip install triton."
)


def no_triton() -> str:
    """Why Triton cannot run here, found without importing it; "" if it can."""
    if importlib.util.find_spec("triton") is None:
        return NO_TRITON
    found = triton_version()
    return old_triton(found, pinned_triton()) if found else ""


def old_triton(found: str, pinned: str) -> str:
    """A sentence if the version found is too old, or "".  pinned: the version PyTorch asks for."""
    if version(found) >= TRITON:
        return ""
    return (f"Triton {found}: want {TRITON[0]}.{TRITON[1]} or later; pip install --upgrade "
            + right_triton(pinned).removeprefix("--upgrade "))


def right_triton(pinned: str) -> str:
    """What to `pip install` so that Triton fits the PyTorch that pins this version; if that
    Triton is too old, a newer PyTorch, which brings its own."""
    if not pinned:
        return "triton"
    return f"triton=={pinned}" if version(pinned) >= TRITON else "--upgrade torch"


def installed(*names: str) -> str | None:
    """The version of the first of these packages that is installed, or None."""
    for name in names:
        with contextlib.suppress(metadata.PackageNotFoundError):
            return metadata.version(name)
    return None


def triton_version() -> str | None:
    return installed("triton", "pytorch-triton", "triton-windows")


def pinned_triton() -> str:
    """The version of Triton in PyTorch's metadata: "3.7.1"; "3.8" for ~=3.8.0; "" for none."""
    try:
        wanted = metadata.requires("torch") or ()
    except metadata.PackageNotFoundError:
        return ""
    for row in wanted:
        if match := re.match(r"(?:pytorch-)?triton(?:-windows)?\s*\(?([=~])=\s*([\w.+]+)", row):
            return match[2] if match[1] == "=" else match[2].rpartition(".")[0]
    return ""


def version(text: str, parts: int = 2) -> tuple[int, ...]:
    """ "2.13.0+cpu" -> (2, 13) """
    numbers = re.findall(r"\d+", text.partition("+")[0])
    return tuple(map(int, numbers[:parts]))


def interprets(triton: str, numpy: str) -> bool:
    """Whether the interpreter of this Triton runs with this NumPy."""
    return version(triton) >= (3, 7) or version(numpy) < (2, 4)


def interpreter_fault() -> str:
    """Why the installed Triton's interpreter cannot run; "" if it can."""
    triton, numpy = triton_version(), installed("numpy")
    return "" if not triton or not numpy or interprets(triton, numpy) else (
        f"the interpreter of Triton {triton} does not work with numpy {numpy}: pip install "
        "'numpy<2.4'")


@dataclass(frozen=True)
class Stage:
    """One stage of the course.  Code asks for its properties, never for its number."""

    number: int
    title: str
    entry: str
    positional: tuple[str, ...]  # arguments of the entry point, in this order
    points: int
    steps: dict[str, str]  # step -> the places it holds (step_checks/mistakes.py)
    # Where the loops over the keys, and over the queries, get their bounds; for wasted_tiles.py.
    loop_steps: tuple[str, ...] = ()
    attribute: str | None = None  # "apply" if the entry point is an autograd.Function
    origins: dict[str, str] = field(default_factory=dict)  # step -> the step it copies
    keywords: tuple[str, ...] = ()  # arguments that are passed by name
    program: str = "autograder.py"  # the program that grades it
    optional: bool = False
    needs_triton: bool = True  # otherwise PyTorch computes, tile by tile
    sums_rows: bool = False  # x (M, N), w (N,) -> y (M,); all other stages are attention
    windowed: bool = False  # a row may see nothing of a visited tile
    has_sinks: bool = False
    differentiates: bool = False  # by its own kernels; every case asks for gradients
    is_causal: bool = False  # unless a case says otherwise
    causal_in_names: bool = False  # case names, which seed the numbers, tell the mask
    heads: tuple[int, int] = (6, 2)  # (HQ, HKV) of a small but telling case

    @property
    def filename(self) -> str:
        return f"problem_{self.number}.py"

    @property
    def shares_keys(self) -> bool:
        """Whether several query heads may share a key/value head."""
        return any("kv head" in places for places in self.steps.values())

    @property
    def takes_scale(self) -> bool:
        return any("scale" in word for word in self.keywords)

    @property
    def backward_is_given(self) -> bool:
        """Whether the file comes with a PyTorch backward that recomputes from the saved lse."""
        return self.needs_triton and not self.sums_rows and not self.differentiates

    @property
    def chooses_mask(self) -> bool:
        """Whether a call may choose between a causal mask and none."""
        return self.differentiates or not self.needs_triton

    def steps_of(self, places: tuple[str, ...]) -> list[str]:
        """The steps that hold any of these places, the likeliest first."""
        return list(dict.fromkeys(step for place in places for step, own in self.steps.items()
                                  if place in own.split(", ")))


QKV = ("q", "k", "v")
FORWARD = "flash_attention_forward"

STAGES: dict[int, Stage] = {stage.number: stage for stage in (
    Stage(
        number=1, title="FlashAttention in PyTorch", points=200,
        entry="FlashAttention2Function", attribute="apply", positional=(*QKV, "is_causal"),
        steps={"1.1": "scores, scale, mask", "1.2": "loop, borders", "1.3": "softmax",
               "1.4": "sums", "1.5": "normalise, lse", "1.6": "delta", "1.7": "dq P, dkdv P",
               "1.8": "dq products, dkdv products, dq scale, dk scale"},
        loop_steps=("1.2",), needs_triton=False, causal_in_names=True, heads=(2, 2)),
    Stage(
        number=2, title="Weighted row-sum", points=100,
        entry="weighted_row_sum_forward", positional=("x", "w"),
        steps={"2.1": "rows", "2.2": "load", "2.3": "sums", "2.4": "dx", "2.5": "dw",
               "2.6": "launch"},
        sums_rows=True),
    Stage(
        number=3, title="FlashAttention in Triton", points=200,
        entry=FORWARD, positional=(*QKV, "is_causal"),
        steps={"3.1": "rows", "3.2": "loop, borders, scale", "3.3": "normalise, lse",
               "3.4": "scores", "3.5": "softmax, sums", "3.6": "mask", "3.7": "load",
               "3.8": "store"},
        keywords=("is_causal",), heads=(3, 3)),
    Stage(
        number=4, title="The causal mask", points=100,
        entry=FORWARD, positional=(*QKV, "is_causal"),
        steps={"4.1": "rows", "4.2": "loop, borders, scale", "4.3": "normalise, lse",
               "4.4": "scores", "4.5": "softmax, sums", "4.6": "mask", "4.7": "load",
               "4.8": "store"},
        loop_steps=("4.2",), keywords=("is_causal",), is_causal=True, heads=(3, 3)),
    Stage(
        number=5, title="Grouped-query heads", points=50,
        entry=FORWARD, positional=(*QKV, "is_causal"),
        steps={"5.1": "rows", "5.2": "kv head", "5.3": "loop, borders, scale",
               "5.4": "normalise, lse", "5.5": "scores", "5.6": "softmax, sums", "5.7": "mask",
               "5.8": "load", "5.9": "store"},
        keywords=("is_causal",), is_causal=True),
    Stage(
        number=6, title="A sliding window", points=50,
        entry=FORWARD, positional=(*QKV, "is_causal", "window_size"),
        steps={"6.1": "rows", "6.2": "kv head", "6.3": "borders", "6.4": "loop, scale",
               "6.5": "normalise, lse", "6.6": "scores", "6.7": "softmax, sums", "6.8": "mask",
               "6.9": "load", "6.10": "store"},
        loop_steps=("6.3",), keywords=("is_causal", "window_size"), is_causal=True, windowed=True),
    Stage(
        number=7, title="Attention sinks", points=50,
        entry=FORWARD, positional=(*QKV, "is_causal", "window_size", "sink_size"),
        steps={"7.1": "rows", "7.2": "kv head", "7.3": "borders",
               "7.4": "loop, sink loop, scale", "7.5": "normalise, lse", "7.6": "scores",
               "7.7": "softmax, sums", "7.8": "mask", "7.9": "load", "7.10": "store"},
        loop_steps=("7.4",), keywords=("is_causal", "window_size", "sink_size"), is_causal=True,
        windowed=True, has_sinks=True),
    Stage(
        number=8, title="The backward as kernels", points=200,
        entry="flash_attention_gqa", positional=(*QKV, "is_causal", "softmax_scale"),
        steps={"8.1": "rows", "8.2": "kv head", "8.3": "loop, borders, scale",
               "8.4": "normalise, lse", "8.5": "scores", "8.6": "softmax, sums",
               "8.7": "dq rows", "8.8": "dq kv head", "8.9": "delta",
               "8.10": "dq loop, dq borders, dq scale", "8.11": "dq P, dq mask, dq scores",
               "8.12": "dq products, dq sums", "8.13": "dkdv rows",
               "8.14": "dkdv loop, dkdv borders", "8.15": "dkdv loop, dkdv calls",
               "8.16": "dkdv P, dkdv mask, dkdv scores", "8.17": "dkdv products, dkdv sums",
               "8.18": "mask", "8.19": "load", "8.20": "store"},
        loop_steps=("8.3", "8.14"), keywords=("is_causal", "softmax_scale"), is_causal=True,
        differentiates=True, program="autograder_optional.py", optional=True),
    Stage(
        number=9, title="The backward that GPT-OSS needs", points=200,
        entry="flash_swda_with_sink",
        positional=(*QKV, "window_size", "sink_size", "is_causal", "scale"),
        steps={"9.1": "rows", "9.2": "kv head", "9.3": "sink start",
               "9.4": "loop, sink loop, scale", "9.5": "normalise, lse", "9.6": "scores",
               "9.7": "softmax, sums", "9.8": "dq rows", "9.9": "dq kv head", "9.10": "delta",
               "9.11": "dsink", "9.12": "dq loop, dq borders, dq sink loop, dq scale",
               "9.13": "dq P, dq mask, dq scores", "9.14": "dq products, dq sums",
               "9.15": "dkdv rows", "9.16": "dkdv loop, dkdv borders, dkdv sink loop",
               "9.17": "dkdv loop, dkdv calls", "9.18": "dkdv P, dkdv mask, dkdv scores",
               "9.19": "dkdv products, dkdv sums", "9.20": "borders, sink loop", "9.21": "mask",
               "9.22": "load", "9.23": "store"},
        loop_steps=("9.20", "9.16"), keywords=("is_causal", "scale", "sink_logits"), is_causal=True,
        windowed=True, has_sinks=True, differentiates=True, causal_in_names=True,
        program="autograder_optional.py", optional=True),
)}
