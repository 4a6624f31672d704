"""Checks that right answers come from the file's own kernels.

A worker that never saw the file repeats the traces of a few calls on other numbers.  The calls are
drawn when all answers are in.
"""

import concurrent.futures
import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch

from grader.course.calls import SubmissionError, same_bits
from grader.course.correctness import answer, how_far
from grader.course.inputs import Built, other_numbers
from grader.course.trace import kept_in_16_bits
from grader.host import device_memory
from grader.host.worker_pool import WorkerPool
from grader.judge.context import GradingContext
from grader.judge.record_check import record
from grader.judge.run_cases import Right, excused, run_apart
from grader.judge.verdict import judging
from grader.report.results import Check
from grader.text import tensor_name

HANDFUL = 5
BARELY = 4.0  # limits: rounding alone may put a right kernel that far off on other numbers


def replay_some(context: GradingContext, workers: WorkerPool, right: Sequence[Right]) -> None:
    """Replay a handful of the right answers, and record what fails.  A file that is wrong in a
    standard case is not replayed, because it would not be rejected anyway."""
    if any(check.group == "standard" and not check.stands and check.outcome != "rejected"
           for check in context.result.checks):
        return
    drawn = list(right) if context.options.replays_all else draw(right, context.options.seed)
    with concurrent.futures.ThreadPoolExecutor(workers.count) as pool:
        tasks = [(one, pool.submit(_replayed, context, workers, one)) for one in drawn]
        try:
            for one, task in tasks:
                with context.reporter.working(context.stage, f"replaying {one.case.name}"):
                    check = _outcome(context, workers, one, task)
                if check.outcome != "pass":
                    record(context, check)
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise


def draw(right: Sequence[Right], seed: int) -> list[Right]:
    """A handful of these: one of each group, two ragged ones and one with gradients, if any."""
    def wanted() -> Iterator[Right]:
        for group in sorted({one.case.group for one in right}):
            yield from [one for one in shuffled if one.case.group == group][:1]
        yield from [one for one in shuffled if one.case.is_ragged][:2]
        yield from [one for one in shuffled if one.case.grads][:1]
        yield from shuffled

    shuffled = random.Random(seed).sample(right, len(right))
    drawn = {one.case.name: one for one in wanted()}
    return list(drawn.values())[:HANDFUL]


def _outcome(context: GradingContext, workers: WorkerPool, one: Right,
             task: concurrent.futures.Future) -> Check:
    try:
        return task.result()
    except SubmissionError as error:  # other processes may have kept it waiting
        if not context.options.clock.asks_again(error):
            return not_repeated(one.check, error)
        concurrent.futures.wait(context.under_way)
    try:
        return _replayed(context, workers, one)
    except SubmissionError as error:
        return not_repeated(one.check, error)


def _replayed(context: GradingContext, workers: WorkerPool, one: Right) -> Check:
    """The check of a right answer after its replay.

    Raises:
        SubmissionError: a timeout that other processes may have caused.
    """
    case, check, options = one.case, one.check, context.options
    if one.trace.cut:  # too long to be recorded
        return check
    other = other_numbers(case, options.seed)
    unwatched = one.refilled if context.stage.needs_triton else None
    given = not context.promises_all
    try:
        got = _answers(context, workers, other, one)
    except SubmissionError as error:
        if error.waited_for_cpu:
            raise
        if error.id != "does-not-compile":  # other numbers would not change that
            check = replace(check, seed=other.seed)
        return excused(not_repeated(check, error), error, options.device)
    with judging():
        try:
            check, doubtful = judge_repeated(check, other, got, options.device, unwatched, given)
        except torch.OutOfMemoryError as error:  # another grading may hold the memory for a moment
            torch.cuda.empty_cache()
            device_memory.comes_back(str(error), options.clock)
            check, doubtful = judge_repeated(check, other, got, options.device, unwatched, given)
    if check.outcome == "pass":
        return check
    check = replace(check, seed=other.seed)
    if check.outcome == "wrong" and (narrow := kept_in_16_bits(case, one.trace)):
        check = replace(check, seen=(narrow, *check.seen))
    if check.outcome == "rejected" and one.trace.read:
        places = ", ".join(f"{context.stage.filename}:{line}" for line in one.trace.read)
        check = replace(check, seen=(*check.seen, f"Numbers leave a tensor here: {places}."))
    return _beside_own_answer(context, check, other) if doubtful else check


def _answers(context: GradingContext, workers: WorkerPool, other: Built, one: Right
             ) -> dict[str, torch.Tensor]:
    options = context.options
    while True:
        try:
            return workers.replay(other.call, one.trace)
        except SubmissionError as error:
            if not device_memory.crowded_out(error, options.device, options.clock):
                error.sentence = re.sub(  # the worker does not know the file's name
                    r"^line (?=\d)", f"{context.stage.filename}:", error.sentence)
                raise


def _beside_own_answer(context: GradingContext, check: Check, other: Built) -> Check:
    """The check of a trace that is wrong on other numbers: a rejection only if the file itself is
    right on them."""
    own = run_apart(context, other)
    if own.outcome in ("pass", "rejected"):
        return check
    return replace(own, name=check.name, group=check.group, label=check.label, seed=check.seed,
                   what="Right with these numbers, and not with new ones of the same shape: "
                   + own.what)


def judge_repeated(check: Check, other: Built, got: dict[str, torch.Tensor], device: str,
                   unwatched: dict[str, torch.Tensor] | None = None, as_given: bool = False
                   ) -> tuple[Check, bool]:
    """Judge what a right call's trace gives on other numbers.

    got: outputs and "d_q" gradients of the trace, in a clean process, on other's inputs.
    unwatched: outputs of the submission on the same inputs, in a call that was not recorded.
    -> the check; whether it is a rejection that the file's own answer must still confirm.
    """
    exact = answer(other, device, as_given=as_given)
    verdicts = {name: exact.judge(name, x) for name, x in got.items()}
    wrong = [name for name, verdict in verdicts.items() if not verdict.accepted]
    if wrong and all(verdicts[name].times <= BARELY for name in wrong):
        return check.fail(
            "wrong", "It only just passed with these numbers and failed with new ones: "
            + how_far(wrong[0], verdicts[wrong[0]]),
            advice="what loses accuracy? Keep sums, weights and statistics in float32, round only "
            "the operands of tl.dot and the result, and scale the scores after tl.dot."), False
    if wrong:
        by_kernels = other.case.course_stage.needs_triton
        names = " and ".join(tensor_name(name) for name in wrong)
        whose, same, advice = (
            "your kernels", "kernels and PyTorch operations",
            "pass the inputs to your kernels and let them write the results. Python may allocate, "
            "reshape and launch, but not") if by_kernels else (
            "PyTorch", "PyTorch operations",
            "compute everything with PyTorch operations on tensors. Python may choose the tiles, "
            "but not")
        return check.fail(
            "rejected",
            f"The numbers are right, but {whose} did not compute them: {names} came out wrong when "
            f"the same {same} ran in a clean process on new numbers.",
            advice=f"{advice} read values from tensors or compute new ones (NumPy, .item(), "
                   "lists)."), True
    if unwatched and not all(same_bits(x, got[name]) for name, x in unwatched.items()):
        return check.fail(
            "rejected",
            "A call that was not recorded returned different bits than the kernels and operations "
            "of the recorded one, on the same numbers: they did not compute it.",
            advice="do the same work in every call, recorded or not."), False
    return check, False


def not_repeated(check: Check, error: SubmissionError) -> Check:
    """The check of a right call whose trace could not be repeated."""
    if error.outcome == "wrong":  # the trace holds something that no kernel or operation can do
        return check.fail(
            "rejected",
            f"The call could not be repeated in a clean process: {error.sentence}.",
            advice="do the work in @triton.jit kernels of this file, launched on tensors that "
            "PyTorch allocated in the call.")
    check = replace(check, detail=error.detail)
    if error.id == "does-not-compile":
        return check.fail(error.outcome, f"{error.sentence}.")
    check = check.fail(error.outcome, "Repeated in a clean process, with new numbers: "
                       f"{error.sentence}.")
    return check.excused() if error.waited_for_cpu else check
