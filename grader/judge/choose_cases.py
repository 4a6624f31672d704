"""Reads a stage's file, and chooses the cases to run it on."""

from dataclasses import replace

from grader.assignment import submission
from grader.assignment.submission import Submission
from grader.course import case_table, contract
from grader.course.cases import Case
from grader.course.inputs import build
from grader.course.stages import Stage
from grader.host.options import Options
from grader.judge import claims
from grader.judge.context import GradingContext
from grader.judge.run_cases import run_apart


def read(stage: Stage, options: Options) -> Submission:
    """Read the stage's file.  If its blanks are empty it is graded all the same when it answers
    rightly, because its code may be elsewhere in the file."""
    file = submission.read(options.directory, stage.filename, stage.entry)
    if file.state == "not_started" and file.unwritten:
        first = case_table.listed(stage.number, options.device, options.bfloat16)[0]
        with GradingContext(stage, file, options, None, None) as apart:
            if run_apart(apart, build(first, options.seed)).outcome == "pass":
                return replace(file, state="ready")
    return file


def choose_cases(context: GradingContext) -> tuple[list[Case], list[Case]]:
    """-> the cases that decide the outcome; the cases that are only reported."""
    stage, options = context.stage, context.options
    listed = case_table.listed(stage.number, options.device, options.bfloat16)
    if not context.promises_all:
        context.claimed = claims.from_text(stage, context.file)
        listed = [claims.unpromised(case) if case.course else case for case in listed]
    listed += [case for case in options.own if case.stage == stage.number]
    if options.case:
        named = [case for case in listed if options.case == case.name
                 or case.course and options.case == claims.unpromised(case).name]
        return named or list(filter(None, [contract.named(stage, options.case)])), []
    groups = ("standard",) if options.quick else ("standard", "robust")
    decisive = [case for case in listed if case.group in groups]
    if options.quick or options.stop_early:
        return decisive, []
    return decisive, [case for case in listed if case.group == "beyond"]
