"""Workers that import no submission: they carry out the plans of what submissions did.

One grading shares them among its stages.  They are started when first needed, and anew when one
died of a kernel.
"""

import atexit
import os
import queue

import torch

from grader.sandbox import kernel_cache
from grader.sandbox.calls import Call
from grader.sandbox.clock import Clock
from grader.sandbox.plan import Plan
from grader.sandbox.session import Session

MANY_CORES = 8  # from here on two of them, for on a GPU they mostly compile
_running: dict[tuple, "ReplayingWorkers"] = {}


class ReplayingWorkers:
    """device: "cuda" or "cpu"; timeout: seconds a request; confinement: of processes.py."""

    def __init__(self, device: str, timeout: float, confinement):
        self.device, self.timeout, self.confinement = device, timeout, confinement
        self.clock: Clock | None = None  # of the stage under way
        self.count = 2 if (os.cpu_count() or 1) >= MANY_CORES else 1
        self.free: queue.SimpleQueue[Session | None] = queue.SimpleQueue()
        for _ in range(self.count):
            self.free.put(None)

    def replay(self, call: Call, plan: Plan) -> dict[str, torch.Tensor]:
        """Outputs and "d_q" gradients of the plan on the inputs of call.

        Raises:
            SubmissionError: it could not be carried out.
        """
        session = self.free.get()
        try:
            if session is None or session.gone:
                if session is not None:
                    session.close()
                    session = None
                session = self._start()
            session.clock = self.clock
            return session.replay(call, plan)
        finally:
            self.free.put(session)

    def _start(self) -> Session:
        cache = None
        if self.device == "cuda":
            cache = kernel_cache.replaying_folder(self.confinement.user)
        return Session(b"", "replaying.py", device=self.device, timeout=self.timeout,
                       interpret=self.device == "cpu", cache=cache, confinement=self.confinement)

    def close(self) -> None:
        for _ in range(self.count):
            session = self.free.get()
            if session is not None:
                session.close()
            self.free.put(None)


def workers(device: str, timeout: float, confinement) -> ReplayingWorkers:
    """Those already running with these settings, or new ones."""
    key = device, timeout, confinement
    if not _running:
        atexit.register(end_all)
    if key not in _running:
        _running[key] = ReplayingWorkers(*key)
    return _running[key]


def end_all() -> None:
    """End every one of them; the next stage starts new ones."""
    for ours in _running.values():
        ours.close()
    _running.clear()
