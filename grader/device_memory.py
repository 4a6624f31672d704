"""GPU memory as the driver counts it, read from the grader's own process.

What a worker says of its memory can be forged, and its allocator does not see a raw cudaMalloc.
The driver's count is of the whole device: it means something only while nobody else uses it.
"""

import threading

import torch

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
