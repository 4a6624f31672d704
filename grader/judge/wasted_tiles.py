"""Checks whether a right file visits tiles of keys that none of its queries can see.

This is counted once per stage, in one call without a GPU that is several tiles long.  The worker
says which key rows it read for which queries, and the reverse (worker/reads.py); the mask is known
here.  One tile too many is allowed on either side, and hidden keys inside a visited tile do not
count.  A worker that lies can only pass or fail this one check.
"""

import concurrent.futures
import contextlib
from dataclasses import replace

import torch
from torch.nn.functional import pad

import reference
from grader.assignment.hints import look_at
from grader.course.calls import SubmissionError
from grader.course.cases import Case
from grader.course.inputs import build
from grader.course.stages import Stage
from grader.host.options import Options
from grader.host.session import Session
from grader.judge.context import GradingContext
from grader.judge.record_check import record
from grader.report.results import Check

TILES = 8  # the least length of the loop
SHORTEST, LONGEST = 128, 2048  # lengths to try: the tile size is known only after a run
SINKS = 4
QUERIES, KEYS = 0, 1


def is_counted(context: GradingContext) -> bool:
    """Whether this file is checked; in stage 1 only the course's own steps say what to skip."""
    stage = context.stage
    return context.runs_every_case and bool(stage.loop_steps) and (
        stage.needs_triton or context.promises_all)


def count(context: GradingContext, session: Session,
          interpreted: concurrent.futures.Future | None) -> None:
    """Record the check.  interpreted: the future of interpreter_check.py, on a GPU."""
    if not is_counted(context):
        return
    with context.reporter.working(context.stage, "counting the tiles it visits"):
        if interpreted is not None:
            _, check = interpreted.result()
        else:
            check = tiles_check(context.stage, context.options, session)
    if check is not None:
        if check.look_at and not context.file.steps:
            step = (*check.steps, *context.stage.loop_steps)[0]
            check = replace(check, steps=(), look_at=look_at(context.stage, step, marked=False))
        record(context, check)


def tiles_check(stage: Stage, options: Options, session: Session) -> Check | None:
    """-> the check; None if the interpreter cannot run it.  session: without a GPU, file loaded."""
    N = SHORTEST
    with contextlib.suppress(SubmissionError):
        while N <= LONGEST:
            case = long_case(stage, N)
            read, together, tiles = session.walk(build(case, options.seed).call)
            if not read.any():
                return _unseen(stage, case)
            if TILES * max(tiles) <= N:
                return judge_loop(stage, case, read > 0, together, tiles)
            N = TILES * max(tiles)
    return None


def _unseen(stage: Stage, case: Case) -> Check:
    """The check of a file whose loads of keys were not recognised: whether it skips tiles cannot be
    told, so it has not shown that it does."""
    check = Check("needless-work", "walk", "needless work", f"(L={case.N})")
    return check.fail(
        "needless work", "Whether it skips tiles of keys could not be seen: none of the numbers "
        "that its kernels load are rows of k, or multiples of them.", look_at=look_at(
            stage, stage.loop_steps[0]), advice="load q, k and v as they are given.")


def long_case(stage: Stage, N: int) -> Case:
    """A case with one head and a window of N / 8.  In float32 hardly two numbers are equal."""
    return Case(stage.number, "walk", N, dtype=torch.float32, is_causal=True,
                window=N // TILES if stage.windowed else None,
                sinks=SINKS if stage.has_sinks else None,
                grads=("q", "k", "v") if stage.differentiates else ())


def judge_loop(stage: Stage, case: Case, read: torch.Tensor, together: torch.Tensor,
               tiles: tuple[int, int]) -> Check:
    """Judge what a call of case read.  read, together, tiles: see Reads in worker/reads.py."""
    label = f"(L={case.N}" + f", W={case.window}" * bool(case.window)
    check = Check("needless-work", "walk", "pass",
                  label + f", S={case.sinks}" * bool(case.sinks) + ")")
    keep = reference.keep_mask(case.N, case.N, case.is_causal, case.window, case.sinks or 0)
    lines, steps = [], []
    for side, sees in ((QUERIES, keep), (KEYS, keep.T)):
        seen = (together[side].float() @ sees.float()) > 0  # visible to any row of the same tile
        far = read[side] & ~_near(seen, 2 * max(tiles) - 1)
        if far.any():
            worst = int(far.sum(1).argmax())
            lines.append(_words(side, worst, read[side, worst], seen[worst], tiles))
            steps.append(stage.loop_steps[min(side, len(stage.loop_steps) - 1)])
    if not lines:
        return check
    keys = "0 ... i" if case.window is None else "i - W + 1 ... i"
    keys += " and, up to i, the sinks 0 ... S - 1" * bool(case.sinks)
    return check.fail(
        "needless work", *lines, look_at=look_at(stage, steps[0]), steps=(steps[0],),
        advice=f"query i sees keys {keys}: skip every tile in which no query sees a key.")


def _near(seen: torch.Tensor, reach: int) -> torch.Tensor:
    """Where a row of seen is true, and up to `reach` columns from there.

    A loop that begins anywhere and visits one tile too many gets that far: to the end of the tile
    with the last visible key, and over one more.
    """
    sums = pad(seen.long(), (reach + 1, reach)).cumsum(1)
    return sums[:, 2 * reach + 1:] > sums[:, :-2 * reach - 1]


def _words(side: int, row: int, read: torch.Tensor, seen: torch.Tensor,
           tiles: tuple[int, int]) -> str:
    own, other = tiles[side], tiles[1 - side]
    count, wanted = (len((rows.nonzero() // other).unique()) for rows in (read, read & seen))
    if side == QUERIES:
        return (f"Query tile {row // own} visits {count} key tiles; its queries see keys in only "
                f"{wanted} of them.")
    return (f"Key tile {row // own} visits {count} query tiles; only {wanted} of them "
            f"{'have queries' if wanted != 1 else 'has a query'} that can see its keys.")
