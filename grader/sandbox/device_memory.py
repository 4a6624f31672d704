"""GPU memory as the driver counts it, read from the grader's own process.

What a worker says of its memory can be forged, and its allocator does not see a raw cudaMalloc.
The driver's count is of the whole device: it means something only while nobody else uses it.
"""

import re
import threading

import torch

from grader.sandbox.calls import SubmissionError

POLL_SECONDS = 0.0002


def used_bytes() -> int:
    """Memory of the whole GPU that is taken now, less what this process's tensors take."""
    free, total = torch.cuda.mem_get_info()
    return total - free - torch.cuda.memory_reserved()


class Peak:
    """`with Peak() as peak:` polls the driver meanwhile; then peak.bytes is the most it said."""

    def __enter__(self) -> "Peak":
        self.bytes = used_bytes()
        self.done = threading.Event()
        self.thread = threading.Thread(target=self._poll, daemon=True)
        self.thread.start()
        return self

    def _poll(self) -> None:
        while not self.done.wait(POLL_SECONDS):
            self.bytes = max(self.bytes, used_bytes())

    def __exit__(self, *error) -> None:
        self.done.set()
        self.thread.join()
        self.bytes = max(self.bytes, used_bytes())


def held_by_others(error: SubmissionError) -> str:
    """A sentence, if a worker ran out of GPU memory that other processes hold most of."""
    own = _gib(r"this process has ([\d.]+) ([GMK])iB memory in use", error.detail)
    if error.id != "out-of-memory" or own is None:
        return ""
    free, total = (size / 2**30 for size in torch.cuda.mem_get_info())
    then = _gib(r"of which ([\d.]+) ([GMK])iB is free", error.detail)
    free = free if then is None else then  # others may have ended since
    others = total - free - own - torch.cuda.memory_reserved() / 2**30
    if others < total / 2:
        return ""
    return (f"out of GPU memory, of which other processes hold {others:.0f} of {total:.0f} GiB: "
            "run it again when they have ended.")


def _gib(pattern: str, text: str) -> float | None:
    found = re.search(pattern, text)
    return None if found is None else float(found[1]) / {"G": 1, "M": 2**10, "K": 2**20}[found[2]]
