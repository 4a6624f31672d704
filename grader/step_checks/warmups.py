"""Runs --warmup: checks the exercises of warmups/warmups.py, which give no points.

Each blank is run on its own, like every step of the course.  A mistake that only these exercises
have has no id in mistakes.toml; its sentence takes the place of the id.
"""

import contextlib
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from grader.assignment import submission
from grader.course.calls import SubmissionError
from grader.course.stages import Stage, interpreter_fault, no_triton
from grader.host.options import Imports, Options
from grader.report.results import NONE, RIGHT, WRONG, StageResult, StepCheck, unlit
from grader.report.screen import Reporter
from grader.step_checks import named, tiles
from grader.step_checks.checks import Runner, damaged
from grader.step_checks.examples import (
    EXACT,
    ROUNDED,
    Example,
    Observed,
    Pointer,
    StepSpec,
    Wrong,
    difference,
    first,
    guarded,
    observe,
    randoms,
    unlike,
)
from grader.step_checks.memory import MARK, read, stored
from grader.step_checks.row_sum import launched

FOLDER, NAME = "warmups", "warmups.py"
BLOCK, TILE = 32, 16  # of that file
COMMAND = "python autograder.py --warmup"
FAULT = "the grader itself failed ({}): please report it, with your file."
PRINTED = 10  # lines to show of what a file printed
TITLES = {"W.1": "the online softmax, in a loop", "W.2": "softmax times a matrix, in tiles",
          "W.3": "the sum of two vectors", "W.4": "the sum of each row up to the diagonal",
          "W.5": "a product of matrices, in tiles", "W.6": "the online softmax of rows",
          "W.7": "a kernel's launch, and its gradient",
          "W.8": "tiles for a kernel, and a prediction"}
IN_PYTORCH = ("W.1", "W.2")  # all others need Triton


class Exercises(Stage):
    filename = NAME


EXERCISES = Exercises(0, "Warm-ups", "online_softmax", ("x",), 0, {})


# ------------------------------------------------------------------------ the formulas
SOFTMAX = {  # sentence -> the change in a tile of the online softmax
    "l_i is not multiplied by exp(old maximum - new one)": named.UPDATES["l-not-rescaled"],
    "the factor is upside down: it is exp(old maximum - new one)": named.UPDATES["alpha-inverted"],
    "only the last tile counts: the earlier sums are lost":
        named.UPDATES["last-tile-only"],
    "the weights are computed with the old maximum": named.UPDATES["weights-of-the-old-max"],
    "m_i is the last tile's maximum: the earlier one is ignored": named.UPDATES["max-not-running"]}
TIMES = SOFTMAX | {
    "acc is not multiplied by exp(old maximum - new one)": named.UPDATES["acc-not-rescaled"],
    "neither l_i nor acc is multiplied by exp(old maximum - new one)":
        named.UPDATES["nothing-rescaled"],
    "m_i is one maximum for all rows: dim=1 is missing": named.UPDATES["max-over-the-block"],
    "l_i is one sum for all rows: dim=1 is missing": dict(
        total=lambda t, a, r: t.l_i * a + r.sum()),
    "l_i must keep the shape (M,): .sum(dim=1) drops an axis, and keepdim=True keeps it": dict(
        total=lambda t, a, r: t.l_i * a + r[:, None])}


def softmax(rows: int, old: float, new: float) -> Example:
    """W.1 for one row, or W.2 for a tile of so many rows.  old, new: rough maximum so far and of
    the tile's numbers."""
    random, M = randoms(rows), (rows,) * bool(rows)
    s, v = random(*M, BLOCK) + np.float32(new), random(BLOCK, 8)
    before = {"m_i": random(*M) + np.float32(old), "l_i": np.exp(random(*M)), "acc": random(*M, 8)}
    if old == -np.inf:
        before |= {"l_i": 0 * before["l_i"], "acc": 0 * before["acc"]}

    def left(**changes) -> dict:
        made = named.Tile(s, **before, v=v, factor=1.0, base=np.e, changes=changes).left
        return {name: made["m_new" if name == "m_i" else name] for name in before}

    given, mistakes = {"x": s, "tile": s, "start": 0}, SOFTMAX
    if rows:
        given, mistakes = {"s": s, "v": v, "s_tile": s, "v_tile": v, "start": 0, "M": rows,
                           "N": BLOCK}, TIMES
    names = ("m_i", "l_i", "acc") if rows else ("m_i", "l_i")
    seen = "no number seen before" if old == -np.inf else f"m_i about {old}"
    return make(f"{seen}, the tile's numbers about {new}", before | given, {},
                lambda left, wanted: first(*(difference(
                     name, left.programs[0][name], wanted[name],
                     ROUNDED if abs(new) > 99 else EXACT) for name in names)),
                left(), {said: left(**changes) for said, changes in mistakes.items()} | {
                     "m_i is never updated": left() | {"m_i": before["m_i"]}})


def make(words: str, given: dict, memory: dict, judge: Callable, right, mistakes: dict,
         programs: int = 1) -> Example:
    """An example.  judge(left, wanted) -> what is wrong; wanted is right, or what a mistake
    leaves."""
    return Example(words, given, lambda left: judge(left, right), memory, programs,
                   lambda: {said: lambda left, wrong=wrong: judge(left, wrong) is None
                            for said, wrong in mistakes.items()})


def pointers(*names: str) -> dict[str, Pointer]:
    return {f"{name}_ptr": Pointer(name, 0) for name in names}


def add(N: int, programs: int) -> Example:
    """W.3: every program adds its own BLOCK numbers."""
    x, y, at = randoms(N)(N), randoms(N + 1)(N), np.arange(N)
    mine, none = at < BLOCK * programs, np.full(N, MARK, np.float32)
    return make(
        f"N={N}, {programs} programs", {**pointers("x", "y", "z"), "N": N, "BLOCK": BLOCK},
        {"x": x, "y": y, "z": none},
        lambda left, wanted: stored("z", left.memory["z"], wanted, 1, N),
        np.where(mine, x + y, none), {
            "every program takes the same elements: tl.program_id(0) is missing":
                np.where(at < BLOCK, x + y, none),
            "program i begins at element i, not at i * BLOCK":
                np.where(at < BLOCK + programs - 1, x + y, none),
            "every program adds all elements: give each BLOCK of them, by tl.program_id(0)": x + y,
            "nothing is stored in z: tl.store is missing": none,
            "every program stores one element: tl.arange(0, BLOCK) is missing":
                np.where(mine & (at % BLOCK == 0), x + y, none),
            "y is not added": np.where(mine, x, none), "x is not added": np.where(mine, y, none),
            "x is added to itself": np.where(mine, x + x, none),
            "x and y are multiplied, not added": np.where(mine, x * y, none)}, programs)


def row_sum(M: int, N: int, row: int, start: int) -> Example:
    """W.4: one tile's share of a row's sum."""
    x, acc, tile = randoms(M)(M, N), randoms(N)(), np.arange(BLOCK)
    columns = start + tile
    counts, exist, here = (columns <= row) & (columns < N), columns < N, row * N + columns
    share = read(x, here, counts)
    return make(
        f"x of shape {x.shape}, row={row}, start={start}", {
            **pointers("x", "y"), "N": N, "BLOCK": BLOCK, "row": np.int32(row), "acc": acc,
            "start": start}, {"x": x, "y": np.zeros(M, np.float32)},
        lambda left, wanted: difference("acc", left.programs[0]["acc"], wanted),
        acc + share.sum(), {
            "all columns count: column <= row is missing in the mask":
                acc + read(x, here, exist).sum(),
            "the diagonal itself does not count: want column <= row":
                acc + read(x, here, exist & (columns < row)).sum(),
            "the columns from the diagonal on count, not those up to it":
                acc + read(x, here, exist & (columns >= row)).sum(),
            "only the last tile counts: its sum must be added to acc": share.sum(),
            "every tile begins at column 0: start is missing":
                acc + read(x, row * N + tile, (tile <= row) & (tile < N)).sum(),
            "every program reads row 0: row * N is missing": acc + read(x, columns, counts).sum(),
            "row i is read from element i on, not from i * N on":
                acc + read(x, row + columns, counts).sum(),
            "a row has N numbers, not BLOCK": acc + read(x, row * BLOCK + columns, counts).sum(),
            "acc must stay a single number: sum the tile first, acc += tl.sum(tile, axis=0)":
                acc + share})


def product(M: int, N: int, K: int, m: int, n: int, start: int) -> Example:
    """W.5: one tile's share of a tile of the product."""
    a, b = (randoms(M + N)(*shape).astype(np.float16) for shape in ((M, K), (K, N)))
    acc, (i, j, k) = randoms(K)(TILE, TILE), (at + np.arange(TILE) for at in (m, n, start))

    def tiles(row_of_a: int = K, row_of_b: int = N, column_of_b: int = 1):
        """Tiles of a and b.  row_of_a ...: the stride to the next row, or column, that is used."""
        return (read(a, i[:, None] * row_of_a + k, (i[:, None] < M) & (k < K)),
                read(b, k[:, None] * row_of_b + j * column_of_b, (k[:, None] < K) & (j < N)))

    x, y = tiles()
    stores = (i[:, None] < M) & (j < N)
    return make(
        f"a of shape {a.shape}, b of shape {b.shape}, rows from {m}, columns from {n}, "
        f"start={start}", {
            **pointers("a", "b", "c"), "M": M, "N": N, "K": K, "TILE": TILE, "acc": acc,
            "start": start, **{f"offs_{name}": at.astype(np.int32)
                               for name, at in zip("mnk", (i, j, k), strict=True)}},
        {"a": a, "b": b, "c": np.zeros(M * N, np.float32)},
        lambda left, wanted: difference("acc", left.programs[0]["acc"], wanted, EXACT, ~stores),
        acc + x @ y, {
            "only the last tile counts: the product must be added to acc": x @ y,
            "acc is added twice: tl.dot(a, b, acc) adds it already": 2 * acc + x @ y,
            "the tiles are multiplied element by element: want tl.dot, not *": acc + x * y,
            "the tiles are multiplied element by element, in 16 bits: want tl.dot, not *":
                acc + (x * y).astype(np.float16),
            "each tile of b is transposed: want rows offs_k[:, None], columns offs_n[None, :]":
                acc + x @ y.T,
            "a and b are swapped: want tl.dot(a, b)": acc + y @ x,
            "b is read with rows and columns swapped":
                acc + np.matmul(*tiles(row_of_b=1, column_of_b=N)),
            "b is read as if it were (N, K)": acc + np.matmul(*tiles(row_of_b=1, column_of_b=K)),
            "a row of a has K numbers, not N": acc + np.matmul(*tiles(row_of_a=N)),
            "a row of a has K numbers, not M": acc + np.matmul(*tiles(row_of_a=M)),
            "a row of b has N numbers, not M": acc + np.matmul(*tiles(row_of_b=M)),
            "a row of b has N numbers, not K": acc + np.matmul(*tiles(row_of_b=K))})


def rows_softmax(M: int, N: int, row: int, *levels: float) -> Example:
    """W.6: one program's row.  levels: the rough size of each tile's numbers."""
    x = randoms(N)(M, N) + np.repeat(np.float32(levels), BLOCK)[:N]
    missing = BLOCK * len(levels) - N

    def states(values: np.ndarray = x[row], other=-np.inf, base=np.e, **changes) -> list[tuple]:
        """m_i and l_i after each tile of the first loop.  other: what is read past the row."""
        found = [(np.float32(-np.inf), np.float32(0))]
        values = np.append(values, np.full(missing, other, np.float32))[:BLOCK * len(levels)]
        for tile in values.reshape(-1, BLOCK):
            left = named.Tile(tile, *found[-1], np.zeros(1), np.zeros((BLOCK, 1)), 1.0, base,
                              named.UPDATES["no-pivot"] | changes).left
            found.append((left["m_new"], left["l_i"]))
        return found[1:]

    def written(m_i, l_i, values: np.ndarray = x[row], base=np.e, at: int = row) -> np.ndarray:
        """y after the second loop."""
        y = np.full((M, N), MARK)
        y[at] = np.power(np.float32(base), values - m_i) / l_i
        return y

    m_i, l_i = states()[-1]
    y, none, flat = written(m_i, l_i), np.full((M, N), MARK), x.ravel()
    running = np.repeat(states(), BLOCK, axis=0)[:N].T
    again = np.resize(np.append(x[row], [-np.inf] * missing)[:BLOCK], BLOCK * len(levels))
    first = np.where(np.arange(N) < BLOCK, y, MARK)
    with np.errstate(all="ignore"):
        wrong = {said: written(*states(**change)[-1]) for said, change in SOFTMAX.items()} | {
            "m_i is never updated": written(-np.inf, 1),
            "columns past N - 1 count as 0: load them as -inf": written(*states(other=0)[-1]),
            "no maximum is subtracted, and exp of a large number is infinite":
                written(0, np.exp(x[row]).sum()),
            "m_i is not subtracted in the second loop": written(0, l_i),
            "the second loop does not divide by l_i": written(m_i, 1),
            "the second loop multiplies by l_i": written(m_i, 1 / l_i),
            "y is stored before m_i and l_i are final: that needs a second loop":
                written(*running),
            "tl.exp2(x) is 2 to the power of x: want tl.exp, or x and m_i times log2(e)":
                written(*states(base=2)[-1], base=2),
            "every tile of the first loop begins at column 0: start is missing":
                written(*states(again)[-1]),
            "only the first tile of y is stored: start is missing in the second loop": first,
            "the first loop ends after one tile": written(*states()[0]),
            "both loops end after one tile":
                np.where(np.arange(N) < BLOCK, written(*states()[0]), MARK),
            "every program reads row 0: row * N is missing":
                written(*states(x[0])[-1], x[0]),
            "row i is read from element i on, not from i * N on":
                written(*states(flat[row:row + N])[-1], flat[row:row + N]),
            "every program stores in row 0 of y: row * N is missing": written(m_i, l_i, at=0),
            "nothing is stored in y: tl.store is missing": none}
    return make(
        f"x of shape {x.shape}, row={row}, its tiles about {', '.join(map(str, levels))}", {
            **pointers("x", "y"), "N": N, "BLOCK": BLOCK, "row": np.int32(row),
            "m_i": np.float32(-np.inf), "l_i": np.float32(0)},
        {"x": x, "y": none.astype(np.float32)},
        lambda left, wanted: stored("y", left.memory["y"], wanted, N, M,
                                    ROUNDED if max(map(abs, levels)) > 99 else EXACT), y, wrong)


def launch(M: int, N: int, BLOCK_M: int, x_is: str = "contiguous", dy_is: str = "contiguous"
           ) -> Example:
    """W.7, with right kernels in place of the file's.  x_is, dy_is: how they lie in memory."""
    scale, layouts = 0.5, {
        "contiguous": lambda a: a, "transposed": lambda a: a.T.copy().T,
        "every second column of a tensor": lambda a: np.repeat(a, 2, axis=1)[:, ::2],
        "one row for all, stride 0": lambda a: np.broadcast_to(a[0], a.shape)}
    x, dy = layouts[x_is](randoms(M)(M, N)), layouts[dy_is](randoms(N)(M, N))

    def softmax(x: np.ndarray) -> np.ndarray:
        e = np.exp(x - x.max(axis=1, keepdims=True))
        return e / e.sum(axis=1, keepdims=True)

    def gradient(y: np.ndarray, dy: np.ndarray = dy, scale: float = scale) -> np.ndarray:
        return scale * y * (dy - (y * dy).sum(axis=1, keepdims=True))

    y = softmax(scale * x)

    def judge(left: Observed, wanted: tuple) -> Wrong | None:
        for name, kernel, value in zip(("y", "dx"), ("_rows_kernel", "_rows_backward_kernel"),
                                       wanted, strict=True):
            if found := launched(left, name, kernel, value):
                return found
            call = dict(left.calls)[kernel]
            if call["BLOCK_M"] != BLOCK_M:
                return unlike("BLOCK_M", BLOCK_M, call["BLOCK_M"], f" of {kernel}",
                              ": scaled_softmax gets it as an argument")
            if call["programs"] > call["wanted"]:
                return unlike("programs", call["wanted"], call["programs"], f" of {kernel}",
                              ": the others have no rows")
        return None

    return make(
        f"x of shape {x.shape}, {x_is}, BLOCK_M={BLOCK_M}, dy {dy_is}",
        {"x": x, "dy": dy, "scale": scale, "BLOCK_M": BLOCK_M}, {}, judge, (y, gradient(y)), {
            "scale does not reach _rows_kernel": (softmax(x), gradient(softmax(x))),
            "scale does not reach _rows_backward_kernel: keep it as ctx.scale":
                (y, gradient(y, scale=1)),
            "_rows_backward_kernel gets x in the place of y: save y, the result":
                (y, gradient(x)),
            "_rows_backward_kernel gets y and dy in each other's place: y comes first":
                (y, gradient(dy, y)),
            "backward returns dy, not dx": (y, dy), "backward returns y, not dx": (y, y),
            "forward returns x, not y": (x, gradient(y))})


LEVELS = (-np.inf, 0), (0, 5), (3, -20), (-np.inf, 300), (300, 300), (-np.inf, -200)
ENTRIES = {
    "W.1": StepSpec(("m_i", "l_i"), lambda: [softmax(0, *one) for one in LEVELS], kernel=False),
    "W.2": StepSpec(("m_i", "l_i", "acc"), lambda: [softmax(5, *one) for one in LEVELS],
                    kernel=False),
    "W.3": StepSpec((), lambda: [add(*one) for one in ((96, 3), (70, 3), (5, 1), (70, 1))],
                    ("BLOCK",)),
    "W.4": StepSpec(("acc",), lambda: [row_sum(*one) for one in (
        (40, 70, 39, 64), (40, 70, 35, 32), (40, 70, 35, 0), (70, 40, 60, 32), (33, 33, 32, 32))],
        ("BLOCK",)),
    "W.5": StepSpec(("acc",), lambda: [product(*one) for one in (
        (40, 50, 33, 0, 16, 16), (40, 17, 50, 32, 0, 48), (18, 70, 20, 16, 64, 16),
        (16, 16, 16, 0, 0, 0))], ("TILE",)),
    "W.6": StepSpec((), lambda: [rows_softmax(*one) for one in (
        (3, 70, 2, 0, 3, 6), (3, 64, 1, 5, 0), (4, 70, 2, 300, 0, 305), (4, 50, 3, -200, -205),
        (3, 20, 1, 2))], ("BLOCK",)),
    "W.7": StepSpec(("y", "dx"), lambda: [launch(*one) for one in (
        (5, 7, 4), (8, 16, 2), (6, 33, 4, "transposed"), (13, 5, 8, "contiguous", "transposed"),
        (9, 20, 4, "every second column of a tensor", "one row for all, stride 0"))],
        fakes={"_rows_kernel": "softmax", "_rows_backward_kernel": "softmax backward"},
        kernel=False, also="_differentiated(Softmax, x, dy, scale)"),
    "W.8": StepSpec((*tiles.NAMES, "fastest", "why"), lambda: [tiles.choice()], kernel=False)}


# ------------------------------------------------------------------------- the grading
def grade(options: Options, reporter: Reporter, only: str = "",
          then: Callable[[str], None] | None = None) -> int:
    """Check all, or only one, and say what was found and what to do next.

    then: called with "fix step W.3", or "" if all is done, in place of saying what is next.
    -> 0 if all are right, 1 if not, 3 for a fault of the grader.
    """
    file = submission.read(options.directory / FOLDER, NAME, "")
    broken = file.located if file.state in ("missing", "syntax_error") else \
        damaged(file)
    shown = StageResult(0, EXERCISES.title, 0, "crashed", sentence=broken, steps=unlit(file))
    if broken:
        reporter.warm_up("crashed", f"{NAME}: {broken}")
        if options.page is not None:
            options.page.show(EXERCISES, shown, file, True, f"{COMMAND} --watch")
        return 1
    lacking = no_triton() or interpreter_fault()
    outcomes, to_fix, to_write = [], [], []
    there = [id for id in TITLES if id.encode() in file.source] or [*TITLES]
    with contextlib.closing(runner_of(file, options)) as runner:
        for id, title in TITLES.items():
            if only not in ("", id) or id not in there:
                continue
            outcome, lines, step = ("skipped", (), None) if lacking and id not in IN_PYTORCH else \
                check(runner, file, id)
            early = id == "W.8" and tiles.too_early(options.directory)
            if (id, outcome) == ("W.8", "pass"):
                outcome, lines, step = chosen(runner, step, options, early)
            if early and outcome not in ("wrong", "grader_fault"):
                reporter.warm_up("skipped", f"{id} {title}: later, when problem 4 is solved",
                                 lines if outcome == "pass" else ())
                continue
            outcomes.append(outcome)
            shown.steps = [step.as_dict() if step and old["id"] == id else old
                           for old in shown.steps]
            if step is None and lines and outcome != "wrong":
                shown.sentence = lines[0]
            if outcome not in ("pass", "skipped"):
                if lines:
                    to_fix.append(f"fix step {id}")
                else:
                    to_write.append(f"write step {id}")
            said = "right" if outcome == "pass" else outcome.replace("_", " ")
            reporter.warm_up(outcome, f"{id} {title}: {said}", lines)
    if lacking and "skipped" in outcomes:
        reporter.say(lacking)
    right = outcomes.count("pass")
    lost = [id for id in TITLES if id not in there and only in ("", id)]
    if outcomes or lost:
        reporter.say(f"Warm-ups: {right} of {len(outcomes)} right"
                     + f" (not in this file: {', '.join(lost)})" * bool(lost))
    shown.outcome = next((one for one in outcomes if one not in ("pass", "not_started")),
                         "not_started" if right < len(outcomes) else "pass")
    to_do = next(iter(to_fix + to_write), "")
    writing = to_do and f"{to_do} of {FOLDER}/{NAME}, then run {COMMAND} --watch"
    following = f"python autograder.py --hint {to_do.split()[-1]}" if to_fix else writing
    if options.page is not None and not only:
        options.page.show(EXERCISES, shown, file, True, writing or "python autograder.py")
    if then is not None:
        then(to_do)
    else:
        reporter.next(following or (COMMAND if only else "python autograder.py"))
    return 3 if "grader_fault" in outcomes else int(right < len(outcomes) or not outcomes)


def runner_of(file: submission.Submission, options: Options) -> Runner:
    """A runner of the file's steps; without Triton, of those above its import."""
    runner = Runner(EXERCISES, replace(options, device="cpu", imports=Imports()), file)
    runner.entry = ENTRIES.get
    if no_triton():
        runner.source = file.source.partition(b"\nimport triton")[0]
    return runner


def chosen(runner: Runner, step: StepCheck, options: Options, early: bool
           ) -> tuple[str, tuple[str, ...], StepCheck]:
    """As check(), of W.8, whose choice can be a kernel's: now what its tiles need decides.  early:
    there is no kernel yet."""
    def ask() -> tiles.Found:
        asked, examples = ENTRIES[step.id], ENTRIES[step.id].examples()
        answer, = runner.ask(step.id, runner.text((step.id,), asked, examples), asked, examples)
        made = observe(answer).programs[0]
        return ("pass", tiles.early(made)) if early else tiles.judged(made, options)

    outcome, lines = guarded(ask, lambda error: ("grader_fault", (FAULT.format(error),)))
    if outcome != "wrong":
        return outcome, lines, step
    return outcome, (*lines, f"more: python autograder.py --hint {step.id}"), replace(
        step, light=WRONG, seen=lines)


def check(runner: Runner, file: submission.Submission, id: str
          ) -> tuple[str, tuple[str, ...], StepCheck | None]:
    """-> the outcome; what is wrong, and the end of what the step printed; what the step left, if
    it ran."""
    if id in file.left_raises:
        return "wrong", (file.left_raises[id],), None
    if id in file.blank_steps:
        return "not_started", (), None
    if id not in runner.blanks.steps:
        return "skipped", (f"its code belongs between `# BEGIN SOLUTION {id}` and `# END SOLUTION "
                           f"{id}`, and these lines are missing.",), None
    before = runner.session.output.text() if runner.session else ""
    try:
        light = guarded(lambda: runner.search([
            runner.judged(id, ENTRIES[id], (id,))])[0], lambda error: StepCheck(
            id, "grader_fault", seen=(FAULT.format(error),)))
    except SubmissionError as error:  # the file cannot be imported
        runner.session.close()
        runner.session = None
        return error.outcome, (error.located(file.path.name),), None
    if light.light in (RIGHT, NONE):
        return ("pass", (), light) if light.light == RIGHT else ("skipped", light.seen, light)
    if light.light == "grader_fault":
        return light.light, light.seen, None
    printed = runner.session.output.text().removeprefix(before).splitlines()[-PRINTED:]
    return "wrong", (*"\n".join(light.lines).split("\n"), f"more: python autograder.py --hint {id}",
                     *(f"| {row}" for row in printed)), light
