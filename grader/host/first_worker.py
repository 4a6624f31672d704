"""The worker of a run's first stage, asked for before this process has imported torch.

Both import it for seconds, and so the worker waits for its first request, and not this process for
the worker.
"""

import contextlib

from grader.host import kernel_cache
from grader.host.processes import Confinement, Worker


class FirstWorker:
    """For this file, of this name, on "cuda" or "cpu"."""

    def __init__(self, source: bytes, name: str, device: str, confinement: Confinement):
        self.wanted, self.confinement = (source, name, device), confinement
        self.worker: Worker | None = None

    def begin(self) -> None:
        """Ask for it.  Where that fails, so will the next worker, and say why."""
        (source, name, device), user = self.wanted, self.confinement.user
        cache = kernel_cache.folder_for(source, user) if device == "cuda" else None
        with contextlib.suppress(OSError):
            self.worker = Worker(source, name, device=device, interpret=device == "cpu",
                                 cache=cache, confinement=self.confinement)

    def take(self, source: bytes, name: str, device: str) -> Worker | None:
        """It, once, if this is what it was asked for."""
        if self.wanted != (source, name, device):
            return None
        worker, self.worker = self.worker, None
        return worker
