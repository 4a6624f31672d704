"""For --page: asks the file for what its pictures show, right or wrong as it may be.

What comes back is only drawn, and decides nothing.  Where the file crashes, there is no picture.
"""

import concurrent.futures
import contextlib
from dataclasses import replace

import torch

import reference
from grader.course.calls import SubmissionError
from grader.course.cases import Case
from grader.course.inputs import build
from grader.course.stages import Stage, interpreter_fault
from grader.diagnosis import attention_map, drawing
from grader.host.session import Session
from grader.judge.context import GradingContext
from grader.judge.wasted_tiles import KEYS, QUERIES, SINKS
from grader.page import pictures
from grader.page.pictures import Picture

SECONDS = 5.0  # for one call
TILES = 5.5  # so many tiles long is the call whose loop is drawn: the last one is ragged


def start(context: GradingContext) -> concurrent.futures.Future | None:
    """Have the pictures made beside the cases, once the step checks are done."""
    file, page = context.file, context.options.page
    if page is None or file.blank_steps or (
            context.stage.needs_triton and interpreter_fault()):
        return None
    return context.beside(lambda session: _draw(context, session))


def finish(context: GradingContext, drawn: concurrent.futures.Future | None) -> None:
    """Wait for them; a fault in a picture costs only that."""
    if drawn is not None and (error := drawn.exception()):
        context.reporter.say(f"--page: some pictures are missing ({type(error).__name__}: {error})")


def _draw(context: GradingContext, session: Session) -> None:
    stage, options = context.stage, context.options
    session.timeout = min(session.timeout, SECONDS)
    makers = [_memory] if stage.sums_rows else [_mask, _memory, _tiles]
    with contextlib.suppress(SubmissionError):
        options.imports.helper(session, stage)
        for make in makers:
            with contextlib.suppress(SubmissionError):
                if made := make(stage, options.seed, session):
                    context.result.pictures.append(made)
                    if made.is_wild:  # a walk would not stop it, and the process might die
                        break
    context.show_page()


def example(stage: Stage, N: int, **changes) -> Case:
    """A call that shows most: one head, float32, causal where the stage knows it, a window that
    begins and ends inside of tiles."""
    return replace(Case(
        stage.number, "picture", N, D=64, dtype=torch.float32,
        is_causal=stage.is_causal or stage.chooses_mask,
        window=N * 5 // 8 if stage.windowed else None, sinks=SINKS if stage.has_sinks else None),
        **changes)


def _mask(stage: Stage, seed: int, session: Session) -> Picture | None:
    """Which keys every query really sees."""
    def ask(built):
        reply = session.run(built.call)
        return dict(reply.outputs[0])

    return drawing.picture(attention_map.read(ask, example(stage, 256), 0, longest=256))


def _memory(stage: Stage, seed: int, session: Session) -> Picture | None:
    """What every program loads and stores; of stage 1 there are no programs."""
    if stage.sums_rows:
        case = Case(stage.number, "picture", 200, M=40, dtype=torch.float32, grads=("x", "w"))
    else:
        case = example(stage, 200, grads=("q", "k", "v") * stage.differentiates)
    return pictures.memory(session.accesses(build(case, seed).call), stage.filename)


def _tiles(stage: Stage, seed: int, session: Session) -> Picture | None:
    """The tiles that every program's loop visits, and those that it should."""
    grads = ("q", "k", "v") if stage.differentiates else ()
    call = build(example(stage, 128, grads=grads), seed).call
    *_, sizes = session.walk(call)
    case = example(stage, int(TILES * max(sizes)), grads=grads)
    read, together, sizes = session.walk(build(case, seed).call)
    keep = reference.keep_mask(case.N, case.N, case.is_causal, case.window, case.sinks or 0)
    loops = []
    for side, sees, names in ((QUERIES, keep, ("query", "key")), (KEYS, keep.T, ("key", "query"))):
        if read[side].any():
            loops.append(pictures.loop(read[side].numpy(), sees.numpy(), sizes[side],
                                       sizes[1 - side], names))
    return pictures.loops(loops, case.label)
