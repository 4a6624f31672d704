"""When a stage is over, and how much CPU time a worker and all that it started had."""

import os
import subprocess
import sys
import time

import pytest

from grader.course.calls import SubmissionError
from grader.host import clock
from grader.host.clock import Clock, look_below, times

STARVED = SubmissionError("timeout", "late", waited_for_cpu=True)


def test_a_stage_is_over_when_its_seconds_are(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(clock.time, "monotonic", lambda: now)
    short, long = Clock(0.02), Clock(600)
    now += 0.03
    assert short.is_over() and not long.is_over() and long.left() == pytest.approx(599.97)
    assert short.words() == "the stage's 0.02 s (--stage-timeout) ran out"


def test_a_starved_request_is_asked_again_once_and_not_past_the_stage():
    running = Clock(600)
    assert not running.asks_again(SubmissionError("timeout", "late"))
    assert [running.asks_again(STARVED) for _ in range(3)] == [True, False, False]
    assert not Clock(0).asks_again(STARVED)


def test_a_stage_gets_the_time_that_a_worker_waited_up_to_twice_its_own(monkeypatch):
    monkeypatch.setattr(clock.time, "monotonic", lambda: 1000.0)
    running = Clock(600)
    running.add(90.0)
    assert running.left() == pytest.approx(690)
    running.add(9000.0)
    assert running.left() == pytest.approx(1800)


SPIN = "import time\nwhile time.process_time() < 0.1: pass"


def test_what_a_process_had_of_the_cpus_grows_as_it_and_its_children_work():
    before, until = times(os.getpid())[0], time.thread_time() + 0.1
    while time.thread_time() < until:
        pass
    between = times(os.getpid())[0]
    assert 0.05 < between - before
    subprocess.run([sys.executable, "-c", SPIN], check=True)
    assert 0.05 < times(os.getpid())[0] - between


def test_how_long_a_process_waited_for_a_cpu_only_grows():
    first, second = times(os.getpid())[1], times(os.getpid())[1]
    assert 0.0 <= first <= second


def test_seconds_of_work_and_of_waiting_are_added_up_over_children_and_threads(monkeypatch):
    """As proc(5) has them: ticks of a process and its children, nanoseconds of each thread."""
    ticks = os.sysconf("SC_CLK_TCK")
    files = {"7/stat": ["S", *["0"] * 10, *(str(ticks * n) for n in (1, 2, 3, 4)), "99999"],
             "7/task/7/schedstat": ["1000", "2000000000", "5"],
             "7/task/8/schedstat": ["1000", "500000000", "5"]}
    monkeypatch.setattr(clock, "_words", files.__getitem__)
    monkeypatch.setattr(clock, "_names", lambda path: ["7", "8"])
    assert times(7) == (10.0, 2.5)


def test_of_a_process_that_is_gone_nothing_is_known():
    assert times(1 << 30) == (0.0, 0.0) and look_below(1 << 30) == (0.0, False)


@pytest.mark.parametrize("running, is_busy", [
    (20, True), (21, True), (31, True), (10, False), (40, False), (None, False)])
def test_what_a_worker_started_counts_and_what_others_do_does_not(monkeypatch, running, is_busy):
    """Process 20 is the worker, 10 its supervisor.  21 is its child; 30 lost its parent, another
    child of the worker, so the supervisor got it; 31 is the child of that."""
    parents = {1: 0, 10: 1, 20: 10, 21: 20, 30: 10, 31: 30, 40: 1, 41: 40}
    ticks = os.sysconf("SC_CLK_TCK")

    def words(path):
        pid, *rest = path.split("/")
        state = "R" if int(pid) == running else "S"
        return [state, str(parents[int(pid)]), *["0"] * 9, str(ticks * int(pid)), "0", "0", "0"]

    monkeypatch.setattr(clock, "_words", words)
    monkeypatch.setattr(clock, "_names", lambda path: ["1"] if path else ["cpuinfo", *map(
        str, parents)])
    assert look_below(20) == (20 + 21 + 30 + 31, is_busy)
