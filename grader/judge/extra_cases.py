"""Runs more cases on a file that is right so far: at the borders of its own tiles, and beyond what
the assignment asks."""

import contextlib

import torch

from grader.course import contract
from grader.course.calls import SubmissionError
from grader.course.cases import Case
from grader.course.inputs import build
from grader.judge.context import GradingContext
from grader.judge.record_check import record
from grader.judge.run_cases import CasesRun, Waiting, judged, run_case
from grader.judge.verdict import crashed
from grader.report.results import WRONG, Check


def run_at_tile_borders(context: GradingContext, run: CasesRun) -> None:
    """Run the contract's cases at the borders of the file's own tiles, and cases like the examples
    of red steps, up to the first that fails; record them as one check.  On a GPU only the latter,
    because every D, dtype and layout is compiled anew there."""
    stage, options, on_gpu = context.stage, context.options, context.options.device != "cpu"
    if not context.runs_every_case:
        return
    logits = "sink_logits" in context.file.parameters(stage.entry)
    cases = [] if on_gpu else contract.cases(
        stage, run.tiles, context.has_markers, logits, options.seed)
    for step in context.step_checks.result():
        if step.light == WRONG:
            cases += contract.aimed(stage, step.example, run.tiles, logits, options.seed, on_gpu)
    sizes = f"its tiles, {', '.join(map(str, sorted(run.tiles)))}" if run.tiles else "tiles"
    waiting = Waiting(context, cases)
    waiting.help_after_step_checks(run)
    while case := waiting.next():
        place = f"case {len(cases) - waiting.left} of {len(cases)} at borders"
        with context.reporter.working(stage, place):
            check, alive = run_case(context, run.session, case, run)
        if check is None or check.outcome != "pass" or not alive or options.clock.is_over():
            waiting.stop()
            if check is not None and check.outcome != "pass":
                record(context, check)
            return
    if cases:
        record(context, Check("robust/contract", "robust", "pass",
                              f"({len(cases)} cases at the borders of {sizes})"))


def run_informational(context: GradingContext, run: CasesRun, cases: list[Case]) -> None:
    """Run the cases beyond the assignment, until a call does not end; replace a dead worker."""
    session = run.session
    with contextlib.suppress(SubmissionError, torch.OutOfMemoryError):
        for case in cases:
            if session.gone:
                session = context.open_session()
                context.options.imports.first(session, context.stage)
            built = build(case, context.options.seed)
            try:
                with context.reporter.working(context.stage, case.name):
                    run.prepare(session, case)
                    check = judged(context, built, session.run(built.call))
            except SubmissionError as error:
                check = crashed(case, error, context.file, context.stage)
            if check.outcome != "skipped":  # skipped: the driver cannot lay out the inputs
                record(context, check)
            if check.outcome == "timeout":
                return
