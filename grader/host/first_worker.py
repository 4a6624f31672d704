"""Starts the worker of a run's first stage before this process has imported torch.

Both imports take seconds.  Side by side, this process need not wait for the worker.
"""

import contextlib

from grader.host import kernel_cache
from grader.host.processes import Confinement, Worker


class FirstWorker:
    """A worker for this file, of this name, on "cuda" or "cpu"."""

    def __init__(self, source: bytes, name: str, device: str, confinement: Confinement):
        self.wanted, self.confinement = (source, name, device), confinement
        self.worker: Worker | None = None

    def begin(self) -> None:
        """Start it.  If that fails, the next worker will fail as well, and say why."""
        (source, name, device), user = self.wanted, self.confinement.user
        cache = kernel_cache.folder_for(source, user) if device == "cuda" else None
        with contextlib.suppress(OSError):
            self.worker = Worker(source, name, device=device, interpret=device == "cpu",
                                 cache=cache, confinement=self.confinement)

    def take(self, source: bytes, name: str, device: str) -> Worker | None:
        """The worker, if it was started for just this; only once."""
        if self.wanted != (source, name, device):
            return None
        worker, self.worker = self.worker, None
        return worker
