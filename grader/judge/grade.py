"""One stage of a submission, from its file to its points, in the order of its way.

    read the file                       submission.py, which parses and never runs it
    ask a worker every case             host/session.py; its tensors come from inputs.py
    judge what it answers               verdict.py: right by correctness.py, and by which means.py
    name the first mistake              words/follow_up.py, which asks the worker a little more
    confirm what is right               confirm.py: the same kernels, other numbers, no file
    compile its kernels                 compiling.py, where there is no GPU
    ask every blank alone               lights/lights.py, beside the cases; gives no points
    ask what it visits in vain          needless.py
    time it                             timing.py, where there is one
    ask what is beyond the assignment   a line in the report
    points                              points.py

An accusation needs a proof.  A file that is wrong in a standard case, that reads beside its
tensors, or whose kernels give what it gives itself, is wrong and no more; one that launches nothing
is not started.  One stage's end never stops the next, and a fault of the grader's own never costs
points.
"""

import contextlib
import time
import traceback
from dataclasses import replace

import torch

from grader.assignment import submission
from grader.course import case_table, contract
from grader.course.calls import SubmissionError
from grader.course.cases import Case, longer
from grader.course.correctness import answer
from grader.course.inputs import build
from grader.course.stages import Stage
from grader.host import device_memory, without_file
from grader.host.clock import Clock
from grader.host.options import Imports, Options, open_session
from grader.host.session import Session
from grader.judge import timing
from grader.judge.compiling import Compiling
from grader.judge.confirm import Confirmations, judging
from grader.judge.means import judge_growth, scores_bytes
from grader.judge.needless import Counting
from grader.judge.points import settle
from grader.judge.precompile import Precompiler
from grader.judge.verdict import (
    blanks_left,
    crashed,
    judge,
    note_command,
    note_misjoined,
    note_red,
    raced,
)
from grader.lights.lights import WRONG, Lights, damaged
from grader.report.overview import command
from grader.report.results import Check, StageResult, read_beside, settled_by_reading
from grader.report.screen import Reporter


def warm_up(stage: Stage, options: Options) -> None:
    """Judge a small case of nobody's: the first time takes this process half a second on a GPU."""
    with contextlib.suppress(RuntimeError):
        case = replace(case_table.listed(stage.number, options.device, options.bfloat16)[0], N=64)
        answer(build(case, options.seed), options.device)


def grade_stage(stage: Stage, options: Options, reporter: Reporter) -> StageResult:
    """Grade one stage from the file in options.directory; never raises but for Ctrl-C."""
    grading = Grading(stage, options, reporter)
    result, start = grading.result, time.monotonic()
    reporter.stage_begins(stage)
    try:
        grading.run()
    except Exception as error:
        result.outcome = "grader_fault"
        result.sentence = (f"the grader itself failed ({type(error).__name__}: {error}); nothing "
                           "is settled by it. Please run it again; if it comes back, report the "
                           "lines below.")
        result.detail = traceback.format_exc()
    settle(result, grading.cases, options)
    if grading.file and result.outcome not in ("pass", "skipped"):
        said = dict.fromkeys(filter(None, (result.sentence, grading.file.nothing_yet)))
        result.sentence = " ".join(said)
    result.seconds = time.monotonic() - start
    reporter.stage_ends(stage, result)
    return result


class Grading:
    """One stage of one submission under way.  result: filled as it goes."""

    def __init__(self, stage: Stage, options: Options, reporter: Reporter):
        self.clock = Clock(options.stage_timeout)
        self.stage, self.reporter = stage, reporter
        self.options = replace(options, clock=self.clock, imports=Imports())
        self.device = options.device
        self.result = StageResult(stage.number, stage.title, stage.points)
        self.file: submission.Submission | None = None
        self.marked = False  # it has this course's step markers, be they damaged
        self.cases: list[Case] = []  # that are to be asked, and decide
        self.beyond: list[Case] = []  # that are asked at the end, and decide nothing
        self.accusations: list[Check] = []  # not reported before all standard cases are in
        self.deaths = 0  # of workers
        self.tiles: set[int] = set()  # sizes that the file launches with
        self.lights: Lights | None = None
        self.taught = options.patience <= 0  # no mistake is to be named: one at a time is enough

    def run(self) -> None:
        """From the file to the checks."""
        if not self.read():
            return
        self.choose_cases()
        with contextlib.ExitStack() as stack:
            # On a GPU they take longest to start.
            first = stack.enter_context(self.open_session())
            workers = without_file.workers(self.device, self.options.timeout,
                                        self.options.confinement)
            workers.clock = self.clock
            workers.begin()
            self.compiling = compiling = stack.enter_context(
                Compiling(self.stage, self.options, self.file.source, self.crash))
            self.lights = stack.enter_context(Lights(self.stage, self.options, self.file))
            counting = stack.enter_context(
                Counting(self.stage, self.options, self.file.source, self.marked))
            self.ahead = stack.enter_context(
                Precompiler(self.stage, self.options, self.file.source, self.coming()))
            self.confirmations = Confirmations(
                self.stage, self.file.source, self.options, workers, self.done, self.absolved)
            stack.push(self.confirmations.close)
            session = self.ask_cases(stack, first)
            self.confirmations.flush()
            if session is not None and self.all_right():
                self.ask_contract(session)
            if not self.result.sentence and compiling.is_due(self.result.kernels, self.all_right()):
                with self.reporter.working(self.stage, "compiling the kernels"):
                    check = compiling.finish(self.result.kernels)
                self.done(check)
            if self.file.unreached and self.all_right():
                self.done(blanks_left(self.file))
            self.accuse()
            if session is not None and self.all_right():
                with self.reporter.working(self.stage, "counting the tiles it visits"):
                    check = counting.finish(session)
                if check is not None:
                    self.done(check)
            if self.options.benchmark and session is not None and self.all_right():
                self.result.benchmark, failed = timing.run(
                    self.stage, self.options, session, workers.replay, self.ahead, self.reporter)
                if failed:
                    self.done(failed)
                    self.accuse()
            if session is not None and self.all_right():
                self.ask_beyond(session)
            if self.clock.is_over() and not self.result.sentence:
                self.result.sentence = f"{self.clock.words()}; what was judged stands."

    # ------------------------------------------------------------------ the file
    def read(self) -> bool:
        """-> whether there is something to ask."""
        self.file = submission.read(self.options.directory, self.stage.filename, self.stage.entry)
        if self.file.state == "not_started" and self.file.unwritten:  # unless it stands elsewhere
            cases = case_table.listed(self.stage.number, self.device, self.options.bfloat16)
            if self.asked_apart(build(cases[0], self.options.seed)).outcome == "pass":
                self.file = replace(self.file, state="ready")
        self.marked = bool(self.file.steps or damaged(self.file))
        origins = {step.id: step.origin for step in self.file.steps if step.origin}
        self.stage = replace(self.stage, origins=origins)
        return not settled_by_reading(self.stage, self.file, self.result)

    def choose_cases(self) -> None:
        """All of the stage, or what the command line left of them, or the GPU has memory for."""
        options = self.options
        listed = case_table.listed(self.stage.number, self.device, options.bfloat16)
        if not self.marked:
            offered = self.file.parameters(self.stage.entry)
            listed = [replace(case, group="beyond")
                      if case.course and not (case.sink_logits and "sink_logits" in offered)
                      else case for case in listed]
        listed += [case for case in options.own if case.stage == self.stage.number]
        if options.case:
            self.cases = [case for case in listed if case.name == options.case] or list(filter(
                None, [contract.named(self.stage, options.case)]))
            return
        self.cases = [case for case in listed if case.group == "standard" or (
            case.group == "robust" and not options.quick)]
        if options.quick or options.stop_early:
            return
        self.beyond = [case for case in listed if case.group == "beyond"]

    def coming(self) -> list[Case]:
        """All that may be asked, in this order."""
        options = self.options
        timed = timing.shapes(self.stage, options.bfloat16) if options.benchmark else []
        return [*self.cases, *timed, *self.beyond]

    # ----------------------------------------------------------------- the cases
    def open_session(self) -> Session:
        return open_session(self.stage, self.options, self.file.source)

    def ask_cases(self, stack: contextlib.ExitStack, first: Session) -> Session | None:
        """Ask every case; a dead worker is replaced once, a timeout ends the stage.  A worker that
        others kept waiting is replaced, too, once they have ended.  first: the one to begin with.

        -> the session of the last case, open until stack closes; None if the stage ended early.
        """
        waiting, alive, session, check = list(self.cases), False, None, None
        while waiting:
            session = stack.enter_context(self.open_session()) if session else first
            if self.device == "cpu":
                session.seems_endless = self.lights.endless
            alive = self.import_file(session)
            if self.result.sentence:
                return None
            while waiting and alive:
                case = waiting.pop(0)
                place = f"case {len(self.cases) - len(waiting)} of {len(self.cases)}, {case.name}"
                with self.reporter.working(self.stage, place):
                    check, alive = self.ask(session, case)
                if check is None:
                    waiting.insert(0, case)
                    break
                if waiting and self.clock.is_over():
                    self.end("timeout", f"{self.clock.words()} in {place}, so the remaining "
                             f"{len(waiting)} cases were not run.")
                    return None
                if waiting and (check.diagnosis or {}).get("id") == "blank-step":
                    self.end("crashed", f"the other {len(waiting)} cases wait for "
                             f"{'step ' + id if (id := check.diagnosis['step']) else 'it'}.")
                    return None
                if self.options.stop_early:
                    self.confirmations.flush()  # which may yet find a right check wrong
                    if check.outcome != "pass":
                        return None
            hung = check is not None and check.outcome == "timeout" and not alive
            if waiting and (hung or self.deaths > 1):
                why = "a call did not end" if hung else "the worker died twice"
                self.end(check.outcome,
                         f"{why}, so the remaining {len(waiting)} cases were not run.")
                return None
        return session if alive else None

    def ask_contract(self, session: Session) -> None:
        """Ask what the contract's classes give at the borders of the file's own tiles, and what
        the examples of red steps give there, up to the first that fails.  On a GPU these alone:
        there every D, dtype and layout is compiled anew."""
        options, on_gpu = self.options, self.device != "cpu"
        if options.quick or options.case:
            return
        logits = "sink_logits" in self.file.parameters(self.stage.entry)
        cases = [] if on_gpu else contract.cases(
            self.stage, self.tiles, self.marked, logits, options.seed)
        for light in self.lights.result():
            if light.light == WRONG:
                cases += contract.aimed(self.stage, light.example, self.tiles, logits,
                                        options.seed, on_gpu)
        for asked, case in enumerate(cases):
            with self.reporter.working(self.stage, f"case {asked + 1} of {len(cases)} at borders"):
                check, alive = self.ask(session, case)
            if check is not None and check.outcome != "pass":
                self.done(check)
                return
            if check is None or not alive or self.clock.is_over():
                return
        sizes = "its tiles, " + ", ".join(map(str, sorted(self.tiles))) if self.tiles else "tiles"
        if cases:
            self.done(Check("robust/contract", "robust", "pass",
                            f"({len(cases)} cases at the borders of {sizes})"))

    def ask_beyond(self, session: Session) -> None:
        """Ask what no assignment asks, until a call does not end; a dead worker is replaced."""
        def ask(case: Case) -> bool:
            nonlocal session
            if session.gone:
                session = stack.enter_context(self.open_session())
                self.options.imports.first(session, self.stage)
            built = build(case, self.options.seed)
            try:
                with self.reporter.working(self.stage, case.name):
                    self.ahead.ready(session, case)
                    check = self.judge(built, session.run(built.call))
            except SubmissionError as error:
                check = self.crash(case, error)
            if check.outcome != "skipped":  # a driver that cannot lay the inputs out
                self.done(check)
            return check.outcome != "timeout"

        with contextlib.ExitStack() as stack, \
                contextlib.suppress(SubmissionError, torch.OutOfMemoryError):
            all(ask(case) for case in self.beyond)

    def import_file(self, session: Session) -> bool:
        """Have the worker import the file.  -> whether it could."""
        stage = self.stage
        try:
            with self.reporter.working(stage, "importing the file"):
                try:
                    session.start()
                    self.options.imports.first(session, stage)
                finally:
                    self.result.confined = session.confined
        except SubmissionError as error:
            if not (self.starved(error) or self.crowded_out(error)):
                said = self.file.beside(error.line) or error.sentence
                self.end(error.outcome, said, error.detail)
            return False
        return True

    def ask(self, session: Session, case: Case) -> tuple[Check | None, bool]:
        """One case to the worker, judged, explained, on its way to be confirmed.

        -> its check, None if it is to be asked again, and whether the worker is still there.
        """
        start, closed, died, replies = time.monotonic(), False, False, []
        built = build(case, self.options.seed)
        try:
            self.ahead.ready(session, case)
            reply = session.run(built.call)
            replies.append((case, reply))
            self.tiles |= contract.tiles_of(reply.plan.steps)
            try:
                check = self.judge(built, reply)
            except torch.OutOfMemoryError as error:  # the worker may hold what the judgement needs
                session.close()
                torch.cuda.empty_cache()
                if self.device == "cuda":
                    device_memory.comes_back(str(error), self.clock)
                check, closed = self.judge(built, reply), True
            if case.growth and check.outcome == "pass" and not closed:
                for times in (2, 4):
                    large = longer(case, times)
                    replies.append((large, session.run(build(large, self.options.seed).call)))
                    if replies[-1][1].plan.peak_bytes <= scores_bytes(built, times):
                        break
                check = judge_growth(check, built, *(reply for _, reply in replies))
            if check.outcome == "wrong" and not closed and not self.taught:
                from grader.words import follow_up  # all the mistakes: a right file needs none

                with contextlib.suppress(ArithmeticError, AttributeError, LookupError, RuntimeError,
                                         TypeError, ValueError):
                    # Without a name what judge() found still stands.
                    follow_up.explain(check, session, built, reply, self.stage, self.options,
                                      self.lit())
        except SubmissionError as error:
            if device_memory.ran_out(error):  # what it holds itself is not to count as others'
                session.close()
                closed = True
            if self.starved(error) or self.crowded_out(error):
                return None, False
            check, died = self.absolved(self.crash(case, error), error), error.fatal
        self.taught = self.taught or check.outcome not in ("pass", "skipped")
        self.result.kernels |= set(check.kernels)
        check.seconds = time.monotonic() - start
        if not case.by_contract or self.options.case:
            self.confirmations.add(check, replies)
        died = died or session.gone
        self.deaths += died
        return check, not (closed or died)

    def starved(self, error: SubmissionError) -> bool:
        """Whether to ask once more, of a fresh worker.  By then no other of ours is at work."""
        if again := self.clock.asks_again(error):
            self.confirmations.flush()
            self.compiling.wait()
        return again

    def crowded_out(self, error: SubmissionError) -> bool:
        return device_memory.crowded_out(error, self.device, self.clock)

    def asked_apart(self, built) -> Check:
        """What a worker of its own answers."""
        try:
            with self.open_session() as session:
                self.options.imports.first(session, self.stage)
                return self.judge(built, session.run(built.call))
        except SubmissionError as error:
            return self.absolved(self.crash(built.case, error), error)

    def judge(self, built, reply) -> Check:
        with judging():
            check = judge(self.stage, built, reply, self.device)
        if check.outcome == "pass" and reply.race:
            raced(check, reply.race, self.file)
        return check

    def crash(self, case: Case, error: SubmissionError) -> Check:
        return crashed(case, error, self.file, self.stage)

    def absolved(self, check: Check, error: SubmissionError) -> Check:
        """check, or a fault of nobody here if other processes hold the GPU's memory."""
        if self.device == "cuda" and (held := device_memory.held_by_others(error)):
            return check.fail("grader_fault", held)
        return check

    # -------------------------------------------------------------- what is noted
    def end(self, outcome: str, sentence: str, detail: str = "") -> None:
        """Why the stage ended early."""
        self.lit()
        self.result.outcome, self.result.sentence = outcome, sentence
        self.result.detail = detail

    def lit(self) -> list[dict]:
        """All steps; the first call shows their lights."""
        self.result.steps = self.lights.shown(self.reporter) if self.lights else []
        return self.result.steps

    def done(self, check: Check) -> None:
        """A settled check; an accusation waits until accuse()."""
        self.lit()
        if check.doubt is not None:
            self.ask_again(check)
        if check.outcome == "crashed":
            note_red(check, self.result.red)
        if check.outcome in ("wrong", "crashed") and self.device == "cpu":
            note_misjoined(check, self.file)
        if check.name in {case.name for case in self.options.own}:  # nobody else can ask it
            check.lines = tuple(line for line in check.lines if not line.startswith("again: "))
        elif check.outcome == "wrong":
            note_command(check, command(self.stage.number, self.options.directory,
                                        f" --seed {self.options.seed} --case {check.name}"))
        self.result.checks.append(check)
        if check.outcome == "rejected":
            self.accusations.append(check)
        elif check.group != "beyond" or self.options.case or self.reporter.verbose:
            self.reporter.check_done(self.stage, check)

    def ask_again(self, check: Check) -> None:
        """The plan of a call is wrong on other numbers: is the file's own answer to them right?"""
        other, check.doubt = check.doubt, None
        own = self.asked_apart(other)
        if own.outcome not in ("pass", "rejected"):
            check.fail(own.outcome, "Right on the numbers of this case, not on others of the same "
                       "shape:", *own.lines, where=own.where)
            check.errors, check.detail = own.errors, own.detail

    def accuse(self) -> None:
        """Report what was held back; of a file that is wrong anyway it is no accusation."""
        checks, self.accusations = self.accusations, []
        wrong = any(check.group == "standard" and check.outcome not in ("pass", "rejected")
                    or read_beside(check) for check in self.result.checks)
        idle = self.stage.needs_triton and not self.result.kernels
        for check in checks:
            if wrong:
                check.fail("wrong", "Not judged further: another case shows that it is wrong.")
            elif idle:
                check.fail("not_started", "No kernel was launched yet: PyTorch computed this.",
                           "try: this stage is its kernels; begin with the first step.")
            self.reporter.check_done(self.stage, check)

    def all_right(self) -> bool:
        return all(check.outcome in ("pass", "needless work") for check in self.result.checks)
