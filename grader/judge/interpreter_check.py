"""On a GPU, runs a few cases in Triton's interpreter as well, for what only that can show.

That is loads and stores outside of a tensor, programs of one launch that access the same element,
and the tiles that a loop visits (wasted_tiles.py).  What the interpreter cannot run is not checked.
"""

import concurrent.futures
import contextlib
import random
from dataclasses import replace

from grader.course.calls import SubmissionError
from grader.course.case_table import listed
from grader.course.cases import Case
from grader.course.inputs import build
from grader.host.session import Session
from grader.judge import wasted_tiles
from grader.judge.context import GradingContext
from grader.judge.record_check import record
from grader.judge.verdict import case_text, crashed, raced
from grader.report.results import Check

RAGGED = 3  # cases


def start(context: GradingContext) -> concurrent.futures.Future | None:
    """-> the future of two checks, either of which may be None.  Without a GPU there is no future,
    because the cases themselves run in the interpreter."""
    if context.options.device == "cpu" or not context.runs_every_case:
        return None
    return context.beside(lambda session: _run(context, session))


def finish(context: GradingContext, found: concurrent.futures.Future | None) -> None:
    """Wait for the checks, and record what is wrong."""
    if found is not None:
        with context.reporter.working(context.stage, "ragged cases in the interpreter"):
            check, _ = found.result()
        if check is not None:
            record(context, check)


def _run(context: GradingContext, session: Session) -> tuple[Check | None, Check | None]:
    wrong = tiles = None
    with contextlib.suppress(SubmissionError):
        context.options.imports.helper(session, context.stage)
        if context.stage.needs_triton:
            wrong = _first_wrong(context, session)
        if wasted_tiles.is_counted(context):
            tiles = wasted_tiles.tiles_check(context.stage, context.options, session)
    return wrong, tiles


def ragged_cases(context: GradingContext) -> list[Case]:
    """A few short cases, drawn from the seed; with gradients if kernels compute them."""
    stage = context.stage
    cases = [case for case in listed(stage.number, "cpu", False)
             if case.group == "robust" and not (case.course or case.growth) and case.is_ragged
             and len(case.grads) == 3 * stage.differentiates]
    return random.Random(context.options.seed).sample(cases, min(RAGGED, len(cases)))


def _first_wrong(context: GradingContext, session: Session) -> Check | None:
    for case in ragged_cases(context):
        try:
            reply = session.run(build(case, context.options.seed).call)
        except SubmissionError as error:
            if error.id.startswith("out-of-bounds"):
                check = crashed(case, error, context.file, context.stage)
                return replace(check, label=f"{check.label}, in Triton's interpreter")
            continue
        if reply.race:
            check = Check(case.name, case.group, "pass", case_text(case))
            return raced(check, reply.race, context.file)
    return None
