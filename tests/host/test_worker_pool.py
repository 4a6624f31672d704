"""Workers without a file: how many there are, and when one is replaced."""

import os

import pytest

from grader.course.calls import SubmissionError
from grader.host import gpu_slots
from grader.host.processes import Confinement
from grader.host.worker_pool import WorkerPool


@pytest.mark.parametrize(("cores", "gradings", "replaying", "compiling"), [
    (16, 1, 2, 14), (64, 1, 2, 14), (16, 2, 1, 8), (16, 4, 1, 4), (16, 20, 1, 1), (4, 1, 1, 2),
    (4, 4, 1, 1), (2, 1, 1, 1), (None, 4, 1, 1),
])
def test_gradings_that_share_a_gpu_leave_each_other_cores(
        monkeypatch, cores, gradings, replaying, compiling):
    monkeypatch.setattr(os, "cpu_count", lambda: cores)
    monkeypatch.setattr(gpu_slots, "gradings", lambda: gradings)
    assert WorkerPool("cuda", 60.0, Confinement()).count == replaying
    assert WorkerPool("cpu", 60.0, Confinement(), compile_for=90).count == compiling


def test_a_worker_that_ran_out_of_the_gpus_memory_gives_its_own_back(monkeypatch):
    class Worker:
        gone = closed = False

        def close(self):
            self.closed = True

    started = []
    monkeypatch.setattr(WorkerPool, "_start", lambda self: started.append(Worker()) or started[-1])
    pool = WorkerPool("cpu", 60.0, Confinement())

    def fail(session):
        raise SubmissionError("crashed", "out of GPU memory", id="out-of-memory")

    with pytest.raises(SubmissionError):
        pool.ask(fail)
    assert started[0].closed
    assert pool.ask(lambda session: session) is started[1] and not started[1].closed
