"""Compile what every wrapper launches, for every supported architecture, and read what it needs.

No GPU is used: pretend_gpu.py stands in for one, and every launch becomes a compilation.

python -m tests.kernel_resources                 the whole table (some minutes)
python -m tests.kernel_resources 80 90           only these architectures
"""

import functools
import importlib
import itertools
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from grader.pretend_gpu import SHARED_BYTES, install

STAGES = range(2, 10)
TYPE_NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
EVEN, RAGGED = 2048, 2000  # a multiple of every tile, and of none
MHA, *GROUPS = HEADS = (16, 16), (32, 16), (64, 16), (128, 16)  # query heads, key/value heads


# ------------------------------------------------------------- what is launched
@dataclass(frozen=True)
class Call:
    """One call of a stage's public function; 8 and 9, and 2, are differentiated, too."""

    stage: int
    D: int
    dtype: torch.dtype
    N: int = RAGGED
    heads: tuple[int, int] = MHA
    causal: bool = True  # for stages 8 and 9
    window: int | None = None
    sinks: int = 0
    logits: bool = False
    columns: bool = False  # the last axis is not the contiguous one, as no descriptor can have it

    def __str__(self) -> str:
        words = [f"{self.heads[0]}/{self.heads[1]} heads", f"N {self.N}"] if self.stage > 2 else []
        words += ["full"] if self.stage == 3 or not self.causal else []
        words += [f"window {self.window}"] if self.window else []
        words += [word for word in ("sinks", "logits", "columns") if getattr(self, word)]
        return ", ".join(words)

    def __call__(self) -> None:
        module = importlib.import_module(f"problem_{self.stage}")
        if self.stage == 2:
            x, w = self._empty(self.N, self.N), self._empty(1, self.N)[0]
            y = module.weighted_row_sum(x, w)
            torch.autograd.grad(y, (x, w), torch.empty_like(y))
            return
        HQ, HKV = self.heads
        q, k, v = (self._empty(1, heads, self.N, self.D) for heads in (HQ, HKV, HKV))
        if self.stage < 8:
            with torch.no_grad():
                options = [True, self.window] if self.window else []
                options += [self.sinks] if self.stage == 7 else []
                module.flash_attention_forward(q, k, v, *options)
            return
        inputs = [q, k, v]
        if self.stage == 8:
            o = module.flash_attention_gqa(q, k, v, self.causal)
        else:
            sink_logits = torch.empty(HQ, requires_grad=True) if self.logits else None
            inputs += [sink_logits] if self.logits else []
            o = module.flash_swda_with_sink(
                q, k, v, self.window, self.sinks, self.causal, sink_logits=sink_logits
            )
        torch.autograd.grad(o, inputs, torch.empty_like(o))

    def _empty(self, *shape: int) -> torch.Tensor:
        if self.columns:
            shape = *shape[:-2], shape[-1], shape[-2]
        x = torch.empty(shape, dtype=self.dtype)
        return (x.mT if self.columns else x).requires_grad_()


def few(stage: int, D: int, dtype: torch.dtype) -> list[Call]:
    """Every kernel with every mask, but not in all combinations of what else can vary."""
    call = functools.partial(Call, stage, D, dtype)
    if stage < 6:
        return [call(heads=GROUPS[0] if stage == 5 else MHA)]
    if stage < 8:
        masks = [(MHA, 128), (GROUPS[0], 1024), (GROUPS[2], 128)]
        return [call(heads=heads, window=w, sinks=4 if stage == 7 else 0) for heads, w in masks]
    if stage == 8:
        return [call(causal=False), call(heads=GROUPS[1])]
    return [
        call(causal=False),
        call(heads=GROUPS[1], logits=True),
        call(heads=GROUPS[0], window=128),
        call(heads=GROUPS[2], window=128, sinks=4),
        call(window=1024),
        call(heads=GROUPS[1], window=1024, sinks=4, logits=True),
    ]


def fewest(stage: int, D: int, dtype: torch.dtype) -> list[Call]:
    """Every kernel once, with the mask that takes the most."""
    return few(stage, D, dtype)[-1:]


def many(stage: int, D: int, dtype: torch.dtype) -> list[Call]:
    """Every combination of mask, group and length, and inputs that no descriptor can have."""
    call = functools.partial(Call, stage, D, dtype)
    masks = [{}]
    if stage in (6, 7):
        masks = [dict(window=window, sinks=4 if stage == 7 else 0) for window in (128, 1024)]
    elif stage > 7:
        masks += [dict(causal=False)]
    if stage == 9:
        masks += [dict(window=w, sinks=s) for w, s in itertools.product((128, 1024), (0, 4))]
    calls = []
    for mask, N in itertools.product(masks, (EVEN, RAGGED)):
        for heads in HEADS if stage > 4 else [MHA]:
            # Sink logits change only what the sums begin with: not another factor 2.
            logits = stage == 9 and (N == RAGGED) != bool(mask.get("sinks"))
            calls.append(call(N, heads, logits=logits, **mask))
    return calls + [call(columns=True, **mask) for mask in masks]


def whole_table(arch: int) -> list[list[Call]]:
    """All calls for an architecture, those with kernels in common together."""
    half = torch.bfloat16
    lists = [few(2, 0, dtype) for dtype in TYPE_NAMES]
    for stage in STAGES[1:]:
        if arch == 90:  # only Hopper's wrappers choose by all that `many` goes through
            lists += [many(stage, D, half) for D in (64, 128)]
        else:
            lists += [fewest(stage, 64, half), few(stage, 128, half)]
        lists += [fewest(stage, D, half) for D in (16, 32, 96)]
        lists += [fewest(stage, D, torch.float32) for D in (16, 64, 128)]
        lists += [fewest(stage, 128, torch.float16)]
    return lists


# -------------------------------------------------------------- what it becomes
@dataclass(frozen=True)
class Need:
    """What one compiled kernel takes: shared and stack in bytes (a stack means spills)."""

    stage: int
    kernel: str
    variant: str
    D: int
    dtype: str
    arch: int
    shared: int
    registers: int
    stack: int
    seconds: float

    @property
    def fits(self) -> bool:
        return self.shared <= SHARED_BYTES[self.arch]


@dataclass(frozen=True)
class Compiled:
    """One launch that became a compilation."""

    name: str
    kernel: object  # Triton's CompiledKernel
    seconds: float

    @property
    def cubin(self) -> bytes:
        return self.kernel.asm["cubin"]


_arch = 0  # what this process pretends to have
_launches: list[Compiled] = []
_only: str | None = None  # a launch without this option is passed over


def pretend(arch: int, cache: str) -> None:
    """Make this a process with a GPU of that architecture, for good.  Before Triton is imported."""
    global _arch
    os.environ.pop("TRITON_INTERPRET", None)
    os.environ["TRITON_CACHE_DIR"] = cache
    torch.set_num_threads(1)
    install(arch)
    _arch = arch
    from triton.runtime.jit import JITFunction

    launch = JITFunction.run

    def compile_only(function, *args, grid, warmup, **kwargs):
        if _only and not kwargs.get(_only):
            return None
        start = time.perf_counter()
        kernel = launch(function, *args, grid=grid, warmup=True, **kwargs)
        seconds = time.perf_counter() - start
        _launches.append(Compiled(function.__name__, kernel, seconds))
        return kernel

    JITFunction.run = compile_only


def compiled(call, only: str | None = None) -> list[Compiled]:
    """What call() launches, in a process that pretends.  only: what is launched with this true."""
    global _only
    _only = only
    _launches.clear()
    call()
    return list(_launches)


def cuobjdump(cubin: bytes, option: str) -> str:
    """What NVIDIA's tool, which comes with Triton, says of a compiled kernel."""
    import triton

    tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.cubin"
        file.write_bytes(cubin)
        return subprocess.run(
            [tool, option, file], capture_output=True, text=True, check=True
        ).stdout


def needs(calls: list[Call]) -> dict[str, Need]:
    """What these calls' kernels need, by the kernel's hash, in a process that pretends."""
    found = {}
    for call in calls:
        for launch in compiled(call):
            if launch.kernel.hash not in found:
                usage = cuobjdump(launch.cubin, "-res-usage")
                registers, stack = (
                    int(re.search(rf"{word}:(\d+)", usage)[1]) for word in ("REG", "STACK")
                )
                found[launch.kernel.hash] = Need(
                    call.stage, launch.name, str(call), call.D, TYPE_NAMES[call.dtype], _arch,
                    launch.kernel.metadata.shared, registers, stack, launch.seconds,
                )
    return found


def map_pretending(arch: int, function, items: list, processes: int | None = None) -> list:
    """[function(item) for item in items], spread over processes that pretend to have a GPU."""
    processes = processes or os.cpu_count()
    with tempfile.TemporaryDirectory() as cache:  # an empty one: the seconds are those of compiling
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(processes, spawn, pretend, (arch, cache)) as pool:
            return list(pool.map(function, items))


def table(arch: int, lists: list[list[Call]], processes: int | None = None) -> list[Need]:
    """A row for each kernel that these calls launch."""
    found = {}
    longest_first = sorted(lists, key=lambda calls: (calls[0].stage, len(calls)), reverse=True)
    for part in map_pretending(arch, needs, longest_first, processes):
        found |= part
    return sorted(found.values(), key=lambda r: (r.stage, r.kernel, r.D, r.dtype))


def main() -> int:
    archs = [int(word) for word in sys.argv[1:]] or list(SHARED_BYTES)
    print("stage kernel         D dtype  sm  shared (limit) registers stack seconds variant")
    rows = []
    for arch in archs:
        for r in table(arch, whole_table(arch)):
            rows.append(r)
            print(
                f"{r.stage:5} {r.kernel:13} {r.D:3} {r.dtype:5} {r.arch:4} {r.shared:6}"
                f" ({SHARED_BYTES[r.arch]:6}) {r.registers:5} {r.stack:7} {r.seconds:7.1f}"
                f" {r.variant}", flush=True
            )
    too_large = [r for r in rows if not r.fits]
    slowest = max(r.seconds for r in rows)
    spilled = sum(r.stack > 0 for r in rows)
    print(f"{len(rows)} kernels, {len(too_large)} over the limit, {spilled} with a stack,"
          f" slowest {slowest:.1f} s")
    return 1 if too_large else 0


if __name__ == "__main__":
    sys.exit(main())
