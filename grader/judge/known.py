"""What is known so far of one stage of a submission: given to every part of its way (grade.py)."""

import concurrent.futures
import contextlib
from collections.abc import Callable
from dataclasses import replace

from grader.assignment.submission import Submission
from grader.course.cases import Case
from grader.course.stages import Stage
from grader.host.clock import Clock
from grader.host.options import Imports, Options, open_session
from grader.host.session import Session
from grader.lights.lights import Lights
from grader.report.results import Check, StageResult
from grader.report.screen import Reporter


class Known:
    """One stage of one submission under way; above each group of names, who adds it."""

    def __init__(self, stage: Stage, options: Options, reporter: Reporter):
        self.stage, self.reporter = stage, reporter
        self.clock = Clock(options.stage_timeout)
        self.options = replace(options, clock=self.clock, imports=Imports())
        self.every_case = not (options.quick or options.case)  # is asked
        self.stack = contextlib.ExitStack()  # ends what is at work
        # All parts; the checks by settling.py.
        self.result = StageResult(stage.number, stage.title, stage.points)
        # reading.py
        self.file: Submission | None = None
        self.marked = False  # it has this course's step markers, be they damaged
        self.cases: list[Case] = []  # that are to be asked, and decide; none: the file says it all
        self.beyond: list[Case] = []  # that are asked at the end, and decide nothing
        # grade.begin(): what is at work.
        self.session: Session | None = None  # of the last case; none if the stage ended early
        self.lights: Lights | None = None
        self.compiling: concurrent.futures.Future | None = None
        self.counting: concurrent.futures.Future | None = None
        self.workers = self.confirmations = None  # without_file.ReplayingWorkers, Confirmations
        self.ready = lambda session, case: None  # a Precompiler's: before each case
        # asking.py
        self.tiles: set[int] = set()  # sizes that the file launches with
        self.deaths = 0  # of workers
        self.tuned: dict[str, tuple[str, ...]] = {}  # configurations, by the autotuned kernel
        self.taught = not options.explains  # what is wrong: of one case is enough
        # settling.py
        self.accusations: list[Check] = []  # not reported before all standard cases are in

    def open_session(self) -> Session:
        return open_session(self.stage, self.options, self.file.source)

    def beside(self, work: Callable, compile_for: int | None = None,
               session: Session | None = None) -> concurrent.futures.Future:
        """What work(session) gives, in a thread of its own, of a worker without a GPU: a new one,
        or that of a session which nobody else uses."""
        pool = self.stack.enter_context(concurrent.futures.ThreadPoolExecutor(1))
        # Entered after the pool, so that it ends before the pool waits for it.
        session = self.stack.enter_context(session or open_session(
            self.stage, replace(self.options, device="cpu", spare=None), self.file.source,
            compile_for))
        return pool.submit(work, session)

    def all_right(self) -> bool:
        return all(check.outcome in ("pass", "needless work") for check in self.result.checks)

    def lit(self) -> list[dict]:
        """All steps; the first call shows their lights."""
        self.result.steps = self.lights.shown(self.reporter) if self.lights else []
        return self.result.steps

    def end(self, outcome: str, sentence: str, detail: str = "") -> None:
        """Why the stage ended early."""
        self.lit()
        self.result.outcome, self.result.sentence = outcome, sentence
        self.result.detail = detail
