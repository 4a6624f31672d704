"""A check that is settled: noted in the result, and reported.

Given: a check.  Adds: it to the result's.  An accusation needs a proof, and is not reported before
accuse(): a file that is wrong in a standard case, that reads beside its tensors, or whose kernels
give what it gives itself, is wrong and no more; one that launches nothing is not started.
"""

from grader.judge.known import Known
from grader.judge.verdict import blanks_left, note_command, note_misjoined, note_red
from grader.report.overview import command
from grader.report.results import Check, read_beside


def done(known: Known, check: Check) -> None:
    options, result = known.options, known.result
    known.lit()
    if check.outcome == "crashed":
        note_red(check, result.red)
    if check.outcome in ("wrong", "crashed") and options.device == "cpu":
        note_misjoined(check, known.file)
    if check.name in {case.name for case in options.own}:  # nobody else can ask it
        check.lines = tuple(line for line in check.lines if not line.startswith("again: "))
    elif check.outcome == "wrong" or check.seed is not None:
        seed = options.seed if check.seed is None else check.seed
        note_command(check, command(known.stage.number, options.directory,
                                    f" --seed {seed} --case {check.name}"))
    result.checks.append(check)
    if check.outcome == "rejected":
        known.accusations.append(check)
    elif check.group != "beyond" and check.outcome != "skipped" or options.case \
            or known.reporter.verbose:  # why others are skipped stands at the stage's end
        known.reporter.check_done(known.stage, check)


def blanks(known: Known) -> None:
    """Blanks that no case reached."""
    if known.file.unreached and known.all_right():
        done(known, blanks_left(known.file))


def accuse(known: Known) -> None:
    """Report what was held back; of a file that is wrong anyway it is no accusation."""
    result = known.result
    wrong = any(check.group == "standard" and check.outcome not in ("pass", "rejected")
                or read_beside(check) for check in result.checks)
    idle = known.stage.needs_triton and not result.kernels
    for check in known.accusations:
        if wrong:
            check.fail("wrong", "Not judged further: another case shows that it is wrong.")
        elif idle:
            check.fail("not_started", "No kernel was launched yet: PyTorch computed this.",
                       "try: this stage is its kernels; begin with the first step.")
        known.reporter.check_done(known.stage, check)
