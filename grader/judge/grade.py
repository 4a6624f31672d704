"""Grades one stage of a submission, from its file to its points.

However a stage ends, the next one is graded; and a fault of the grader never costs points.
"""

import time
import traceback
from dataclasses import replace

from grader.course.cases import Case
from grader.course.stages import Stage
from grader.host import worker_pool
from grader.host.clock import Clock
from grader.host.options import Imports, Options
from grader.judge import (
    claims,
    compile_check,
    extra_cases,
    interpreter_check,
    profiling,
    record_check,
    replay_check,
    timing,
    tuning,
    wasted_tiles,
)
from grader.judge.choose_cases import choose_cases, read
from grader.judge.context import GradingContext
from grader.judge.points import settle
from grader.judge.precompile import Precompiler
from grader.judge.run_cases import run_cases
from grader.report.results import StageResult, settled_by_reading
from grader.report.screen import Reporter
from grader.step_checks.checks import StepChecks


def grade_stage(stage: Stage, options: Options, reporter: Reporter) -> StageResult:
    """Grade one stage from the file in options.directory; never raises but for Ctrl-C."""
    result, start = StageResult(stage.number, stage.title, stage.points), time.monotonic()
    clock, file, cases = Clock(options.stage_timeout), None, []
    reporter.stage_begins(stage)
    try:
        options = replace(options, clock=clock, imports=Imports())
        file = read(stage, options)
        stage = replace(stage, origins={
            step.id: step.origin for step in file.steps if step.origin})
        if not settled_by_reading(stage, file, result):
            with GradingContext(stage, file, options, reporter, result) as context:
                cases, informational = choose_cases(context)
                judge_file(context, cases, informational)
        if clock.is_over() and not result.sentence:
            result.sentence = f"{clock.words()}; what was judged stands."
    except Exception as error:
        result.outcome = "grader_fault"
        result.sentence = (f"the grader itself failed ({type(error).__name__}: {error}); nothing "
                           "is settled by it. Please run it again; if it comes back, report the "
                           "lines below.")
        result.detail = traceback.format_exc()
    settle(result, cases, options)
    if file and result.outcome not in ("pass", "skipped"):
        said = dict.fromkeys(filter(None, (result.sentence, file.nothing_yet)))
        result.sentence = " ".join(said)
    result.seconds = time.monotonic() - start
    reporter.stage_ends(stage, result)
    if options.page is not None:
        options.page.show(stage, result, file, True)
    return result


def judge_file(context: GradingContext, cases: list[Case], informational: list[Case]) -> None:
    """Run the cases and all other checks, and record what they show.

    cases: decide the outcome.  informational: only reported, and only if the file is right.
    """
    stage, options = context.stage, context.options
    session = context.open_session()  # first, because on a GPU a worker is slow to start
    replaying = worker_pool.workers(options.device, options.timeout, options.confinement)
    replaying.clock = options.clock
    if options.device == "cuda":
        replaying.begin()
    context.step_checks = context.stack.enter_context(StepChecks(stage, options, context.file))
    compiling = compile_check.start(context) if options.spare is None else None
    interpreted, drawn = interpreter_check.start(context), None
    if options.page is not None:
        from grader.judge import pictures  # its templates take 0.08 s, and few runs draw

        drawn = pictures.start(context)
    prepare = Precompiler(context, [*cases, *informational]).ready \
        if options.device == "cuda" else lambda session, case: None

    run = run_cases(context, session, cases, prepare)
    context.show_steps()

    def is_right() -> bool:
        alive = run.session is not None and not run.session.gone
        return alive and context.all_right()

    promised = [case for case in informational if case.course]
    if is_right():
        extra_cases.run_claimed(context, run, promised)
    if is_right():
        extra_cases.run_at_tile_borders(context, run)
    if is_right():
        tuning.run_configurations(context, run, cases)
    claims.note_rounding(context)
    compile_check.finish(context, compiling)
    replay_check.replay_some(context, replaying, run.right)
    record_check.record_blanks(context)
    if is_right():
        interpreter_check.finish(context, interpreted)
    if is_right():
        wasted_tiles.count(context, run.session, interpreted)
    if drawn is not None:
        pictures.finish(context, drawn)  # before anything is timed
    if is_right():
        profiling.note_roofline(context, timing.time_stage(context, run, replaying))
    profiling.profile_stage(context, run.session if is_right() else None)
    record_check.report_rejections(context)
    if is_right():
        extra_cases.run_informational(
            context, run, [case for case in informational if case not in promised])
