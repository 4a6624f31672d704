"""Judges from the trace of a right answer whether it was made by the means the stage allows."""

from collections import Counter

from grader.course.calls import Reply
from grader.course.cases import Case
from grader.course.inputs import Built
from grader.course.operations import FREE, Operation
from grader.course.stages import Stage
from grader.course.trace import Trace, arithmetic
from grader.report.results import Check
from grader.sandbox.wire import LONGEST
from grader.text import either

# How many numbers PyTorch may compute, as a multiple of those in inputs and outputs: enough for
# scaling, delta and sums over a group.  Stage 2 is itself a sum of products, so there PyTorch may
# only add up partial sums.
ARITHMETIC, ARITHMETIC_FLOOR = (16.0, 0.0625), 16384
ALLOWED = (*FREE, "pointwise", "reduces")  # kinds of operations.py
MANY_SCORES = 2**20  # with more scores, loops over small tiles may need that many operations
FEW_QUERIES = 8  # times a growth case's N: more than 4 N, padded to a power of two
GROWTH_LIMIT = 3.0  # from 2N to 4N, N x N memory grows fourfold, linear memory twofold


def made_by_kernels(check: Check, stage: Stage, built: Built, trace: Trace) -> Check:
    """Reject a right answer if PyTorch did a forbidden step, or too much."""
    found = _products(stage, built, trace) or _too_long(stage, built, trace)
    if not found and stage.needs_triton:
        found = _no_launch(stage, built, trace) or _arithmetic(stage, built, trace)
    return check.fail("rejected", found[0], advice=found[1]) if found else check


def _products(stage: Stage, built: Built, trace: Trace) -> list[str]:
    forward = forbidden(stage, built, trace.operations)
    backward = [] if stage.backward_is_given else \
        forbidden(stage, built, trace.backward_operations)
    if not forward and not backward:
        return []
    lines = {operation.packet: operation.line for operation in reversed(forward or backward)}
    names = either([f"{name}{_at(stage, line)}" for name, line in sorted(lines.items())[:4]],
                   "and")
    allowed = ("PyTorch may allocate, cast, pad, move and reduce, and add up the heads of a group; "
               "matrix products and the softmax belong in your kernel.")
    if not stage.needs_triton:
        allowed = "this stage is about tiles; compute each one from matrix products."
    return [f"The numbers are right, but PyTorch computed them: {names} ran in the "
            f"{'forward' if forward else 'backward'}.", allowed]


def _at(stage: Stage, line: int | None) -> str:
    return "" if line is None else f" ({stage.filename}:{line})"


def forbidden(stage: Stage, built: Built, operations: tuple[Operation, ...]) -> list[Operation]:
    """The operations among these that the stage forbids.

    From stage 2 on PyTorch may allocate, move, compute elementwise, reduce, and add up the heads of
    a group.  Stage 1 is written in PyTorch, so only whole attentions are forbidden.
    """
    if not stage.needs_triton:
        return [operation for operation in operations
                if "attention" in operation.name or not operation.name.startswith("aten::")]
    return [operation for operation in operations
            if not (operation.kind in ALLOWED
                    or operation.kind == "adds" and _adds_heads(built, operation))]


def _adds_heads(built: Built, operation: Operation) -> bool:
    """Whether it only adds up gradients over the heads of a group: whole rows, as in the backward
    of k[:, heads], or one number per head, as in that of sink_logits[order]."""
    case, added = built.case, operation.addends
    rows = added.together >= case.n_keys * case.D and added.numbers <= (
        case.HQ // case.HKV * added.into)
    return not case.course_stage.sums_rows and (rows or added.numbers <= case.B * case.HQ)


def _too_long(stage: Stage, built: Built, trace: Trace) -> list[str]:
    """What to say of a trace too long to be recorded; stage 1 may loop over small tiles in
    Python."""
    case = built.case
    scores = case.B * case.HQ * case.N * case.n_keys
    if not trace.cut or not stage.needs_triton and scores >= MANY_SCORES:
        return []
    return [f"The numbers are right, but the call took more than {LONGEST:,} operations.",
            "larger tiles, and all heads at once; from stage 2 on, launch one kernel for all."]


def _no_launch(stage: Stage, built: Built, trace: Trace) -> list[str]:
    if trace.launches == 0:
        return ["The numbers are right, but no Triton kernel ran.",
                "launch your @triton.jit kernel: kernel[grid](...)."]
    if built.case.grads and trace.backward_launches == 0 and not stage.backward_is_given:
        return ["The gradients are right, but no Triton kernel ran in the backward.",
                "launch your backward kernels from the Function's backward."]
    if not trace.results_written:
        return ["The numbers are right, but no Triton kernel wrote them.",
                "return what your kernels stored, in every case."]
    if trace.answers_kept:
        return ["When the same call was repeated, it launched other kernels, or none: an answer "
                "was kept.",
                "compute every call from scratch; keep no results."]
    return []


def _arithmetic(stage: Stage, built: Built, trace: Trace) -> list[str]:
    """What to say if PyTorch computed too many numbers elementwise, as it would for all scores."""
    case = built.case
    size = sum(tensor.numel() for tensor in built.tensors.values())
    size += case.B * case.HQ * case.N * case.D if stage.needs_triton and not stage.sums_rows else 0
    limit = max(size * ARITHMETIC[stage.sums_rows], ARITHMETIC_FLOOR)
    counts = [("call", trace.operations)]
    counts += [("backward", trace.backward_operations)] * (not stage.backward_is_given)
    for words, operations in counts:
        if (count := arithmetic(operations)) > limit:
            most = Counter()
            for operation in operations:
                most[f"{operation.packet}{_at(stage, operation.line)}"] += operation.numbers
            return [f"The numbers are right, but PyTorch computed {count:,} numbers in the "
                    f"{words}, most of them in {most.most_common(1)[0][0]}. Only {limit:,.0f} are "
                    "allowed, enough to prepare inputs and reduce results.",
                    "let your kernel do the work; PyTorch may allocate, cast, pad and reduce."]
    return []


def scores_bytes(built: Built, times: int) -> int:
    """Half the bytes of a 16-bit score matrix at so many times the case's length: memory below that
    cannot hold N x N scores."""
    return times * built.case.N * times * built.case.n_keys


def _grows_with_keys(case: Case, small: Trace, large: Trace) -> tuple[Operation, int] | None:
    """The product with the longest side, of operands and result, and that side, if it grows with
    the number of keys.  A tile has the same size in both traces; queries, which a file may take all
    at once, are far fewer."""
    def longest(trace: Trace) -> tuple[Operation | None, int]:
        products = [operation for operation in trace.operations if operation.kind == "computes"]
        found = [(operation, max(operation.sides, default=0)) for operation in products]
        return max(found, key=lambda pair: pair[1], default=(None, 0))

    before, (operation, side) = longest(small)[1], longest(large)
    return (operation, side) if side > max(1.5 * before, FEW_QUERIES * case.N) else None


def judge_growth(check: Check, built: Built, *replies: Reply) -> Check:
    """Reject a right answer if its peak memory grows with N * N or, in stage 1, if a product spans
    all keys.

    replies: at N, 2N and, if that took more than scores_bytes, 4N.  Only differences count, so
    constant memory cancels.
    """
    *_, large = traces = [reply.trace for reply in replies]
    times = 2 ** (len(traces) - 1)
    N, said, stage = times * built.case.N, "", built.case.course_stage
    if not stage.needs_triton and (whole := _grows_with_keys(built.case, *traces[-2:])):
        operation, side = whole
        return check.fail(
            "rejected", f"{operation.packet}{_at(stage, operation.line)} takes {side} keys at "
            f"once, of {times * built.case.n_keys}.",
            advice="loop over tiles of keys, with the online softmax.")
    if len(traces) > 2 and large.peak_bytes > scores_bytes(built, 4):
        first, second = (after.peak_bytes - before.peak_bytes
                         for before, after in zip(traces, traces[1:], strict=False))
        if second > GROWTH_LIMIT * max(first, 1):
            largest = max((*large.operations, *large.backward_operations),
                          key=lambda operation: operation.made, default=None)
            by = f"; the largest tensor is made by {largest.packet}{_at(stage, largest.line)}" \
                if largest else ""
            peaks = [f"{trace.peak_bytes / 2**20:.2f} MiB" for trace in traces[1:]]
            said = ("Memory besides inputs and outputs grows with N x N: "
                    f"{peaks[0]} at N={N // 2}, {peaks[1]} at N={N}{by}.")
    if not said and large.kept_bytes > scores_bytes(built, N // built.case.N):
        said = (f"The call used {large.kept_bytes / 2**20:.2f} MiB kept from earlier calls at "
                f"N={N}.")
    if not said:
        return check
    return check.fail("rejected", said,
                      advice="keep one tile of scores at a time; no tensor may be N x N.")
