"""Runs the autograder on one student's files, in a process of its own."""

import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from grader.assignment.record import ROOT
from grader.text import escape

# Both programs in one, imported from the course's folder, not from the student's, where it runs.
PROGRAM = (f"import sys; sys.path[0] = {str(ROOT)!r}; from grader.cli import main; "
           "from grader.course.stages import STAGES; "
           "sys.exit(main('autograder.py', stages=tuple(STAGES)))")
POLL_SECONDS = 0.2
USAGE = 2  # its exit code for bad arguments
SPARE_SECONDS = 180.0  # on top of its own limits, before it counts as hung
END_SECONDS = 20.0  # from SIGTERM to SIGKILL
PR_SET_PDEATHSIG = 1
_libc = ctypes.CDLL(None) if sys.platform == "linux" else None


class Child:
    """Grades the stages of one student, one after the other, in the student's folder, so that the
    commands in its JSON name none: a student with the same file may read them.  folder: with the
    problem files.  working: for its JSON and output.  gpu: its CUDA_VISIBLE_DEVICES."""

    def __init__(self, stages: list[int], folder: Path, working: Path, options: list[str],
                 seconds: float, threads: int, gpu: str | None = None):
        working = working.resolve()
        self.json, self.output = working.with_suffix(".json"), working.with_suffix(".txt")
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        if gpu is not None:
            environment["CUDA_VISIBLE_DEVICES"] = gpu
        command = [sys.executable, "-c", PROGRAM, *(f"--p{n}" for n in stages), "--submission", ".",
                   "--json", str(self.json), *options]
        with open(self.output, "wb") as output:
            # In its own session, so that Ctrl-C does not reach it but stop() does.
            self.process = subprocess.Popen(
                command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=output,
                stderr=subprocess.STDOUT, start_new_session=True, preexec_fn=_end_with_parent)
        self.deadline = time.monotonic() + seconds * len(stages) + SPARE_SECONDS
        self._read = 0  # modification time of the JSON read last

    def has_ended(self) -> bool:
        if time.monotonic() > self.deadline:
            self.wait(0)
        return self.process.poll() is not None

    def report(self) -> dict | None:
        """Its JSON, which is complete after every stage; None if there is nothing new."""
        try:
            written = self.json.stat().st_mtime_ns
            if written == self._read:
                return None
            report = json.loads(self.json.read_bytes())
        except (OSError, ValueError):
            return None
        self._read = written
        return report

    def reports(self, is_over: Callable[[], bool] = lambda: False) -> Iterator[dict]:
        """Its JSON after every stage, until it ends, or is ended because it is over."""
        try:
            while not (is_over() or self.has_ended()):
                time.sleep(POLL_SECONDS)
                if found := self.report():
                    yield found
        finally:
            self.stop()
            self.wait()
        if found := self.report():
            yield found

    def last_words(self) -> str:
        """How it ended, and the end of what it printed."""
        try:
            lines = self.output.read_text("utf-8", "replace").strip().splitlines()
        except OSError:
            lines = []
        return f"exit code {self.process.returncode}; " + escape("\n".join(lines[-5:]))

    def stop(self) -> None:
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)

    def wait(self, seconds: float = END_SECONDS) -> None:
        """Wait for its end after stop(), and kill it when the time is over."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()

    def remove(self) -> None:
        self.json.unlink(missing_ok=True)
        self.output.unlink(missing_ok=True)


def _end_with_parent() -> None:
    """End the child if this program ends in any way; it then removes what it made."""
    if _libc is not None:
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
