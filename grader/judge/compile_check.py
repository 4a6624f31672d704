"""Compiles a submission's kernels for a GPU that is not here, while its cases run.

The interpreter lets through what the compiler refuses, and knows no bfloat16.
"""

import concurrent.futures
from dataclasses import replace

from grader.assignment.submission import narrow_arguments
from grader.course.calls import SubmissionError
from grader.course.case_table import listed
from grader.course.cases import SMALL_D, WIDE_F32
from grader.course.inputs import build
from grader.host import kernel_cache
from grader.host.session import Session
from grader.judge.context import GradingContext
from grader.judge.record_check import record
from grader.judge.verdict import crashed
from grader.report.results import Check
from grader.sandbox.wire import dtype_name

COMPILE_FOR = 90  # sm_90


def start(context: GradingContext) -> concurrent.futures.Future | None:
    """-> the future of _compile()'s result; None if no such check is needed."""
    if context.runs_every_case and context.options.device == "cpu" and context.stage.needs_triton:
        return context.beside(lambda session: _compile(context, session), COMPILE_FOR)
    return None


def finish(context: GradingContext, compiling: concurrent.futures.Future | None) -> None:
    """Wait for the result, or start now, and record its check, unless the stage ended early or
    launched nothing.  The kernels that ran, name@line, must be those that were compiled."""
    kernels = context.result.kernels
    if context.result.sentence or not kernels:
        return
    if compiling is None and context.all_right():
        compiling = start(context)
    if compiling is None:
        return
    with context.reporter.working(context.stage, "compiling the kernels"):
        check, error = compiling.result()
        if error is not None and context.options.clock.asks_again(error):
            check, _ = start(context).result()
    names = {kernel.partition("@")[0] for kernel in kernels}
    other = sorted(kernel for kernel in set(check.kernels) - kernels
                   if kernel.partition("@")[0] in names)
    if check.outcome == "pass" and (other or not check.kernels):
        launched = f"a different {other[0].partition('@')[0]} than in the interpreter" if other \
            else "no kernel"
        check = check.fail(
            "rejected", f"When kernels are compiled, the file launches {launched}.",
            advice="launch the same kernels with and without the interpreter.")
    record(context, check)
    context.result.remarks += [
        f"{context.stage.filename}:{line}: `{text}` rounds this argument to 16 bits on a GPU, and "
        "not in the interpreter." for line, text in narrow_arguments(context.file.tree)]


def _compile(context: GradingContext, session: Session) -> tuple[Check, SubmissionError | None]:
    """Compile what three GPU cases would launch: the first one; the one with the widest rows, whose
    tiles take most shared memory; and the longest, in case tiles grow with the length.  Of a file
    that promises all sizes, also the smallest and the largest, which the interpreter cannot judge.
    A variant that compiled in an earlier grading is not compiled again.

    -> the check; the error that ended it, or None.
    """
    stage = context.stage
    asked = [replace(case, group="robust") for case in listed(stage.number, "cuda", True)]
    cases = [case for case in asked if not case.asks]
    sizes = [case for case in asked if case.kinds & {SMALL_D, WIDE_F32} and context.promises_all]
    widest = max(cases, key=lambda case: (case.D * case.dtype.itemsize, case.D))
    longest = max(cases, key=lambda case: max(case.N, case.M))
    name, target, kernels = f"compile/sm_{COMPILE_FOR}", f"sm_{COMPILE_FOR}", []
    case, known = cases[0], kernel_cache.checked(stage.filename)
    try:
        context.options.imports.helper(session, stage)
        for case in (cases[0], widest, longest, *sizes):
            kernels += session.compile(
                build(case, context.options.seed).call, to_ptx=True, known=known)
    except SubmissionError as error:
        check = crashed(case, error, context.file, stage)
        words = f"D={case.D}, L={case.N}, {dtype_name(case.dtype)}"
        return replace(check, name=name, label=f"(compiled for {target}, {words})"), error
    names = dict.fromkeys(f"{kernel.name}@{kernel.line}" for kernel in kernels)
    check = Check(name, "robust", "pass", f"(your kernels compile for {target} in bfloat16)",
                  kernels=tuple(names))
    warnings = [warning for kernel in kernels for warning in kernel.warnings]
    if not warnings:
        kernel_cache.keep_checked(
            stage.filename, {kernel.hash: kernel.shared_bytes for kernel in kernels})
    else:
        places = [f"{stage.filename}:{line}" for line, _ in warnings]
        check = check.fail("wrong", *(f"{place}: {text}" for place, (_, text) in zip(
            places[:10], warnings, strict=False)), where=places[0])
    return check, None
