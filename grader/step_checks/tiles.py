"""Checks warm-up W.8: tiles for the kernel of the student's problem 4, and a prediction.

The kernel is compiled with these tiles, which says how much shared memory they need.  What was
predicted is shown beside what arithmetic says, and on a GPU beside a measurement; it is never
wrong.
"""

import statistics
from dataclasses import replace
from pathlib import Path

import torch

from grader.assignment import submission
from grader.course.calls import Call, OutputSpec, SubmissionError, TensorInput
from grader.course.stages import STAGES
from grader.host.options import Imports, Options, run_chosen
from grader.host.session import STEP, Session
from grader.step_checks.examples import Example, Observed, Wrong, unlike

STAGE = STAGES[4]
D, COMPILE_FOR, LIMIT = 128, 90, 75 * 1024  # bytes, of which an H100's multiprocessor has 3
NAMES = ("BLOCK_M", "BLOCK_N", "num_warps", "num_stages")
CANDIDATES = {name: dict(zip(NAMES, (rows, rows, 4, 2), strict=True))
              for name, rows in (("A", 64), ("B", 128), ("C", 16))}
REASONS = ("'registers'", "'shared memory'", "'little work'")  # as a worker tells a str
REGISTERS = 255  # that a thread can have
FEW, MANY, ROUNDS = 2, 52, 5  # timed calls
Found = tuple[str, tuple[str, ...]]  # the outcome, and what to say


def too_early(directory: Path) -> bool:
    """Whether problem 4, whose tiles these are, is not solved yet."""
    file = submission.read(directory, STAGE.filename, STAGE.entry)
    return bool(file.sentence or file.blank_steps or b"_tiles(q)" not in file.source)


def registers(BLOCK_M: int, BLOCK_N: int, num_warps: int, **others) -> int:
    """Of each thread, for acc (BLOCK_M, D) and s (BLOCK_M, BLOCK_N) alone."""
    return BLOCK_M * (D + BLOCK_N) // (32 * num_warps)


def choice() -> Example:
    """What the step must leave: numbers that a kernel can have, and a prediction in these words."""
    def check(left: Observed) -> Wrong | None:
        made = left.programs[0]
        tiles = {name: made[name] for name in NAMES}
        for name, least, most in (("BLOCK_M", 64, 256), ("BLOCK_N", 16, 256), ("num_warps", 1, 16)):
            n = tiles[name]
            if type(n) is not int or not least <= n <= most or n & (n - 1):
                return unlike(name, f"a power of two from {least} to {most}", n)
        if type(tiles["num_stages"]) is not int or not 2 <= tiles["num_stages"] <= 8:
            return unlike("num_stages", "a number from 2 to 8, so that the next tiles are loaded "
                          "while these are multiplied", tiles["num_stages"])
        if tiles["BLOCK_M"] % tiles["BLOCK_N"]:
            return unlike("BLOCK_N", f"a divisor of BLOCK_M = {tiles['BLOCK_M']}", tiles["BLOCK_N"])
        if (needed := registers(**tiles)) > REGISTERS:
            return Wrong((f"acc and s alone take {needed} registers per thread, and a thread has "
                          f"{REGISTERS}: take more warps, or smaller tiles.",), name="num_warps")
        if made["fastest"] not in map(repr, CANDIDATES):
            return unlike("fastest", " or ".join(map(repr, CANDIDATES)), made["fastest"])
        if not isinstance(why := made["why"], tuple) or len(why) != 2 or not {*why} <= {*REASONS}:
            return unlike("why", f"two of {', '.join(REASONS)}",
                          ", ".join(map(str, why)) if isinstance(why, tuple) else why)
        return None

    return Example(f"D={D}, float16", {}, check)


def judged(made: dict, options: Options) -> Found:
    """What is to be said of a choice that check() accepts.  made: what the step left."""
    source = submission.read(options.directory, STAGE.filename, STAGE.entry).source
    options = replace(options, spare=None, first=None, imports=Imports())
    tiles = {name: made[name] for name in NAMES}
    try:
        needed = shared_bytes(source, tiles, options)
    except SubmissionError as error:
        return error.outcome, (error.located(STAGE.filename),)
    if needed > LIMIT:
        return "wrong", (
            f"The kernel needs {needed:,} bytes of shared memory; at most {LIMIT:,} are allowed.",
            arithmetic(made)[1])
    return "pass", (f"Shared memory: {needed:,} bytes of {LIMIT:,}.", *predicted(made),
                    *timed(source, options))


def arithmetic(made: dict) -> tuple[int, str]:
    """The bytes of shared memory that a choice needs, and what takes them."""
    stages, row = made["num_stages"], 2 * D
    q, others = row * made["BLOCK_M"], 2 * stages * row * made["BLOCK_N"]
    return q + others, (f"q's tile takes {q:,}, and {stages} tiles each of k and v take "
                        f"{others:,}.")


def early(made: dict) -> tuple[str, ...]:
    """What is to be said of a choice that check() accepts while there is no kernel to compile."""
    needed, parts = arithmetic(made)
    fits = "fits" if needed <= LIMIT else "does not fit"
    return (f"By arithmetic it takes {needed:,} bytes of shared memory of {LIMIT:,}, which {fits}.",
            parts)


def predicted(made: dict) -> tuple[str, ...]:
    """What was predicted, and what speaks against B and C."""
    fastest, *why = (words.strip("'") for words in (made["fastest"], *made["why"]))
    others = [name for name in CANDIDATES if name != fastest]
    said = ", ".join(map("{}: {}".format, others, why))
    return (f"You predict that {fastest} is the fastest. What slows the others: {said}.",
            f"Arithmetic speaks for A. B needs {registers(**CANDIDATES['B'])} registers per thread "
            f"for acc and s, has {REGISTERS}, and spills the rest to slow memory: registers. C "
            f"loads each tile of k and v for {CANDIDATES['C']['BLOCK_M']} queries, and A for "
            f"{CANDIDATES['A']['BLOCK_M']}: little work.")


def timed(source: bytes, options: Options) -> tuple[str, ...]:
    """The table of the candidates, and which was the fastest, if there is a GPU."""
    if options.device != "cuda":
        return "Only a clock can tell, and there is no GPU here: run this again on one.",
    took, rows = {}, []
    for name, tiles in CANDIDATES.items():
        said = f"{name}  " + ", ".join(f"{key}={value}" for key, value in tiles.items())
        try:
            took[name] = milliseconds(source, tiles, options)
            rows.append(f"{said}: {took[name]:.3f} ms")
        except SubmissionError as error:
            rows.append(f"{said}: {error.sentence}")
    fastest = min(took, key=took.get, default="")
    return *rows, f"Measured on this GPU: {fastest} is the fastest." if took else "None ran here."


# ---------------------------------------------------------------- the student's kernel
def with_tiles(source: bytes, tiles: dict) -> bytes:
    """The student's file with these tiles in place of its own."""
    given = ", ".join(f"{name}={value}" for name, value in tiles.items())
    return source + f"\n\ndef _tiles(q):\n    return dict(D={D}, BLOCK_D={D}, {given})\n".encode()


def _call(heads: int, N: int, more: int = 0) -> Call:
    """A call of problem 4.  more: elements of the storages behind the tensors."""
    shape = 1, heads, N, D
    inputs = {name: TensorInput(torch.randn(heads * N * D + more).half(), shape,
                                (heads * N * D, N * D, D, 1)) for name in "qkv"}
    return Call(inputs, tuple(f"@{name}" for name in inputs), {},
                (OutputSpec("o", shape, torch.float16),))


def shared_bytes(source: bytes, tiles: dict, options: Options) -> int:
    """What one program needs, compiled for sm_90.  Raises SubmissionError if it cannot be."""
    kernels = run_chosen(STAGE, replace(options, device="cpu"), with_tiles(source, tiles),
                         lambda session: session.compile(_call(1, 256), to_ptx=True), COMPILE_FOR)
    return max((kernel.shared_bytes for kernel in kernels), default=0)


def milliseconds(source: bytes, tiles: dict, options: Options) -> float:
    """The time of a call on this GPU: the median of a few rounds."""
    call = _call(16, 4096, STEP * MANY)

    def ask(session: Session) -> float:
        session.time(call, FEW)  # compiles it
        return statistics.median(1000 * (session.time(call, MANY) - session.time(call, FEW))
                                 / (MANY - FEW) for _ in range(ROUNDS))

    return run_chosen(STAGE, options, with_tiles(source, tiles), ask)
