"""One reply of the worker -> one Check: right, wrong, or right by forbidden means."""

import torch

from grader.correctness import Answer, answer
from grader.inputs import APART, FAR, Built
from grader.inside.wire import LONGEST
from grader.naming.words import Finding, describe, locate, tensor_name
from grader.results import Check
from grader.sandbox.calls import Reply, SubmissionError
from grader.sandbox.plan import Plan
from grader.stages import Stage
from grader.submission import Step

# Numbers PyTorch may compute, as multiples of those in inputs and outputs: scaling, delta, the sum
# over a group.  Stage 2 is a sum of products, so there only what partial sums take is allowed.
ARITHMETIC, ARITHMETIC_FLOOR = (16.0, 0.0625), 16384
MANY_SCORES = 2**20  # from here on Python loops over small tiles may take that many operations
BARELY = 4.0  # limits: kernels right on one set of numbers are that far off on another by rounding
GROWTH_LIMIT = 3.0  # linear memory doubles from N to 2N, N x N memory grows fourfold


def judge(stage: Stage, built: Built, reply: Reply, device: str, command: str) -> Check:
    """Judge every tensor of a reply.  Truth is computed here, after the outputs have arrived."""
    case = built.case
    check = Check(case.name, case.group, "pass", case_text(case))
    check.detail, check.kernels = reply.stdout, tuple(sorted(reply.plan.kernels))
    exact = answer(built, device)
    got = [(name, x) for outputs in reply.outputs for name, x in outputs.items()]
    got += [("d_" + name, x) for name, x in reply.grads.items()]
    finding = _first_wrong(check, case, exact, got)
    if finding:
        return _wrong(check, finding, stage, command, case)
    id, lines = _unsteady(stage, reply) or _overwritten(built, reply)
    if id:
        check.outcome, check.lines = "wrong", lines
        check.observe(id)
        return check
    if reply.refilled is not None:
        fresh = answer(built, device, refilled=True)
        finding = _first_wrong(check, case, fresh, list(reply.refilled.items()))
        if finding and _is_stale(exact, reply):
            check.outcome, check.where = "rejected", "everywhere"
            check.lines = (
                "The answer is that of an earlier call: the same tensors held new values, and the "
                "old result came back.",
                "try: compute every call from the values the inputs hold now; keep no results.",
            )
            check.observe("stale-answer")
            return check
        if finding:
            check.where = finding.where
            return _wrong(check, finding, stage, command, case)
    return _by_forbidden_means(check, stage, built, reply.plan)


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
        check.outcome, check.where = "wrong", finding.where
        check.lines = (
            "Barely right on the numbers of this case, and not on others of the same shape: "
            + finding.what[0], f"where: {finding.where}.",
            "try: what loses accuracy? Sums, weights and statistics belong in float32; only the "
            "operands of tl.dot and the result are rounded.")
    elif wrong:
        names = " and ".join(tensor_name(name) for name in wrong)
        check.outcome = "rejected"
        check.lines = (
            f"The numbers are right, but not by the kernels: {names} came out wrong when the same "
            "kernels and PyTorch operations ran in a clean process on other numbers.",
            "try: hand the inputs to your kernels and let them write the results; the host may "
            "allocate, reshape and launch, but not read or make numbers (NumPy, .item(), lists).")
    elif unwatched and not all(same_bits(x, got[name]) for name, x in unwatched.items()):
        check.outcome = "rejected"
        check.lines = (
            "A call that was not recorded gave other bits than the kernels and operations of the "
            "recorded one on the same numbers: it was not made by them.",
            "try: do the same work in every call, whoever watches.")
    return check


def not_repeated(check: Check, error: SubmissionError) -> Check:
    """Add to a right check: its plan could not be carried out."""
    if error.outcome == "wrong":  # the plan holds what no kernel or PyTorch operation can do
        check.outcome = "rejected"
        check.lines = (f"The call could not be carried out again in a clean process: "
                       f"{error.sentence}.",
                       "try: do the work in @triton.jit kernels of this file, launched on tensors "
                       "that PyTorch allocated in the call.")
        return check
    check.outcome, check.detail = error.outcome, error.detail
    check.lines = (f"Carried out again in a clean process, on other numbers: {error.sentence}.",)
    return check


def judge_growth(check: Check, built: Built, small: Reply, large: Reply) -> Check:
    """Add to a right check: does the peak grow with N * N?  large has twice the length of small."""
    before, after = small.plan.peak_bytes, large.plan.peak_bytes
    case = built.case
    # Half of one 16-bit score matrix at 2N: less than that is no N x N, however it grows.
    floor = (2 * case.N) * (2 * case.n_keys)
    said = ""
    if after > floor and after > GROWTH_LIMIT * max(before, 1):
        said = (f"Memory beside inputs and outputs grows with N x N: {before / 2**20:.2f} MiB at "
                f"N={case.N}, {after / 2**20:.2f} MiB at N={2 * case.N}.")
    elif large.plan.kept_bytes > floor:
        said = (f"The call used {large.plan.kept_bytes / 2**20:.2f} MiB kept from earlier calls at "
                f"N={2 * case.N}.")
    if check.outcome == "pass" and said:
        check.outcome = "rejected"
        check.lines = (said,
                       "try: keep one tile of scores at a time; no tensor may be N x N.")
    return check


def case_text(case) -> str:
    """What stands beside a check's tick: the shape in brackets, and what a robust case is for."""
    return f"({case.label})" if case.group == "standard" else f"({case.label}) {case.note}"


def from_error(case, error: SubmissionError, filename: str, step: Step | None = None) -> Check:
    """A call that ended without an answer.  step: the one that error.line stands in."""
    lines = [error.sentence]
    places = [f"{filename}, line {error.line}"] * (
        error.line is not None and f"line {error.line}" not in error.sentence)
    places += [step.words] if step else []
    if places:
        lines.append(f"where: {', '.join(places)}.")
    lines += _of_layout(case) if error.outcome == "crashed" else ()
    where = "" if error.line is None else f"{filename}:{error.line}"
    check = Check(case.name, case.group, error.outcome, case_text(case), where=where,
                  lines=tuple(lines), detail=error.detail)
    check.observe(error.id)
    return check


def _first_wrong(check: Check, case, exact: Answer, tensors) -> Finding | None:
    """Judge tensors in order, note each one's errors, and locate the first that is wrong."""
    found = None
    for name, x in tensors:
        verdict = exact.judge(name, x)
        noted = check.errors.get(name)
        if noted is None or not verdict.row <= noted["row"]:
            check.errors[name] = verdict.as_dict()
        if not verdict.accepted and found is None:
            found = locate(case, exact, name, x, verdict)
    return found


def _wrong(check: Check, finding: Finding, stage: Stage, command: str, case) -> Check:
    check.outcome, check.where = "wrong", finding.where
    check.lines = describe(finding, stage.steps, command, stage.origins) + _of_layout(case)
    return check


def _of_layout(case) -> tuple[str, ...]:
    """What a wrong answer or a crash most likely means in a case made for one mistake."""
    if case.layout != "far":
        return ()
    name = " and ".join(name for name in APART if (name == "x") == (case.stage == 2))
    return (f"Entries of {name} lie {FAR:,} elements apart here, so that offsets pass 2^31.",
            "try: offsets in 64 bits: tl.program_id(0).to(tl.int64) * stride, and so on.")


def _unsteady(stage: Stage, reply: Reply) -> tuple[str, tuple[str, ...]] | None:
    """-> id and lines.  Bit for bit the same in every run: a race seldom moves a number far.

    Not asked of stage 1, where the CPU library may order its sums anew from call to call; there
    each run was held against the truth, and that must do.
    """
    first = reply.outputs[0]
    again = reply.outputs[1:] if stage.needs_triton else []
    for i, outputs in enumerate(again, start=2):
        for name, x in outputs.items():
            if not same_bits(x, first[name]):
                rows = (x != first[name]).flatten().sum()
                return "differs-between-runs", (
                    f"{tensor_name(name)} differs between runs: run {i} of the same call gives "
                    f"{int(rows)} other numbers than run 1.",
                    "Each run is right within the limits, but no two need be the same.",
                    "try: let each program write its own part of the output, and no two the "
                    "same address; no atomics.")
    for name, x in reply.late.items():
        if not same_bits(x, first[name]):
            return "changes-after-return", (
                f"{tensor_name(name)} changed after the function had returned.",
                "try: return fresh memory from every call, and leave no work running.")
    return None


def _overwritten(built: Built, reply: Reply) -> tuple[str, tuple[str, ...]]:
    """-> id and lines, empty where no input was."""
    for name, storage in reply.inputs_after.items():
        if not same_bits(storage, built.call.inputs[name].storage):
            return "input-overwritten", (
                f"The call overwrote its input {name}.",
                "try: inputs belong to the caller; write to memory you allocated.")
    return "", ()


def _is_stale(earlier: Answer, reply: Reply) -> bool:
    return all(same_bits(x, reply.outputs[0][name]) or earlier.judge(name, x).accepted
               for name, x in reply.refilled.items())


def _by_forbidden_means(check: Check, stage: Stage, built: Built, plan: Plan) -> Check:
    """The numbers are right: were they made with the means the stage teaches?"""
    lines = _products(stage, built, plan) or _too_long(stage, built, plan)
    if not lines and stage.needs_triton:
        lines = _no_launch(built, plan) or _arithmetic(stage, built, plan)
    if lines:
        check.outcome, check.lines = "rejected", tuple(lines)
    return check


def _products(stage: Stage, built: Built, plan: Plan) -> list[str]:
    forward = stage.forbidden(plan.operations)
    backward = stage.forbidden(plan.backward_operations)
    if not forward and not backward:
        return []
    names = ", ".join((forward or backward)[:4])
    allowed = ("PyTorch may allocate, cast, pad and reduce; the products and the softmax are the "
               "kernel's.")
    if not stage.needs_triton:
        allowed = "this stage is about the tiles; compute them from matrix products."
    return [f"The numbers are right, but PyTorch computed them: {names} ran in the "
            f"{'forward' if forward else 'backward'}.", "try: " + allowed]


def _too_long(stage: Stage, built: Built, plan: Plan) -> list[str]:
    """Loops over small tiles in Python are slow but right in stage 1, and many where scores are."""
    case = built.case
    scores = case.B * case.HQ * case.N * case.n_keys
    if not plan.cut or not stage.needs_triton and scores >= MANY_SCORES:
        return []
    return [f"The numbers are right, but the call took more than {LONGEST:,} operations.",
            "try: larger tiles, and all heads at once; from stage 2 on, one launch for all."]


def _no_launch(built: Built, plan: Plan) -> list[str]:
    if plan.launches == 0:
        return ["The numbers are right, but no Triton kernel ran.",
                "try: launch your @triton.jit kernel: kernel[grid](...)."]
    if built.case.grads and plan.backward_launches == 0:
        return ["The gradients are right, but no Triton kernel ran in the backward.",
                "try: launch your backward kernels from the Function's backward."]
    if not plan.results_written:
        return ["The numbers are right, but no Triton kernel wrote them.",
                "try: return what your kernels stored, in every case."]
    if plan.answers_kept:
        return ["The same call launched other kernels when it was repeated: an answer was kept.",
                "try: compute every call anew; keep no results."]
    return []


def _arithmetic(stage: Stage, built: Built, plan: Plan) -> list[str]:
    """Too much of elementwise PyTorch: scores take N times as many numbers as the inputs have."""
    case = built.case
    size = sum(tensor.numel() for tensor in built.tensors.values())
    size += case.B * case.HQ * case.N * case.D if case.stage > 2 else 0
    limit = max(size * ARITHMETIC[stage.number == 2], ARITHMETIC_FLOOR)
    for words, count in (("call", plan.arithmetic), ("backward", plan.backward_arithmetic)):
        if count > limit:
            return [f"The numbers are right, but PyTorch computed {count:,} numbers in the "
                    f"{words}; preparing inputs and reducing results take at most {limit:,.0f}.",
                    "try: PyTorch may allocate, cast, pad and reduce; the work is the kernel's."]
    return []


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit for bit, so that the NaN around a strided view equals itself."""
    a, b = a.contiguous().flatten(), b.contiguous().flatten()
    return a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))
