"""What every part of the grading of one stage of one submission is given."""

import concurrent.futures
import contextlib
from collections.abc import Callable
from dataclasses import replace

from grader.assignment.submission import Submission
from grader.course.stages import Stage
from grader.host.options import Options, open_session
from grader.host.session import Session
from grader.report.results import StageResult
from grader.report.screen import Reporter
from grader.step_checks.checks import StepChecks, damaged


class GradingContext:
    """A stage, its file, what the command line decided, and the result so far.  `with` it, for it
    ends the workers that are opened through it.

    options: with the clock and the imports of this stage.
    """

    def __init__(self, stage: Stage, file: Submission, options: Options, reporter: Reporter,
                 result: StageResult):
        self.stage, self.file, self.options = stage, file, options
        self.reporter, self.result = reporter, result
        self.step_checks: StepChecks | None = None
        self.under_way: list[concurrent.futures.Future] = []  # in workers beside the cases
        self.stack = contextlib.ExitStack()

    def __enter__(self) -> "GradingContext":
        return self

    def __exit__(self, *error) -> None:
        self.stack.close()

    @property
    def has_markers(self) -> bool:
        """Whether the file has this course's step markers, be they damaged."""
        return bool(self.file.steps or damaged(self.file))

    @property
    def runs_every_case(self) -> bool:
        return not (self.options.quick or self.options.case)

    def open_session(self) -> Session:
        """A new worker for this file, until the stage ends."""
        return self.stack.enter_context(open_session(self.stage, self.options, self.file.source))

    def beside(self, work: Callable[[Session], object], compile_for: int | None = None
               ) -> concurrent.futures.Future:
        """work(session) in a thread of its own, with a new worker that has no GPU and ends with
        it."""
        pool = self.stack.enter_context(concurrent.futures.ThreadPoolExecutor(1))
        # Entered after the pool, so that it ends before the pool waits for it.
        session = self.stack.enter_context(open_session(
            self.stage, replace(self.options, device="cpu", spare=None), self.file.source,
            compile_for))
        future = pool.submit(work, session)
        future.add_done_callback(lambda _: session.close())
        self.under_way.append(future)
        return future

    def all_right(self) -> bool:
        return all(check.outcome in ("pass", "needless work") for check in self.result.checks)

    def show_steps(self) -> list[dict]:
        """The steps as the JSON has them; the first call waits for them and shows them."""
        self.result.steps = self.step_checks.shown(self.reporter) if self.step_checks else []
        return self.result.steps

    def end(self, outcome: str, sentence: str, detail: str = "") -> None:
        """Say why the stage ended early."""
        self.show_steps()
        self.result.outcome, self.result.sentence = outcome, sentence
        self.result.detail = detail
