"""Compile what every stage launches, for every supported architecture, and read what it needs.

No GPU is used: pretend_gpu.py stands in for one, and every launch becomes a compilation.

python -m tools.kernel_resources                 the whole table (a quarter of an hour on two cores)
python -m tools.kernel_resources 80 90           only these architectures
"""

import functools
import importlib
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

from grader.inside.pretend_gpu import SHARED_BYTES, install

STAGES = range(2, 10)
TYPE_NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}
N = 2000  # a multiple of 16, as most lengths are, and of no larger tile


# ------------------------------------------------------------- what is launched
@dataclass(frozen=True)
class Call:
    """One call of a stage's public function; 8 and 9, and 2, are differentiated, too."""

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
            x, w = self._empty(N, N), self._empty(N)
            y = module.weighted_row_sum(x, w)
            torch.autograd.grad(y, (x, w), torch.empty_like(y))
            return
        HQ, HKV = self.heads
        q, k, v = (self._empty(1, heads, N, self.D) for heads in (HQ, HKV, HKV))
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
        return torch.empty(shape, dtype=self.dtype, requires_grad=True)


def few(stage: int, D: int, dtype: torch.dtype) -> list[Call]:
    """Every kernel of a stage, with the causal mask and without where it has both."""
    call = functools.partial(Call, stage, D, dtype)
    if stage < 5:
        return [call()]
    window = {"window": 500} if stage in (6, 7, 9) else {}
    sinks = {"sinks": 4} if stage in (7, 9) else {}
    logits = {"logits": True} if stage == 9 else {}
    most = call(heads=(64, 16), **window, **sinks, **logits)
    return [call(causal=False), most] if stage > 7 else [most]


def fewest(stage: int, D: int, dtype: torch.dtype) -> list[Call]:
    """Every kernel once, with the mask that takes the most."""
    return few(stage, D, dtype)[-1:]


def whole_table(arch: int) -> list[list[Call]]:
    """All calls for an architecture, those with kernels in common together."""
    lists = [few(2, 0, dtype) for dtype in TYPE_NAMES]
    for stage in STAGES[1:]:
        lists += [few(stage, D, torch.bfloat16) for D in (16, 64, 128)]
        lists += [few(stage, 128, torch.float16)]
        lists += [few(stage, D, torch.float32) for D in (16, 64, 128)]
    return lists


# -------------------------------------------------------------- what it becomes
@dataclass(frozen=True)
class Need:
    """What one compiled kernel takes: shared and stack in bytes, seconds of a core to compile.

    spills: instructions that use the stack in loops that multiply; elsewhere they cost little.
    notes: why ptxas lets one product wait for another ("C7515"), on Hopper.
    """

    stage: int
    kernel: str
    variant: str
    D: int
    dtype: str
    arch: int
    shared: int
    registers: int
    stack: int
    spills: int
    notes: str
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
        start = sum(os.times()[:4])  # of this process and of ptxas, however busy the machine is
        kernel = launch(function, *args, grid=grid, warmup=True, **kwargs)
        seconds = sum(os.times()[:4]) - start
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


def spills(sass: str) -> int:
    """Uses of the stack in the innermost loops that multiply matrices."""
    from tools.register_clash import instructions

    code = instructions(sass)
    product = "MMA" if any("MMA" in x.name for x in code) else "FFMA"  # Turing: one by one
    bodies = []
    for x in code:
        if x.target() is not None and x.target() < x.address:
            body = [y for y in code if x.target() <= y.address <= x.address]
            if any(product in y.name for y in body):
                bodies.append(body)
    innermost = [body for body in bodies if not any(
        other is not body and other[0].address >= body[0].address and other[-1].address
        <= body[-1].address for other in bodies)]
    return sum(y.name in ("LDL", "STL") for body in innermost for y in body)


def notes(ptx: str) -> str:
    """What ptxas says of products for Hopper that it does not leave running: "C7515" or ""."""
    from triton.backends.nvidia.compiler import get_ptxas

    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "kernel.ptx"
        file.write_text(ptx)
        said = subprocess.run(
            [get_ptxas(90).path, "-v", "--gpu-name=sm_90a", file, "-o", file.with_suffix(".cubin")],
            capture_output=True, text=True, check=True,
        )
    return " ".join(sorted(set(re.findall(r"C751\d", said.stdout + said.stderr))))


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
                    launch.kernel.metadata.shared, registers, stack,
                    spills(cuobjdump(launch.cubin, "-sass")),
                    notes(launch.kernel.asm["ptx"]) if _arch == 90 else "", launch.seconds,
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
    print("stage kernel         D dtype  sm  shared (limit) registers stack spills seconds"
          " notes variant")
    rows = []
    for arch in archs:
        for r in table(arch, whole_table(arch)):
            rows.append(r)
            print(
                f"{r.stage:5} {r.kernel:13} {r.D:3} {r.dtype:5} {r.arch:4} {r.shared:6}"
                f" ({SHARED_BYTES[r.arch]:6}) {r.registers:5} {r.stack:7} {r.spills:5}"
                f" {r.seconds:7.1f} {r.notes:5} {r.variant}", flush=True
            )
    too_large = [r for r in rows if not r.fits]
    slowest = max(r.seconds for r in rows)
    spilled = sum(r.spills > 0 for r in rows)
    print(f"{len(rows)} kernels, {len(too_large)} over the limit, {spilled} with spills,"
          f" slowest {slowest:.1f} s")
    return 1 if too_large else 0


if __name__ == "__main__":
    sys.exit(main())
