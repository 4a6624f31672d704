"""--warmup: the five exercises of warmups/warmups.py, asked one after the other; without points.

Each is asked a few calls in a worker of its own.  What a call gives is held against the formula in
NumPy, and where it is wrong against variants of the formula: the one that alone fits all that is
wrong, and nothing that is right, is the mistake's name.
"""

import ast
import contextlib
import functools
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from grader.assignment import submission
from grader.course.calls import Call, OutputSpec, SubmissionError, TensorInput
from grader.course.stages import no_triton
from grader.host.options import Options
from grader.host.processes import Worker
from grader.host.session import Session
from grader.lights.blanks import Blanks
from grader.lights.trial import difference, guarded
from grader.report.screen import Reporter
from grader.text import syntax_tree

FOLDER, NAME = "warmups", "warmups.py"
BLOCK, TILE = 32, 16  # of that file
LIMIT = 1e-4  # error of a number relative to the largest of its row, all in float32
COMMAND = "python autograder.py --warmup"

PRINTED = 10  # lines, of what a file printed
Formula = Callable[..., np.ndarray]  # of a call's tensors, float32 or float16


@dataclass(frozen=True)
class WarmUp:
    """One exercise.  examples(random) -> the tensors of every call; mistakes: words -> what comes
    out with that mistake, NaN where nothing is stored; leaves: what the code below its step needs.
    """

    step: str
    title: str
    entry: str
    positional: tuple[str, ...]
    examples: Callable[[Callable], list[tuple[np.ndarray, ...]]]
    right: Formula
    mistakes: dict[str, Formula]
    leaves: str = ""

    @property
    def needs_triton(self) -> bool:
        return self.step > "W.2"


# ------------------------------------------------------------------------ the formulas
def _walk(s, v, new=np.maximum, weight_max=lambda old, new: new,
          alpha=lambda old, new: np.exp(old - new), total=lambda a, l_i, r: a * l_i + r,
          sums=lambda a, acc, pv: a * acc + pv):
    """The online softmax of s (M, N) times v (N, D), float32 -> m_i (M,), l_i (M,), acc (M, D)."""
    m_i = np.full(len(s), -np.inf, np.float32)
    l_i, acc = np.zeros(len(s), np.float32), np.zeros((len(s), v.shape[1]), np.float32)
    for start in range(0, s.shape[1], BLOCK):
        tile = s[:, start:start + BLOCK]
        m_new = new(m_i, tile.max(1))
        a, p = alpha(m_i, m_new), np.exp(tile - weight_max(m_i, m_new)[:, None])
        l_i = total(a, l_i, p.sum(1))
        acc = sums(a[:, None], acc, p @ v[start:start + BLOCK])
        m_i = m_new
    return m_i, l_i, acc


def _softmax(s):
    p = np.exp(s.astype(np.float64) - s.max(-1, keepdims=True))
    return p / p.sum(-1, keepdims=True)


def _weights(**changes) -> Formula:
    def made(x):
        m_i, l_i, _ = _walk(x[None], np.zeros((len(x), 1), np.float32), **changes)
        return np.exp(x - m_i) / l_i
    return made


def _times(**changes) -> Formula:
    def made(s, v):
        _, l_i, acc = _walk(s, v, **changes)
        return acc / l_i[:, None]
    return made


UNSCALED = {"total": lambda a, l_i, r: l_i + r}
UNSCALED_ACC = {"sums": lambda a, acc, pv: acc + pv}
LAST = {"total": lambda a, l_i, r: r, "sums": lambda a, acc, pv: pv}
INVERTED = {"alpha": lambda old, new: np.exp(new - old)}
OLD_MAX = {"weight_max": lambda old, new: old}
OWN_MAX = {"new": lambda old, tile: tile}
OVERFLOW = ("exp is infinite in the first tile, where m_i is -inf: want exp(old maximum - new one) "
            "as the factor, and exp(s - new maximum) as the weights")
UPSIDE_DOWN = "the factor is upside down: it is exp(old maximum - new one)"


def _stored(x, y, where):
    """x + y where it is stored at all."""
    return np.where(where, x + y, np.nan)


def _programs(x) -> int:
    return -(-len(x) // BLOCK)


def _row_sum(counts) -> Formula:
    """counts(row, column) -> whether, or how often, a number counts."""
    def made(x):
        row, column = np.indices(x.shape)
        return (x.astype(np.float64) * counts(row, column)).sum(1)
    return made


def _last_tile(x):
    row, column = np.indices(x.shape)
    begins = (x.shape[1] - 1) // BLOCK * BLOCK
    return (x.astype(np.float64) * ((column <= row) & (column >= begins))).sum(1)


def _first_tile_again(x):
    row, column = np.indices(x.shape)
    tiles = -(-x.shape[1] // BLOCK)
    return tiles * (x.astype(np.float64) * ((column <= row) & (column < BLOCK))).sum(1)


def _first_row_again(x):
    return _row_sum(lambda row, column: column <= row)(np.broadcast_to(x[0], x.shape))


def _rows_one_apart(x):
    return _row_sum(lambda row, column: column <= row)(_read(x, 1, 1))


def _rows_of_a_block(x):
    return np.nan_to_num(_row_sum(lambda row, column: column <= row)(_read(x, BLOCK, 1)))


def _product(a, b):
    return a.astype(np.float64) @ b.astype(np.float64)


def _tiled(step: Callable) -> Formula:
    """step(acc, a, b) -> acc, of a program's tiles; of tiles that reach past the end, 0 there."""
    def made(a, b):
        (M, K), N = a.shape, b.shape[1]
        size = -(-max(M, K, N) // TILE) * TILE
        wide_a, wide_b, c = np.zeros((3, size, size))
        wide_a[:M, :K], wide_b[:K, :N] = a, b
        for m in range(0, size, TILE):
            for n in range(0, size, TILE):
                acc = np.zeros((TILE, TILE))
                for k in range(0, -(-K // TILE) * TILE, TILE):
                    acc = step(acc, wide_a[m:m + TILE, k:k + TILE], wide_b[k:k + TILE, n:n + TILE])
                c[m:m + TILE, n:n + TILE] = acc
        return c[:M, :N]
    return made


def _read(a, down: int, across: int):
    """a as it is read where its element (i, j) is taken to lie at i * down + j * across; NaN past
    its end."""
    at = np.arange(a.shape[0])[:, None] * down + np.arange(a.shape[1]) * across
    return np.where(at < a.size, a.ravel()[np.minimum(at, a.size - 1)].astype(np.float64), np.nan)


WARM_UPS = (
    WarmUp("W.1", "the online softmax, in a loop", "online_softmax", ("x",),
           lambda random: [(random(70),), (random(100) + np.linspace(0, 30, 100),),
                           (random(90) - np.linspace(0, 400, 90),), (random(70) + 300,),
                           (random(5),)],
           _softmax, {
               "l_i is not multiplied by exp(old maximum - new one)": _weights(**UNSCALED),
               UPSIDE_DOWN: _weights(**INVERTED),
               "only the last tile is in the sum: what l_i held before is not kept": _weights(
                   **LAST),
               "the tile's sum is made with the old maximum": _weights(**OLD_MAX),
               "m_i is the last tile's maximum: the old one takes no part": _weights(**OWN_MAX),
               "m_i is never brought up to date": lambda x: np.full_like(x, np.inf)}),
    WarmUp("W.2", "softmax times a matrix, in tiles", "softmax_times", ("s", "v"),
           lambda random: [(random(5, 70), random(70, 8)),
                           (random(4, 100) + np.linspace(0, 30, 100), random(100, 8)),
                           (random(3, 90) - np.linspace(0, 400, 90), random(90, 4)),
                           (random(2, 70) + 300, random(70, 4)), (random(3, 5), random(5, 8)),
                           (random(3, 40) - 200 * np.arange(3)[:, None], random(40, 4))],
           lambda s, v: _softmax(s) @ v, {
               "acc is not multiplied by exp(old maximum - new one)": _times(**UNSCALED_ACC),
               "l_i is not multiplied by exp(old maximum - new one)": _times(**UNSCALED),
               "neither l_i nor acc is multiplied by exp(old maximum - new one)": _times(
                   **UNSCALED, **UNSCALED_ACC),
               OVERFLOW: _times(**INVERTED),
               "only the last tile counts: what l_i and acc held before is not kept": _times(
                   **LAST),
               "m_i is never brought up to date": _times(**LAST, **OWN_MAX),
               "m_i is the last tile's maximum: the old one takes no part": _times(**OWN_MAX),
               "m_i is one maximum for all rows: dim=1 is left out": _times(
                   new=lambda old, tile: np.maximum(old, tile.max())),
               "l_i is one sum for all rows: dim=1 is left out": _times(
                   total=lambda a, l_i, r: a * l_i + r.sum())},
           "m_i and l_i must keep the shape (M,), and acc (M, D): .amax(dim=1) and .sum(dim=1) "
           "drop an axis, and keepdim=True keeps it"),
    WarmUp("W.3", "the sum of two vectors", "add", ("x", "y"),
           lambda random: [(random(n), random(n)) for n in (96, 70, 5)],
           lambda x, y: x + y, {
               "every program has the same elements: tl.program_id(0) is left out":
                   lambda x, y: _stored(x, y, np.arange(len(x)) < BLOCK),
               "program i begins at element i, not at i * BLOCK":
                   lambda x, y: _stored(x, y, np.arange(len(x)) < BLOCK + _programs(x) - 1),
               "nothing is stored in z: tl.store is left out": lambda x, y: np.full(len(x), np.nan),
               "every program stores one element: tl.arange(0, BLOCK) is left out":
                   lambda x, y: _stored(x, y, np.arange(len(x)) % BLOCK == 0),
               "y is not added": lambda x, y: x,
               "x is not added": lambda x, y: y,
               "x is added to itself": lambda x, y: x + x,
               "they are multiplied, not added": lambda x, y: x * y}),
    WarmUp("W.4", "the sum of each row up to the diagonal", "causal_row_sum", ("x",),
           lambda random: [(random(40, 70),), (random(70, 40),), (random(33, 33),)],
           _row_sum(lambda row, column: column <= row), {
               "all columns count: the mask lacks column <= row": _row_sum(
                   lambda row, column: np.ones(row.shape)),
               "the diagonal itself is left out: want column <= row": _row_sum(
                   lambda row, column: column < row),
               "the columns from the diagonal on count, not those up to it": _row_sum(
                   lambda row, column: column >= row),
               "only the last tile counts: acc is not added to": _last_tile,
               "every tile begins at column 0: start is left out": _first_tile_again,
               "every program reads row 0: row * N is left out": _first_row_again,
               "row i is read from element i on, not from i * N on": _rows_one_apart,
               "a row has N numbers, not BLOCK": _rows_of_a_block},
           "acc must stay a single number: sum the tile first, acc += tl.sum(tile, axis=0)"),
    WarmUp("W.5", "a product of matrices, in tiles", "matmul", ("a", "b"),
           lambda random: [(random(*m).astype(np.float16), random(*n).astype(np.float16))
                           for m, n in (((20, 33), (33, 33)), ((40, 50), (50, 17)),
                                        ((18, 20), (20, 70)), ((16, 16), (16, 16)))],
           _product, {
               "only the last tile counts: acc is not added to": _tiled(lambda acc, a, b: a @ b),
               "acc is added twice: tl.dot(a, b, acc) already adds it":
                   _tiled(lambda acc, a, b: acc + (a @ b + acc)),
               "number times number: want tl.dot, not *": _tiled(lambda acc, a, b: acc + a * b),
               "number times number, and that in 16 bits: want tl.dot, not *":
                   _tiled(lambda acc, a, b: acc + (a * b).astype(np.float16)),
               "each tile of b is transposed: want rows offs_k[:, None], columns offs_n[None, :]":
                   _tiled(lambda acc, a, b: acc + a @ b.T),
               "a and b are exchanged: want tl.dot(a, b)": _tiled(lambda acc, a, b: acc + b @ a),
               "b is read with rows and columns exchanged": lambda a, b: _product(
                   a, _read(b, 1, b.shape[1])),
               "b is read as if it were (N, K)": lambda a, b: _product(a, _read(b, 1, len(b))),
               "a row of a has K numbers, not N": lambda a, b: _product(
                   _read(a, b.shape[1], 1), b),
               "a row of a has K numbers, not M": lambda a, b: _product(_read(a, len(a), 1), b),
               "a row of b has N numbers, not M": lambda a, b: _product(a, _read(b, len(a), 1)),
               "a row of b has N numbers, not K": lambda a, b: _product(a, _read(b, len(b), 1))}),
)


# ------------------------------------------------------------------------- the grading
def grade(options: Options, reporter: Reporter, only: str = "",
          then: Callable[[str], None] | None = None) -> int:
    """Ask all five, or only one, and say what was found and, unless that is left to then(), what
    to do next.  then: told "fix step W.3", or "" where there is nothing to do.

    -> 0 all right, 1 not, 3 a fault of the grader.
    """
    file = submission.read(options.directory / FOLDER, NAME, "")
    if file.state in ("missing", "syntax_error"):
        reporter.warm_up("crashed", f"{NAME}: {file.sentence}{file.place}")
        return 1
    lacking = no_triton()
    outcomes, to_do, following = [], "", ""
    for one in (one for one in WARM_UPS if only in ("", one.step)):
        lines: tuple[str, ...] = ()
        if one.needs_triton and lacking:
            outcome = "skipped"
        elif one.step in file.left_raises:
            outcome, lines = "wrong", (file.left_raises[one.step],)
        elif one.step in file.blank_steps:
            outcome = "not_started"
        else:
            outcome, lines = guarded(
                functools.partial(ask, one, file, options, not lacking),
                lambda error: ("grader_fault", (f"the grader itself failed ({error}): please "
                                                "report it, with your file.",)))
        outcomes.append(outcome)
        if not to_do and outcome not in ("pass", "skipped"):
            to_do = f"{'fix' if lines else 'write'} step {one.step}"
            following = (f"python autograder.py --hint {one.step}" if lines else
                         f"{to_do} of {FOLDER}/{NAME}, then\n      {COMMAND} --watch")
        said = "right" if outcome == "pass" else outcome.replace("_", " ")
        reporter.warm_up(outcome, f"{one.step} {one.title}: {said}", lines)
    if "skipped" in outcomes:
        reporter.say(lacking)
    right = outcomes.count("pass")
    reporter.say(f"Warm-ups: {right} of {len(outcomes)} right, seed {options.seed}")
    if then is not None:
        then(to_do)
    else:
        reporter.next(following or (COMMAND if only else "python autograder.py"))
    return 3 if "grader_fault" in outcomes else int(right < len(outcomes))


def ask(one: WarmUp, file: submission.Submission, options: Options,
        triton: bool = True) -> tuple[str, tuple[str, ...]]:
    """-> outcome, and what is wrong in at most six lines; then the end of what it printed."""
    source = file.source if triton else file.source.partition(b"\nimport triton")[0]
    random = _numbers(options.seed, one.step)
    asked = [tuple(x if x.dtype == np.float16 else x.astype(np.float32) for x in tensors)
             for tensors in one.examples(random)]
    answers, error, text = _answers(one, source, asked, options)
    named = tuple(f"the mistake: {words}." for words in name_of(one, asked, answers))
    crash = (error.outcome, _of_error(error, one, file, named)) if error else ("pass", ())
    printed = tuple(f"| {row}" for row in text.splitlines()[-PRINTED:])
    for tensors, got in zip(asked, answers, strict=True):
        if got is None:
            break
        if found := difference(one.entry, got, one.right(*tensors), LIMIT):
            shapes = ", ".join(f"{name} {tuple(x.shape)}" for name, x in zip(
                one.positional, tensors, strict=True))
            return "wrong", (f"{shapes}: {found.lines[0]}", *named, *_misjoined(one, file),
                             f"more: python autograder.py --hint {one.step}", *printed)
    if not error and (said := _on_a_gpu(one, file, asked, options)):
        return "wrong", (*said, f"more: python autograder.py --hint {one.step}", *printed)
    return crash[0], (*crash[1], *printed * (crash[0] != "pass"))


def _answers(one: WarmUp, source: bytes, asked: list, options: Options
             ) -> tuple[list[np.ndarray | None], SubmissionError | None, str]:
    """-> what every call gave, None where it raised; the first error; what was printed."""
    answers, first = [None] * len(asked), None
    session = Session(Worker(source, NAME, device=options.device, interpret=options.device == "cpu",
                             confinement=options.confinement), options.timeout)
    try:
        with session:
            session.load(one.entry, None, one.positional)
            for i, tensors in enumerate(asked):
                try:
                    reply = session.run(_call(one, tensors))
                    answers[i] = reply.outputs[0]["result"].numpy()
                except SubmissionError as error:
                    first = first or error
                    if session.gone:
                        break
    except SubmissionError as error:  # of loading the file
        first = error
    return answers, first, session.output.text()


def _on_a_gpu(one: WarmUp, file: submission.Submission, asked: list, options: Options
              ) -> tuple[str, ...]:
    """What is wrong with a right answer on a GPU, where lanes that are masked off hold anything
    unless other= says what, and where programs are there to share the work."""
    rows = submission.decode(file.source).split("\n")
    inside = next((known for known in file.steps if known.id == one.step), None)
    if one.step == "W.3" and inside and not any(
            "program_id" in row for row in rows[inside.first_line:inside.last_line]):
        return ("every program adds all elements: want BLOCK of them each, by tl.program_id(0).",)
    filled, line = _undefined(file, one.step)
    if line is None:
        return ()
    answers, error, _ = _answers(one, filled, asked, options)
    if not error and all(difference("", got, one.right(*tensors), LIMIT) is None
                         for tensors, got in zip(asked, answers, strict=True)):
        return ()
    return (f"line {line}: tl.load has mask= and no other=: what the masked elements read is not "
            "said, and it counts here. Write other=0.0.",)


def _undefined(file: submission.Submission, step: str) -> tuple[bytes, int | None]:
    """The file with NaN for the masked lanes of the step's loads that do not say what they read;
    the line of the first of them, or None."""
    inside = next((known for known in file.steps if known.id == step), None)
    loads = [] if inside is None else [
        node for node in ast.walk(syntax_tree(file.source)) if isinstance(node, ast.Call)
        and inside.first_line < node.lineno < inside.last_line
        and ast.unparse(node.func).endswith(".load")
        and [word.arg for word in node.keywords].count("mask")
        and not [word.arg for word in node.keywords].count("other")]
    rows = file.source.split(b"\n")
    for node in sorted(loads, key=lambda node: (-node.end_lineno, -node.end_col_offset)):
        row, end = rows[node.end_lineno - 1], node.end_col_offset - 1
        rows[node.end_lineno - 1] = row[:end] + b', other=float("nan")' + row[end:]
    return b"\n".join(rows), min((node.lineno for node in loads), default=None)


def _misjoined(one: WarmUp, file: submission.Submission) -> tuple[str, ...]:
    """Where the exercise's own step joins tiles by `and` or a < b < c."""
    with contextlib.suppress(ValueError, SyntaxError):
        step = Blanks(submission.decode(file.source), file.steps).text((one.step,), {}, True)
        if one.needs_triton and (said := submission.misjoined_tiles(step.encode())):
            return (said,)
    return ()


def name_of(one: WarmUp, asked: list, answers: list[np.ndarray | None]) -> list[str]:
    """The words of the one mistake that fits every answer; none if none does, or several do, or
    all answers are right."""
    with np.errstate(all="ignore"):
        fits = [words for words, formula in {"": one.right, **one.mistakes}.items()
                if all(got is None or difference("", got, formula(*tensors), LIMIT) is None
                       for tensors, got in zip(asked, answers, strict=True))]
    return fits if len(fits) == 1 and fits != [""] else []


def _numbers(seed: int, step: str):
    """-> function (shape) -> float32 numbers, normally distributed."""
    generator = np.random.default_rng([seed, *step.encode()])
    return lambda *shape: generator.standard_normal(shape).astype(np.float32)


def _call(one: WarmUp, tensors: tuple[np.ndarray, ...]) -> Call:
    shape = one.right(*tensors).shape
    inputs = {name: TensorInput.dense(torch.from_numpy(x))
              for name, x in zip(one.positional, tensors, strict=True)}
    return Call(inputs, tuple(f"@{name}" for name in inputs), {},
                (OutputSpec("result", shape, torch.float32),))


def _of_error(error: SubmissionError, one: WarmUp, file: submission.Submission,
              named: tuple[str, ...]) -> tuple[str, ...]:
    line = file.own_line(error.line, error.lines)
    step = file.step_at(line)
    lines = [*error.sentence.split("\n"), *named, *_misjoined(one, file)]
    above = [known.id for known in file.steps if line is not None and known.last_line < line]
    place = f", {step.words}" if step else ""
    if step is None and above[-1:] == [one.step]:
        lines += [f"the mistake: {one.leaves}."] if one.leaves and not named else []
        place = f", below step {one.step}"
    if line is not None and f"line {line}" not in error.sentence:
        lines.append(f"where: {NAME}, line {line}{place}.")
    if place:
        lines.append(f"more: python autograder.py --hint {step.id if step else one.step}")
    return tuple(lines)
