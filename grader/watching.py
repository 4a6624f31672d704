"""--watch: grade a stage again whenever its file is saved, up to the first case that is wrong."""

import contextlib
import functools
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from grader.assignment.record import WARM_UPS
from grader.course.calls import SubmissionError
from grader.course.stages import Stage
from grader.host.options import Options, spare_worker
from grader.host.session import Session
from grader.judge.grade import grade_stage
from grader.lights import warmups
from grader.report.screen import Reporter

INTERVAL = 0.1  # seconds between two looks at the file


def watch_stages(stages: list[Stage], options: Options, reporter: Reporter) -> None:
    """Grade each at once, and again whenever its file is saved, until Ctrl-C.

    This process, the nursery and the workers that replay stay; a worker that runs a file ends with
    its grading, and the next one is made ready before the next save.
    """
    options = replace(options, stop_early=True, benchmark=False, patience=2.0)
    with Spare(lambda i: spare_worker(stages[i], options)) as spare:
        def grade(i: int) -> None:
            take = functools.partial(spare.take, i)
            grade_stage(stages[i], replace(options, spare=take), reporter)

        watch([options.directory / stage.filename for stage in stages], grade, reporter.say,
              spare.start)


def watch_warm_ups(options: Options, reporter: Reporter) -> None:
    """The same for the exercises before problem 1."""
    watch([options.directory / WARM_UPS], lambda i: warmups.grade(options, reporter), reporter.say)


def watch(paths: list[Path], grade: Callable[[int], None], say: Callable[[str], None],
          ready: Callable[[int], None] = lambda i: None, turns: int | None = None) -> None:
    """Call grade(i) at once and after every change of paths[i]; Ctrl-C ends it.

    A change meanwhile ends grade(i) by raising FileSaved in it.  ready(i) comes before each wait
    for a save: what the next time can do without.  turns: end after so many gradings, for a test.
    """
    seen: dict[int, tuple | None] = {}
    done = 0
    while turns is None or done < turns:
        last = None
        for i, path in enumerate(paths):
            state = _state(path)
            if i in seen and seen[i] == state:
                continue
            if i in seen:
                say(f"{path.name} was saved.")
            seen[i], last = state, i
            try:
                with _ended_by_a_save(path, state):
                    grade(i)
            except FileSaved:
                break  # the next look sees it
            done += 1
            say(f"Watching {', '.join(p.name for p in paths)}: save to grade again, Ctrl-C to end.")
        if last is not None:
            ready(last)
        time.sleep(INTERVAL)


class FileSaved(BaseException):
    """The file that is being graded was saved again: what is found out of it is out of date."""


@contextlib.contextmanager
def _ended_by_a_save(path: Path, state: tuple | None):
    """Raise FileSaved in the main thread's block, once, when the file is no longer as it was."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(INTERVAL):
            if _state(path) not in (state, None):  # an editor may take it away for a moment
                signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
                return

    def stop(number, frame) -> None:
        if not over.is_set():
            raise FileSaved

    signal.signal(signal.SIGUSR1, stop)  # and so it stays: by default the signal ends the process
    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class Spare:
    """The next worker, started before its file is saved.  make(i): for the file of that number.

    There is one at a time, of the file that was graded last: on a GPU each holds some memory.
    """

    def __init__(self, make: Callable[[int], Session]):
        self.make, self.session, self.number = make, None, None

    def start(self, i: int) -> None:
        """Have one wait for this file, if none does; returns before it is ready."""
        if self.session is None or self.number != i:
            self.close()
            self.session, self.number = self.make(i), i

    def take(self, i: int, source: bytes) -> Session | None:
        """The one that waits for this file, with it; None where none does, or it has died."""
        if self.session is None or self.number != i:
            return None
        try:
            self.session.start()  # a save may end this; then it still waits
        except SubmissionError:
            self.close()
            return None
        if self.session.family.has_ended():
            self.close()
            return None
        session, self.session = self.session, None
        session.give(source)
        return session

    def close(self) -> None:
        """End the one that waits."""
        if self.session is not None:
            self.session.close()
        self.session = None

    def __enter__(self) -> "Spare":
        return self

    def __exit__(self, *error) -> None:
        self.close()


def _state(path: Path) -> tuple | None:
    """What changes when a file is saved; None where there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
