"""Asks a worker every case; judges what it answers, and names the first mistake.

Given: the file, its cases, the first worker.  Adds: the kernels launched, their tiles, the worker
that is left, or why the stage ended early; each check goes to confirm.py, which settles it.  A dead
worker is replaced once, a timeout ends the stage; one that others kept waiting is replaced, too.
"""

import concurrent.futures
import contextlib
import time

import torch

from grader.course import contract
from grader.course.calls import Reply, SubmissionError
from grader.course.cases import Case, longer
from grader.course.inputs import Built, build
from grader.host import device_memory
from grader.host.session import Session
from grader.judge.known import Known
from grader.judge.means import judge_growth, scores_bytes
from grader.judge.verdict import crashed, judge, raced
from grader.report.results import Check


def ask_cases(known: Known) -> None:
    waiting, first, session, check = list(known.cases), known.session, None, None
    known.session, alive = None, False
    while waiting:
        session = known.stack.enter_context(known.open_session()) if session else first
        if known.options.device == "cpu":
            session.seems_endless = known.lights.endless
        alive = _import_file(known, session)
        if known.result.sentence:
            return
        while waiting and alive:
            case, number = waiting[0], len(known.cases) - len(waiting) + 1
            place = f"case {number} of {len(known.cases)}, {case.name}"
            with known.reporter.working(known.stage, place):
                check, alive = ask(known, session, case)
            if check is None:
                break
            del waiting[0]
            if waiting and known.clock.is_over():
                known.end("timeout", f"{known.clock.words()} in {place}, so the remaining "
                          f"{len(waiting)} cases were not run.")
                return
            if waiting and (check.diagnosis or {}).get("id") == "blank-step":
                known.end("crashed", f"the other {len(waiting)} cases wait for "
                          f"{'step ' + id if (id := check.diagnosis['step']) else 'it'}.")
                return
            if known.options.stop_early:
                known.confirmations.flush()  # which may yet find a right check wrong
                if check.outcome != "pass":
                    return
        hung = check is not None and check.outcome == "timeout" and not alive
        if waiting and (hung or known.deaths > 1):
            why = "a call did not end" if hung else "the worker died twice"
            known.end(check.outcome, f"{why}, so the remaining {len(waiting)} cases were not run.")
            return
    known.session = session if alive else None


def _import_file(known: Known, session: Session) -> bool:
    """Have the worker import the file.  -> whether it could."""
    try:
        with known.reporter.working(known.stage, "importing the file"):
            try:
                session.start()
                known.options.imports.first(session, known.stage)
            finally:
                known.result.confined = session.confined
    except SubmissionError as error:
        if not _again(known, error):
            said = known.file.beside(error.line) or error.sentence
            known.end(error.outcome, said, error.detail)
        return False
    return True


def ask(known: Known, session: Session, case: Case) -> tuple[Check | None, bool]:
    """One case to the worker, judged, explained, on its way to be confirmed.

    -> its check, None if it is to be asked again, and whether the worker is still there.
    """
    start, closed, died, replies = time.monotonic(), False, False, []
    options, built = known.options, build(case, known.options.seed)
    try:
        known.ready(session, case)
        reply = session.run(built.call)
        replies.append((case, reply))
        known.tiles |= contract.tiles_of(reply.plan.steps)
        known.tuned |= reply.tuned.configurations
        try:
            check = judged(known, built, reply)
        except torch.OutOfMemoryError as error:  # the worker may hold what the judgement needs
            session.close()
            torch.cuda.empty_cache()
            if options.device == "cuda":
                device_memory.comes_back(str(error), known.clock)
            check, closed = judged(known, built, reply), True
        if case.growth and check.outcome == "pass" and not closed:
            for times in (2, 4):
                large = longer(case, times)
                replies.append((large, session.run(build(large, options.seed).call)))
                if replies[-1][1].plan.peak_bytes <= scores_bytes(built, times):
                    break
            check = judge_growth(check, built, *(reply for _, reply in replies))
        if check.outcome == "wrong" and not closed and not known.taught:
            from grader.words import follow_up  # a right file needs none

            with contextlib.suppress(ArithmeticError, AttributeError, LookupError, RuntimeError,
                                     TypeError, ValueError):
                # Without it what judge() found still stands.
                follow_up.explain(check, session, built, reply, known.stage, options, known.lit())
    except SubmissionError as error:
        if device_memory.ran_out(error):  # what it holds itself is not to count as others'
            session.close()
            closed = True
        if _again(known, error):
            return None, False
        check, died = _failed(known, case, error), error.fatal
    known.taught = known.taught or check.outcome not in ("pass", "skipped")
    known.result.kernels |= set(check.kernels)
    check.seconds = time.monotonic() - start
    if not case.by_contract or options.case:
        known.confirmations.add(check, replies)
    died = died or session.gone
    known.deaths += died
    return check, not (closed or died)


def _again(known: Known, error: SubmissionError) -> bool:
    """Whether to ask once more, of a fresh worker: others kept this one waiting, or held the GPU's
    memory.  By then no other of ours is at work."""
    if known.clock.asks_again(error):
        known.confirmations.flush()
        if known.compiling is not None:
            concurrent.futures.wait([known.compiling])
        return True
    return device_memory.crowded_out(error, known.options.device, known.clock)


def apart(known: Known, built: Built) -> Check:
    """What a worker of its own answers, judged."""
    try:
        with known.open_session() as session:
            known.options.imports.first(session, known.stage)
            return judged(known, built, session.run(built.call))
    except SubmissionError as error:
        return _failed(known, built.case, error)


def judged(known: Known, built: Built, reply: Reply) -> Check:
    check = judge(known.stage, built, reply, known.options.device)
    if check.outcome == "pass" and reply.race:
        raced(check, reply.race, known.file)
    return check


def _failed(known: Known, case: Case, error: SubmissionError) -> Check:
    return absolved(crashed(case, error, known.file, known.stage), error, known.options.device)


def absolved(check: Check, error: SubmissionError, device: str) -> Check:
    """check, or a fault of nobody here if other processes hold the GPU's memory."""
    if device == "cuda" and (held := device_memory.held_by_others(error)):
        return check.fail("grader_fault", held)
    return check
