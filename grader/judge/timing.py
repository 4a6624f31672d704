"""Measures time and peak memory of a submission, beside naive attention and PyTorch's own.

GPU only; times and memory are reported, and never part of a verdict.  The clock is the parent's,
outside of the worker: a request of few calls and one of many are timed, and the time of a call is
their difference over the number of calls, so that the constant cost of a request cancels.  No two
timed calls have the same inputs.  The answer of one, drawn by lot, is judged, and must equal bit
for bit what the recorded kernels give in a replaying worker; otherwise there is no time.  Memory is
PyTorch's count, in the worker.  Results that are too noisy are left out.

That answer does decide something.  If the file is right on the same inputs while nothing is timed,
an answer that has nothing to do with them, being another call's or untouched memory, rejects the
file; so does one that was never made.  One that is only partly wrong, as after a race, is wrong,
and costs the points of the robust cases.
"""

import functools
import secrets
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch.nn.functional import scaled_dot_product_attention

from grader.course.calls import Call, Reply, SubmissionError, TensorInput, same_bits
from grader.course.case_table import listed
from grader.course.cases import Case
from grader.course.correctness import answer, row_errors
from grader.course.inputs import Built, build
from grader.course.stages import Stage
from grader.host.session import STEP, Session
from grader.host.worker_pool import WorkerPool
from grader.judge.context import GradingContext
from grader.judge.record_check import record
from grader.judge.run_cases import CasesRun, judged
from grader.judge.verdict import crashed
from grader.report.overview import command
from grader.report.results import Check
from grader.sandbox.wire import dtype_name
from grader.text import tensor_name
from reference import naive_attention

ROUNDS = 5
FEW, WARM, MOST = 2, 8, 2000  # calls per request
NOISY = 0.25  # of the median: a larger spread is no measurement
UNRELATED = 0.5  # mean error of the rows, each at most 1, of an answer to something else
TARGET_SECONDS = 0.06  # of device work per round, enough for a clock outside of the worker
MIB = 2**20
WHOLE = "do the whole work in every call, however many have gone before."
SKIPPED = "timing skipped: no GPU, so the cases were small"


@dataclass(frozen=True)
class Row:
    """One implementation: median ms per call, spread over rounds (see measure), peak MiB.

    Peak includes the inputs.  note: shown in place of missing numbers.
    """

    name: str
    ms: float | None = None
    spread_ms: float | None = None
    peak_mib: float | None = None
    note: str = "n/a"


def shapes(stage: Stage, has_bfloat16: bool = True) -> list[Case]:
    """The assignment's largest shape, and one of today's; with the stage's heads and mask.  Stage 1
    has the former alone: its Python loop over tiles takes a quarter of a second per call."""
    standard = [replace(case, refill=False) for case in listed(stage.number, "cuda", has_bfloat16)
                if case.group == "standard"]
    if stage.sums_rows:
        return [standard[-1], replace(standard[-1], M=8192, N=16384)]
    original = standard[-1]
    if not stage.needs_triton:
        return [original]
    today = replace(original, B=1, HQ=32, N=4096,
                    D=64 if stage.windowed or stage.differentiates else 128,
                    HKV=32 if original.HKV == original.HQ else 8)
    return [original, today]


def time_stage(context: GradingContext, run: CasesRun, replaying: WorkerPool
               ) -> tuple[Built, list[Row]] | None:
    """Benchmark a passing submission in the session that graded it, and print its tables; the
    JSON file gets the original shape's.  -> today's shape and its rows; None if nothing is timed.
    """
    stage, options, reporter = context.stage, context.options, context.reporter
    if not options.benchmark:
        return None
    if options.device != "cuda":
        reporter.table([SKIPPED])
        return None
    failed = None
    for case in shapes(stage, options.bfloat16):
        with reporter.working(stage, f"timing ({case.label})"):
            built = build(case, options.seed)
            run.prepare(run.session, case)
            ours, problem = _measure_submission(context, run.session, replaying.replay, built)
            rows = [ours, _measure_here("PyTorch (Naive)", _naive(case), built),
                    _measure_here("PyTorch (SDPA)", _sdpa(case), built)]
        reporter.table(table(stage, case, rows))
        context.result.benchmark = context.result.benchmark or as_record(case, rows)
        failed = failed or problem
    if failed:
        record(context, failed)
    return built, rows


def as_record(case: Case, rows: list[Row]) -> dict:
    """The three rows as the JSON file names them."""
    ours, naive, sdpa = rows
    return {"label": shown(case), "ms": ours.ms, "spread_ms": ours.spread_ms,
            "naive_ms": naive.ms, "sdpa_ms": sdpa.ms, "peak_mib": ours.peak_mib,
            "naive_peak_mib": naive.peak_mib}


def table(stage: Stage, case: Case, rows: list[Row]) -> list[str]:
    """The benchmark lines, in the shape the assignment's readers know."""
    lines = ["", "--- Benchmark Results ---", f"Benchmarking for: {shown(case)}",
             f"{'Implementation':<25} | {'Avg Time (ms)':<20} | {'Peak Memory (MiB)':<18}",
             "-" * 69]
    for row in rows:
        if row.ms is None:
            lines.append(f"{row.name:<25} | {row.note:<20} | {row.note:<18}".rstrip())
            continue
        timed = f"{row.ms:.4f} (±{row.spread_ms / 2:.4f})"
        lines.append(f"{row.name:<25} | {timed:<20} | {row.peak_mib:<18.2f}".rstrip())
    ours, naive = rows[0], rows[1]
    if ours.ms and naive.ms:
        name = _own_name(stage).removesuffix(" (yours)")
        lines += [_ratio(name, naive.ms / ours.ms, "faster", "slower", "than PyTorch (Naive)"),
                  _ratio(name, naive.peak_mib / ours.peak_mib, "less", "more", "memory", "uses ")]
    return lines


def shown(case: Case) -> str:
    work = "forward + backward, " if case.grads else ""
    return f"{work}{case.label}, {dtype_name(case.dtype)}"


def _ratio(name: str, ratio: float, better: str, worse: str, rest: str, verb: str = "is ") -> str:
    word, ratio = (better, ratio) if ratio >= 1 else (worse, 1 / ratio)
    return f"{name} {verb}{ratio:.2f}x {word} {rest}."


def _own_name(stage: Stage) -> str:
    return "Triton (yours)" if stage.needs_triton else "Tiled PyTorch (yours)"


def _measure_submission(context: GradingContext, session: Session, replay,
                        built: Built) -> tuple[Row, Check | None]:
    stage, case = context.stage, built.case
    name = _own_name(stage)
    inputs = sum(t.storage.nbytes for t in (*built.call.inputs.values(),
                                            *built.call.douts.values()))
    call = _lengthened(built.call)
    try:
        session.prepare(call)  # inputs are counted separately
        peak = inputs + session.memory(call)
        timed = _Timed(session, call)
        ms, spread = measure(timed)
        turn, kept = timed.kept
        of_turn = functools.partial(_of_turn, built, call)
        own = session.run(of_turn(turn).call)
        again = replay(of_turn(turn).call, own.trace) if stage.needs_triton else {}
    except _NotMade as error:
        return Row(name, note=f"n/a ({error.outcome})"), _not_made(context, case, error)
    except SubmissionError as error:
        return Row(name, note=f"n/a ({error.outcome})"), None
    if failed := _judge_kept(context, of_turn, turn, kept, own):
        return Row(name, note="n/a (wrong answers)"), failed
    outputs = [spec.name for spec in call.outputs if spec.name in again]
    if not all(same_bits(kept[output], again[output]) for output in outputs):
        return Row(name, note="n/a (other kernels)"), None  # other than those recorded
    return _row(name, ms, spread, peak / MIB), None


class _NotMade(SubmissionError):
    """The answer of a timed call cannot be had."""


class _Timed:
    """Times requests for measure(), fetches one answer of each long one, and keeps one by lot.

    All long requests are sampled, so that a file that skips calls cannot know which ones are
    checked.  Short ones are not, because a skipped call would show there anyway.
    """

    def __init__(self, session: Session, call: Call):
        self.session, self.call = session, call
        self.long = 0
        self.kept: tuple[int, dict] | None = None

    def __call__(self, n: int) -> float:
        seconds = self.session.time(self.call, n)
        if n > FEW:
            try:
                kept = self.session.kept(self.call)
            except SubmissionError as error:
                raise _NotMade(error.outcome, error.sentence, detail=error.detail,
                               fatal=error.fatal) from None
            self.long += 1
            if secrets.randbelow(self.long) == 0:
                self.kept = kept
        return seconds


def _row(name: str, ms: float, spread: float, peak: float) -> Row:
    if spread > NOISY * ms:
        return Row(name, note="n/a (too noisy)")
    return Row(name, ms, spread, peak)


def _lengthened(call: Call) -> Call:
    """The call with storages long enough for every timed call to begin further on."""
    generator = torch.Generator().manual_seed(call.inputs[next(iter(call.inputs))].storage.numel())
    inputs = {}
    for name, old in call.inputs.items():
        more = torch.randn(STEP * (MOST + FEW + WARM), generator=generator).to(old.storage.dtype)
        inputs[name] = TensorInput(torch.cat([old.storage, more]), old.shape, old.stride)
    return replace(call, inputs=inputs)


def _of_turn(built: Built, call: Call, turn: int) -> Built:
    """The case with the inputs of this timed call."""
    inputs = {}
    for name, old in built.call.inputs.items():
        storage = call.inputs[name].storage[STEP * turn:][:old.storage.numel()].clone()
        inputs[name] = replace(old, storage=storage)
    return replace(built, tensors={name: t.view() for name, t in inputs.items()},
                   call=replace(call, inputs=inputs))


def _judge_kept(context: GradingContext, of_turn: Callable[[int], Built], turn: int,
                kept: dict[str, torch.Tensor], own: Reply) -> Check | None:
    """The check of a timed call's answer; None if it is right.  of_turn: the case with the inputs
    of any timed call; own: the answer to the same inputs, not timed."""
    built, device = of_turn(turn), context.options.device
    exact, wrong, farthest = answer(built, device), {}, 0.0
    for name, x in kept.items():
        if (verdict := exact.judge(name, x)).accepted:
            continue
        truth = exact.truth[name]
        rows = row_errors(x.to(truth.device).double(), truth, name, exact.scale.get(name),
                          exact.terms.get(name)).nan_to_num(1.0)
        farthest = max(farthest, float(rows.clamp(max=1.0).mean()))
        bad = int((rows > verdict.row_limit).sum())
        wrong[name] = tensor_name(name) + f" ({bad} of {rows.numel()} rows)" * bool(bad)
    if not wrong:
        return None
    check, said = _check(built.case), ", ".join(wrong.values())
    if (alone := judged(context, built, own)).outcome != "pass":  # wrong whether timed or not
        return replace(alone, name=check.name, group=check.group, label=check.label,
                       again=_again(context))
    if farthest > UNRELATED or any(
            all(answer(of_turn(other), device).judge(name, kept[name]).accepted for name in wrong)
            for other in {0, turn - 1} - {turn, -1}):
        return check.fail(
            "rejected", f"While it was timed it answered wrongly: {said} of call {turn} does not "
            "belong to that call's inputs.", advice=WHOLE)
    return check.fail(
        "wrong", f"While it was timed, the answer differs from call to call: {said} of call {turn} "
        "is wrong.", "The same call is right on its own.", again=_again(context),
        advice="do two programs write the same place? Let one program write each element, or add "
        "with tl.atomic_add.")


def _not_made(context: GradingContext, case: Case, error: SubmissionError) -> Check | None:
    """The check if the answer of a timed call cannot be had, though the worker said it was made."""
    if error.outcome in ("grader_fault", "skipped", "timeout"):
        return None
    if error.outcome == "crashed":
        return replace(crashed(case, error, context.file, context.stage), name=_check(case).name,
                       group="robust", again=_again(context))
    return _check(case).fail("rejected", f"A call that was timed left no answer: {error}.",
                             advice=WHOLE)


def _check(case: Case) -> Check:
    return Check(f"timing/{case.name}", "robust", "pass", f"({case.label})")


def _again(context: GradingContext) -> str:
    """The command that times it again; it is no case by itself."""
    return command(context.stage.number, context.options.directory)


def _measure_here(name: str, make, built: Built) -> Row:
    """Time a PyTorch function in this process, in the same way as a submission."""
    if make is None:
        return Row(name)
    case = built.case
    try:
        tensors = {key: t.cuda() for key, t in built.tensors.items()}
        dout = None if built.dout is None else built.dout.cuda()
        for key in case.grads:
            tensors[key].requires_grad_()
        call = _call(make, tensors, dout, case.grads)
        call()
        torch.cuda.synchronize()
        torch.cuda.reset_peak_memory_stats()
        before = torch.cuda.memory_allocated()
        inputs = sum(t.nbytes for t in tensors.values()) + (0 if dout is None else dout.nbytes)
        call()
        torch.cuda.synchronize()
        peak = torch.cuda.max_memory_allocated() - before + inputs
        ms, spread = measure(repeated(call))
    except torch.OutOfMemoryError:
        return Row(name, note="n/a (out of memory)")
    finally:
        tensors = dout = call = None
        torch.cuda.empty_cache()  # the worker shares this GPU
    return _row(name, ms, spread, peak / MIB)


def _call(make, tensors: dict, dout, grads: tuple[str, ...]):
    if dout is None:
        def call():
            with torch.no_grad():
                make(**tensors)
    else:
        def call():
            torch.autograd.grad(make(**tensors), [tensors[key] for key in grads], dout)
    return call


def repeated(call):
    """What measure() wants, of a function that this process calls."""
    def timed(n: int) -> float:
        start = time.monotonic()
        for _ in range(n):
            call()
        torch.cuda.synchronize()
        return time.monotonic() - start
    return timed


def measure(timed) -> tuple[float, float]:
    """timed(n) -> seconds of n calls plus a constant.  -> (median ms per call, spread over rounds).

    The spread leaves out the fastest and the slowest round, which may be a hiccup of the machine.
    """
    few = min(timed(FEW), timed(FEW))
    if few > FEW * TARGET_SECONDS:  # one call more is enough to measure it
        more = 1
    else:
        once = max((timed(FEW + WARM) - few) / WARM, 1e-6)
        more = max(4, min(MOST, round(TARGET_SECONDS / once)))

    def measured() -> tuple[float, float]:
        rounds = sorted(
            1000 * max(timed(FEW + more) - timed(FEW), 0.0) / more for _ in range(ROUNDS)
        )
        return statistics.median(rounds), rounds[-2] - rounds[1]

    ms, spread = measured()
    return (ms, spread) if spread <= NOISY * ms else measured()  # noise may pass


def _naive(case: Case):
    if case.course_stage.sums_rows:
        return lambda x, w: (x * w).sum(1)
    mask = case.mask()
    return lambda q, k, v: naive_attention(q, k, v, **mask)


def _sdpa(case: Case):
    """PyTorch's fused attention, if it can do the same; it has no window and no sinks."""
    if case.course_stage.sums_rows or case.window is not None or case.sinks:
        return None
    return lambda q, k, v: scaled_dot_product_attention(
        q, k, v, is_causal=case.is_causal, scale=case.scale, enable_gqa=case.HQ != case.HKV)
