"""Asks a file that is right so far further cases: of its own tiles, and beyond the assignment.

Given: its tiles, its lights, the worker that is left.  Adds: one check of all cases at borders of
tiles; one of each case beyond, which decides nothing.  The worker of the lights is free by now,
and takes cases as well.
"""

import collections
import concurrent.futures
import contextlib

import torch

from grader.course import contract
from grader.course.calls import SubmissionError
from grader.course.cases import Case
from grader.course.inputs import build
from grader.host.session import Session
from grader.judge.asking import ask, judged
from grader.judge.known import Known
from grader.judge.settling import done
from grader.judge.verdict import crashed
from grader.lights.lights import WRONG
from grader.report.results import Check


def ask_contract(known: Known) -> None:
    """What the contract's classes give at the borders of the file's own tiles, and what the
    examples of red steps give there, up to the first that fails.  On a GPU these alone: there
    every D, dtype and layout is compiled anew."""
    stage, options, on_gpu = known.stage, known.options, known.options.device != "cpu"
    if not known.every_case:
        return
    logits = "sink_logits" in known.file.parameters(stage.entry)
    cases = [] if on_gpu else contract.cases(
        stage, known.tiles, known.marked, logits, options.seed)
    for light in known.lights.result():
        if light.light == WRONG:
            cases += contract.aimed(stage, light.example, known.tiles, logits, options.seed, on_gpu)
    sizes = f"its tiles, {', '.join(map(str, sorted(known.tiles)))}" if known.tiles else "tiles"
    waiting, other, number = collections.deque(cases), known.lights.worker(), len(cases)
    helping = known.beside(lambda session: _help(known, session, waiting), session=other) \
        if other and not on_gpu else None
    while case := _next(waiting, helping):
        with known.reporter.working(stage, f"case {number - len(waiting)} of {number} at borders"):
            check, alive = ask(known, known.session, case)
        if check is None or check.outcome != "pass" or not alive or known.clock.is_over():
            waiting.clear()
            if check is not None and check.outcome != "pass":
                done(known, check)
            return
    if cases:
        done(known, Check("robust/contract", "robust", "pass",
                          f"({number} cases at the borders of {sizes})"))


def _next(waiting: collections.deque, helping: concurrent.futures.Future | None) -> Case | None:
    """The next case, None after the last; what the other worker could not settle comes back."""
    for wait in (False, True):
        if wait and helping is not None:
            helping.result()
        with contextlib.suppress(IndexError):  # the other one took it
            return waiting.popleft()
    return None


def _help(known: Known, session: Session, waiting: collections.deque) -> None:
    """Ask another worker, too, up to a case that is not right: that goes back."""
    session.timeout = known.options.timeout
    while case := _next(waiting, None):
        right = False
        with contextlib.suppress(SubmissionError):
            built = build(case, known.options.seed)
            right = judged(known, built, session.run(built.call)).outcome == "pass"
        if not right:
            waiting.append(case)
            return


def ask_beyond(known: Known) -> None:
    """What no assignment asks, until a call does not end; a dead worker is replaced."""
    session = known.session
    with contextlib.ExitStack() as stack, \
            contextlib.suppress(SubmissionError, torch.OutOfMemoryError):
        for case in known.beyond:
            if session.gone:
                session = stack.enter_context(known.open_session())
                known.options.imports.first(session, known.stage)
            built = build(case, known.options.seed)
            try:
                with known.reporter.working(known.stage, case.name):
                    known.ready(session, case)
                    check = judged(known, built, session.run(built.call))
            except SubmissionError as error:
                check = crashed(case, error, known.file, known.stage)
            if check.outcome != "skipped":  # a driver that cannot lay the inputs out
                done(known, check)
            if check.outcome == "timeout":
                return
