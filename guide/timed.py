"""python -m guide.timed: measures what the chapter on tools shows of a GPU, into timed.json.

Takes about a minute on an NVIDIA GPU; --out names another file.  Times are in ms.
"""

import argparse
import datetime
import json
import os
import subprocess
import sys
import tempfile
import time
from functools import cache
from pathlib import Path

from guide.seen import CHOICES

FILE = Path(__file__).with_name("timed.json")
WORKS = ("stage 3, original shape", "stage 3, D=64")
NAP_S = 1.0  # long enough for an idle chip to lower its clock
CALLS = 20


def _call(name: str):
    """A forward of problem_3.py on the inputs of that row of the benchmark."""
    import problem_3
    from benchmarks.peers import make_tensors
    from benchmarks.workloads import TABLE

    work, = (one for one in TABLE if (one.name, one.direction) == (name, "forward"))
    tensors = make_tensors(work)
    return lambda: problem_3.flash_attention_forward(tensors.q, tensors.k, tensors.v)


def clocks(name: str) -> dict[str, float]:
    """Way of timing -> ms, for the same call."""
    import torch
    from triton.testing import do_bench

    call, found = _call(name), {}

    def host(waits: bool) -> float:
        torch.cuda.synchronize()
        start = time.perf_counter()
        call()
        if waits:
            torch.cuda.synchronize()
        return 1e3 * (time.perf_counter() - start)

    found["clock of the host, first call"] = host(True)
    found["clock of the host, second call, not waited for"] = host(False)
    found["clock of the host, third call, waited for"] = host(True)
    time.sleep(NAP_S)
    found["do_bench, hardly warm (warmup=0, rep=1)"] = do_bench(
        call, warmup=0, rep=1, return_mode="median")
    found["do_bench, warm (warmup=100, rep=100)"] = do_bench(
        call, warmup=100, rep=100, return_mode="median")
    start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    start.record()
    for _ in range(CALLS):
        call()
    end.record()
    torch.cuda.synchronize()
    found[f"events around {CALLS} calls, L2 not emptied"] = start.elapsed_time(end) / CALLS
    return found


def choice(warps: int, stages: int, rows: int) -> dict:
    """Needs and time of stage 3 at D = 128 with other warps, stages and rows, on this GPU."""
    from triton.testing import do_bench

    import problem_3

    tiles, kernel, launched = problem_3._tiles, problem_3._fwd_kernel, []
    run = kernel.run

    def watching(*arguments, **more):
        launched.append(run(*arguments, **more))
        return launched[-1]

    problem_3._tiles = lambda q: dict(D=128, BLOCK_D=128, BLOCK_M=rows, BLOCK_N=rows,
                                      num_warps=warps, num_stages=stages)
    try:
        call = _call("stage 3, D=128")
        kernel.run = watching
        call()
        kernel.run = run
        ms = do_bench(call, warmup=100, rep=100, return_mode="median")
    finally:
        problem_3._tiles, kernel.run = tiles, run
    made = launched[0]
    return {"warps": warps, "stages": stages, "rows": rows, "registers": made.n_regs,
            "spills": made.n_spills, "shared": made.metadata.shared, "ms": ms}


def profile(into: Path) -> list:
    """[kernel, calls, ms of all calls] of naive attention and of stage 3, by Proton."""
    import torch
    import triton.profiler as proton

    from guide.worked import naive

    call = _call(WORKS[1])
    q, k, v = torch.randn(3, 4096, 64, device="cuda", dtype=torch.bfloat16)
    call(), naive(q, k, v)
    torch.cuda.synchronize()
    proton.start(str(into / "proton"))
    for _ in range(CALLS):
        call(), naive(q, k, v)
    proton.finalize()
    return kernels(json.loads((into / "proton.hatchet").read_text(encoding="utf-8")))


def kernels(tree: list) -> list:
    """[name, calls, ms] of every leaf with a time in Proton's hatchet, longest first."""
    found = []

    def walk(node):
        metrics = node.get("metrics", {})
        if not node.get("children") and "time (ns)" in metrics:
            found.append([node["frame"]["name"], int(metrics["count"]),
                          metrics["time (ns)"] / 1e6])
        for child in node.get("children", []):
            walk(child)

    for root in tree:
        if "frame" in root:  # the last entry is about the device
            walk(root)
    return sorted(found, key=lambda one: -one[2])


def profiled() -> list:
    """profile() in a process of its own; [] if Proton cannot profile this GPU."""
    with tempfile.TemporaryDirectory() as folder:
        code = ("import json, sys; from pathlib import Path; from guide import timed; "
                "print(json.dumps(timed.profile(Path(sys.argv[1]))))")
        try:
            ran = subprocess.run([sys.executable, "-c", code, folder], capture_output=True,
                                 text=True, timeout=60, cwd=FILE.parent.parent)
        except subprocess.TimeoutExpired:
            print("Proton: no answer in 60 s", file=sys.stderr)
            return []
    if ran.returncode:
        print(f"Proton: {ran.stderr.strip().splitlines()[-1:]}", file=sys.stderr)
        return []
    return json.loads(ran.stdout.splitlines()[-1])


def look() -> dict:
    """The contents of timed.json, measured now."""
    from benchmarks.measure import machine

    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder  # empty, so that the first call compiles
        return {"date": str(datetime.date.today()), "machine": machine(),
                "clocks": {name: clocks(name) for name in WORKS},
                "choices": [choice(*one) for one in CHOICES], "profile": profiled()}


@cache
def timed() -> dict:
    """What timed.json holds; empty before the first measurement."""
    return json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--out", type=Path, default=FILE, help="the file to write")
    out = parser.parse_args(argv).out
    if not out.absolute().parent.is_dir():
        parser.error(f"want --out in a folder that is there; got {out}")
    import torch

    if not torch.cuda.is_available():
        parser.error("want an NVIDIA GPU; got none")
    out.write_text(json.dumps(look(), indent=1) + "\n", encoding="utf-8")
    print(out)
    return 0


if __name__ == "__main__":
    sys.exit(main())
