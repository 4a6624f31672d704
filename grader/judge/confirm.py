"""Right numbers: are they the kernels' own?  Each call's plan is carried out once more, on other
numbers, by a worker that never saw the file, while the submission's own goes on with the next case.

Given: each case's check, with what the worker answered.  Adds: settles them, in their order.
"""

import concurrent.futures
import time

import torch

from grader.assignment import submission
from grader.course.calls import Reply, SubmissionError, same_bits
from grader.course.cases import Case
from grader.course.correctness import answer
from grader.course.inputs import Built, other_numbers
from grader.host import device_memory
from grader.judge import asking, settling
from grader.judge.known import Known
from grader.judge.verdict import judging
from grader.report.results import Check
from grader.words.describe import kept_in_16_bits, locate, tensor_name

BARELY = 4.0  # limits: kernels right on one set of numbers are that far off on another by rounding


def rest(known: Known) -> None:
    """Wait for what is not settled yet."""
    known.confirmations.flush()


class Confirmations:
    """Checks in the order of their cases, settled as their plans are carried out; wrong ones only
    wait for their turn."""

    MOST_WAITING = 4  # each holds the results of its calls

    def __init__(self, known: Known):
        self.known, self.options = known, known.options
        self.pool = concurrent.futures.ThreadPoolExecutor(known.workers.count)
        self.waiting: list[tuple[concurrent.futures.Future, Check, list]] = []

    def add(self, check: Check, replies: list[tuple[Case, Reply]]) -> None:
        """replies: of every call that check stands for."""
        future = self.pool.submit(self._confirmed, check, replies)
        self.waiting.append((future, check, replies))
        self.flush(self.MOST_WAITING)

    def flush(self, at_most: int = 0) -> None:
        """Report what is settled; wait until no more than so many are not."""
        while self.waiting and (len(self.waiting) > at_most or self.waiting[0][0].done()):
            future, check, replies = self.waiting.pop(0)
            try:
                check = future.result()
            except SubmissionError as error:  # it starved
                check = self._alone(check, replies, error)
            if check.doubt is not None:
                self._ask_again(check)
            settling.done(self.known, check)

    def _alone(self, check: Check, replies: list, error: SubmissionError) -> Check:
        if not self.options.clock.asks_again(error):
            return not_repeated(check, error)
        concurrent.futures.wait([future for future, *_ in self.waiting])
        try:
            return self._confirmed(check, replies)
        except SubmissionError as again:
            return not_repeated(check, again)

    def _ask_again(self, check: Check) -> None:
        """The plan of a call is wrong on other numbers: is the file's own answer to them right?"""
        other, check.doubt = check.doubt, None
        own = asking.apart(self.known, other)
        if own.outcome not in ("pass", "rejected"):
            check.fail(own.outcome, "Right on the numbers of this case, not on others of the same "
                       "shape:", *own.lines, where=own.where)
            check.errors, check.detail = own.errors, own.detail

    def close(self, kind: type[BaseException] | None = None, *error) -> None:
        """Forget what waits, and wait for what is under way: a request has its time limit.

        kind: what ended the grading, if not its end; the user's own wish does not wait.
        """
        self.pool.shutdown(kind is None or issubclass(kind, Exception), cancel_futures=True)

    def _confirmed(self, check: Check, replies: list) -> Check:
        """Judge a right check's plans by what they do on other numbers.

        Raises:
            SubmissionError: a timeout that others may be to blame for.
        """
        start = time.monotonic()
        for case, reply in replies:
            if check.outcome == "pass":
                check = self._confirm(check, case, reply)
        check.seconds += time.monotonic() - start
        return check

    def _confirm(self, check: Check, case: Case, reply: Reply) -> Check:
        if reply.plan.cut:  # judge() let it through
            return check
        if foreign := submission.foreign_texts(self.known.file.source, reply.plan.texts):
            return check.fail(
                "rejected", f"The numbers are right, but the kernel {foreign[0]} is not in this "
                "file.", "try: write the kernels of this stage in its file.")
        other = other_numbers(case, self.options.seed)
        unwatched = reply.refilled if self.known.stage.needs_triton else None
        try:
            got = self._replayed(other, reply)
        except SubmissionError as error:
            if error.starved:
                raise
            if error.id != "does-not-compile":  # that is so whatever the numbers
                check.seed = other.seed
            return asking.absolved(not_repeated(check, error), error, self.options.device)
        with judging():
            try:
                check = judge_repeated(check, other, got, self.options.device, unwatched)
            except torch.OutOfMemoryError as error:  # gradings side by side, for a moment
                torch.cuda.empty_cache()
                device_memory.comes_back(str(error), self.options.clock)
                check = judge_repeated(check, other, got, self.options.device, unwatched)
        if check.outcome != "pass":
            check.seed = other.seed
        if check.outcome == "wrong" and (narrow := kept_in_16_bits(case, reply.plan)):
            check.lines = (*check.lines[:2], narrow, *check.lines[2:])
        if check.outcome == "rejected" and reply.plan.read:
            lines = ", ".join(map(str, reply.plan.read))
            check.lines += (f"Numbers are taken out of a tensor in line {lines}.",)
        return check

    def _replayed(self, other: Built, reply: Reply) -> dict[str, torch.Tensor]:
        while True:
            try:
                return self.known.workers.replay(other.call, reply.plan)
            except SubmissionError as error:
                if not device_memory.crowded_out(error, self.options.device, self.options.clock):
                    raise


def judge_repeated(check: Check, other: Built, got: dict[str, torch.Tensor], device: str,
                   unwatched: dict[str, torch.Tensor] | None = None) -> Check:
    """Add to a right check: does the call's plan alone give right answers, on other numbers?

    got: what the plan gave in a clean process, outputs and "d_q" gradients, on other's inputs.
    unwatched: outputs of the submission for the same, in a call that was not recorded.
    """
    exact = answer(other, device)
    verdicts = {name: exact.judge(name, x) for name, x in got.items()}
    wrong = [name for name, verdict in verdicts.items() if not verdict.accepted]
    if wrong and all(verdicts[name].times <= BARELY for name in wrong):
        finding = locate(other.case, exact, wrong[0], got[wrong[0]], verdicts[wrong[0]])
        return check.fail(
            "wrong", "Barely right on the numbers of this case, and not on others of the same "
            "shape: " + finding.what[0], f"where: {finding.where}.",
            "try: what loses accuracy? Sums, weights and statistics belong in float32; only the "
            "operands of tl.dot and the result are rounded; the scale comes in after tl.dot.",
            where=finding.where)
    if wrong:
        check.doubt = other
        names = " and ".join(tensor_name(name) for name in wrong)
        return check.fail(
            "rejected",
            f"The numbers are right, but not by the kernels: {names} came out wrong when the same "
            "kernels and PyTorch operations ran in a clean process on other numbers.",
            "try: hand the inputs to your kernels and let them write the results; the host may "
            "allocate, reshape and launch, but not read or make numbers (NumPy, .item(), lists).")
    if unwatched and not all(same_bits(x, got[name]) for name, x in unwatched.items()):
        return check.fail(
            "rejected",
            "A call that was not recorded gave other bits than the kernels and operations of the "
            "recorded one on the same numbers: it was not made by them.",
            "try: do the same work in every call, whoever watches.")
    return check


def not_repeated(check: Check, error: SubmissionError) -> Check:
    """Add to a right check: its plan could not be carried out."""
    if error.outcome == "wrong":  # the plan holds what no kernel or PyTorch operation can do
        return check.fail(
            "rejected",
            f"The call could not be carried out again in a clean process: {error.sentence}.",
            "try: do the work in @triton.jit kernels of this file, launched on tensors that "
            "PyTorch allocated in the call.")
    check.detail = error.detail
    if error.id == "does-not-compile":
        return check.fail(error.outcome, f"{error.sentence}.")
    return check.fail(error.outcome, "Carried out again in a clean process, on other numbers: "
                      f"{error.sentence}.")
