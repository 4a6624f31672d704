"""Compiles a submission's kernels for a GPU that is not here, while its cases are asked.

The interpreter lets through what the compiler refuses, and knows no bfloat16: this does.
"""

import concurrent.futures
import contextlib
from collections.abc import Callable
from dataclasses import replace

from grader.course.calls import SubmissionError
from grader.course.case_table import listed
from grader.course.cases import Case
from grader.course.inputs import build
from grader.course.stages import Stage
from grader.host.options import Options, open_session
from grader.host.session import Session
from grader.report.results import Check
from grader.sandbox.wire import dtype_name

COMPILE_FOR = 90  # sm_90


class Compiling:
    """`with` it around the cases of a stage.

    source: the file; crash(case, error): the check of a call without an answer.
    """

    def __init__(self, stage: Stage, options: Options, source: bytes,
                 crash: Callable[[Case, SubmissionError], Check]):
        self.stage, self.options, self.source, self.crash = stage, options, source, crash
        self.is_asked_for = (options.device == "cpu" and stage.needs_triton
                             and not (options.quick or options.case))
        self.stack = contextlib.ExitStack()
        self.check: concurrent.futures.Future | None = None
        self.error: SubmissionError | None = None  # what it ended in

    def __enter__(self) -> "Compiling":
        if self.is_asked_for and self.options.spare is None:  # --watch: only once all is right
            self._begin()
        return self

    def __exit__(self, *error) -> None:
        self.stack.close()

    def is_due(self, interpreted: set[str], all_right: bool) -> bool:
        """Whether there is a check to wait for.

        interpreted: the kernels that ran; all_right: every case passed.
        """
        return bool(self.is_asked_for and interpreted and (self.check is not None or all_right))

    def wait(self) -> None:
        """Until nothing is under way."""
        if self.check is not None:
            concurrent.futures.wait([self.check])

    def finish(self, interpreted: set[str]) -> Check:
        """Wait for it.  interpreted: the kernels that ran, name@line, which it must be, too."""
        if self.check is None:
            self._begin()
        check = self.check.result()
        if self.error is not None and self.options.clock.asks_again(self.error):
            self._begin()
            check = self.check.result()
        names = {kernel.partition("@")[0] for kernel in interpreted}
        other = sorted(kernel for kernel in set(check.kernels) - interpreted
                       if kernel.partition("@")[0] in names)
        if check.outcome == "pass" and (other or not check.kernels):
            launched = f"another {other[0].partition('@')[0]} than in the interpreter" if other \
                else "none"
            return check.fail(
                "rejected", f"Where kernels are compiled the file launches {launched}.",
                "try: launch the same kernels everywhere; the interpreter is only for lack of a "
                "GPU.")
        return check

    def _begin(self) -> None:
        pool = self.stack.enter_context(concurrent.futures.ThreadPoolExecutor(1))
        # Entered after the pool, so that it ends before the pool waits for it.
        session = self.stack.enter_context(
            open_session(self.stage, self.options, self.source, COMPILE_FOR))
        self.check = pool.submit(self._compile, session)

    def _compile(self, session: Session) -> Check:
        """As the first GPU case would launch them, and that with the widest rows, whose tiles take
        most shared memory."""
        stage = self.stage
        cases = [replace(case, group="robust")
                 for case in listed(stage.number, "cuda", True) if case.group != "beyond"]
        widest = max(cases, key=lambda case: (case.D * case.dtype.itemsize, case.D))
        name, target, kernels = f"compile/sm_{COMPILE_FOR}", f"sm_{COMPILE_FOR}", []
        try:
            self.options.imports.helper(session, stage)
            for case in (cases[0], widest):
                kernels += session.compile(build(case, self.options.seed).call)
        except SubmissionError as error:
            self.error = error
            check, words = self.crash(case, error), f"D={case.D}, {dtype_name(case.dtype)}"
            check.name, check.label = name, f"(compiled for {target}, {words})"
            return check
        names = dict.fromkeys(f"{kernel.name}@{kernel.line}" for kernel in kernels)
        check = Check(name, "robust", "pass", f"(kernels compile for {target}, bfloat16)",
                      kernels=tuple(names))
        warnings = [warning for kernel in kernels for warning in kernel.warnings]
        if warnings:
            return check.fail("wrong", *(f"line {line}: {text}" for line, text in warnings[:10]),
                              where=f"{stage.filename}:{warnings[0][0]}")
        return check
