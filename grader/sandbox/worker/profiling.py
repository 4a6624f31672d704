"""Where one call's time goes on a GPU: each launch's time and resources, and lines that wait.

Times are CUDA events'.  The GPU is held up first, so that all launches of a call stand in line and
what the host does between them costs nothing; and its L2 cache is emptied, as other work would.
"""

import contextlib
import ctypes
import json
import re
import statistics
from pathlib import Path

import torch

from .returned import Failure

ROUNDS = 5
HOLD = 20_000_000  # clock cycles, about 10 ms: longer than the host takes for a call
CACHE = 256 << 20  # bytes, more than any L2 cache
MOST = 1000  # launches and lines that are told of
SAMPLED = 3  # calls


@contextlib.contextmanager
def _watched(launches: list):
    """While it lasts, every launch of a kernel is put there: kernel, grid, events around it."""
    from triton.runtime.jit import JITFunction

    run = JITFunction.run

    def timed(self, *args, grid, **kwargs):
        sizes, start, end = [], _event(), _event()

        def noted(arguments):
            sizes[:] = grid(arguments) if callable(grid) else grid
            return tuple(sizes)

        start.record()
        kernel = run(self, *args, grid=noted, **kwargs)
        end.record()
        launches.append((kernel, sizes, start, end))
        return kernel

    JITFunction.run = timed
    try:
        yield
    finally:
        JITFunction.run = run


def _event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)


def phases(forward, backward) -> list[dict]:
    """-> of the forward and, if there is one, the backward: "ms" of all it does, the median of some
    calls, and its "launches", of each name, grid, ms and what a program takes.

    forward() -> the outputs, which backward is given.
    """
    cache = torch.empty(CACHE, dtype=torch.uint8, device="cuda")
    rounds = []
    for _ in range(1 + ROUNDS):  # the first compiles
        found, given = [], ()
        for work in filter(None, (forward, backward)):
            launches, start, end = [], _event(), _event()
            torch.cuda.synchronize()
            torch.cuda._sleep(HOLD)
            cache.zero_()
            with _watched(launches):
                start.record()
                given = (work(*given),)
                end.record()
            torch.cuda.synchronize()
            found.append((launches, start.elapsed_time(end)))
        rounds.append(found)
    return [_phase(alike) for alike in zip(*rounds[1:], strict=True)]


def _phase(rounds: tuple) -> dict:
    """rounds: of each call its launches, and ms."""
    last = [(kernel, grid) for kernel, grid, _, _ in rounds[-1][0]]
    if any([kernel for kernel, *_ in launches] != [kernel for kernel, _ in last]
           for launches, _ in rounds):
        raise Failure("skipped", "calls that launch the same kernels are wanted; these did not")
    times = zip(*([start.elapsed_time(end) for _, _, start, end in launches]
                  for launches, _ in rounds), strict=True)
    return {"ms": statistics.median(ms for _, ms in rounds),
            "launches": [{**_resources(kernel), "grid": list(grid), "ms": statistics.median(ms)}
                         for (kernel, grid), ms in zip(last[:MOST], times, strict=False)]}


def _resources(kernel) -> dict:
    """What a program of a compiled kernel takes, and how many are resident on a multiprocessor."""
    warps, shared = kernel.metadata.num_warps, kernel.metadata.shared
    resident = ctypes.c_int()
    ctypes.CDLL("libcuda.so.1").cuOccupancyMaxActiveBlocksPerMultiprocessor(
        ctypes.byref(resident), ctypes.c_void_p(kernel.function), 32 * warps,
        ctypes.c_size_t(shared))
    return {"name": kernel.src.fn.__name__, "warps": warps, "stages": kernel.metadata.num_stages,
            "registers": kernel.n_regs, "spilled": kernel.n_spills, "shared": shared,
            "resident": resident.value}


def lines(call, path: str) -> dict:
    """Of all "samples" of programs at work on kernels, how many were on which "lines" of the file.

    By Proton, which comes with Triton; it must be there before a kernel is loaded.

    Raises:
        Failure: it cannot sample here.
    """
    try:
        import triton.profiler as proton

        proton.start("samples", backend="cupti", mode="pcsampling")
        call()  # compiled and, if it is autotuned, tuned
        torch.cuda.synchronize()
        with proton.scope("sampled"):
            for _ in range(SAMPLED):
                call()
            torch.cuda.synchronize()
        proton.finalize()
        tree = json.loads(Path("samples.hatchet").read_text())[0]
    except Exception as error:  # of any kind: no such library, no permission, no such GPU
        said = (str(error).strip() or type(error).__name__).splitlines()[0]
        raise Failure("skipped", f"Triton's profiler cannot sample here ({said[:200]})") from None
    return counted(tree, Path(path).name)


def counted(tree: dict, filename: str) -> dict:
    """tree: as Proton writes it; a node of a line is named folder/file.py:line@function."""
    found, total = {}, 0
    for node in _below([one for one in tree["children"] if one["frame"]["name"] == "sampled"]):
        samples = int(node["metrics"].get("num_samples", 0))
        place = re.search(r"([^/]+):(\d+)@", node["frame"]["name"])
        total += samples
        if samples and place and place[1] == filename:
            found[int(place[2])] = found.get(int(place[2]), 0) + samples
    return {"samples": total, "lines": sorted(found.items(), key=lambda one: -one[1])[:MOST]}


def _below(nodes: list):
    for node in nodes:
        yield node
        yield from _below(node["children"])
