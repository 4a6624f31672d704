"""python -m tools.kernel_resources [80 90 ...]: the resources of all stages' kernels, without a
GPU.

Compiles what each stage launches, for these architectures or all supported ones, and prints shared
memory, registers, stack and spills, one row per kernel.  Two minutes per architecture on two cores,
a quarter of an hour for all.
"""

import functools
import importlib
import sys
from dataclasses import dataclass

import torch

from grader.sandbox.kernels.pretend_gpu import SHARED_BYTES
from tools import compiled
from tools.machine_code import Instruction, jumps_back, stack_uses

STAGES = range(2, 10)
TYPE_NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
N = 2000  # a multiple of 16, as most lengths are, but of no larger tile


# ------------------------------------------------------------- what is launched
@dataclass(frozen=True)
class Call:
    """One call of a stage's public function; stages 2, 8 and 9 are differentiated, too."""

    stage: int
    D: int
    dtype: torch.dtype
    heads: tuple[int, int] = (16, 16)  # query heads, key/value heads
    causal: bool = True  # for stages 8 and 9
    window: int | None = None
    sinks: int = 0
    logits: bool = False

    def __str__(self) -> str:
        words = ["full"] if self.stage == 3 or not self.causal else []
        words += [f"window {self.window}"] if self.window else []
        return ", ".join(words + [word for word in ("sinks", "logits") if getattr(self, word)])

    def __call__(self) -> None:
        module = importlib.import_module(f"problem_{self.stage}")
        if self.stage == 2:
            x, w = (torch.empty(s, dtype=self.dtype, requires_grad=True) for s in ((N, N), N))
            compiled.differentiate(module.weighted_row_sum, x, w)
            return
        inputs = compiled.attention_inputs(self.heads, N, self.D, self.dtype, self.logits)
        if self.stage < 8:
            with torch.no_grad():
                options = [True, self.window] if self.window else []
                options += [self.sinks] if self.stage == 7 else []
                module.flash_attention_forward(*inputs, *options)
        elif self.stage == 8:
            compiled.differentiate(
                lambda q, k, v: module.flash_attention_gqa(q, k, v, self.causal), *inputs
            )
        else:
            compiled.differentiate(
                lambda q, k, v, sink_logits=None: module.flash_swda_with_sink(
                    q, k, v, self.window, self.sinks, self.causal, sink_logits=sink_logits
                ), *inputs
            )


def few(stage: int, D: int, dtype: torch.dtype) -> list[Call]:
    """Every kernel of a stage, with and without the causal mask if it has both."""
    call = functools.partial(Call, stage, D, dtype)
    if stage < 5:
        return [call()]
    window = {"window": 500} if stage in (6, 7, 9) else {}
    sinks = {"sinks": 4} if stage in (7, 9) else {}
    logits = {"logits": True} if stage == 9 else {}
    most = call(heads=(64, 16), **window, **sinks, **logits)
    return [call(causal=False), most] if stage > 7 else [most]


def fewest(stage: int, D: int, dtype: torch.dtype) -> list[Call]:
    """Every kernel once, with the most expensive mask."""
    return few(stage, D, dtype)[-1:]


def whole_table(arch: int) -> list[list[Call]]:
    """All calls for an architecture, with those that share kernels in one list."""
    lists = [few(2, 0, dtype) for dtype in TYPE_NAMES]
    for stage in STAGES[1:]:
        lists += [few(stage, D, torch.bfloat16) for D in (16, 64, 128)]
        lists += [few(stage, 128, torch.float16)]
        lists += [few(stage, D, torch.float32) for D in (16, 64, 128)]
    return lists


# -------------------------------------------------------------- what it becomes
@dataclass(frozen=True)
class Need(compiled.Need):
    """The resources of a compiled kernel.

    spills: instructions that use the stack in loops with products; elsewhere they cost little.
    notes: why, on Hopper, ptxas makes one product wait for another ("C7515").
    """

    spills: int
    notes: str

    @classmethod
    def of(cls, arch: int, call: Call, launch: compiled.Launch) -> "Need":
        notes = " ".join(launch.notes()) if arch == 90 else ""
        _, stack = launch.usage()  # disassembling takes a fifth of the compilation's time
        found = spills(launch.code()) if stack else 0
        return super().of(arch, call, launch, spills=found, notes=notes)


def spills(code: list[Instruction]) -> int:
    """Uses of the stack in the innermost loops that multiply matrices."""
    product = "MMA" if any("MMA" in x.name for x in code) else "FFMA"  # FFMA: Turing, in float32
    bodies = [body for body in jumps_back(code) if any(product in x.name for x in body)]
    innermost = [body for body in bodies if not any(
        other is not body and body[0].address <= other[0].address
        and other[-1].address <= body[-1].address for other in bodies)]
    return sum(map(stack_uses, innermost))


def table(arch: int, lists: list[list[Call]], processes: int | None = None) -> list[Need]:
    """One row for each kernel that these calls launch."""
    longest_first = sorted(lists, key=lambda calls: (calls[0].stage, len(calls)), reverse=True)
    rows = compiled.table(arch, longest_first, Need.of, processes)
    return sorted(rows, key=lambda r: (r.call.stage, r.kernel, r.call.D, TYPE_NAMES[r.call.dtype]))


def main() -> int:
    archs = [int(word) for word in sys.argv[1:]] or list(SHARED_BYTES)
    print("stage kernel         D dtype  sm  shared (limit) registers stack spills seconds"
          " notes variant")
    rows = []
    for arch in archs:
        for r in table(arch, whole_table(arch)):
            rows.append(r)
            print(
                f"{r.call.stage:5} {r.kernel:13} {r.call.D:3} {TYPE_NAMES[r.call.dtype]:5}"
                f" {r.arch:4} {r.shared:6} ({SHARED_BYTES[r.arch]:6}) {r.registers:5} {r.stack:7}"
                f" {r.spills:5} {r.seconds:7.1f} {r.notes:5} {r.call}", flush=True
            )
    too_large = [r for r in rows if not r.fits]
    slowest = max(r.seconds for r in rows)
    spilled = sum(r.spills > 0 for r in rows)
    print(f"{len(rows)} kernels, {len(too_large)} over the limit, {spilled} with spills,"
          f" slowest {slowest:.1f} s")
    return 1 if too_large else 0


if __name__ == "__main__":
    sys.exit(main())
