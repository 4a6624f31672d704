"""Compiles kernels without a GPU, and reads what NVIDIA's tools say about them.

A process that pretends to have a GPU of one architecture (grader/sandbox/kernels/pretend_gpu.py)
does so for good, and every launch in it becomes a compilation.  kernel_resources,
sink_attn_resources and register_clash use this.
"""

import contextlib
import functools
import io
import multiprocessing
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import torch

# Nothing here may import Triton before pretend().
from grader.sandbox.kernels.pretend_gpu import SHARED_BYTES, install
from tools.machine_code import Instruction, instructions


# ------------------------------------------------------------- what is launched
def attention_inputs(
    heads: tuple[int, int], N: int, D: int, dtype: torch.dtype, logits: bool = False,
    columns: bool = False,
) -> list[torch.Tensor]:
    """q, k, v, and sink logits; heads of queries and of keys.  columns: N is the last axis."""
    HQ, HKV = heads
    tensors = [
        torch.empty(1, H, D, N, dtype=dtype).mT if columns else torch.empty(1, H, N, D, dtype=dtype)
        for H in (HQ, HKV, HKV)
    ]
    return [x.requires_grad_() for x in tensors + [torch.empty(HQ)] * logits]


def differentiate(function: Callable, *inputs: torch.Tensor) -> None:
    """Run one forward and backward."""
    o = function(*inputs)
    torch.autograd.grad(o, inputs, torch.empty_like(o))


# -------------------------------------------------------------- what it becomes
@dataclass(frozen=True)
class Launch:
    """One launch that became a compilation."""

    name: str
    kernel: object  # Triton's CompiledKernel
    seconds: float  # of CPU time
    log: str  # of ptxas; empty if the kernel came from the cache

    def usage(self) -> tuple[int, int]:
        """-> registers per thread, bytes of stack."""
        said = self._cuobjdump("-res-usage")
        return tuple(int(re.search(rf"{word}:(\d+)", said)[1]) for word in ("REG", "STACK"))

    def code(self) -> list[Instruction]:
        return instructions(self._cuobjdump("-sass"))

    def notes(self) -> list[str]:
        """Numbers of ptxas's notes on a Hopper kernel, such as C7515, which Triton does not
        show."""
        from triton.backends.nvidia.compiler import get_ptxas

        command = get_ptxas(90).path, "-v", "--gpu-name=sm_90a", "-o", os.devnull
        said = self.log or _said(command, "kernel.ptx", self.kernel.asm["ptx"].encode())
        return sorted(set(re.findall(r"C75\d\d", said)))

    def _cuobjdump(self, option: str) -> str:
        import triton

        tool = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
        return _said((tool, option), "kernel.cubin", self.kernel.asm["cubin"])


def _said(command: tuple, name: str, content: bytes) -> str:
    """The output of a command on a file of that name."""
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, name)
        file.write_bytes(content)
        done = subprocess.run([*command, file], capture_output=True, text=True, check=True)
    return done.stdout + done.stderr


# --------------------------------------------------------- processes that pretend
_launches: list[Launch] = []
_only: str | None = None  # ignore launches without this option


def pretend(arch: int, cache: str) -> None:
    """Pretend in this process, for good, to have a GPU of that architecture.  Must come before
    Triton is imported."""
    os.environ.pop("TRITON_INTERPRET", None)
    os.environ["TRITON_CACHE_DIR"] = cache
    os.environ["TRITON_DUMP_PTXAS_LOG"] = "1"  # Triton prints it
    torch.set_num_threads(1)
    install(arch)
    torch.cuda.is_current_stream_capturing = lambda: False
    from triton.runtime.jit import JITFunction

    launch = JITFunction.run

    def compile_only(function, *args, grid, warmup, **kwargs):
        given = dict(zip(function.arg_names, args, strict=False)) | kwargs
        if _only and not given.get(_only):
            return None
        log = io.StringIO()
        start = sum(os.times()[:4])  # CPU time of this process and of ptxas
        with contextlib.redirect_stdout(log):
            kernel = launch(function, *args, grid=grid, warmup=True, **kwargs)
        seconds = sum(os.times()[:4]) - start
        _launches.append(Launch(function.__name__, kernel, seconds, log.getvalue()))
        return kernel

    JITFunction.run = compile_only


def launches(call: Callable, only: str | None = None) -> list[Launch]:
    """What call() launches, in a process that pretends.  only: an option that must be true."""
    global _only
    _only = only
    _launches.clear()
    if kept := sys.modules.get("sink_attn.kept"):
        kept.forget()  # what only compiles must not be launched a second time
    call()
    return list(_launches)


def different(calls: list, only: str | None = None) -> Iterator[tuple[Callable, Launch]]:
    """The different kernels that these calls launch, each with the first such call."""
    seen = set()
    for call in calls:
        for launch in launches(call, only):
            if launch.kernel.hash not in seen:
                seen.add(launch.kernel.hash)
                yield call, launch


def map_pretending(
    arch: int, function: Callable, items: list, processes: int | None = None
) -> list:
    """[function(item) for item in items], spread over processes that pretend to have a GPU."""
    processes = processes or os.cpu_count()
    with tempfile.TemporaryDirectory() as cache:  # empty, so that the seconds are of compiling
        spawn = multiprocessing.get_context("spawn")
        with ProcessPoolExecutor(processes, spawn, pretend, (arch, cache)) as pool:
            return list(pool.map(function, items))


# ------------------------------------------------------------------------ a table
@dataclass(frozen=True)
class Need:
    """The resources of a compiled kernel; shared and stack in bytes (a stack means spills)."""

    arch: int
    kernel: str
    call: Callable
    shared: int
    registers: int
    stack: int
    seconds: float

    @classmethod
    def of(cls, arch: int, call: Callable, launch: Launch, **more) -> "Need":
        registers, stack = launch.usage()
        shared = launch.kernel.metadata.shared
        return cls(arch, launch.name, call, shared, registers, stack, launch.seconds, **more)

    @property
    def fits(self) -> bool:
        return self.shared <= SHARED_BYTES[self.arch]


def table(arch: int, lists: list[list], row: Callable, processes: int | None = None) -> list:
    """row(arch, call, launch) for each different kernel that these lists of calls launch."""
    found = {}
    for part in map_pretending(arch, functools.partial(_rows, arch, row), lists, processes):
        found |= part
    return list(found.values())


def _rows(arch: int, row: Callable, calls: list) -> dict:
    return {launch.kernel.hash: row(arch, call, launch) for call, launch in different(calls)}
