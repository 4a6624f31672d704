"""Tells when a stage's time is over, and whether a timeout was the machine's fault."""

import os
import time
from pathlib import Path

ENOUGH = 0.8  # share of a CPU; a worker that had more was not kept waiting


class Clock:
    """Counts down from now."""

    def __init__(self, seconds: float):
        self.seconds, self.end = seconds, time.monotonic() + seconds
        self.has_asked_again = False
        self.waits = 0  # for GPU memory that other processes hold

    def left(self) -> float:
        return self.end - time.monotonic()

    def is_over(self) -> bool:
        return self.left() <= 0

    def words(self) -> str:
        """ "the stage's 600 s (--stage-timeout) ran out"."""
        return f"the stage's {self.seconds:g} s (--stage-timeout) ran out"

    def asks_again(self, error) -> bool:
        """Whether to repeat, with nothing else running, what ended in this error.  Once per stage
        only, because an endless loop looks the same."""
        again = error.waited_for_cpu and not self.has_asked_again and not self.is_over()
        self.has_asked_again |= again
        return again


def is_overloaded() -> bool:
    """Whether more processes wanted to run in the last minute than there are CPUs."""
    try:
        cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
        return os.getloadavg()[0] > (cpus or 1)
    except (AttributeError, OSError):  # Windows, or not known
        return False


def waited_seconds(pid: int) -> float:
    """Seconds for which a process's first thread was ready but had no CPU; 0 if not known."""
    found = _words(pid, "schedstat")
    return int(found[1]) / 1e9 if found else 0.0


def cpu_seconds(pid: int) -> float:
    """CPU time of a process and its threads so far; 0 if not known."""
    found = _words(pid, "stat")
    return (int(found[11]) + int(found[12])) / os.sysconf("SC_CLK_TCK") if found else 0.0


def _words(pid: int, name: str) -> list[str]:
    """What the kernel says of a process, after its name, which may hold anything; [] if nothing."""
    try:
        return Path(f"/proc/{pid}/{name}").read_text().rpartition(")")[2].split()
    except OSError:
        return []
