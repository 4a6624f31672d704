"""What is timed, and the least time it can take.  Nothing here needs a GPU."""

from dataclasses import dataclass
from typing import NamedTuple

BYTES = 2  # of a bfloat16
FLOAT = 4  # of a float32, in which lse is kept
LENGTHS = tuple(2**n for n in range(8, 17))
SWEEP_TOKENS = 16384  # B * N of the sweep's shorter lengths
SWEEP_WINDOW, SWEEP_SINKS = 1024, 4


@dataclass(frozen=True)
class Workload:
    """One attention call.  q (B, HQ, N, D), k and v (B, HKV, N, D), bfloat16.

    window: how many keys a query sees, itself included; None for all.  sinks: how many first keys
    stay visible beyond it.  sink_logits: whether each head has one more logit in its softmax.
    direction: "forward" or "backward".  group: "table", or "sweep" for the figures.
    """

    name: str
    stage: int
    B: int
    HQ: int
    HKV: int
    N: int
    D: int
    causal: bool = True
    window: int | None = None
    sinks: int = 0
    sink_logits: bool = False
    direction: str = "forward"
    group: str = "table"

    @property
    def label(self) -> str:
        """The unique name of this workload in the results."""
        return f"{self.name}, {self.direction}"

    @property
    def is_backward(self) -> bool:
        return self.direction == "backward"

    @property
    def shape(self) -> str:
        """Sizes and mask, as shown in tables."""
        mask = "causal" if self.causal else "full"
        if self.window is not None:
            mask = f"window {self.window}"
        mask += f", {self.sinks} sinks" if self.sinks else ""
        mask += ", sink logits" if self.sink_logits else ""
        return f"{self.B}, {self.HQ}/{self.HKV}, {self.N}, {self.D}, {mask}"

    def visible(self, query, key):
        """Whether a query sees a key; for integers, for tensors, and for flex_attention."""
        keep = key <= query if self.causal else key == key
        if self.window is not None:
            keep = keep & ((query - key < self.window) | (key < self.sinks))
        return keep

    def pairs(self) -> int:
        """Visible (query, key) pairs of one head of one batch entry."""
        if not self.causal:
            return self.N * self.N
        window = self.N if self.window is None else min(self.window, self.N)
        in_window = window * (window + 1) // 2 + (self.N - window) * window
        # Query i has i + 1 - window keys too old for its window; the first `sinks` of them stay.
        older = self.N - window  # of the last query
        sinks = min(self.sinks, older)
        return in_window + sinks * (sinks + 1) // 2 + (older - sinks) * sinks

    def exponentials(self) -> int:
        """One per visible pair; the backward computes them again."""
        return self.B * self.HQ * self.pairs()

    def flops(self) -> int:
        """FLOP of the matrix products over visible pairs: two forward, five backward, 2 D each."""
        return (10 if self.is_backward else 4) * self.D * self.B * self.HQ * self.pairs()

    def bytes(self) -> int:
        """Bytes that must be moved.  Forward: q, k, v are read; o, lse written.  Backward: all of
        these and do are read; dq, dk, dv written."""
        rows, key_rows = self.B * self.HQ * self.N, self.B * self.HKV * self.N
        times = 2 if self.is_backward else 1
        return times * 2 * BYTES * self.D * (rows + key_rows) + FLOAT * rows

    def score_bytes(self) -> int:
        """Bytes of all scores of the call in bfloat16, for those who keep them."""
        return BYTES * self.B * self.HQ * self.N * self.N


class Ceiling(NamedTuple):
    """What a GPU was measured to reach per second: bfloat16 FLOP, exponentials and bytes."""

    flops: float
    exponentials: float
    bytes: float


# By a part of the name that the driver gives the GPU.
CEILINGS = {
    "H200": Ceiling(790e12, 3.7e12, 4.3e12),
    "H100 80GB HBM3": Ceiling(790e12, 3.7e12, 3.0e12),
}


def floor(work: Workload, gpu: str) -> tuple[float, str] | None:
    """Returns the least ms that the work can take, and why: "matrix", "exp" or "memory".

    None if the ceilings of this GPU were not measured.
    """
    ceiling = next((value for name, value in CEILINGS.items() if name in gpu), None)
    if ceiling is None:
        return None
    return max(
        (1e3 * work.flops() / ceiling.flops, "matrix"),
        (1e3 * work.exponentials() / ceiling.exponentials, "exp"),
        (1e3 * work.bytes() / ceiling.bytes, "memory"),
    )


def _original(stage, **options) -> Workload:
    """The last shape of the original assignment."""
    sizes = {"B": 1, "HQ": 16, "HKV": 16, "N": 4096, "D": 16} | options
    return Workload(f"stage {stage}, original shape", stage, **sizes)


_GPT_OSS = {"B": 1, "HQ": 64, "HKV": 8, "N": 8192, "D": 64, "sink_logits": True}
_LLAMA = {"B": 2, "HQ": 32, "HKV": 8, "N": 8192, "D": 128}
_LONG = {"B": 1, "HQ": 32, "HKV": 8, "N": 16384, "D": 128, "window": 4096}

TABLE = [
    _original(3, causal=False),
    Workload("stage 3, D=64", 3, 4, 32, 32, 4096, 64, causal=False),
    Workload("stage 3, D=128", 3, 4, 16, 16, 4096, 128, causal=False),
    _original(4),
    Workload("stage 4, D=64", 4, 4, 32, 32, 4096, 64),
    Workload("stage 4, D=128", 4, 4, 16, 16, 4096, 128),
    _original(5, HKV=2),
    Workload("stage 5, Llama-3", 5, **_LLAMA),
    _original(6, HKV=2, window=128),
    Workload("stage 6, Mistral", 6, **_LONG),
    _original(7, HKV=2, window=128, sinks=8),
    Workload("stage 7, streaming", 7, **_LONG, sinks=4),
    Workload("stage 9, GPT-OSS window", 9, **_GPT_OSS, window=128),
    Workload("stage 9, GPT-OSS full", 9, **_GPT_OSS),
    _original(8, HKV=8, direction="backward"),
    Workload("stage 8, D=64", 8, 4, 32, 32, 4096, 64, direction="backward"),
    Workload("stage 8, Llama-3", 8, **_LLAMA, direction="backward"),
    _original(9, HKV=1, window=256, sinks=4, direction="backward"),
    Workload("stage 9, streaming", 9, **_LONG, sinks=4, direction="backward"),
    Workload("stage 9, GPT-OSS window", 9, **_GPT_OSS, window=128, direction="backward"),
    Workload("stage 9, GPT-OSS full", 9, **_GPT_OSS, direction="backward"),
]


def _sweep() -> list[Workload]:
    """Returns every stage that has a kernel, over N: 16 heads, D = 64, one row or SWEEP_TOKENS."""
    masks = {
        3: {"HKV": 16, "causal": False},
        4: {"HKV": 16},
        5: {"HKV": 4},
        6: {"HKV": 4, "window": SWEEP_WINDOW},
        7: {"HKV": 4, "window": SWEEP_WINDOW, "sinks": SWEEP_SINKS},
        8: {"HKV": 4},
        9: {"HKV": 4, "window": SWEEP_WINDOW, "sinks": SWEEP_SINKS},
    }
    return [
        Workload(f"stage {stage}, N={N}", stage, B=max(1, SWEEP_TOKENS // N), HQ=16, N=N, D=64,
                 direction=direction, group="sweep", **mask)
        for stage, mask in masks.items()
        for direction in (("forward", "backward") if stage >= 8 else ("forward",))
        for N in LENGTHS
    ]


SWEEP = _sweep()


def tiny(stage: int) -> Workload:
    """Returns a workload so small that only the host's time counts."""
    options = {"causal": stage != 3, "window": 32 if stage in (6, 7, 9) else None,
               "sinks": 4 if stage in (7, 9) else 0}
    return Workload(f"stage {stage}, tiny", stage, B=1, HQ=2, HKV=2, N=128, D=16, **options)
