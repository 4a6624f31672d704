"""Compile every kernel for every supported architecture, without a GPU, and read what it needs.

python -m tests.kernel_resources                 the whole table (some minutes)
python -m tests.kernel_resources 80 90           only these architectures
"""

import importlib
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

# Shared memory one program may have, bytes, by architecture (CUDA C++ Programming Guide,
# "Technical Specifications per Compute Capability", maximum per thread block).
SHARED_LIMIT = {75: 65536, 80: 166912, 86: 101376, 89: 101376, 90: 232448, 100: 232448, 120: 101376}
FORWARD, BACKWARD = "_fwd_kernel", ("_delta_kernel", "_dq_kernel", "_dkdv_kernel")
KERNELS = (
    [(2, name) for name in (FORWARD, "_dx_kernel", "_dw_kernel")]
    + [(stage, FORWARD) for stage in range(3, 10)]
    + [(stage, name) for stage in (8, 9) for name in BACKWARD]
)
WINDOWED = (6, 7, 9)  # their forward takes narrower tiles for short windows
FLOAT32_POINTERS = ("lse_ptr", "delta_ptr", "sink_logits_ptr")
TYPE_NAMES = {torch.float16: "fp16", torch.bfloat16: "bf16", torch.float32: "fp32"}


@dataclass(frozen=True)
class Need:
    """What one compiled kernel takes: shared and stack in bytes (a stack means spills)."""

    stage: int
    kernel: str
    D: int
    dtype: str
    arch: int
    shared: int
    registers: int
    stack: int
    seconds: float

    @property
    def fits(self) -> bool:
        return self.shared <= SHARED_LIMIT[self.arch]


class _Device:
    type = "cuda"


def _constants(module, stage, kernel, D: int, dtype: torch.dtype, arch: int, narrow: bool):
    """The constexprs and launch options that the stage's own launch would use on this GPU."""
    if stage == 2:
        return {"BLOCK_M": module.BLOCK_M, "BLOCK_N": module.BLOCK_N}, {}
    torch.cuda.get_device_capability = lambda device: (arch // 10, arch % 10)
    if kernel == FORWARD:
        values = module._tiles(D, dtype, _Device())
        if narrow:
            values |= {"BLOCK_N": min(32, values["BLOCK_N"]), "num_stages": 3}
    elif kernel == "_delta_kernel":
        return {"D": D, "BLOCK_D": max(16, D), "BLOCK_M": 16}, {}
    else:
        dq, dkdv = module._backward_tiles(D, dtype, _Device())
        values = dq if kernel == "_dq_kernel" else dkdv
    options = {key: values.pop(key) for key in ("num_warps", "num_stages")}
    return values | {"D": D, "CAUSAL": True, "HAS_SINK_LOGITS": True}, options


def need(stage: int, kernel: str, D: int, dtype: torch.dtype, arch: int, narrow=False) -> Need:
    """Compile one kernel as the wrappers launch it on dense inputs; narrow: for short windows."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    module = importlib.import_module(f"problem_{stage}")
    function = getattr(module, kernel)
    constants, options = _constants(module, stage, kernel, D, dtype, arch, narrow)
    signature, constexprs, attributes = {}, {}, {}
    for i, name in enumerate(function.arg_names):
        if name in constants:
            signature[name], constexprs[name] = "constexpr", constants[name]
        elif name.startswith("stride") and name[-1] == ("n" if stage == 2 else "d"):
            signature[name], constexprs[name] = "constexpr", 1
        elif name.endswith("_ptr"):
            kind = "fp32" if name in FLOAT32_POINTERS else TYPE_NAMES[dtype]
            signature[name] = f"*{kind}"
        else:
            signature[name] = "fp32" if name.startswith("scale") else "i32"
        if signature[name][0] == "*" or (name.startswith("stride") and name not in constexprs):
            attributes[(i,)] = [["tt.divisibility", 16]]
    source = ASTSource(function, signature, constexprs=constexprs, attrs=attributes)
    start = time.perf_counter()
    compiled = triton.compile(source, target=GPUTarget("cuda", arch, 32), options=options)
    seconds = time.perf_counter() - start
    dump = Path(triton.__file__).parent / "backends/nvidia/bin/cuobjdump"
    with tempfile.TemporaryDirectory() as folder:
        cubin = Path(folder) / "kernel.cubin"
        cubin.write_bytes(compiled.asm["cubin"])
        usage = subprocess.run(
            [dump, "-res-usage", cubin], capture_output=True, text=True, check=True
        ).stdout
    registers, stack = (int(re.search(rf"{word}:(\d+)", usage)[1]) for word in ("REG", "STACK"))
    shared = compiled.metadata.shared
    return Need(stage, kernel, D, TYPE_NAMES[dtype], arch, shared, registers, stack, seconds)


def table(archs, dims=(16, 64, 128), dtypes=(torch.float16, torch.float32)) -> list[Need]:
    """All kernels; stage 2 has no head dimension and is compiled once a dtype."""
    jobs = [
        (stage, kernel, D, dtype, arch, narrow)
        for arch in archs
        for stage, kernel in KERNELS
        for D in (dims if stage != 2 else dims[:1])
        for dtype in dtypes
        for narrow in ((False, True) if stage in WINDOWED and kernel == FORWARD else (False,))
    ]
    with ProcessPoolExecutor(os.cpu_count()) as pool:
        return list(pool.map(need, *zip(*jobs, strict=True)))


def main() -> int:
    archs = [int(word) for word in sys.argv[1:]] or list(SHARED_LIMIT)
    print("stage kernel         D dtype  sm  shared (limit) registers stack seconds")
    rows = table(archs)
    for r in rows:
        print(
            f"{r.stage:5} {r.kernel:13} {r.D:3} {r.dtype:5} {r.arch:4} {r.shared:6}"
            f" ({SHARED_LIMIT[r.arch]:6}) {r.registers:5} {r.stack:7} {r.seconds:7.1f}"
        )
    too_large = [r for r in rows if not r.fits]
    slowest = max(r.seconds for r in rows)
    spilled = sum(r.stack > 0 for r in rows)
    print(f"{len(rows)} kernels, {len(too_large)} over the limit, {spilled} with a stack,"
          f" slowest {slowest:.1f} s")
    return 1 if too_large else 0


if __name__ == "__main__":
    sys.exit(main())
