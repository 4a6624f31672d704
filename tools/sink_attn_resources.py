"""python -m tools.sink_attn_resources [80 90 ...]: resources of sink_attn's kernels, without a GPU.

Compiles what launcher.py launches, for these architectures or all supported ones, and with 90 also
the Gluon kernels.  Prints shared memory, registers and stack, one row per kernel; half a minute per
architecture on two cores (80), longer for 90.

--gluon           only Gluon's kernels, for Hopper, with what ptxas notes; under a minute
--serialised      Gluon's forward with one mistake, which ptxas notes
--json            with one of these two: a JSON object instead

Run with another Triton in front of PYTHONPATH for another version.
"""

import functools
import importlib.util
import itertools
import json
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch

# pretend() before Triton and the kernels are imported.
from grader.sandbox.kernels.pretend_gpu import SHARED_BYTES
from tools import compiled
from tools.compiled import Need
from tools.machine_code import Instruction, jumps_back, stack_uses

# ------------------------------------------------------------------ launcher.py
EVEN, RAGGED = 2048, 2000  # a multiple of every tile, and of none
MHA, *GROUPS = HEAD_COUNTS = (16, 16), (32, 16), (64, 16), (128, 16)  # query, key/value heads


@dataclass(frozen=True)
class Call:
    """One forward and backward of sink_attn.attention."""

    D: int
    dtype: torch.dtype
    N: int = RAGGED
    heads: tuple[int, int] = MHA
    causal: bool = True
    window: int | None = None
    sinks: int = 0
    logits: bool = False
    columns: bool = False  # the last axis is not the contiguous one, as no descriptor can have it
    packed: bool = False  # two sequences

    def __str__(self) -> str:
        words = [f"D {self.D}", str(self.dtype)[6:], f"{self.heads[0]}/{self.heads[1]} heads"]
        words += [f"N {self.N}"] + ["full"] * (not self.causal)
        words += [f"window {self.window}"] if self.window else []
        words += [word for word in ("sinks", "logits", "columns", "packed") if getattr(self, word)]
        return ", ".join(words)

    def __call__(self) -> None:
        from sink_attn import attention, attention_varlen

        inputs = compiled.attention_inputs(
            self.heads, self.N, self.D, self.dtype, self.logits, self.columns
        )
        options = dict(is_causal=self.causal, window_size=self.window, sink_size=self.sinks)
        borders = torch.tensor([0, self.N // 2, self.N], dtype=torch.int32)

        def attend(q, k, v, sink_logits=None):
            if not self.packed:
                return attention(q, k, v, sink_logits=sink_logits, kernel="triton", **options)
            rows = (x[0].transpose(0, 1) for x in (q, k, v))
            return attention_varlen(
                *rows, borders, borders, self.N, sink_logits=sink_logits, **options
            )

        compiled.differentiate(attend, *inputs)


def few(D: int, dtype: torch.dtype) -> list[Call]:
    """Every kernel with every mask, but not in all combinations of what else can vary."""
    call = functools.partial(Call, D, dtype)
    return [
        call(causal=False, N=EVEN),
        call(causal=False),
        call(heads=GROUPS[1], logits=True),
        call(heads=GROUPS[0], window=128),
        call(heads=GROUPS[2], window=128, sinks=4),
        call(window=1024),
        call(heads=GROUPS[1], window=1024, sinks=4, logits=True),
    ]


def fewest(D: int, dtype: torch.dtype) -> list[Call]:
    """Every kernel once, with the mask that takes the most."""
    return few(D, dtype)[-1:]


def packed(D: int, dtype: torch.dtype) -> list[Call]:
    """Packed sequences, each kernel with the masks of GPT-OSS, with all of them, and without."""
    call = functools.partial(Call, D, dtype, packed=True)
    return [
        call(causal=False),
        call(heads=GROUPS[2], logits=True),
        call(heads=GROUPS[2], window=128, logits=True),
        call(heads=GROUPS[1], window=1024, sinks=4, logits=True),
    ]


def many(D: int, dtype: torch.dtype) -> list[Call]:
    """Every combination of mask, group and length, and inputs that no descriptor can have."""
    call = functools.partial(Call, D, dtype)
    masks = [{}, dict(causal=False)]
    masks += [dict(window=w, sinks=s) for w, s in itertools.product((128, 1024), (0, 4))]
    calls = []
    for mask, N, heads in itertools.product(masks, (EVEN, RAGGED), HEAD_COUNTS):
        # Sink logits change only what the sums begin with: not another factor 2.
        calls.append(call(N, heads, logits=(N == RAGGED) != bool(mask.get("sinks")), **mask))
    return calls + [call(columns=True, **mask) for mask in masks]


def whole_table(arch: int) -> list[list[Call]]:
    """All calls for an architecture."""
    half = torch.bfloat16
    if arch == 90:  # only Hopper's options depend on all that `many` goes through
        lists = [many(D, half) for D in (64, 128)]
    else:
        lists = [fewest(64, half), few(128, half)]
    lists += [packed(64, half), packed(128, half)[-1:]]
    lists += [fewest(D, half) for D in (16, 32, 96)]
    lists += [fewest(D, torch.float32) for D in (16, 64, 128)]
    return lists + [fewest(128, torch.float16)]


def table(arch: int, lists: list[list[Call]], processes: int | None = None) -> list[Need]:
    """A row for each kernel that these calls launch."""
    longest_first = sorted(lists, key=len, reverse=True)
    rows = compiled.table(arch, longest_first, Need.of, processes)
    return sorted(rows, key=lambda r: (r.kernel, r.call.D, str(r.call.dtype)))


# ------------------------------------------------------------------------ Gluon
HEADS, N, RAGGED_N = (4, 2), 2048, 2000
ALL = dict(window_size=500, sink_logits=True, deterministic=True)
CALLS = [
    dict(D=128, dtype="bfloat16", N=N, is_causal=True),
    dict(D=128, dtype="bfloat16", N=N, is_causal=False),
    dict(D=128, dtype="float16", N=RAGGED_N, is_causal=False),
    dict(D=128, dtype="bfloat16", N=RAGGED_N, is_causal=True, **ALL),
    dict(D=64, dtype="bfloat16", N=N, is_causal=True),
    dict(D=64, dtype="bfloat16", N=RAGGED_N, is_causal=False),
    dict(D=64, dtype="float16", N=N, is_causal=True, **ALL),
]
PRODUCTS = 12  # instructions for products in a round, at least
# Two lines of the forward's loop, and the same with a mistake: acc is listed beside the scores, and
# rescaled without the wait for its product.
RIGHT = "                s = warpgroup_mma_wait(1, (s,))"
WRONG = "                s, acc = warpgroup_mma_wait(1, (s, acc))"
LATER = "                acc, left = warpgroup_mma_wait(0, (acc, left))"
MISSING = "                alpha = alpha + 0.0"


def pretend() -> None:
    """Make this process one with a Hopper GPU, whose launches only compile."""
    compiled.pretend(90, tempfile.mkdtemp())


def call(D, dtype, N, sink_logits=False, **options) -> None:
    """One forward and backward."""
    from sink_attn import attention

    compiled.differentiate(
        lambda q, k, v, sink_logits=None: attention(
            q, k, v, sink_logits=sink_logits, kernel="gluon", **options
        ),
        *compiled.attention_inputs(HEADS, N, D, getattr(torch, dtype), sink_logits),
    )


def one_round(code: list[Instruction]) -> list[Instruction]:
    """The shortest loop that has a round's products in it."""
    bodies = [
        body for body in jumps_back(code) if sum(x.name == "HGMMA" for x in body) >= PRODUCTS
    ]
    return min(bodies, key=len, default=[])


def row(launch: compiled.Launch) -> dict:
    """What a compiled kernel needs.  roles: registers a thread of each; notes: C75.. of ptxas."""
    code, (registers, stack) = launch.code(), launch.usage()
    changes = [x.operands for x in code if x.name == "USETMAXREG"]  # 0xf0, or a predicate first
    return {
        "kernel": launch.name,
        "registers": registers,
        "roles": sorted({int(words, 16) for words in changes if words.startswith("0x")}),
        "stack": stack,
        "shared": launch.kernel.metadata.shared,
        "notes": launch.notes(),
        "spills_in_loop": stack_uses(one_round(code)),
        "products": sum(x.name == "HGMMA" for x in code),
    }


def rows() -> list[dict]:
    calls = [functools.partial(call, **options) for options in CALLS]
    return [run.keywords | row(launch) for run, launch in compiled.different(calls)]


def serialised() -> list[dict]:
    """The forward in which a sum is touched before the wait for its product."""
    file = Path(__file__).parents[1] / "sink_attn/attention_hopper.py"
    text = file.read_text()
    assert text.count(RIGHT) == text.count(LATER) == 1
    wrong = Path(tempfile.mkdtemp(), "serialised.py")
    wrong.write_text(text.replace(RIGHT, WRONG).replace(LATER, MISSING))
    spec = importlib.util.spec_from_file_location("sink_attn.serialised", wrong)
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    q = torch.empty(1, 2, 512, 128, dtype=torch.bfloat16)
    return [row(x) for x in compiled.launches(lambda: module.forward(q, q, q, True, 1.0))]


def gluon(options: list[str]) -> None:
    """Print a row for each Gluon kernel, or for the one with a mistake."""
    pretend()
    import triton

    found = serialised() if "--serialised" in options else rows()
    if "--json" in options:
        print(json.dumps({"triton": triton.__version__, "rows": found}))
        return
    for entry in found:
        print(*(f"{key}={value}" for key, value in entry.items()))


def main() -> int:
    options = [word for word in sys.argv[1:] if word.startswith("-")]
    archs = [int(word) for word in sys.argv[1:] if word not in options] or list(SHARED_BYTES)
    too_large = []
    if not options:
        print(" sm kernel        shared (limit) registers stack seconds call")
        for r in itertools.chain(*(table(arch, whole_table(arch)) for arch in archs)):
            print(f"{r.arch:3} {r.kernel:12} {r.shared:7} ({SHARED_BYTES[r.arch]:6})"
                  f" {r.registers:5} {r.stack:8} {r.seconds:7.1f} {r.call}", flush=True)
            too_large += [] if r.fits else [r]
        print(f"{len(too_large)} over the limit")
    if options or 90 in archs:
        gluon(options)
    return 1 if too_large else 0


if __name__ == "__main__":
    sys.exit(main())
