"""The loop: for each stage a fresh worker, its cases, their verdicts, its points.

One stage's end never stops the next, and a fault of the grader's own never costs points.
"""

import concurrent.futures
import contextlib
import importlib.util
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from grader import submission, timing
from grader.cases import Case, doubled
from grader.inputs import FAR_GIB, build, other_numbers
from grader.judge import from_error, judge, judge_growth, judge_repeated, not_repeated
from grader.naming import follow_up
from grader.naming.follow_up import Wish
from grader.report import Reporter
from grader.results import Check, StageResult
from grader.sandbox import device_memory, kernel_cache, replaying
from grader.sandbox.accounts import find_user
from grader.sandbox.calls import Reply, SubmissionError
from grader.sandbox.processes import Confinement
from grader.sandbox.session import Session
from grader.stages import Stage

COMPILE_FOR = 90  # the architecture kernels are compiled for where there is no GPU
STANDARD_SHARE = 0.7
NO_TRITON = (
    "triton is not installed, and this stage needs it. It has wheels for Linux only: use WSL on "
    "Windows, a Linux container on a Mac, GitHub Codespaces or Colab, then `pip install triton`."
)


@dataclass(frozen=True)
class Options:
    """What the command line decided.  device: "cuda" or "cpu"; timeout: seconds a request."""

    directory: Path
    device: str
    seed: int
    timeout: float
    bfloat16: bool = False
    quick: bool = False
    benchmark: bool = True
    command: str = "python autograder.py"
    confinement: Confinement = Confinement()
    stop_early: bool = False  # after the first case that does not pass
    case: str = ""  # the only one to ask, by its name
    show: bool = False  # draw the effective attention matrix of the first wrong case
    plot: Path | None = None  # and write it there
    patience: float = 8.0  # seconds of our own work to find a mistake's name; 0: do not ask for it
    spare: Callable[[bytes], Session | None] | None = None  # a worker that waits for this file


def confinement(directory: Path, user: str = "auto",
                memory_gib: float | None = None) -> Confinement:
    """What workers may do: see neither this repository nor the submissions' folder, and hold half
    of the free host memory, at most 16 GiB, unless told otherwise.

    Raises:
        ValueError: the account is not one that workers can run as.
    """
    if memory_gib is None:
        memory_gib = min(16.0, max(2.0, free_memory_gib() / 2))
    return Confinement(find_user(user), (Path(__file__).parent.parent, Path(directory)),
                       int(memory_gib * 2**30))


def free_memory_gib() -> float:
    """Host memory that new processes could take; 8 where the system does not say."""
    try:
        words = Path("/proc/meminfo").read_text().split()
        return int(words[words.index("MemAvailable:") + 1]) / 2**20
    except (OSError, ValueError):
        return 8.0


def grade_stage(stage: Stage, options: Options, reporter: Reporter) -> StageResult:
    """Grade one stage from the file in options.directory; never raises but for Ctrl-C."""
    result = StageResult(stage.number, stage.title, stage.points)
    start = time.monotonic()
    reporter.stage_begins(stage)
    planned: list[Case] = []
    try:
        _grade(stage, options, reporter, result, planned)
    except Exception as error:
        result.outcome = "grader_fault"
        result.sentence = (f"the grader itself failed ({type(error).__name__}: {error}); nothing "
                           "is settled by it. Please run it again; if it comes back, report the "
                           "lines below.")
        result.detail = traceback.format_exc()
    _settle(result, planned, options.quick, options.case)
    result.seconds = time.monotonic() - start
    reporter.stage_ends(stage, result)
    return result


def _grade(stage: Stage, options: Options, reporter: Reporter, result: StageResult,
           planned: list[Case]) -> None:
    """Fill result.checks; planned gets the cases that were meant to run."""
    file = submission.read(options.directory, stage.filename, stage.entry)
    stage = replace(stage, origins={step.id: step.origin for step in file.steps if step.origin})
    result.sha256 = file.sha256
    if file.state != "ready":
        result.outcome = "crashed" if file.state == "syntax_error" else file.state
        result.sentence = file.sentence
        if file.state == "not_started" and file.steps:
            result.sentence += f"; yours to write: {', '.join(file.blank_new)}."
        if file.line is not None and f"line {file.line}" not in file.sentence:
            result.sentence += f" ({stage.filename}, line {file.line})"
        return
    if stage.needs_triton and importlib.util.find_spec("triton") is None:
        result.outcome, result.sentence = "skipped", NO_TRITON
        return
    cases = stage.cases(options.device, options.bfloat16)
    planned += [case for case in cases if (case.group == "standard" or not options.quick)
                and options.case in ("", case.name)]
    far = [case for case in planned if case.layout == "far"]
    if far and not options.case and (free := torch.cuda.mem_get_info()[0] / 2**30) < FAR_GIB:
        planned[:] = [case for case in planned if case not in far]
        reporter.table([f"Not asked: offsets past 2^31. That takes {FAR_GIB} GiB of free GPU "
                        f"memory; {free:.0f} are."])
    with contextlib.ExitStack() as stack:
        pool = stack.enter_context(concurrent.futures.ThreadPoolExecutor(1))
        compiling = None
        to_compile = (options.device == "cpu" and stage.needs_triton
                      and not (options.quick or options.case))

        def compile_it():  # entered after the pool, so that it ends before the pool waits for it
            compiler = stack.enter_context(_session(stage, options, file.source, COMPILE_FOR))
            return pool.submit(_compile_check, stage, options, compiler, file)
        if to_compile and options.spare is None:
            compiling = compile_it()
        cleans = replaying.workers(options.device, options.timeout, options.confinement)
        verdicts = Verdicts(stage, options, reporter, result, file.source, cleans)
        stack.callback(verdicts.close)
        session = _run_cases(stage, options, reporter, result, file, planned, verdicts, stack)
        verdicts.flush()
        if to_compile and compiling is None and all(c.outcome == "pass" for c in result.checks):
            compiling = compile_it()  # --watch: nothing beside the first wrong case
        if compiling is not None and result.sentence == "":
            with reporter.working(stage, "compiling the kernels"):
                check = compiling.result()
            _same_kernels(check, result.kernels)
            _done(stage, reporter, result, check)
        if file.unreached and all(check.outcome == "pass" for check in result.checks):
            _done(stage, reporter, result, _blank_check(file))
        if (options.benchmark and result.checks
                and all(check.outcome == "pass" for check in result.checks)):
            result.benchmark, failed = timing.run(
                stage, options, session, cleans.replay, reporter)
            if failed:
                _done(stage, reporter, result, failed)


def _run_cases(stage, options, reporter, result, file, cases, verdicts, stack) -> Session | None:
    """Ask every case; a dead worker is replaced once, a timeout ends the stage.

    -> the session of the last case, open until stack closes; None if the stage ended early.
    """
    waiting, deaths, session, taught = list(cases), 0, None, options.patience <= 0
    while waiting:
        session = stack.enter_context(_session(stage, options, file.source))
        try:
            with reporter.working(stage, "importing the file"):
                try:
                    session.start()
                    session.load(stage.entry, stage.attribute, stage.positional)
                finally:
                    result.confined = session.confined
        except SubmissionError as error:
            result.outcome, result.sentence = error.outcome, error.sentence
            result.detail = error.detail
            return None
        alive = True
        while waiting and alive:
            case = waiting.pop(0)
            done = len(cases) - len(waiting)
            with reporter.working(stage, f"case {done} of {len(cases)}, {case.name}"):
                check, fatal, replies = _ask(stage, options, session, case, file, taught)
                taught = taught or check.outcome not in ("pass", "skipped")
                verdicts.add(check, replies)
            result.kernels |= set(check.kernels)
            alive = not fatal and not session.gone
            if check.diagnosis and check.diagnosis["id"] == "blank-step" and waiting:
                verdicts.flush()
                result.outcome = "crashed"
                result.sentence = f"the other {len(waiting)} cases wait for what is blank."
                return None
            if options.stop_early:
                verdicts.flush()
                if check.outcome != "pass":
                    return None
        if not alive:
            deaths += 1
            hung = check.outcome == "timeout"
            if waiting and (hung or deaths > 1):
                why = "a call did not end" if hung else "the worker died twice"
                result.outcome = check.outcome
                result.sentence = f"{why}, so the remaining {len(waiting)} cases were not run."
                return None
    return session


def _ask(stage: Stage, options: Options, session: Session, case: Case, file: submission.Submission,
         taught: bool) -> tuple[Check, bool, list]:
    """One case to the worker.  -> its check, whether the worker is gone, and (case, reply) of
    every call.  taught: an earlier case's mistake was explained; one at a time is enough."""
    start, fatal, replies = time.monotonic(), False, []
    built = build(case, options.seed)
    try:
        reply = session.run(built.call)
        replies.append((case, reply))
        try:
            with _truths:
                check = judge(stage, built, reply, options.device, options.command)
        except torch.OutOfMemoryError:  # the worker may hold what the judgement needs
            session.close()
            torch.cuda.empty_cache()
            with _truths:
                check = judge(stage, built, reply, options.device, options.command)
            fatal = True
        if case.growth and check.outcome == "pass" and not fatal:
            large = session.run(build(doubled(case), options.seed).call)
            replies.append((doubled(case), large))
            check = judge_growth(check, built, reply, large)
        if check.outcome == "wrong" and not fatal and not taught:
            wish = Wish(options.command, options.seed, options.show, options.plot,
                        options.directory, options.patience)
            with contextlib.suppress(ArithmeticError, LookupError, ValueError, RuntimeError):
                # Without a name the verdict and the place that judge() found still stand.
                follow_up.explain(check, session, built, reply, stage, options.device, wish)
    except SubmissionError as error:
        check = _absolved(_crash(case, error, file), error, options.device)
        fatal = error.fatal
    check.seconds = time.monotonic() - start
    return check, fatal, replies


def _crash(case: Case, error: SubmissionError, file: submission.Submission) -> Check:
    """A call without an answer, with the step that it ended in."""
    step = file.step_at(error.line)
    check = from_error(case, error, file.path.name, step)
    if step is not None and step.id in file.blank_steps:
        check.lines, check.detail = (error.sentence, *file.blanks()), ""
    elif step is None and error.line is not None and "is not defined" in error.sentence:
        above = [step for step in file.steps if 0 < error.line - step.last_line <= 20]
        check.lines += tuple(f"try: is it {step.words}, above, that makes it?"
                             for step in above[-1:])
    return check


def _absolved(check: Check, error: SubmissionError, device: str) -> Check:
    """check, or a fault of nobody here if other processes hold the GPU's memory."""
    if device == "cuda" and (held := device_memory.held_by_others(error)):
        check.outcome, check.lines, check.diagnosis = "grader_fault", (held,), None
    return check


_truths = threading.Lock()  # one at a time: naive attention in float64 takes a GPU's memory


class Verdicts:
    """Checks in the order of their cases.  What is right so far is confirmed by a clean worker
    while the submission's own goes on with the next case."""

    MOST_WAITING = 4  # each holds the results of its calls

    def __init__(self, stage: Stage, options: Options, reporter: Reporter, result: StageResult,
                 source: bytes, cleans: replaying.CleanWorkers):
        self.stage, self.options, self.reporter = stage, options, reporter
        self.result, self.source, self.cleans = result, source, cleans
        self.pool = concurrent.futures.ThreadPoolExecutor(cleans.count)
        self.waiting: list[concurrent.futures.Future] = []

    def add(self, check: Check, replies: list) -> None:
        """replies: (case, reply) of every call that check stands for."""
        self.waiting.append(self.pool.submit(self._confirmed, check, replies))
        self.flush(self.MOST_WAITING)

    def flush(self, at_most: int = 0) -> None:
        """Report what is settled; wait until no more than so many are not."""
        while self.waiting and (len(self.waiting) > at_most or self.waiting[0].done()):
            _done(self.stage, self.reporter, self.result, self.waiting.pop(0).result())

    def close(self) -> None:
        """Forget what waits, and wait for what is under way: a request has its time limit."""
        self.pool.shutdown(cancel_futures=True)

    def _confirmed(self, check: Check, replies: list) -> Check:
        """Judge a right check's plans by what they do on other numbers."""
        start = time.monotonic()
        for case, reply in replies:
            if check.outcome == "pass":
                check = self._confirm(check, case, reply)
        check.seconds += time.monotonic() - start
        return check

    def _confirm(self, check: Check, case: Case, reply: Reply) -> Check:
        if reply.plan.cut:  # judge() let it through
            return check
        foreign = submission.foreign_texts(self.source, reply.plan.texts)
        if foreign:
            check.outcome = "rejected"
            check.lines = (f"The numbers are right, but the kernel {foreign[0]} is not in this "
                           "file.", "try: write the kernels of this stage in its file.")
            return check
        other = other_numbers(case, self.options.seed)
        unwatched = reply.refilled if self.stage.needs_triton else None
        try:
            got = self.cleans.replay(other.call, reply.plan)
        except SubmissionError as error:
            return _absolved(not_repeated(check, error), error, self.options.device)
        with _truths:
            return judge_repeated(check, other, got, self.options.device, unwatched)


def spare_worker(stage: Stage, options: Options) -> Session:
    """A worker for a file that is not there yet, for Options.spare."""
    return _session(stage, replace(options, spare=None), b"")


def _session(stage: Stage, options: Options, source: bytes, compile_for: int | None = None):
    if options.spare is not None and compile_for is None:
        session = options.spare(source)
        if session is not None:
            return session
    cache = None
    if options.device == "cuda":
        cache = kernel_cache.folder_for(source, options.confinement.user)
    return Session(source, stage.filename, device=options.device, timeout=options.timeout,
                   interpret=options.device == "cpu", compile_for=compile_for, cache=cache,
                   confinement=options.confinement)


def _compile_check(stage: Stage, options: Options, session: Session,
                   file: submission.Submission) -> Check:
    """Compile the kernels for a GPU that is not here, as the first GPU case would launch them.

    The interpreter lets through what the compiler refuses, and knows no bfloat16: this does.
    """
    case = stage.cases("cuda", True)[0]
    case = replace(case, group="robust")
    name, label = f"compile/sm_{COMPILE_FOR}", f"(kernels compile for sm_{COMPILE_FOR}, bfloat16)"
    try:
        session.load(stage.entry, stage.attribute, stage.positional)
        kernels = session.compile(build(case, options.seed).call)
    except SubmissionError as error:
        check = _crash(case, error, file)
        check.name, check.label = name, label
        return check
    check = Check(name, "robust", "pass", label,
                  kernels=tuple(f"{kernel.name}@{kernel.line}" for kernel in kernels))
    warnings = [warning for kernel in kernels for warning in kernel.warnings]
    if warnings:
        check.outcome = "wrong"
        check.where = f"{stage.filename}:{warnings[0][0]}"
        check.lines = tuple(f"line {line}: {text}" for line, text in warnings[:10])
    return check


def _same_kernels(check: Check, interpreted: set[str]) -> None:
    """The kernels that were compiled must be those that the interpreter ran."""
    names = {kernel.partition("@")[0] for kernel in interpreted}
    other = sorted(kernel for kernel in set(check.kernels) - interpreted
                   if kernel.partition("@")[0] in names)
    if check.outcome != "pass" or check.kernels and not other:
        return
    check.outcome = "rejected"
    check.lines = ("Where kernels are compiled the file launches " + (
        f"another {other[0].partition('@')[0]} than in the interpreter." if other else "none."),
        "try: launch the same kernels everywhere; the interpreter is only for lack of a GPU.")


def _blank_check(file: submission.Submission) -> Check:
    """Regions that no graded call reaches (a backward, say) must be filled in all the same."""
    several = len(file.unreached) > 1
    return Check("steps/filled-in", "robust", "crashed", "(steps that these cases do not reach)",
                 lines=(f"step{'s' * several} {', '.join(file.unreached)} "
                        f"{'are' if several else 'is'} still blank.", *file.blanks()))


def _done(stage: Stage, reporter: Reporter, result: StageResult, check: Check) -> None:
    result.checks.append(check)
    reporter.check_done(stage, check)


def _settle(result: StageResult, planned: list[Case], quick: bool, only: str = "") -> None:
    """Outcome and points from the checks.  A group with a failed or unasked case earns nothing.

    A fault of ours is no failure, but earns nothing either: what was not judged is not settled,
    and the stage is to be graded again.
    """
    if not planned:
        return
    outcomes = [check.outcome for check in result.checks if check.outcome != "pass"]
    ours = "grader_fault" in (result.outcome, *outcomes)
    passed = {check.name for check in result.checks if check.outcome == "pass"}
    failed = {check.group for check in result.checks if check.outcome != "pass"}
    failed |= {case.group for case in planned if case.name not in passed}
    if "rejected" in outcomes:
        result.outcome, result.points = "rejected", 0.0
        return
    if ours:
        result.outcome = "grader_fault"
    elif not failed:
        result.outcome = "pass"
    elif outcomes:
        result.outcome = outcomes[0]
    if only:
        result.sentence = "one case only (--case): no points are given for it."
        return
    if quick and not failed:
        result.sentence = "standard cases only (--quick); the robust ones are worth 30 %."
    result.points = _points(result, failed | ({"robust"} if quick else set()))


def _points(result: StageResult, failed: set[str]) -> float:
    share = STANDARD_SHARE * ("standard" not in failed)
    share += (1 - STANDARD_SHARE) * ("robust" not in failed)
    return round(result.max_points * share, 2)
