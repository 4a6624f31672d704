"""Without a GPU, runs an autotuned kernel in each of its configurations.

On a GPU the autotuner runs a kernel many times on the same memory, in each configuration, before
the run that counts.  Here it runs three times in the first configuration and once in the others.
"""

from collections.abc import Sequence
from dataclasses import replace

from grader.course.calls import Reply, SubmissionError
from grader.course.cases import Case
from grader.course.inputs import build
from grader.course.stages import Stage
from grader.host.session import Session
from grader.judge.context import GradingContext
from grader.judge.record_check import record
from grader.judge.run_cases import CasesRun, judged, run_apart
from grader.judge.verdict import case_text, crashed
from grader.report.overview import command
from grader.report.results import Check

MOST = 8  # configurations per kernel
LONGEST = 256  # length of a small case
UNJUDGED = ("skipped", "timeout", "grader_fault")


def run_configurations(context: GradingContext, run: CasesRun, cases: Sequence[Case]) -> None:
    """Record one check for all configurations or, for the first wrong one, one per group."""
    said, clock = [], context.options.clock
    for kernel, configurations in run.tuned.items() if context.runs_every_case else ():
        if len(configurations) < 2:
            continue
        for number, words in enumerate(configurations[:MOST]):
            failed = {}
            for case in small_cases(context.stage, cases):
                with context.reporter.working(context.stage, f"{words} of {kernel}"):
                    check = _run(context, run.session, case, kernel, number, words)
                if check.outcome != "pass":
                    failed.setdefault(check.group, check)
                if clock.is_over() or run.session.gone:
                    break
            for check in failed.values():
                record(context, check)
            if failed or clock.is_over():
                return
        left = configurations[MOST:]
        other = f", not {'; '.join(left[:3])}" + " ..." * (len(left) > 3) if left else ""
        said.append(f"{len(configurations) - len(left)} configurations of {kernel}{other}")
    if said:
        record(context, Check("robust/configurations", "robust", "pass", f"({', '.join(said)})"))


def small_cases(stage: Stage, cases: Sequence[Case]) -> list[Case]:
    """The longest standard case and a ragged one, with the gradients that kernels compute."""
    def use(case: Case) -> tuple:
        graded = bool(case.grads) and not stage.backward_is_given
        return graded, case.is_ragged, case.N * max(case.M, 1)

    small = [case for case in cases if case.M or case.N <= LONGEST]
    robust = [case for case in small if case.group == "robust" and case.family == "randn"
              and case.layout in ("dense", "guarded") and case.repeats == 1
              and not (case.refill or case.growth or case.bare)]
    standard = [case for case in small if case.group == "standard"]
    return [max(some, key=use) for some in (standard, robust) if some]


def _run(context: GradingContext, session: Session, case: Case, kernel: str, number: int,
         words: str) -> Check:
    """-> the check of a case in one configuration; the first is run as if it were timed before."""
    timed = number == 0
    check, reply = _judged(context, session, case, (kernel, number, timed))
    if check.outcome in ("pass", *UNJUDGED):
        return check
    alone = check
    if timed and reply is not None:
        alone, _ = _judged(context, session, case, (kernel, number, False))
    again = command(context.stage.number, context.options.directory)
    if alone.outcome == "pass":
        changed = reply.tuned.changed
        names = f"[{', '.join(map(repr, changed)) or '...'}]"
        check = check.fail(
            "wrong", f"To choose a configuration, @triton.autotune runs {kernel} many times on the "
            f"same memory. Each run adds to {' and '.join(changed) or 'it'}, so the answer is "
            "wrong on a GPU.", id="autotuned-in-place", advice="@triton.autotune(..., "
            f"reset_to_zero={names}) if the kernel starts from zeros, otherwise "
            f"restore_value={names}.")
    else:
        check = replace(alone, group="robust", what=(  # another configuration may be chosen there
            f"The autotuner may choose {words} for {kernel}, and that is wrong: {alone.what}"))
    return replace(check, name=f"{check.group}/configurations", again=again,
                   label=f"{case_text(case)}, {words}")


def _judged(context: GradingContext, session: Session, case: Case,
            configuration: tuple[str, int, bool]) -> tuple[Check, Reply | None]:
    built = build(case, context.options.seed)
    built = replace(built, call=replace(built.call, configuration=configuration))
    try:
        reply = session.run(built.call)
    except SubmissionError as error:
        if context.options.clock.asks_again(error):
            return run_apart(context, built), None
        return crashed(case, error, context.file, context.stage), None
    return judged(context, built, reply), reply
