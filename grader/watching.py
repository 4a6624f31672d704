"""--watch: grade a stage again whenever its file is saved, up to the first case that is wrong."""

import contextlib
import functools
import os
import select
import signal
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from grader.assignment import hints, submission
from grader.assignment.record import EXERCISES, WARM_UPS
from grader.course.calls import SubmissionError
from grader.course.stages import STAGES, Stage
from grader.host.options import Options, spare_worker
from grader.host.session import Session
from grader.judge.grade import grade_stage
from grader.report import overview
from grader.report.results import StageResult
from grader.report.screen import Reporter
from grader.step_checks import one_step, warmups

INTERVAL = 0.1  # seconds between two looks at the file


def watch_stages(stages: list[Stage | None], following: list[Stage], options: Options,
                 reporter: Reporter) -> None:
    """Grade each stage at once, and again whenever its file is saved, until Ctrl-C or q.

    stages: None stands for the warm-ups.  following: once nothing is left to do in a stage, the one
    after it in this list is watched, too.

    Each grading has a worker of its own, started before the save it waits for; the fork servers and
    the replaying workers stay.
    """
    options = replace(options, stop_early=True, benchmark=False, graded={})
    stages = list(stages)
    paths = [options.directory / (stage.filename if stage else WARM_UPS) for stage in stages]
    with (contextlib.closing(Spare(lambda i: spare_worker(stages[i], options))) as spare,
          options.page or contextlib.nullcontext(), Keys(options, reporter) as keys):
        def grade(i: int) -> None:
            stage = stages[i]
            after = next((one for one in following if not stage or one.number > stage.number), None)
            path = after and options.directory / after.filename
            if after in (None, *stages) or not path.exists():
                after = None
            if stage is None:
                done = warmups.grade(options, reporter, then=keys.offer) == 0
            else:
                take = functools.partial(spare.take, i)
                result = grade_stage(stage, replace(options, spare=take), reporter)
                keys.about(stage, result, after)
                done = result.outcome == "pass" and not result.to_fix
            if done and after is not None:
                stages.append(after)
                paths.append(path)

        def ready(i: int) -> None:
            if stages[i] is not None:
                spare.start(i)

        def say_address() -> None:
            if options.page and options.page.address:
                reporter.say(f"Page: {options.page.address}")

        def clear() -> None:
            reporter.clear()
            say_address()

        say_address()
        watch(paths, grade, reporter.say, ready, keys.pause, clear)


def watch(paths: list[Path], grade: Callable[[int], None], say: Callable[[str], None],
          ready: Callable[[int], None] = lambda i: None,
          pause: Callable[[float], None] = time.sleep, clear: Callable[[], None] = lambda: None,
          turns: int | None = None) -> None:
    """Call grade(i) at once and after every change of paths[i], until Ctrl-C; paths may grow.

    A file that changed is read when it has been quiet for INTERVAL, because its writing may take
    long.  A change during grade(i) raises FileSaved in it.  clear() is called before a grading
    again, ready(i) before each wait for a save, to prepare the next grading.  turns: end after so
    many gradings, for a test.
    """
    seen: dict[int, tuple | None] = {}  # when it was graded last
    before: dict[int, tuple | None] = {}  # at the last look
    done = 0
    while turns is None or done < turns:
        last = None
        for i, path in enumerate(paths):
            state, last_look = _state(path), before.get(i)
            before[i] = state
            if i in seen and (seen[i] == state or state != last_look):
                continue
            if i in seen:
                clear()
                say(f"{time.strftime('%H:%M:%S')}  {path.name} was saved.")
            seen[i], last = state, i
            try:
                with _ended_by_a_save(path, state):
                    grade(i)
            except FileSaved:
                break  # the next look will see the change
            done += 1
        if last is not None:
            say(f"Watching {', '.join(p.name for p in paths)}: save to grade again, Ctrl-C to end.")
            ready(last)
        pause(INTERVAL)


class Keys:
    """Keys on a terminal: h shows the next hint for the current step, s runs that step alone,
    q quits."""

    def __init__(self, options: Options, reporter: Reporter):
        self.options, self.reporter = options, reporter
        self.step, self.before = "", None

    def __enter__(self) -> "Keys":
        if sys.stdin is not None and sys.stdin.isatty():
            import termios
            import tty

            self.before = termios.tcgetattr(sys.stdin)
            tty.setcbreak(sys.stdin)
        return self

    def __exit__(self, *error) -> None:
        if self.before is not None:
            import termios

            termios.tcsetattr(sys.stdin, termios.TCSADRAIN, self.before)

    def about(self, stage: Stage, result: StageResult, after: Stage | None = None) -> None:
        """Say, of the stage graded last, what to do next and how much of the course is written."""
        directory, to_do, first, or_else = self.options.directory, result.to_fix, "", ""
        if not to_do:
            file = submission.read(directory, stage.filename, stage.entry)
            first = overview.copying(stage.number, directory)
            # Copied steps need no writing.
            blank = [*file.to_write, *(() if first else file.blank_carried)]
            to_do = f"write step {blank[0]}" if blank else ""
        elif result.outcome == "pass" and after is not None:
            or_else = f"or go on: {overview.command(after.number, directory, ' --watch')}"
        self.offer(to_do, first, or_else)
        if bar := overview.written(directory):
            self.reporter.say(bar)

    def offer(self, to_do: str, first: str = "", or_else: str = "") -> None:
        """Say what is next, such as "write step 3.5"; the keys are for that step from now on.

        first, or_else: a command to run before it, or in its place."""
        self.step = next(iter(submission.STEP_ID.findall(to_do)), "")
        keys = "   (h: a hint, s: the step alone, q: quit)" if self.before is not None else ""
        to_do = f"{'then ' if first else ''}{to_do} and save{keys}" if to_do else ""
        if lines := list(filter(None, (first, to_do, or_else))):
            self.reporter.next("\n      ".join(lines))

    def pause(self, seconds: float) -> None:
        """Wait so long; meanwhile do what a key asks for."""
        if self.before is None:
            time.sleep(seconds)
            return
        if not select.select([sys.stdin], [], [], seconds)[0]:
            return
        key = os.read(sys.stdin.fileno(), 1).decode(errors="replace").lower()
        if key in ("q", ""):
            raise KeyboardInterrupt
        if key in ("h", "s") and not self.step:
            self.reporter.say("There is no step to work on.")
        elif key == "s" and self.step in EXERCISES:
            warmups.grade(self.options, self.reporter, self.step)
        elif key == "s":
            with contextlib.suppress(ValueError):  # a save may have come since it was graded
                stage = STAGES[int(self.step.partition(".")[0])]
                one_step.ask(stage, self.step, self.options, self.reporter)
        elif key == "h":
            try:
                self.reporter.say("\n" + hints.next_hint(self.step))
            except hints.UnknownStep as error:
                self.reporter.say(str(error))


class FileSaved(BaseException):
    """The file that is being graded was saved again, so its results are out of date."""


@contextlib.contextmanager
def _ended_by_a_save(path: Path, state: tuple | None):
    """Raise FileSaved in the main thread, once, when the file changes during the block."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(INTERVAL):
            if _state(path) not in (state, None):  # an editor may remove it for a moment
                signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
                return

    def stop(number, frame) -> None:
        if not over.is_set():
            raise FileSaved

    signal.signal(signal.SIGUSR1, stop)  # never undone: by default the signal would end the process
    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class Spare:
    """The next worker, started before its file is saved.  make(i) starts one for paths[i].

    There is only one at a time, for the file graded last: on a GPU each holds some memory.
    """

    def __init__(self, make: Callable[[int], Session]):
        self.make, self.session, self.number = make, None, None

    def start(self, i: int) -> None:
        """Start one for this file, unless one is waiting; returns before it is ready."""
        if self.session is None or self.number != i:
            self.close()
            self.session, self.number = self.make(i), i

    def take(self, i: int, source: bytes) -> Session | None:
        """Give the waiting worker its file and return it; None if none waits or it has died."""
        if self.session is None or self.number != i:
            return None
        with contextlib.suppress(SubmissionError):
            self.session.start()  # if a save interrupts this, the worker keeps waiting
            if not self.session.worker.has_ended():
                session, self.session = self.session, None
                session.give(source)
                return session
        self.close()
        return None

    def close(self) -> None:
        """End the waiting worker."""
        if self.session is not None:
            self.session.close()
        self.session = None


def _state(path: Path) -> tuple | None:
    """A value that changes when the file is saved; None if there is no file."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size, found.st_ino
