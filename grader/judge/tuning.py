"""Runs every configuration of an autotuned kernel, where there is no GPU to choose one of them.

On a GPU the autotuner runs a kernel many times on the same memory, in each configuration, before
the run that counts.  Here it runs three times in the first configuration, once in the others.
"""

from dataclasses import replace

from grader.course.calls import Reply, SubmissionError
from grader.course.cases import Case
from grader.course.inputs import build
from grader.judge.asking import apart, judged
from grader.judge.known import Known
from grader.judge.settling import done
from grader.judge.verdict import case_text, crashed
from grader.report.overview import command
from grader.report.results import Check

MOST = 8  # configurations of a kernel
LONGEST = 256  # of a small case of attention
UNJUDGED = ("skipped", "timeout", "grader_fault")


def run_configurations(known: Known) -> None:
    """One check of them all; or, of the first that is not right, one for each group of cases."""
    said = []
    for kernel, configurations in known.tuned.items() if known.every_case else ():
        if len(configurations) < 2:
            continue
        for number, words in enumerate(configurations[:MOST]):
            failed = {}
            for case in small_cases(known):
                with known.reporter.working(known.stage, f"{words} of {kernel}"):
                    check = _run(known, case, kernel, number, words)
                if check.outcome != "pass":
                    failed.setdefault(check.group, check)
                if known.clock.is_over() or known.session.gone:
                    break
            for check in failed.values():
                done(known, check)
            if failed or known.clock.is_over():
                return
        left = configurations[MOST:]
        other = f", not {'; '.join(left[:3])}" + " ..." * (len(left) > 3) if left else ""
        said.append(f"{len(configurations) - len(left)} configurations of {kernel}{other}")
    if said:
        done(known, Check("robust/configurations", "robust", "pass", f"({', '.join(said)})"))


def small_cases(known: Known) -> list[Case]:
    """The longest standard case, and a ragged one, with the gradients that kernels compute."""
    def use(case: Case) -> tuple:
        graded = bool(case.grads) and not known.stage.backward_is_given
        return graded, case.N % 16 > 0, case.N * max(case.M, 1)

    small = [case for case in known.cases if case.M or case.N <= LONGEST]
    robust = [case for case in small if case.group == "robust" and case.family == "randn"
              and case.layout in ("dense", "guarded") and case.repeats == 1
              and not (case.refill or case.growth or case.bare)]
    return [max(cases, key=use) for cases in (
        [case for case in small if case.group == "standard"], robust) if cases]


def _run(known: Known, case: Case, kernel: str, number: int, words: str) -> Check:
    """-> the check of a case in one configuration; the first is run as if it was timed before."""
    timed = number == 0
    check, reply = _judged(known, case, (kernel, number, timed))
    if check.outcome in ("pass", *UNJUDGED):
        return check
    alone = check
    if timed and reply is not None:
        alone, _ = _judged(known, case, (kernel, number, False))
    again = f"again: {command(known.stage.number, known.options.directory, '')}"
    if alone.outcome == "pass":
        changed = reply.tuned.changed
        names = f"[{', '.join(map(repr, changed)) or '...'}]"
        check.fail(
            "wrong", f"To choose a configuration, @triton.autotune runs {kernel} many times on the "
            f"same memory.  Each run adds to {' and '.join(changed) or 'it'}, so the answer is "
            "wrong on a GPU.", f"try: @triton.autotune(..., reset_to_zero={names}) if the kernel "
            f"starts from zeros, else restore_value={names}.", again, id="autotuned-in-place")
    else:
        check = alone
        check.group = "robust"  # another configuration may be chosen
        check.lines = (f"The autotuner may choose {words} for {kernel}, which is not right:",
                       *check.lines, again)
    check.name, check.label = f"{check.group}/configurations", f"{case_text(case)}, {words}"
    return check


def _judged(known: Known, case: Case, configuration: tuple[str, int, bool]
            ) -> tuple[Check, Reply | None]:
    built = build(case, known.options.seed)
    built = replace(built, call=replace(built.call, configuration=configuration))
    try:
        reply = known.session.run(built.call)
    except SubmissionError as error:
        if known.clock.asks_again(error):
            return apart(known, built), None
        return crashed(case, error, known.file, known.stage), None
    return judged(known, built, reply), reply
