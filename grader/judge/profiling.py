"""Runs --profile: shows where the time of a right file's kernels goes, and what this GPU could do.

A call takes at least the time for its products, and at least that for reading its inputs and
writing its results once; the larger one binds (the roofline model).  Both rates are measured here.
Times, registers and samples come from the worker and decide nothing.
"""

import contextlib
import functools
import textwrap
from dataclasses import dataclass

import torch

from grader.course.calls import SubmissionError, pack, results, size
from grader.course.inputs import Built, build
from grader.host.session import Session
from grader.judge.context import GradingContext
from grader.judge.timing import Row, as_record, measure, repeated, shapes, shown
from grader.text import escape
from reference import keep_mask

PEAK_SIDE, PEAK_BYTES = 8192, 1 << 28  # sizes of the product and the copy that measure this GPU
REGISTERS = 65536  # per multiprocessor, on every GPU since 2014
CHUNK, RESERVED = 256, 1024  # units of a warp's registers, and of a program's shared bytes
NEAR = 0.8  # share of the GPU's rate
HOTTEST, MOST, WIDTH = 3, 10_000, 80  # lines shown, lines read, columns


@dataclass(frozen=True)
class GPU:
    """Multiprocessors, threads and shared bytes of each; measured FLOP and bytes per second."""

    count: int
    threads: int
    shared: int
    flops: float
    bytes: float


@dataclass(frozen=True)
class Work:
    """A forward or a backward: FLOP of its products, and bytes it must read and write."""

    name: str
    flops: int
    bytes: int

    def floor(self, gpu: GPU) -> tuple[float, str]:
        """-> the least ms that it can take; what binds."""
        return max((1e3 * self.flops / gpu.flops, "arithmetic"),
                   (1e3 * self.bytes / gpu.bytes, "memory"))


@dataclass(frozen=True)
class Launch:
    """One launch, according to the worker.  registers, spilled: per thread, of 4 bytes each;
    shared: bytes per program; resident: programs that a multiprocessor holds at a time."""

    name: str
    ms: float
    programs: int
    warps: int
    stages: int
    registers: int
    spilled: int
    shared: int
    resident: int

    @classmethod
    def read(cls, said: dict) -> "Launch":
        """Raises ValueError, TypeError, KeyError: said is no launch."""
        programs = 1
        for number in said["grid"][:3]:
            programs *= size(number)
        names = ("warps", "stages", "registers", "spilled", "shared", "resident")
        return cls(escape(str(said["name"]))[:60], float(said["ms"]), programs,
                   **{name: size(said[name]) for name in names})

    def occupancy(self, gpu: GPU) -> float:
        return 32 * self.warps * self.resident / gpu.threads

    def limited_by(self, gpu: GPU) -> str:
        """The resource that one more program on a multiprocessor would lack."""
        more = self.resident + 1
        a_warp = -(-32 * self.registers // CHUNK) * CHUNK
        if more * self.warps * a_warp > REGISTERS:
            return "registers"
        if more * (self.shared + RESERVED) > gpu.shared:
            return "shared memory"
        return "threads" if 32 * more * self.warps > gpu.threads else "the number of programs"


def profile_stage(context: GradingContext, session: Session | None) -> None:
    """Print the profile of a file at the larger shape of its benchmark.  session: the one in which
    all its answers were right; None if they were not."""
    stage, reporter = context.stage, context.reporter
    if not context.options.profile:
        return
    if session is None or not stage.needs_triton:
        why = "this stage has no kernel of its own" if session else "some answers are not right yet"
        reporter.table([f"profile skipped: {why}"])
        return
    case = shapes(stage, context.options.bfloat16)[-1]
    with reporter.working(stage, f"profiling ({case.label})"):
        built = build(case, context.options.seed)
        try:
            gpu = measured(case.dtype)
            session.prepare(built.call)
            reply, _ = session.request({"op": "profile"}, "case")
            phases = [(float(one["ms"]), [Launch.read(launch) for launch in one["launches"]])
                      for one in reply["phases"]]
            lines = report(built, gpu, phases) + hottest(context, built)
        except SubmissionError as error:
            lines = [f"profile skipped: {error}"]
        except torch.OutOfMemoryError:
            lines = ["profile skipped: out of GPU memory"]
        except (ValueError, TypeError, KeyError, ArithmeticError) as error:
            lines = [f"profile skipped: the worker's account cannot be read ({error!r:.100})"]
    reporter.table(["", *lines])


def note_roofline(context: GradingContext, timed: tuple[Built, list[Row]] | None) -> None:
    """Add to the benchmark, for --page, how far below the roofs of this GPU the larger shape lies.

    The roofs are measured, once per run: what PyTorch knows of a GPU has neither the rate of its
    products nor the clock that it keeps under load."""
    if timed is None or context.options.page is None:
        return
    built, rows = timed
    with contextlib.suppress(torch.OutOfMemoryError):
        gpu, whole = measured(built.case.dtype), works(built)
        context.result.benchmark["roofline"] = as_record(built.case, rows) | {
            "flops": sum(work.flops for work in whole), "bytes": sum(work.bytes for work in whole),
            "peak_flops": gpu.flops, "peak_bytes": gpu.bytes}


@functools.cache
def measured(dtype: torch.dtype) -> GPU:
    """Measure this GPU by a product of two square matrices and a copy."""
    about = torch.cuda.get_device_properties()
    a = torch.randn(PEAK_SIDE, PEAK_SIDE, device="cuda").to(dtype)
    x = torch.empty(PEAK_BYTES, dtype=torch.uint8, device="cuda")
    product, copy = (measure(repeated(call))[0] for call in (lambda: a @ a, x.clone))
    a = x = None
    torch.cuda.empty_cache()  # the worker shares this GPU
    return GPU(about.multi_processor_count, about.max_threads_per_multi_processor,
               about.shared_memory_per_multiprocessor, 2e3 * PEAK_SIDE**3 / product,
               2e3 * PEAK_BYTES / copy)


def works(built: Built) -> list[Work]:
    """The work of the forward, and of the backward if there is one; of row sums, which are timed
    forward only, a multiplication and an addition per element."""
    case, product = built.case, built.case.M * built.case.N
    if not case.course_stage.sums_rows:
        seen = keep_mask(case.N, case.n_keys, case.is_causal, case.window, case.sinks or 0)
        product = 2 * case.D * case.B * case.HQ * int(seen.sum())
    given = sum(x.nbytes for x in built.tensors.values())
    made = {name: torch.Size(shape).numel() * dtype.itemsize
            for name, (shape, dtype) in results(built.call).items()}
    o = sum(made[spec.name] for spec in built.call.outputs)
    forward = Work("forward", 2 * product, given + o)
    # The backward reads all of that again, and the gradient of o; it writes the other gradients.
    return [forward, Work("backward", 5 * product, given + o + sum(made.values()))][
        :1 + bool(case.grads)]


def report(built: Built, gpu: GPU, phases: list[tuple[float, list[Launch]]]) -> list[str]:
    """The lines of the profile, without the file's hottest lines."""
    lines = ["--- Profile ---", f"Profiling: {shown(built.case)}",
             f"This GPU, just measured: {gpu.flops / 1e12:.0f} TFLOP/s in products, "
             f"{gpu.bytes / 1e12:.2f} TB/s in a copy."]
    for work, (ms, launches) in zip(works(built), phases, strict=True):
        least, binds = work.floor(gpu)
        share = least / ms
        lines += ["", f"{work.name}: {ms:.3f} ms, {work.flops / ms / 1e9:.0f} TFLOP/s, "
                  f"{work.bytes / ms / 1e9:.2f} TB/s",
                  f"  This GPU needs {least:.3f} ms at least, for {binds}: you reach "
                  f"{share:.0%} of its speed."]
        for launch in launches:
            lines += _of_launch(launch, gpu, ms)
        if launches:
            longest = max(launches, key=lambda launch: launch.ms)
            lines += textwrap.wrap(f"tip: {advice(longest, gpu, share, binds)}", WIDTH,
                                   initial_indent="  ", subsequent_indent="       ")
    return lines


def _of_launch(launch: Launch, gpu: GPU, ms: float) -> list[str]:
    waves = launch.programs / (gpu.count * max(launch.resident, 1))
    return [
        f"  {launch.name}: {launch.ms:.3f} ms ({launch.ms / ms:.0%})",
        f"    {launch.programs} programs of {launch.warps} warps, num_stages={launch.stages}; "
        f"{launch.shared / 1024:.0f} KiB of shared memory each",
        f"    {launch.registers} registers per thread, {launch.spilled} spilled to memory",
        f"    {launch.resident} at a time on each of {gpu.count} multiprocessors: "
        f"{waves:.1f} waves",
        f"    occupancy {launch.occupancy(gpu):.0%}, limited by {launch.limited_by(gpu)}"]


def advice(launch: Launch, gpu: GPU, share: float, binds: str) -> str:
    """One thing to try on the launch that takes longest."""
    if launch.spilled:
        return (f"{launch.spilled} values of each thread do not fit into its registers and wait in "
                "memory. Take num_warps=8 or smaller tiles.")
    if share > NEAR:
        return "nothing: it is close to what this GPU can do."
    if launch.programs < (room := gpu.count * launch.resident):
        return (f"there is room for {room} programs at a time, and there are {launch.programs}. "
                "Take smaller tiles, for more programs.")
    if binds == "memory":
        return ("read every number once, neighbours by neighbouring threads: larger tiles of whole "
                "rows, and no tile that the mask hides.")
    if launch.resident == 1 and launch.limited_by(gpu) == "shared memory":
        return ("shared memory lets a multiprocessor hold one program, and nothing runs while that "
                "waits. Take a smaller num_stages or BLOCK_N.")
    if launch.stages < 2:
        return "num_stages=2 or 3, so that the next tile is loaded while this one is multiplied."
    return ("other tiles: BLOCK_M and BLOCK_N of 64 and 128, num_warps of 4 and 8; and mask only "
            "the tiles that the mask cuts.")


def hottest(context: GradingContext, built: Built) -> list[str]:
    """The lines at which a sampling profiler saw programs most often.  It runs in a worker of its
    own, because it must start before the kernels, and may kill its process."""
    stage, text = context.stage, context.file.source.decode("utf-8", "replace").splitlines()
    try:
        with context.open_session() as session:
            context.options.imports.first(session, stage)
            header, tensors = pack(built.call)
            said, _ = session.request({"op": "sample", **header}, "case", tensors)
        total = size(said["samples"])
        found = [(size(line), size(samples)) for line, samples in said["lines"][:MOST]]
    except SubmissionError as error:
        return ["", f"hottest lines: not known. {error}"]
    if not found:
        return ["", f"hottest lines: not known. None of {total} samples was on a line of the file."]
    shown = [f"  {samples / total:4.0%}  {stage.filename}:{line}  {text[line - 1].strip()}"
             for line, samples in found[:HOTTEST] if 0 < line <= len(text)]
    others = 1 - sum(samples for _, samples in found) / total
    shown += [f"  {others:4.0%}  in Triton's own functions, such as tl.max and tl.sum"]
    return ["", f"hottest lines, of {total} samples of programs at work or waiting:",
            *(line[:WIDTH] for line in shown)]
