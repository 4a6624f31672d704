"""What the command line decided about a grading, and what the files may do meanwhile."""

import contextlib
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from grader.course.calls import SubmissionError
from grader.course.stages import Stage
from grader.host import kernel_cache
from grader.host.clock import Clock
from grader.host.first_worker import FirstWorker
from grader.host.processes import Confinement, Worker
from grader.host.session import Session


class Imports:
    """Who imports a file, and when: the worker that is asked the cases as soon as it is there, its
    helpers one after the other until somebody has got through.  One that hangs keeps two CPUs busy
    then, and not all that there are."""

    def __init__(self):
        self.one, self.got_through = threading.Lock(), False
        self.error: SubmissionError | None = None

    def first(self, session: Session, stage: Stage) -> None:
        """Raises as Session.load()."""
        session.load(stage.entry, stage.attribute, stage.positional)
        self.got_through = True

    def helper(self, session: Session, stage: Stage) -> None:
        """The same; what one helper failed by the others are not asked."""
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
    """What the command line decided.  device: "cuda" or "cpu"; timeout: seconds a request;
    stage_timeout: of all a stage's; clock, imports: those of the stage under way."""

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
    may_stop: bool = False  # in the robust cases, at the first that fails where a step is red
    replays_all: bool = False  # right answers, and not a handful of them
    case: str = ""  # the only one to ask, by its name
    own: tuple = ()  # cases that only the instructor has, of whatever stage
    show: bool = False  # draw the effective attention matrix of the first wrong case
    plot: Path | None = None  # and write it there
    page: object = None  # whose show() is told of every result: grader.page.sinks
    explains: bool = True  # of the first wrong case, what it looks like
    spare: Callable[[bytes], Session | None] | None = None  # a worker that waits for this file
    graded: dict[int, bytes] | None = None  # by stage, the file that --watch graded last
    first: FirstWorker | None = None
    clock: Clock | None = None
    imports: Imports = field(default_factory=Imports)


def open_session(stage: Stage, options: Options, source: bytes,
                 compile_for: int | None = None) -> Session:
    """A worker for this file of a stage, not asked anything yet; compile_for: as Session's."""
    session, user = None, options.confinement.user
    on_gpu = options.device == "cuda"
    # One that waited finds no kernels of earlier gradings: they lie in a folder of the file's own.
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


def spare_worker(stage: Stage, options: Options) -> Session:
    """A worker for a file that is not there yet, for Options.spare.  On a GPU it makes its context
    and loads what Triton launches by, and what is compiled in it goes with it."""
    return _started(stage, options, b"")


def _started(stage: Stage, options: Options, source: bytes, compile_for: int | None = None,
             cache: Path | None = None) -> Session:
    return Session(Worker(source, stage.filename, device=options.device,
                          interpret=options.device == "cpu", compile_for=compile_for, cache=cache,
                          confinement=options.confinement), options.timeout)
