"""Runs more cases on a file that is right so far: what only this course promises, at the borders of
the file's own tiles, and beyond what is asked."""

import contextlib
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from grader.course import contract
from grader.course.calls import SubmissionError
from grader.course.cases import LARGEST, Case
from grader.judge import claims
from grader.judge.context import GradingContext
from grader.judge.record_check import record
from grader.judge.run_cases import CasesRun, Waiting, run_case
from grader.report.results import WRONG, Check


def run_claimed(context: GradingContext, run: CasesRun, cases: Sequence[Case]) -> None:
    """Run, on a file without step markers, the cases that only this course promises.  Those that
    the file claims (claims.py) decide, the others are only reported."""
    if not cases:
        return
    cases = sorted(cases, key=lambda case: LARGEST in (case.window, case.sinks))  # may never end
    checks = dict(_each(context, run, cases))
    context.claimed |= claims.from_answers(checks)
    for case, check in checks.items():
        if claims.decides(context.file, case, check, context.claimed):
            if check.outcome != "pass":
                check = next((told for _, told in _each(context, run, [case], explained=False)),
                             check)
            check = replace(check, group="robust")
        record(context, replace(check, asks=""))  # asks: for the line on what decides nothing
    context.result.remarks.append(
        claims.in_words(context.file, checks, context.claimed))


def run_at_tile_borders(context: GradingContext, run: CasesRun) -> None:
    """Run the contract's cases at the borders of the file's own tiles, and cases like the examples
    of red steps, up to the first that fails; record them as one check.  On a GPU only the latter,
    because every D, dtype and layout is compiled anew there."""
    stage, options, on_gpu = context.stage, context.options, context.options.device != "cpu"
    if not context.runs_every_case:
        return
    cases = [] if on_gpu else contract.cases(stage, run.tiles, context.claimed, options.seed)
    for step in context.step_checks.result():
        if step.light == WRONG:
            cases += contract.aimed(stage, step.example, run.tiles, options.seed, on_gpu)
    sizes = f"your tile sizes ({', '.join(map(str, sorted(run.tiles)))})" if run.tiles else \
        "a usual tile size (64)"
    run.explained = any(not check.stands and check.group != "beyond"
                        for check in context.result.checks)
    _revive(context, run)
    waiting = Waiting(context, cases)
    waiting.help_after_step_checks(run)
    while case := waiting.next():
        place = f"case {len(cases) - waiting.left} of {len(cases)} at borders"
        with context.reporter.working(stage, place):
            check, alive = run_case(context, run.session, case, run)
        if check is not None and check.outcome != "pass" and context.claimed is not None and (
                not claims.decides(context.file, case, check, context.claimed)) and alive:
            continue  # it refuses this size, say, and not others of the kind
        if check is None or check.outcome != "pass" or not alive or options.clock.is_over():
            waiting.stop()
            if check is not None and check.outcome != "pass":
                record(context, check)
            return
    if cases:
        record(context, Check("robust/contract", "robust", "pass",
                              f"({len(cases)} cases with lengths just below and above {sizes})"))


def run_informational(context: GradingContext, run: CasesRun, cases: Sequence[Case]) -> None:
    """Run the cases beyond what is asked."""
    for _, check in _each(context, run, cases):
        record(context, check)


def _each(context: GradingContext, run: CasesRun, cases: Sequence[Case], explained: bool = True
          ) -> Iterator[tuple[Case, Check]]:
    """Each case with its check, until a call does not end; a dead worker is replaced.  explained:
    whether a wrong answer needs no diagnosis."""
    with contextlib.suppress(SubmissionError, torch.OutOfMemoryError):
        for case in cases:
            check = None
            while check is None:
                _revive(context, run)
                run.explained = explained
                with context.reporter.working(context.stage, case.name):
                    check, _ = run_case(context, run.session, case, run)
            if check.outcome != "skipped":  # skipped: the driver cannot lay out the inputs
                yield case, check
            if check.outcome == "timeout":
                return


def _revive(context: GradingContext, run: CasesRun) -> None:
    """Replace a dead worker."""
    if run.session.gone:
        run.session = context.open_session()
        context.options.imports.first(run.session, context.stage)
