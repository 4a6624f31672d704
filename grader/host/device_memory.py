"""Asks the driver, in the grader's own process, whether others hold the GPU's memory."""

import random
import re
import time

import torch

from grader.course.calls import SubmissionError
from grader.host.clock import Clock

WAIT_SECONDS, WAITS = 60.0, 3  # for others to free memory: seconds each time, times per stage
SPARE_GIB = 1.0  # on top of what was asked for: a context, and later cases
HAD = r"this process has ([\d.]+) ([GMK])iB memory in use"
FREE = r"of which ([\d.]+) ([GMK])iB is free"
TRIED = r"Tried to allocate ([\d.]+) ([GMK])iB"
# Errors that do not come from PyTorch's allocator: no memory for a context, or for a kernel.
DRIVER_SAYS = re.compile(r"(CUDA error|Triton Error \[CUDA\]): out of memory")


def ran_out(error: SubmissionError) -> bool:
    """Whether a worker says that it ran out of GPU memory."""
    return error.id == "out-of-memory" or bool(DRIVER_SAYS.search(error.sentence + error.detail))


def held_by_others(error: SubmissionError) -> str:
    """A sentence, if a worker ran out of GPU memory that other processes hold most of.

    The worker must have ended, so that its own memory is free again.
    """
    free, total = _gib_free()
    others = total - free
    if not ran_out(error) or others < total / 2:
        return ""
    return (f"out of GPU memory, of which other processes hold {others:.0f} of {total:.0f} GiB: "
            "run it again when they have ended.")


def _gib_free() -> tuple[float, float]:
    """GiB that are free or this process's own, and all that there are, by the driver."""
    free, total = torch.cuda.mem_get_info()
    return (free + torch.cuda.memory_reserved()) / 2**30, total / 2**30


def comes_back(text: str, clock: Clock) -> bool:
    """Wait until as much GPU memory is free as a process had and wanted when it wrote this text.

    -> whether it is; waits at most WAITS times per stage.
    """
    clock.waits += 1
    wanted = SPARE_GIB + sum(_gib(pattern, text) or 0.0 for pattern in (HAD, TRIED))
    until = time.monotonic() + min(WAIT_SECONDS, clock.left())
    while clock.waits <= WAITS:
        free, total = (size / 2**30 for size in torch.cuda.mem_get_info())
        if free >= wanted:
            return True
        if wanted > total or time.monotonic() > until:
            break
        time.sleep(random.uniform(0.2, 1.0))  # so that gradings side by side do not wake together
    return False


def crowded_out(error: SubmissionError, device: str, clock: Clock) -> bool:
    """Whether to ask again: others held the GPU's memory, and have given enough of it back.

    They may have ended since.  So what the worker says of then counts here, and only here.
    """
    if device != "cuda" or not ran_out(error):
        return False
    free, total = _gib_free()
    own, then = _gib(HAD, error.detail), _gib(FREE, error.detail)
    if None not in (own, then):
        free = min(free, own + then)
    return total - free >= total / 2 and comes_back(error.detail, clock)


def _gib(pattern: str, text: str) -> float | None:
    found = re.search(pattern, text)
    return None if found is None else float(found[1]) / {"G": 1, "M": 2**10, "K": 2**20}[found[2]]
