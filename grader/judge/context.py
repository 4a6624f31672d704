"""Holds what all parts of the grading of one stage share."""

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
    """A stage, its file, the options and the result so far.  Use it in a `with`, which ends the
    workers opened through it.

    options: the command line's, with this stage's clock and imports.
    """

    def __init__(self, stage: Stage, file: Submission, options: Options, reporter: Reporter,
                 result: StageResult):
        self.stage, self.file, self.options = stage, file, options
        self.reporter, self.result = reporter, result
        self.step_checks: StepChecks | None = None
        self.claimed: frozenset[str] | None = None  # judge/claims.py; None: all
        self.under_way: list[concurrent.futures.Future] = []  # running beside the cases
        self.stack = contextlib.ExitStack()

    def __enter__(self) -> "GradingContext":
        return self

    def __exit__(self, *error) -> None:
        self.stack.close()

    @property
    def promises_all(self) -> bool:
        """Whether the file promises all that this course asks: its step markers say so, even
        damaged ones, or whoever grades it.  What another file claims is in self.claimed."""
        return bool(self.options.promises_all or self.file.steps or damaged(self.file))

    @property
    def runs_every_case(self) -> bool:
        return not (self.options.quick or self.options.case)

    def open_session(self) -> Session:
        """A new worker for this file, which lives until the stage ends."""
        return self.stack.enter_context(open_session(self.stage, self.options, self.file.source))

    def beside(self, work: Callable[[Session], object], compile_for: int | None = None
               ) -> concurrent.futures.Future:
        """Call work(session) in a thread of its own, with a new worker that has no GPU.  It begins
        once the step checks, which students wait for, are done, and the worker ends with it."""
        pool = self.stack.enter_context(concurrent.futures.ThreadPoolExecutor(1))
        # Entered after the pool: on the way out the worker ends first, so the pool need not wait.
        opened, options = self.stack.enter_context(contextlib.ExitStack()), self.options

        def run():
            if self.step_checks and options.device == "cpu":
                self.step_checks.result()
            with opened.enter_context(open_session(
                    self.stage, replace(options, device="cpu", spare=None), self.file.source,
                    compile_for)) as session:
                return work(session)

        future = pool.submit(run)
        self.under_way.append(future)
        return future

    def all_right(self) -> bool:
        return all(check.stands or check.outcome == "needless work" for check in self.result.checks
                   if check.group != "beyond")

    def show_steps(self) -> list[dict]:
        """Wait for the step checks and the search for what is wrong with red ones, and show them,
        unless they were shown already.  -> the steps as in the JSON."""
        if self.step_checks and self.step_checks.steps is None:
            self.result.steps = self.step_checks.shown(self.reporter)
            self.show_page()
        return self.result.steps

    def show_page(self) -> None:
        """Have --page show what is known by now."""
        if self.options.page is not None:
            self.options.page.show(self.stage, self.result, self.file)

    def end(self, outcome: str, sentence: str, detail: str = "") -> None:
        """Say why the stage ended early."""
        self.show_steps()
        self.result.outcome, self.result.sentence = outcome, sentence
        self.result.detail = detail
