"""When a stage is over, and which timeouts a busy machine may be to blame for."""

import os
import time

import pytest

from grader.course.calls import SubmissionError
from grader.host import clock
from grader.host.clock import Clock, cpu_seconds, is_overloaded, waited_seconds

STARVED = SubmissionError("timeout", "late", waited_for_cpu=True)


def test_a_stage_is_over_when_its_seconds_are(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(clock.time, "monotonic", lambda: now)
    short, long = Clock(0.02), Clock(600)
    now += 0.03
    assert short.is_over() and not long.is_over() and long.left() == pytest.approx(599.97)
    assert short.words() == "the stage's 0.02 s (--stage-timeout) ran out"


def test_a_starved_request_is_asked_again_once_a_stage_and_not_when_that_is_over():
    running = Clock(600)
    assert not running.asks_again(SubmissionError("timeout", "late"))
    assert [running.asks_again(STARVED) for _ in range(3)] == [True, False, False]
    assert not Clock(0).asks_again(STARVED)


@pytest.mark.parametrize("load, cpus, overloaded", [(1.9, 2, False), (2.1, 2, True),
                                                    (30.0, 64, False)])
def test_more_work_than_cpus_is_an_overload(monkeypatch, load, cpus, overloaded):
    monkeypatch.setattr(os, "getloadavg", lambda: (load, 0.0, 0.0))
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: range(cpus))
    assert is_overloaded() == overloaded


def test_where_nobody_knows_the_load_there_is_no_overload(monkeypatch):
    monkeypatch.delattr(clock.os, "getloadavg")
    assert not is_overloaded()


def test_what_a_process_had_of_the_cpus_grows_as_it_works():
    before, until = cpu_seconds(os.getpid()), time.thread_time() + 0.1
    while time.thread_time() < until:
        pass
    assert 0.05 < cpu_seconds(os.getpid()) - before
    assert cpu_seconds(1 << 30) == 0.0


def test_how_long_a_process_waited_for_a_cpu_only_grows():
    first, second = waited_seconds(os.getpid()), waited_seconds(os.getpid())
    assert 0.0 <= first <= second and waited_seconds(1 << 30) == 0.0
