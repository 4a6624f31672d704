"""Runs the file for the pictures of --page, whether it is right or wrong.

The results are only drawn and decide nothing.  If the file crashes, there is no picture.
"""

import concurrent.futures
import contextlib
from dataclasses import replace

import numpy as np
import torch

import reference
from grader.course.calls import Access, SubmissionError
from grader.course.cases import Case
from grader.course.inputs import Built, build
from grader.course.stages import Stage, interpreter_fault
from grader.diagnosis import attention_map, drawing
from grader.host.session import Session
from grader.judge.context import GradingContext
from grader.judge.wasted_tiles import KEYS, QUERIES, SINKS
from grader.page import pictures
from grader.page.pictures import Picture
from grader.sandbox.wire import AGAIN, MASKED, UNMASKED

SECONDS = 5.0  # for one call
MOST_TURNS = 16  # of a softmax that is drawn
BARS = 90  # the most for a softmax; each stands for neighbouring keys
RAGGED = 168  # the length of the call whose mask is drawn; no multiple of any tile but 8
TILES = 5.5  # the length of the call whose loop is drawn; the last tile is ragged


def start(context: GradingContext) -> concurrent.futures.Future | None:
    """Make the pictures beside the cases, once the step checks are done."""
    if context.file.blank_steps or (context.stage.needs_triton and interpreter_fault()):
        return None
    return context.beside(lambda session: _draw(context, session))


def finish(context: GradingContext, drawn: concurrent.futures.Future) -> None:
    """Wait for the pictures; a fault costs only that picture."""
    if error := drawn.exception():
        context.reporter.say(f"--page: some pictures are missing ({type(error).__name__}: {error})")


def _draw(context: GradingContext, session: Session) -> None:
    stage, options = context.stage, context.options
    session.timeout = min(session.timeout, SECONDS)
    if context.step_checks.endless():
        return
    with contextlib.suppress(SubmissionError):
        options.imports.helper(session, stage)
        for make in [_memory] if stage.sums_rows else [_mask, _memory, _tiles]:
            with contextlib.suppress(SubmissionError):
                made = make(stage, options.seed, session)
                context.result.pictures[1:1] = made  # the loop comes second
                context.show_page()
                if make is _memory and any(picture.is_wrong for picture in made):
                    break  # out of bounds: the loop's picture would fail, too, or kill the process


def example(stage: Stage, N: int, **changes) -> Case:
    """A telling call: one head, float32, causal if the stage can be, and a window that begins and
    ends inside of tiles."""
    return replace(Case(
        stage.number, "picture", N, D=64, dtype=torch.float32,
        is_causal=stage.is_causal or stage.chooses_mask,
        window=N * 5 // 8 if stage.windowed else None, sinks=SINKS if stage.has_sinks else None),
        **changes)


def _mask(stage: Stage, seed: int, session: Session) -> list[Picture]:
    """Draw which keys every query of one head really sees.  It is the fifth of six, so that a wrong
    division by 2 or 3 gives it the keys of another head."""
    def ask(built):
        reply = session.run(built.call)
        return dict(reply.outputs[0])

    case = example(stage, RAGGED, **{"HQ": 6, "HKV": 3} if stage.shares_keys else {})
    return [drawing.picture(attention_map.read(ask, case, 4 % case.HQ, longest=case.N))]


def _memory(stage: Stage, seed: int, session: Session) -> list[Picture]:
    """Draw what every program loads and stores; nothing for stage 1, which has no programs."""
    if stage.sums_rows:
        case = Case(stage.number, "picture", 200, M=40, dtype=torch.float32, grads=("x", "w"))
    else:
        case = example(stage, 300, grads=("q", "k", "v") * stage.differentiates)
    launches = [one for one in session.accesses(build(case, seed).call) if any(one.programs)]
    return [pictures.memory([(one, list(map(turns, one.programs))) for one in launches],
                            case.label, stage.filename)] if launches else []


def _tiles(stage: Stage, seed: int, session: Session) -> list[Picture]:
    """Draw the tiles that every program's loop visits, and those that it should visit; and the
    online softmax over these."""
    grads = ("q", "k", "v") if stage.differentiates else ()
    call = build(example(stage, 128, grads=grads), seed).call
    *_, sizes = session.walk(call)
    built = build(case := example(stage, int(TILES * max(sizes)), grads=grads), seed)
    read, _, sizes = session.walk(built.call)
    keep = _keep(case)
    sides = [one for one in ((QUERIES, keep, ("query", "key")), (KEYS, keep.T, ("key", "query")))
             if read[one[0]].any()]
    shows_masked = all((read[side] & (MASKED | UNMASKED)).any() for side, *_ in sides)
    loops = [loop(read[side].numpy(), sees.numpy(), sizes[side], sizes[1 - side], names,
                  shows_masked) for side, sees, names in sides]
    return [pictures.loops(loops, case.label, shows_masked),
            *_softmax(built, keep, *sizes)] if loops else []


def _softmax(built: Built, keep: torch.Tensor, own: int, size: int) -> list[Picture]:
    """Draw the online softmax of one of the last queries as it should be, whatever the file does,
    over the tiles of keys that it should visit."""
    case, (q, k) = built.case, (built.tensors[name][0, 0].double() for name in "qk")
    tiles = [(first, min(first + size, case.N) - 1) for first in range(0, case.N, size)
             if keep[-own:, first:first + size].any()]
    if len(tiles) > MOST_TURNS:
        return []
    scores = (q @ k.T * case.D**-0.5).masked_fill(~keep, -torch.inf).numpy()
    with np.errstate(invalid="ignore"):  # -inf - -inf, in rows that see no key
        return [pictures.softmax(case.label, *online(scores, range(case.N - own, case.N), tiles))]


def _keep(case: Case) -> torch.Tensor:
    return reference.keep_mask(case.N, case.N, case.is_causal, case.window, case.sinks or 0)


# ------------------------------------------------------------------ what was seen, as it is drawn
def loop(read: np.ndarray, sees: np.ndarray, own: int, other: int, names: tuple[str, str],
         shows_masked: bool) -> pictures.Loop:
    """A loop from rows: read[i, j]: flags of how row j was read for row i; sees[i, j]: it is
    needed."""
    def tiles(x, join=np.any):
        rows = [join(x[i:i + own], axis=0) for i in range(0, len(x), own)]
        return np.array([[join(row[j:j + other]) for j in range(0, len(row), other)]
                         for row in rows])
    wanted, whole = tiles(sees), tiles(sees, np.all)
    if sees.shape[1] % other:
        whole[:, -1] = False  # rows past the end are masked off
    masked = tiles(read & MASKED) if shows_masked else wanted & ~whole
    bare = wanted & tiles((read & UNMASKED > 0) & ~sees)
    visits = np.add(tiles(read), tiles(sees & (read & AGAIN > 0)), dtype=int)
    return pictures.Loop(visits, wanted, masked, bare, tiles(sees & (read == 0)), names,
                         (own, other))


def turns(program: tuple[Access, ...]) -> list[list[Access]]:
    """The turns of a program's loop: a new one begins when a tensor comes up again, and at the
    stores after the last load."""
    turns = [[]]
    for one in program:
        if any(one.tensor == other.tensor for other in turns[-1]):
            turns.append([])
        turns[-1].append(one)
    loads = [number for number, one in enumerate(turns[-1]) if one.verb == "load"]
    if loads:
        turns[-1:] = [turns[-1][:loads[-1] + 1], turns[-1][loads[-1] + 1:]]
    return [turn for turn in turns if turn]


def online(scores: np.ndarray, rows: range, tiles: list[tuple[int, int]]
           ) -> tuple[int, list[pictures.Turn], int]:
    """The online softmax over tiles of keys (first, last), for the row whose maximum grows most
    often.

    scores: -inf where hidden.  -> the row; its turns; keys per bar.
    """
    tops = [[scores[row, first:last + 1].max() for first, last in tiles] for row in rows]
    grows = [(np.diff(np.maximum.accumulate(top)) > 0.05).sum() for top in tops]
    row, each = rows[int(np.argmax(grows))], -(-scores.shape[1] // BARS)
    s, m, found, seen = scores[row], -np.inf, [], np.zeros(scores.shape[1], bool)
    for first, last in tiles:
        now = np.zeros_like(seen)
        now[first:last + 1] = True
        top = max(m, float(s[now].max()))
        pivot = top if np.isfinite(top) else 0.0
        p = np.exp(s - pivot)
        older, new = (np.add.reduceat(np.where(some, p, 0.0), np.arange(0, len(s), each))
                      for some in (seen & ~now, now))
        seen |= now
        found.append(pictures.Turn(first, last, top, float(np.exp(m - pivot)),
                                   float(p[seen].sum()), older, new))
        m = top
    return row, found, each
