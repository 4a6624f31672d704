"""--watch: grade a stage again whenever its file is saved, up to the first case that is wrong."""

import contextlib
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

from grader.sandbox.calls import SubmissionError
from grader.sandbox.session import Session

INTERVAL = 0.2  # seconds between two looks at the file


def watch(paths: list[Path], grade: Callable[[int], None], say: Callable[[str], None],
          ready: Callable[[int], None] = lambda i: None, turns: int | None = None) -> None:
    """Call grade(i) at once and after every change of paths[i]; Ctrl-C ends it.

    A change meanwhile ends grade(i) by raising Saved in it.  ready(i) follows when that is said:
    what the next time can do without.  turns: end after so many gradings, for a test.
    """
    seen: dict[int, tuple | None] = {}
    done = 0
    while turns is None or done < turns:
        for i, path in enumerate(paths):
            state = _state(path)
            if i in seen and seen[i] == state:
                continue
            if i in seen:
                say(f"{path.name} was saved.")
            seen[i] = state
            try:
                with _ended_by_a_save(path, state):
                    grade(i)
            except Saved:
                break  # the next look sees it
            done += 1
            say(f"Watching {', '.join(p.name for p in paths)}: save to grade again, Ctrl-C to end.")
            ready(i)
        time.sleep(INTERVAL)


class Saved(BaseException):
    """The file that is being graded was saved again: what is found out of it is out of date."""


@contextlib.contextmanager
def _ended_by_a_save(path: Path, state: tuple | None):
    """Raise Saved in the block, once, when the file is no longer as it was; the main thread's."""
    over = threading.Event()

    def look() -> None:
        while not over.wait(INTERVAL):
            if _state(path) not in (state, None):  # an editor may take it away for a moment
                signal.pthread_kill(threading.main_thread().ident, signal.SIGUSR1)
                return

    def stop(number, frame) -> None:
        if not over.is_set():
            raise Saved

    signal.signal(signal.SIGUSR1, stop)  # and so it stays: by default the signal ends the process
    thread = threading.Thread(target=look, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


class Spare:
    """The next worker, started before it is needed: importing PyTorch takes longer than a case."""

    def __init__(self, make: Callable[[], Session]):
        self.make, self.session = make, None

    def start(self) -> None:
        """Have one wait, if none does."""
        if self.session is None:
            self.session = self.make()
            try:
                self.session.start()
            except SubmissionError:
                self.close()

    def take(self, source: bytes) -> Session | None:
        """The one that waits, with this file; None where none does, or it has died."""
        if self.session is not None and self.session.family.has_ended():
            self.close()
        session, self.session = self.session, None
        if session is not None:
            session.give(source)
        return session

    def close(self) -> None:
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
