"""Workers that import no submission: they carry out the traces of what submissions did, or compile
what those launch.

One grading shares them among its stages.  They are started when first needed, and anew when one
died of a kernel.
"""

import atexit
import os
import queue
from collections.abc import Callable
from typing import TypeVar

import torch

from grader.course.calls import Call
from grader.course.trace import Trace
from grader.host import gpu_slots, kernel_cache
from grader.host.clock import Clock
from grader.host.processes import Worker
from grader.host.session import Session

T = TypeVar("T")
MANY_CORES = 8  # from here on two of them
MOST_COMPILING = 14
_running: dict[tuple, "WorkerPool"] = {}


class WorkerPool:
    """device: "cuda" or "cpu"; timeout: seconds a request; confinement: of processes.py;
    compile_for: 90 for those that compile, for sm_90."""

    def __init__(self, device: str, timeout: float, confinement, compile_for: int | None = None):
        self.device, self.timeout, self.confinement = device, timeout, confinement
        self.compile_for = compile_for
        self.clock: Clock | None = None  # of the stage under way
        cores, gradings = os.cpu_count() or 1, gpu_slots.gradings()
        if compile_for is not None:
            share = cores - 2 if gradings == 1 else cores // gradings
            self.count = max(1, min(MOST_COMPILING, share))
        else:  # a GPU makes contexts one after the other, and gradings that share one wait for it
            self.count = 2 if cores >= MANY_CORES and gradings == 1 else 1
        self.free: queue.SimpleQueue[Session | None] = queue.SimpleQueue()
        for _ in range(self.count):
            self.free.put(None)

    def begin(self) -> None:
        """Have those start that have not, without waiting for them."""
        for _ in range(self.free.qsize()):
            self.free.put(self.free.get() or self._start())

    def replay(self, call: Call, trace: Trace) -> dict[str, torch.Tensor]:
        """Outputs and "d_q" gradients of the trace on the inputs of call.

        Raises:
            SubmissionError: it could not be carried out.
        """
        return self.ask(lambda session: session.replay(call, trace))

    def ask(self, request: Callable[[Session], T]) -> T:
        """What request makes of one that is free, or comes to be."""
        session = self.free.get()
        try:
            if session is None or session.gone:
                if session is not None:
                    session.close()
                    session = None
                session = self._start()
            session.clock = self.clock
            return request(session)
        finally:
            self.free.put(session)

    def _start(self) -> Session:
        cache = None
        if self.device == "cuda" or self.compile_for is not None:
            cache = kernel_cache.replaying_folder(self.confinement.user)
        return Session(Worker(b"", "replaying.py", device=self.device,
                              interpret=self.device == "cpu", compile_for=self.compile_for,
                              cache=cache, confinement=self.confinement), self.timeout)

    def close(self) -> None:
        for _ in range(self.count):
            session = self.free.get()
            if session is not None:
                session.close()
            self.free.put(None)


def workers(device: str, timeout: float, confinement,
            compile_for: int | None = None) -> WorkerPool:
    """Those already running with these settings, or new ones."""
    key = device, timeout, confinement, compile_for
    if not _running:
        atexit.register(end_all)
    if key not in _running:
        _running[key] = WorkerPool(*key)
    return _running[key]


def end_all() -> None:
    """End every one of them; the next stage starts new ones."""
    for ours in _running.values():
        ours.close()
    _running.clear()
