"""Runs the cases of a stage in workers that have its file, and judges every reply.

A worker that died, or that other processes kept waiting, is replaced once; a case for which they
left too little time again is not checked, and costs nothing.  A call that does not return ends the
stage.  Without a GPU, the worker of the step checks also runs cases once it is
free: it takes them from the end, the first worker from the front.
"""

import collections
import concurrent.futures
import contextlib
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import torch

from grader.course import contract
from grader.course.calls import Reply, SubmissionError
from grader.course.cases import Case, longer
from grader.course.inputs import Built, build
from grader.course.trace import Trace
from grader.host import device_memory
from grader.host.session import Session
from grader.judge.context import GradingContext
from grader.judge.provenance import judge_growth, scores_bytes
from grader.judge.record_check import record
from grader.judge.verdict import crashed, judge_reply, judging, with_layout
from grader.report.results import Check


@dataclass(frozen=True)
class Right:
    """What of a right answer is needed to replay its call."""

    case: Case
    check: Check
    trace: Trace
    refilled: dict[str, torch.Tensor] | None


@dataclass
class CasesRun:
    """What the cases showed, apart from their checks."""

    prepare: Callable[[Session, Case], None]  # Precompiler.ready, called before each case
    explained: bool  # whether a wrong answer was diagnosed; one is enough
    session: Session | None = None  # the live worker; None if the stage ended early
    right: list[Right] = field(default_factory=list)
    tiles: set[int] = field(default_factory=set)  # tile sizes of the file's launches
    tuned: dict[str, tuple[str, ...]] = field(default_factory=dict)  # configurations, by kernel
    deaths: int = 0  # of workers

    def note(self, context: GradingContext, case: Case, check: Check, reply: Reply) -> None:
        """Note what a reply shows, once it is judged."""
        self.tiles |= contract.tiles_of(reply.trace.arguments)
        self.tuned |= reply.tuned.configurations
        context.result.kernels |= set(check.kernels)
        if check.outcome == "pass" and case.group != "beyond" and (
                not case.by_contract or context.options.case):
            self.right.append(Right(case, check, reply.trace, reply.refilled))


def run_cases(context: GradingContext, session: Session, cases: Sequence[Case],
              prepare: Callable[[Session, Case], None]) -> CasesRun:
    """Run, judge and record each case.  session: a worker that has done nothing yet."""
    run, waiting = CasesRun(prepare, not context.options.explains), Waiting(context, cases)
    while True:
        if context.options.device == "cpu":
            session.seems_endless = context.step_checks.endless
        alive = _import_file(context, session)
        if context.result.sentence:
            return run
        waiting.help_after_step_checks(run)
        while alive and (case := waiting.next()):
            place = f"case {len(cases) - waiting.left} of {len(cases)}, {case.name}"
            with context.reporter.working(context.stage, place):
                check, alive = run_case(context, session, case, run)
            if check is None:
                waiting.put_back(case)
                break
            record(context, check)
            if waiting.left and (end := _end(context, run, check, alive, place)):
                context.end(*end)
            if context.result.sentence or (
                    context.options.stop_early and not check.stands):
                waiting.stop()
                return run
        if waiting.is_done():
            for check in waiting.checks_of_others():
                record(context, check)
            run.session = session if alive else None
            return run
        session = context.open_session()


def _end(context: GradingContext, run: CasesRun, check: Check, alive: bool, place: str
         ) -> tuple[str, str] | None:
    """-> the stage's outcome, and why, if the remaining cases are not to be run; else None."""
    clock, unrun = context.options.clock, "so no more cases were run."
    if clock.is_over():
        return "timeout", f"{clock.words()} in {place}, {unrun}"
    if (check.diagnosis or {}).get("id") == "blank-step":
        return "crashed", f"the other cases wait for {_blank(context, check.diagnosis['step'])}."
    if context.options.may_stop and context.result.red and (
            check.group == "robust" and check.outcome not in ("pass", "skipped")):
        return check.outcome, "no more tests were run after the failure."
    if check.outcome == "timeout" and not alive:
        return "timeout", f"a call did not end, {unrun}"
    return (check.outcome, f"the process that runs your file died twice, {unrun}") \
        if run.deaths > 1 else None


def _blank(context: GradingContext, step: str | None) -> str:
    """The blank steps of a file, in words.  step: the one that a case ran into, if it has one."""
    *others, last = context.file.blank_steps or (step,)
    if not others:
        return f"step {last}" if last else "it"
    return f"steps {', '.join(others)} and {last}" if len(others) < 3 else \
        f"its {len(others) + 1} blank steps, from {others[0]} on"


class Waiting:
    """Cases still to be run.  One worker takes them from the front, a second one from the end.  The
    second stops at a case that is not right, and puts it back."""

    def __init__(self, context: GradingContext, cases: Sequence[Case]):
        self.context, self.cases = context, collections.deque(cases)
        self.number, self.begun = len(cases), 0  # begun: by the first worker
        self.checks: list[Check] = []  # the second worker's
        self.helping: concurrent.futures.Future | None = None

    @property
    def left(self) -> int:
        """How many cases neither worker has begun or done."""
        return self.number - self.begun - len(self.checks)

    def next(self) -> Case | None:
        """The first worker's next case; None if there is none left."""
        for wait in (False, True):
            if wait and self.helping is not None:
                self.helping.result()
            with contextlib.suppress(IndexError):  # the other one took it
                case = self.cases.popleft()
                self.begun += 1
                return case
        return None

    def put_back(self, case: Case) -> None:
        self.cases.appendleft(case)
        self.begun -= 1

    def stop(self) -> None:
        """Let no more cases begin."""
        self.cases.clear()

    def is_done(self) -> bool:
        if self.helping is not None and not self.cases:
            self.helping.result()
        return not self.cases

    def checks_of_others(self) -> list[Check]:
        """The second worker's checks, all of them right, in the order of the cases."""
        return self.checks[::-1]

    def help_after_step_checks(self, run: CasesRun) -> None:
        """Let the worker of the step checks run cases once its steps are done."""
        checks = self.context.step_checks
        if self.helping is None and self.context.options.device == "cpu" and checks.found:
            pool = self.context.stack.enter_context(concurrent.futures.ThreadPoolExecutor(1))
            self.context.stack.callback(self.stop)  # before the pool waits for it
            self.helping = pool.submit(self._help, run)

    def _help(self, run: CasesRun) -> None:
        self.context.step_checks.explained()
        if (session := self.context.step_checks.worker()) is None:
            return
        session.timeout = self.context.options.timeout
        while self.cases:
            try:
                case = self.cases.pop()
            except IndexError:  # the other one took it
                return
            built, check = build(case, self.context.options.seed), None
            with contextlib.suppress(SubmissionError):
                reply = session.run(built.call)
                check = judged(self.context, built, reply)
                check = _with_growth(self.context, session, built, reply, check)
            if check is None or check.outcome != "pass":
                self.cases.append(case)
                return
            run.note(self.context, built.case, check, reply)
            self.checks.append(check)


def _import_file(context: GradingContext, session: Session) -> bool:
    """Let the worker import the file.  -> whether it could."""
    try:
        with context.reporter.working(context.stage, "importing the file"):
            try:
                session.start()
                context.options.imports.first(session, context.stage)
            finally:
                context.result.confined = session.confined
    except SubmissionError as error:
        if not _is_run_again(context, error):
            said = context.file.beside(error.line) or error.located(context.file.path.name)
            context.end("grader_fault" if error.waited_for_cpu else error.outcome, said,
                        error.detail)
        return False
    return True


def run_case(context: GradingContext, session: Session, case: Case, run: CasesRun
             ) -> tuple[Check | None, bool]:
    """Run and judge one case; the check of the first wrong one gets a diagnosis.

    -> its check, or None if it is to be run again; whether the worker is still alive.
    """
    start, closed, died = time.monotonic(), False, False
    options, built = context.options, build(case, context.options.seed)
    try:
        run.prepare(session, case)
        reply = session.run(built.call)
        try:
            check = judged(context, built, reply)
        except torch.OutOfMemoryError as error:  # the worker may hold the memory that judging needs
            session.close()
            closed = True
            torch.cuda.empty_cache()
            if options.device == "cuda":
                device_memory.comes_back(str(error), options.clock)
            check = judged(context, built, reply)
        if not closed:
            check = _with_growth(context, session, built, reply, check)
        run.note(context, case, check, reply)
        if check.outcome == "wrong" and not closed and not run.explained:
            check = _explained(context, session, built, reply, check)
    except SubmissionError as error:
        if device_memory.ran_out(error):  # so that its own memory does not count as others'
            session.close()
            closed = True
        if _is_run_again(context, error):
            return None, False
        check, died = failed(context, case, error), error.fatal
    run.explained = run.explained or check.outcome not in ("pass", "skipped")
    died = died or session.gone
    run.deaths += died and not check.not_checked
    return replace(check, seconds=time.monotonic() - start), not (closed or died)


def judged(context: GradingContext, built: Built, reply: Reply) -> Check:
    """The check of an answer; of a wrong one it says where, and what that looks like."""
    with judging():
        check, wrong = judge_reply(context.stage, context.file, built, reply,
                                   context.options.device, as_given=not context.promises_all)
        if wrong is None:
            return check
        from grader.diagnosis import describe  # right files do not need it

        return with_layout(describe.said(check, wrong, built.case, context.stage,
                                         bool(context.file.steps)), built.case)


def failed(context: GradingContext, case: Case, error: SubmissionError) -> Check:
    """The check of a call that ended without an answer."""
    check = crashed(case, error, context.file, context.stage)
    return excused(check, error, context.options.device)


def excused(check: Check, error: SubmissionError, device: str) -> Check:
    """The check, or a grader fault if other processes hold the GPU's memory."""
    if device == "cuda" and (held := device_memory.held_by_others(error)):
        return check.fail("grader_fault", held)
    return check


def run_apart(context: GradingContext, built: Built) -> Check:
    """Run a case in a new worker, and judge it."""
    try:
        with context.open_session() as session:
            context.options.imports.first(session, context.stage)
            return judged(context, built, session.run(built.call))
    except SubmissionError as error:
        return failed(context, built.case, error)


def _with_growth(context: GradingContext, session: Session, built: Built, reply: Reply,
                 check: Check) -> Check:
    """Run a right growth case at 2N, too, and at 4N if that took much memory."""
    if not built.case.growth or check.outcome != "pass":
        return check
    replies = [reply]
    for times in (2, 4):
        larger = build(longer(built.case, times), context.options.seed)
        replies.append(session.run(larger.call))
        if replies[-1].trace.peak_bytes <= scores_bytes(built, times):
            break
    return judge_growth(check, built, *replies)


def _explained(context: GradingContext, session: Session, built: Built, reply: Reply,
               check: Check) -> Check:
    """The check with a diagnosis, or as it was if the search for one fails."""
    from grader.diagnosis import follow_up  # right files do not need it

    with contextlib.suppress(ArithmeticError, AttributeError, LookupError, RuntimeError, TypeError,
                             ValueError):
        return follow_up.explain(check, session, built, reply, context.stage, context.options,
                                 context.show_steps())
    return check


def _is_run_again(context: GradingContext, error: SubmissionError) -> bool:
    """Whether to run a case once more in a fresh worker, because other processes kept this one
    waiting or held the GPU's memory.  By then none of our own workers is busy."""
    if context.options.clock.asks_again(error):
        concurrent.futures.wait(context.under_way)
        return True
    return device_memory.crowded_out(error, context.options.device, context.options.clock)
