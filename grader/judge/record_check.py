"""Records checks in a stage's result, and reports them.

A rejection needs proof, so it is reported last.  A file that is wrong in a standard case, reads
outside of its tensors, or whose kernels alone return the same, is wrong and not rejected; one that
launches nothing is not started.
"""

from dataclasses import replace

from grader.judge.context import GradingContext
from grader.judge.verdict import blanks_left, note_misjoined, note_red
from grader.report.overview import command
from grader.report.results import Check, read_beside


def record(context: GradingContext, check: Check) -> None:
    """Add a check, or replace an earlier one of the same case."""
    options, result = context.options, context.result
    context.show_steps()
    if check.outcome == "crashed":
        check = note_red(check, result.red)
    if check.outcome in ("wrong", "crashed") and options.device == "cpu":
        check = note_misjoined(check, context.file)
    if (check.outcome == "wrong" or check.seed is not None) and not check.again and (
            check.name not in {case.name for case in options.own}):  # students do not have it
        seed = options.seed if check.seed is None else check.seed
        check = replace(check, again=command(context.stage.number, options.directory,
                                             f" --seed {seed} --case {check.name}"))
    names = [one.name for one in result.checks]
    place = names.index(check.name) if check.name in names else len(names)
    result.checks[place:place + 1] = [check]
    reasons_wanted = options.case or context.reporter.verbose  # else the stage's end has them
    if check.outcome != "rejected" and (
            check.group != "beyond" and check.outcome != "skipped" or reasons_wanted):
        context.reporter.check_done(context.stage, check)


def record_blanks(context: GradingContext) -> None:
    """Record a check for blanks that no case reached."""
    if context.file.unreached and context.all_right():
        check = blanks_left(context.file)
        context.result.sentence = context.result.sentence or check.what
        record(context, check)


def report_rejections(context: GradingContext) -> None:
    """Report the rejections held back, unless the file is wrong anyway."""
    result = context.result
    wrong = any(check.group == "standard" and not check.stands and check.outcome != "rejected"
                or read_beside(check) for check in result.checks)
    idle = context.stage.needs_triton and not result.kernels
    for place, check in enumerate(result.checks):
        if check.outcome != "rejected":
            continue
        if wrong:
            check = check.fail("wrong", "Not judged further: another case shows that it is wrong.")
        elif idle:
            check = check.fail(
                "not_started", "No kernel was launched yet: PyTorch computed this.",
                advice="this stage is its kernels; begin with the first step.")
        result.checks[place] = check
        context.reporter.check_done(context.stage, check)
