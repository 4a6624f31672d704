"""Compiles a submission's kernels for a GPU that is not here, while its cases are asked.

The interpreter lets through what the compiler refuses, and knows no bfloat16: this does.
Given: the file, and at the end the kernels that the cases launched.  Adds: one check.
"""

from dataclasses import replace

from grader.course.calls import SubmissionError
from grader.course.case_table import listed
from grader.course.inputs import build
from grader.host.session import Session
from grader.judge.known import Known
from grader.judge.settling import done
from grader.judge.verdict import crashed
from grader.report.results import Check
from grader.sandbox.wire import dtype_name

COMPILE_FOR = 90  # sm_90


def begin(known: Known) -> None:
    if known.every_case and known.options.device == "cpu" and known.stage.needs_triton:
        known.compiling = known.beside(lambda session: _compile(known, session), COMPILE_FOR)


def compiled(known: Known) -> None:
    """Wait for it, unless the stage ended early or nothing was launched: the kernels that ran,
    name@line, must be those that were compiled, too."""
    kernels = known.result.kernels
    if known.result.sentence or not kernels:
        return
    if known.compiling is None and known.all_right():
        begin(known)
    if known.compiling is None:
        return
    with known.reporter.working(known.stage, "compiling the kernels"):
        check, error = known.compiling.result()
        if error is not None and known.clock.asks_again(error):
            begin(known)
            check, _ = known.compiling.result()
    names = {kernel.partition("@")[0] for kernel in kernels}
    other = sorted(kernel for kernel in set(check.kernels) - kernels
                   if kernel.partition("@")[0] in names)
    if check.outcome == "pass" and (other or not check.kernels):
        launched = f"another {other[0].partition('@')[0]} than in the interpreter" if other \
            else "none"
        check.fail(
            "rejected", f"Where kernels are compiled the file launches {launched}.",
            "try: launch the same kernels everywhere; the interpreter is only for lack of a GPU.")
    done(known, check)


def _compile(known: Known, session: Session) -> tuple[Check, SubmissionError | None]:
    """As the first GPU case would launch them; the one with the widest rows, whose tiles take most
    shared memory; and the longest, for tiles that grow with it.  -> the check, and what it ended
    in."""
    stage = known.stage
    cases = [replace(case, group="robust")
             for case in listed(stage.number, "cuda", True) if not case.asks]
    widest = max(cases, key=lambda case: (case.D * case.dtype.itemsize, case.D))
    longest = max(cases, key=lambda case: max(case.N, case.M))
    name, target, kernels = f"compile/sm_{COMPILE_FOR}", f"sm_{COMPILE_FOR}", []
    case = cases[0]
    try:
        known.options.imports.helper(session, stage)
        for case in (cases[0], widest, longest):
            kernels += session.compile(build(case, known.options.seed).call, to_ptx=True)
    except SubmissionError as error:
        check = crashed(case, error, known.file, stage)
        words = f"D={case.D}, L={case.N}, {dtype_name(case.dtype)}"
        check.name, check.label = name, f"(compiled for {target}, {words})"
        return check, error
    names = dict.fromkeys(f"{kernel.name}@{kernel.line}" for kernel in kernels)
    check = Check(name, "robust", "pass", f"(kernels compile for {target}, bfloat16)",
                  kernels=tuple(names))
    warnings = [warning for kernel in kernels for warning in kernel.warnings]
    if warnings:
        check.fail("wrong", *(f"line {line}: {text}" for line, text in warnings[:10]),
                   where=f"{stage.filename}:{warnings[0][0]}")
    return check, None
