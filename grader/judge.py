"""One reply of the worker -> one Check: right, wrong, or right by forbidden means."""

import torch

from grader.cases import Built
from grader.correctness import Answer, answer
from grader.diagnosis import Finding, describe, locate, tensor_name
from grader.results import Check
from grader.sandbox import Evidence, Reply, SubmissionError
from grader.stages import Stage

# Numbers PyTorch may compute, as multiples of those in inputs and outputs: scaling, delta, the sum
# over a group.  Stage 2 is a sum of products, so there less than one of each is allowed.
ARITHMETIC, ARITHMETIC_FLOOR = (16.0, 0.75), 16384
# What PyTorch runs on a GPU to allocate, cast, pad, copy and reduce.
PLAIN_KERNELS = ("Memcpy", "Memset", "at::", "c10::", "cub::", "thrust::", "at_cuda_detail",
                 "(anonymous namespace)", "compute_cuda_kernel", "triton_poi", "triton_red",
                 "triton_per")
TRANSFERRED = 4096  # bytes between GPU and host: a few scalars
LIBRARY_KERNELS = ("gemm", "gemv", "fmha", "flash", "cutlass", "cudnn", "softmax", "xmma", "nvjet")
DRIVER_BYTES = 192 << 20  # for compiled kernels, their local memory, and blocks not yet filled
GROWTH_LIMIT = 3.0  # linear memory doubles from N to 2N, N x N memory grows fourfold


def judge(stage: Stage, built: Built, reply: Reply, device: str, command: str) -> Check:
    """Judge every tensor of a reply.  Truth is computed here, after the outputs have arrived."""
    case = built.case
    check = Check(case.name, case.group, "pass", case_text(case))
    check.detail, check.kernels = reply.evidence.stdout, reply.evidence.kernels
    exact = answer(built, device)
    got = [(name, x) for outputs in reply.outputs for name, x in outputs.items()]
    got += [("d_" + name, x) for name, x in reply.grads.items()]
    finding = _first_wrong(check, case, exact, got)
    if finding:
        lines = _strange(reply.evidence)
        if lines:  # numbers that went past PyTorch come out wrong here, whatever they were
            check.outcome, check.where, check.lines = "rejected", finding.where, tuple(lines)
            return check
        return _wrong(check, finding, stage, command)
    problem = _unsteady(stage, reply) or _overwritten(built, reply)
    if problem:
        check.outcome, check.lines = "wrong", problem
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
            return check
        if finding:
            check.where = finding.where
            return _wrong(check, finding, stage, command)
    return _by_forbidden_means(check, stage, built, reply, exact)


def judge_growth(check: Check, built: Built, small: Reply, large: Reply, held: int = 0) -> Check:
    """Add to a right check: does the peak grow with N * N?  large has twice the length of small.

    held: bytes of GPU memory the worker took in all while it answered large, by the driver.
    """
    before, after = small.evidence.peak_bytes, large.evidence.peak_bytes
    case = built.case
    # Half of one 16-bit score matrix at 2N: less than that is no N x N, however it grows.
    floor = (2 * case.N) * (2 * case.n_keys)
    said = ""
    if after > floor and after > GROWTH_LIMIT * max(before, 1):
        said = (f"Memory beside inputs and outputs grows with N x N: {before / 2**20:.2f} MiB at "
                f"N={case.N}, {after / 2**20:.2f} MiB at N={2 * case.N}.")
    elif large.evidence.kept_bytes > floor:
        said = (f"The call used {large.evidence.kept_bytes / 2**20:.2f} MiB kept from earlier "
                f"calls at N={2 * case.N}.")
    elif held > driver_limit(case):
        said = (f"The call took {held / 2**20:.0f} MiB of GPU memory at N={2 * case.N}, by the "
                f"driver's count; {driver_limit(case) / 2**20:.0f} MiB are plenty without N x N.")
    if check.outcome == "pass" and said:
        check.outcome = "rejected"
        check.lines = (said,
                       "try: keep one tile of scores at a time; no tensor may be N x N.")
    return check


def driver_limit(case) -> int:
    """GPU memory a worker may take, its own context apart, where growth is asked."""
    one = (case.HQ + case.HKV) * case.B * 2 * (case.N + case.n_keys) * case.D * 4
    return DRIVER_BYTES + 8 * one


def case_text(case) -> str:
    """What stands beside a check's tick: the shape in brackets, and what a robust case is for."""
    return f"({case.label})" if case.group == "standard" else f"({case.label}) {case.note}"


def from_error(case, error: SubmissionError, filename: str) -> Check:
    """A call that ended without an answer."""
    lines = [error.sentence]
    if error.line is not None and f"line {error.line}" not in error.sentence:
        lines.append(f"where: {filename}, line {error.line}.")
    where = "" if error.line is None else f"{filename}:{error.line}"
    return Check(case.name, case.group, error.outcome, case_text(case), where=where,
                 lines=tuple(lines), detail=error.detail)


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


def _wrong(check: Check, finding: Finding, stage: Stage, command: str) -> Check:
    check.outcome, check.where, check.diagnosis = "wrong", finding.where, finding.hypothesis
    check.lines = describe(finding, stage.steps, command)
    return check


def _unsteady(stage: Stage, reply: Reply) -> tuple[str, ...]:
    """Bit for bit the same in every run: a race seldom moves a number far.

    Not asked of stage 1, where the CPU library may order its sums anew from call to call; there
    each run was held against the truth, and that must do.
    """
    first = reply.outputs[0]
    again = reply.outputs[1:] if stage.needs_triton else []
    for i, outputs in enumerate(again, start=2):
        for name, x in outputs.items():
            if not same_bits(x, first[name]):
                rows = (x != first[name]).flatten().sum()
                return (f"{tensor_name(name)} differs between runs: run {i} of the same call gives "
                        f"{int(rows)} other numbers than run 1.",
                        "Each run is right within the limits, but no two need be the same.",
                        "try: let each program write its own part of the output, and no two the "
                        "same address; no atomics.")
    for name, x in reply.late.items():
        if not same_bits(x, first[name]):
            return (f"{tensor_name(name)} changed after the function had returned.",
                    "try: return fresh memory from every call, and leave no work running.")
    return ()


def _overwritten(built: Built, reply: Reply) -> tuple[str, ...]:
    for name, storage in reply.inputs_after.items():
        if not same_bits(storage, built.call.inputs[name].storage):
            return (f"The call overwrote its input {name}.",
                    "try: inputs belong to the caller; write to memory you allocated.")
    return ()


def _is_stale(earlier: Answer, reply: Reply) -> bool:
    return all(same_bits(x, reply.outputs[0][name]) or earlier.judge(name, x).accepted
               for name, x in reply.refilled.items())


def _by_forbidden_means(check: Check, stage: Stage, built: Built, reply: Reply,
                        exact: Answer) -> Check:
    """The numbers are right: were they made with the means the stage teaches?"""
    seen = reply.evidence
    lines = _tampered(seen) or _products(stage, built, seen) or _strange(seen)
    if not lines and stage.needs_triton:
        lines = (_no_launch(built, seen) or _arithmetic(stage, built, seen)
                 or _without_kernels(exact, reply) or _device(seen))
    if lines:
        check.outcome, check.lines = "rejected", tuple(lines)
    return check


def _tampered(seen: Evidence) -> list[str]:
    if not seen.patched:
        return []
    return [f"The file replaced parts of the grader that runs it: {', '.join(seen.patched[:4])}.",
            "try: leave the process it runs in as it is."]


def _products(stage: Stage, built: Built, seen: Evidence) -> list[str]:
    forward = stage.forbidden(seen.torch_ops)
    backward = stage.forbidden(seen.backward_torch_ops) if built.case.grads else []
    if not forward and not backward:
        return []
    names = ", ".join((forward or backward)[:4])
    allowed = ("PyTorch may allocate, cast, pad and reduce; the products and the softmax are the "
               "kernel's.")
    if not stage.needs_triton:
        allowed = "this stage is about the tiles; compute them from matrix products."
    return [f"The numbers are right, but PyTorch computed them: {names} ran in the "
            f"{'forward' if forward else 'backward'}.", "try: " + allowed]


def _no_launch(built: Built, seen: Evidence) -> list[str]:
    if seen.launches == 0:
        return ["The numbers are right, but no Triton kernel ran.",
                "try: launch your @triton.jit kernel: kernel[grid](...)."]
    if built.case.grads and seen.backward_launches == 0:
        return ["The gradients are right, but no Triton kernel ran in the backward.",
                "try: launch your backward kernels from the Function's backward."]
    return []


def _arithmetic(stage: Stage, built: Built, seen: Evidence) -> list[str]:
    """Too much of elementwise PyTorch: scores take N times as many numbers as the inputs have."""
    case = built.case
    size = sum(tensor.numel() for tensor in built.tensors.values())
    size += case.B * case.HQ * case.N * case.D if case.stage > 2 else 0
    limit = max(size * ARITHMETIC[stage.number == 2], ARITHMETIC_FLOOR)
    for words, count in (("call", seen.arithmetic), ("backward", seen.backward_arithmetic)):
        if count > limit:
            return [f"The numbers are right, but PyTorch computed {count:,} numbers in the "
                    f"{words}; preparing inputs and reducing results take at most {limit:,.0f}.",
                    "try: PyTorch may allocate, cast, pad and reduce; the work is the kernel's."]
    return []


def _without_kernels(exact: Answer, reply: Reply) -> list[str]:
    """Whether the answers stay right when every launch is switched off."""
    if reply.ablated is None:
        return []
    groups = [("answer", reply.ablated),
              ("gradients", {"d_" + name: x for name, x in reply.ablated_grads.items()})]
    for words, tensors in groups:
        if tensors and all(exact.judge(name, x).accepted for name, x in tensors.items()):
            return [f"With every Triton kernel switched off the {words} came out right all the "
                    "same: something else computes it.",
                    "try: let the kernels write the results, from the inputs."]
    return []


def _strange(seen: Evidence) -> list[str]:
    if not seen.strange:
        return []
    return [f"The call used {' and '.join(seen.strange[:2])}.",
            "try: pass the inputs to your kernels and let them write into tensors that PyTorch "
            "allocated in the call; no NumPy, no ctypes, no lists."]


def _device(seen: Evidence) -> list[str]:
    """What the GPU ran beside the file's own kernels and PyTorch's copies and casts."""
    if not seen.device_kernels:  # not a GPU, or a PyTorch that does not record
        return []
    if seen.transferred > TRANSFERRED:
        return [f"The call copied {seen.transferred:,} bytes between GPU and host.",
                "try: leave inputs and results on the GPU; your kernels do the work there."]
    launched = seen.launched()
    if not launched & set(seen.device_kernels):
        return ["The numbers are right, but no kernel of the file ran on the GPU.",
                "try: launch your @triton.jit kernel: kernel[grid](...)."]
    foreign = [name for name in seen.device_kernels
               if name not in launched and not any(part in name for part in PLAIN_KERNELS)]
    products = [name for name in seen.device_kernels
                if name not in launched and any(part in name for part in LIBRARY_KERNELS)]
    if not foreign and not products:
        return []
    name = (products or foreign)[0]
    return [f"The numbers are right, but the GPU ran a kernel not of this file: {name[:120]}.",
            "try: do the work in your own @triton.jit kernels."]


def same_bits(a: torch.Tensor, b: torch.Tensor) -> bool:
    """Bit for bit, so that the NaN around a strided view equals itself."""
    a, b = a.contiguous().flatten(), b.contiguous().flatten()
    return a.dtype == b.dtype and torch.equal(a.view(torch.uint8), b.view(torch.uint8))
