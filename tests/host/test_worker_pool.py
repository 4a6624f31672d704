"""Workers without a file: how many there are, and when one is replaced."""

import os
import queue

import pytest

from grader.course.calls import SubmissionError
from grader.host import gpu_slots, worker_pool
from grader.host.processes import Confinement
from grader.host.worker_pool import WorkerPool


class Worker:
    """Stands in for a session."""

    gone = closed = False

    def close(self):
        self.closed = True


class NeverWaits(queue.Queue):
    """The workers that are free; fails where a grading would wait for ever."""

    def get(self):
        return super().get(block=False)


@pytest.fixture
def started(monkeypatch) -> list[Worker]:
    """All workers that are started."""
    found = []
    monkeypatch.setattr(worker_pool.queue, "SimpleQueue", NeverWaits)
    monkeypatch.setattr(WorkerPool, "_start", lambda self: found.append(Worker()) or found[-1])
    monkeypatch.setattr(os, "cpu_count", lambda: 16)  # two of them in a pool
    return found


def pool() -> WorkerPool:
    return WorkerPool("cpu", 60.0, Confinement())


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


def test_a_worker_that_ran_out_of_the_gpus_memory_gives_its_own_back(started, monkeypatch):
    monkeypatch.setattr(os, "cpu_count", lambda: 1)
    one = pool()

    def fail(session):
        raise SubmissionError("crashed", "out of GPU memory", id="out-of-memory")

    with pytest.raises(SubmissionError):
        one.ask(fail)
    assert started[0].closed
    assert one.ask(lambda session: session) is started[1] and not started[1].closed


def test_workers_start_once_and_are_asked_in_turn_also_after_an_error(started):
    both = pool()
    both.begin()
    both.begin()
    assert len(started) == 2
    both.clock = "of the stage"

    def crash(session):
        raise SubmissionError("crashed", "no")

    with pytest.raises(SubmissionError, match="no"):
        both.ask(crash)
    assert [both.ask(lambda session: session) for _ in range(3)] == [
        started[1], started[0], started[1]]
    assert started[0].clock == started[1].clock == "of the stage"
    assert not started[0].closed


def test_a_worker_that_is_gone_is_replaced(started):
    both = pool()
    both.begin()
    started[0].gone = True
    assert both.ask(lambda session: session) is started[2] and started[0].closed


def test_a_grading_has_one_pool_for_each_use_and_ends_them_all(started):
    settings = ("cpu", 60.0, Confinement())
    worker_pool.end_all()
    try:
        replaying = worker_pool.workers(*settings)
        assert worker_pool.workers(*settings) is replaying
        assert worker_pool.workers(*settings, compile_for=90).count == 14
        replaying.begin()
    finally:
        worker_pool.end_all()
    assert [one.closed for one in started] == [True, True]
    assert worker_pool.workers(*settings) is not replaying
    worker_pool.end_all()


@pytest.mark.parametrize(("device", "compile_for", "interprets", "keeps"), [
    ("cpu", None, True, False), ("cpu", 90, True, True), ("cuda", None, False, True)])
def test_how_a_worker_is_started(monkeypatch, tmp_path, device, compile_for, interprets, keeps):
    monkeypatch.setattr(worker_pool.kernel_cache, "replaying_folder", lambda user: tmp_path)
    monkeypatch.setattr(worker_pool, "Worker", lambda source, name, **how: how | {
        "source": source})
    monkeypatch.setattr(worker_pool, "Session", lambda worker, timeout: (worker, timeout))
    worker, timeout = WorkerPool(device, 7.0, Confinement(), compile_for)._start()
    assert timeout == 7.0 and worker == {
        "source": b"", "device": device, "interpret": interprets, "compile_for": compile_for,
        "cache": tmp_path if keeps else None, "confinement": Confinement()}
