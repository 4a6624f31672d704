"""Does a right file visit tiles of keys in which none of its queries sees a key?

Counted once per stage, in one call without a GPU, several tiles long.  The worker says which key
rows it read for which queries, and the other way round (worker/reads.py); which of them a query
sees is known here.  A tile's slack is allowed on either side, and what is masked inside a visited
tile does not count.  A worker that counts falsely only spares itself this check or fails it.
"""

import concurrent.futures
import contextlib

import torch
from torch.nn.functional import pad

import reference
from grader.course.calls import SubmissionError
from grader.course.cases import Case
from grader.course.inputs import build
from grader.course.stages import Stage
from grader.diagnosis.describe import look_at
from grader.host.options import Options
from grader.host.session import Session
from grader.judge.context import GradingContext
from grader.judge.record_check import record
from grader.report.results import Check

TILES = 8  # the loop is to be that long at least
SHORTEST, LONGEST = 128, 2048  # lengths it is asked at: how large the tiles are shows on the way
SINKS = 4
QUERIES, KEYS = 0, 1


def is_counted(context: GradingContext) -> bool:
    """In stage 1 only the course's steps say what to skip."""
    stage = context.stage
    return context.runs_every_case and bool(stage.loop_steps) and (
        stage.needs_triton or context.has_markers)


def count(context: GradingContext, session: Session,
          interpreted: concurrent.futures.Future | None) -> None:
    """Record the check.  interpreted: of interpreter_check.py, on a GPU."""
    if not is_counted(context):
        return
    with context.reporter.working(context.stage, "counting the tiles it visits"):
        if interpreted is not None:
            _, check = interpreted.result()
        else:
            check = tiles_check(context.stage, context.options, session)
    if check is not None:
        record(context, check)


def tiles_check(stage: Stage, options: Options, session: Session) -> Check | None:
    """-> the check; None where there is nothing to count.  session: without a GPU, file loaded."""
    N = SHORTEST
    with contextlib.suppress(SubmissionError):
        while N <= LONGEST:
            case = long_case(stage, N)
            read, together, tiles = session.walk(build(case, options.seed).call)
            if not read.any():
                return None
            if TILES * max(tiles) <= N:
                return judge_loop(stage, case, read, together, tiles)
            N = TILES * max(tiles)
    return None


def long_case(stage: Stage, N: int) -> Case:
    """One head, a window of an eighth of the length.  float32: its numbers are all different."""
    return Case(stage.number, "walk", N, dtype=torch.float32, is_causal=True,
                window=N // TILES if stage.windowed else None,
                sinks=SINKS if stage.has_sinks else None,
                grads=("q", "k", "v") if stage.differentiates else ())


def judge_loop(stage: Stage, case: Case, read: torch.Tensor, together: torch.Tensor,
               tiles: tuple[int, int]) -> Check:
    """read, together, tiles: as Reads in sandbox/worker/reads.py has them, of a call of case."""
    label = f"(L={case.N}" + f", W={case.window}" * bool(case.window)
    check = Check("needless-work", "walk", "pass",
                  label + f", S={case.sinks}" * bool(case.sinks) + ")")
    keep = reference.keep_mask(case.N, case.N, case.is_causal, case.window, case.sinks or 0)
    lines, steps = [], []
    for side, sees in ((QUERIES, keep), (KEYS, keep.T)):
        seen = (together[side].float() @ sees.float()) > 0  # by any row of the same tile
        far = read[side] & ~_near(seen, 2 * max(tiles) - 1)
        if far.any():
            worst = int(far.sum(1).argmax())
            lines.append(_words(side, worst, read[side, worst], seen[worst], tiles))
            steps.append(stage.loop_steps[min(side, len(stage.loop_steps) - 1)])
    if not lines:
        return check
    keys = "0 ... i" if case.window is None else "i - W + 1 ... i"
    keys += " and, up to i, the sinks 0 ... S - 1" * bool(case.sinks)
    return check.fail("needless work", *lines,
                      f"try: query i sees keys {keys}: skip every tile in which no query sees a "
                      "key.", look_at(stage, steps[0]))


def _near(seen: torch.Tensor, reach: int) -> torch.Tensor:
    """Where a row of seen is true, and up to reach columns away from there.

    That far goes a walk that begins anywhere and takes a tile too many: to the end of the tile that
    holds the last visible key, and over one more.
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
