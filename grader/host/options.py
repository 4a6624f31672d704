"""Holds a grading's options, and opens sessions with workers accordingly."""

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

from grader.course.calls import SubmissionError
from grader.course.stages import Stage
from grader.host import kernel_cache
from grader.host.clock import Clock
from grader.host.first_worker import FirstWorker
from grader.host.processes import Confinement, Worker
from grader.host.session import Session

T = TypeVar("T")


class Imports:
    """When workers import a file: the one that runs the cases as soon as it is ready, its helpers
    one after the other until one has succeeded.  A file that hangs then keeps two CPUs busy, not
    all."""

    def __init__(self):
        self.one, self.got_through = threading.Lock(), False
        self.error: SubmissionError | None = None

    def first(self, session: Session, stage: Stage) -> None:
        """Import the file in the worker that runs the cases; raises as Session.load()."""
        session.load(stage.entry, stage.attribute, stage.positional)
        self.got_through = True

    def helper(self, session: Session, stage: Stage) -> None:
        """Import it in a helper; if one helper fails, the others fail at once."""
        with contextlib.nullcontext() if self.got_through else self.one:
            if self.error is not None and not self.got_through:
                raise self.error
            try:
                self.first(session, stage)
            except SubmissionError as error:
                self.error = error
                raise


@dataclass(frozen=True)
class Options:
    """The command line's decisions.  device: "cuda" or "cpu"; timeout: seconds per request;
    stage_timeout: seconds per stage; clock, imports: the current stage's."""

    directory: Path
    device: str
    seed: int
    timeout: float
    stage_timeout: float = 600.0
    bfloat16: bool = False
    quick: bool = False
    benchmark: bool = True
    profile: bool = False  # where the time of a right file's kernels goes
    confinement: Confinement = Confinement()
    stop_early: bool = False  # after the first case that does not pass
    may_stop: bool = False  # at the first robust case that fails, if a step is red
    replays_all: bool = False  # replay all right answers, not just a handful
    case: str = ""  # the name of the only case to run
    promises_all: bool = False  # whether files without step markers promise all, too
    own: tuple = ()  # the instructor's own cases, of all stages
    show: bool = False  # draw the effective attention matrix of the first wrong case
    plot: Path | None = None  # file to draw it into
    page: object = None  # whose show() is told of every result: grader/page/server.py
    explains: bool = True  # diagnose the first wrong case
    spare: Callable[[bytes], Session | None] | None = None  # the waiting worker, for this file
    graded: dict[int, bytes] | None = None  # by stage, the file that --watch graded last
    first: FirstWorker | None = None
    clock: Clock | None = None
    imports: Imports = field(default_factory=Imports)


def open_session(stage: Stage, options: Options, source: bytes,
                 compile_for: int | None = None) -> Session:
    """A new session with a worker for this file of a stage; compile_for: as for Worker."""
    session, user = None, options.confinement.user
    on_gpu = options.device == "cuda"
    # A waiting worker would not find kernels of earlier gradings, which are in the file's own
    # folder.
    if options.spare is not None and compile_for is None \
            and not (on_gpu and kernel_cache.knows(source, user)):
        session = options.spare(source)
    if session is None and options.first is not None and compile_for is None:
        worker = options.first.take(source, stage.filename, options.device)
        session = worker and Session(worker, options.timeout)
    if session is None:
        session = _started(stage, options, source, compile_for,
                           kernel_cache.folder_for(source, user) if on_gpu else None)
    session.clock = options.clock
    return session


def run_chosen(stage: Stage, options: Options, source: bytes, ask: Callable[[Session], T],
               compile_for: int | None = None) -> T:
    """What ask(session) returns, of a new worker that has imported this file, apart from a grading.

    Raises:
        SubmissionError: the file cannot be imported, or does not get through the call.
    """
    with open_session(stage, options, source, compile_for) as session:
        session.load(stage.entry, stage.attribute, stage.positional)
        return ask(session)


def spare_worker(stage: Stage, options: Options) -> Session:
    """A worker for a file that is not saved yet, for Options.spare.  On a GPU it already makes its
    context and loads Triton's launcher; what it compiles is not kept."""
    return _started(stage, options, b"")


def _started(stage: Stage, options: Options, source: bytes, compile_for: int | None = None,
             cache: Path | None = None) -> Session:
    return Session(Worker(source, stage.filename, device=options.device,
                          interpret=options.device == "cpu", compile_for=compile_for, cache=cache,
                          confinement=options.confinement), options.timeout)
