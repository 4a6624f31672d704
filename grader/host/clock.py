"""Tells when a stage's time is over, and how much CPU time processes had."""

import os
import time
from pathlib import Path

MORE = 2.0  # extra time, in limits, for what waits while other processes have the CPUs


class Clock:
    """Counts down from now."""

    def __init__(self, seconds: float):
        self.seconds, self.end = seconds, time.monotonic() + seconds
        self.last = self.end + MORE * seconds  # with all the extra time
        self.has_asked_again = False
        self.waits = 0  # for GPU memory that other processes hold

    def left(self) -> float:
        return self.end - time.monotonic()

    def is_over(self) -> bool:
        return self.left() <= 0

    def add(self, seconds: float) -> None:
        """Give the stage extra time, for which a worker had to wait for a CPU."""
        self.end = min(self.end + seconds, self.last)

    def words(self) -> str:
        """ "the stage's 600 s (--stage-timeout) ran out"."""
        return f"the stage's {self.seconds:g} s (--stage-timeout) ran out"

    def asks_again(self, error) -> bool:
        """Whether to repeat, with nothing else running, what ended in this error.  Once per stage
        only, because an endless loop looks the same."""
        again = error.waited_for_cpu and not self.has_asked_again and not self.is_over()
        self.has_asked_again |= again
        return again


def times(pid: int) -> tuple[float, float]:
    """-> CPU seconds of a process and of the children it waited for; seconds for which its threads
    were ready but had no CPU.  0 where the system does not say."""
    used = list(map(int, _words(f"{pid}/stat")[11:15]))
    waits = [_words(f"{pid}/task/{task}/schedstat")[1:2] for task in _names(f"{pid}/task")]
    return (sum(used) / os.sysconf("SC_CLK_TCK") if used else 0.0,
            sum(int(nanoseconds) for wait in waits for nanoseconds in wait) / 1e9)


def look_below(pid: int) -> tuple[float, bool]:
    """-> CPU seconds of a process and of all processes below its parent; whether a thread of them
    runs now, or would if it had a CPU or a disk.  That is all that a worker started, for what
    loses its own parent gets the supervisor."""
    parents = {name: words[1] for name in _names("")
               if name.isdigit() and (words := _words(f"{name}/stat"))}
    supervisor, found = parents.get(str(pid)), {str(pid)}
    while below := {name for name, parent in parents.items()
                    if parent in {supervisor, *found}} - found:
        found |= below
    states = {state for name in found for task in _names(f"{name}/task")
              for state in _words(f"{name}/task/{task}/stat")[:1]}
    return sum(times(int(name))[0] for name in found), not states.isdisjoint({"R", "D"})


def _words(path: str) -> list[str]:
    """The words of a file below /proc, without a process's name, which may hold anything; [] if
    it is not there."""
    try:
        return Path("/proc", path).read_text().rpartition(")")[2].split()
    except OSError:
        return []


def _names(path: str) -> list[str]:
    """What is in a folder below /proc; [] if it is not there."""
    try:
        return os.listdir(f"/proc/{path}")
    except OSError:
        return []
