"""Keeps workers that import no submission: they replay traces, or compile what traces launch.

A grading shares them among its stages.  They start when first needed; one that a kernel killed is
replaced.
"""

import atexit
import os
import queue
from collections.abc import Callable
from typing import TypeVar

import torch

from grader.course.calls import Call, SubmissionError
from grader.course.trace import Trace
from grader.host import device_memory, gpu_slots, kernel_cache
from grader.host.clock import Clock
from grader.host.processes import Worker
from grader.host.session import Session

T = TypeVar("T")
MANY_CORES = 8  # from this many on, two workers
MOST_COMPILING = 14
_running: dict[tuple, "WorkerPool"] = {}


class WorkerPool:
    """Workers with the same settings.  device: "cuda" or "cpu"; timeout: seconds per request;
    confinement: see processes.py; compile_for: 90 for workers that compile for sm_90."""

    def __init__(self, device: str, timeout: float, confinement, compile_for: int | None = None):
        self.device, self.timeout, self.confinement = device, timeout, confinement
        self.compile_for = compile_for
        self.clock: Clock | None = None  # of the stage under way
        cores, gradings = os.cpu_count() or 1, gpu_slots.gradings()
        if compile_for is not None:
            share = cores - 2 if gradings == 1 else cores // gradings
            self.count = max(1, min(MOST_COMPILING, share))
        else:  # contexts are made one after the other, and other gradings wait for them
            self.count = 2 if cores >= MANY_CORES and gradings == 1 else 1
        self.free: queue.SimpleQueue[Session | None] = queue.SimpleQueue()
        for _ in range(self.count):
            self.free.put(None)

    def begin(self) -> None:
        """Start those that are not running, without waiting for them."""
        for _ in range(self.free.qsize()):
            self.free.put(self.free.get() or self._start())

    def replay(self, call: Call, trace: Trace) -> dict[str, torch.Tensor]:
        """Replay the trace on the inputs of call.  -> outputs and "d_q" gradients.

        Raises:
            SubmissionError: it cannot be replayed.
        """
        return self.ask(lambda session: session.replay(call, trace))

    def ask(self, request: Callable[[Session], T]) -> T:
        """Call request(session) with the first worker that is free."""
        session = self.free.get()
        try:
            if session is None or session.gone:
                if session is not None:
                    session.close()
                    session = None
                session = self._start()
            session.clock = self.clock
            return request(session)
        except SubmissionError as error:
            if device_memory.ran_out(error):  # so that its own memory does not count as others'
                session.close()
                session = None
            raise
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
    """The running pool with these settings, or a new one."""
    key = device, timeout, confinement, compile_for
    if not _running:
        atexit.register(end_all)
    if key not in _running:
        _running[key] = WorkerPool(*key)
    return _running[key]


def end_all() -> None:
    """End all pools; the next stage starts new ones."""
    for ours in _running.values():
        ours.close()
    _running.clear()
