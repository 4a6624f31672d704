"""Makes three questions per student on the student's own graded files, and the answers apart: what
the file does in the sandbox, or arithmetic that a run of the step agrees with."""

import contextlib
import itertools
import math
import random
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from classroom.pages import rendered
from classroom.reports import UNSETTLED, read_reports
from grader.assignment import submission
from grader.assignment.record import sha256
from grader.course.calls import Access, Launch, SubmissionError
from grader.course.cases import Case
from grader.course.inputs import Built, build
from grader.course.stages import STAGES, interpreter_fault
from grader.drawings import svg
from grader.host.options import Imports, Options, run_chosen
from grader.judge.pictures import example
from grader.step_checks import repair
from grader.step_checks.checks import Runner
from grader.step_checks.examples import observe
from grader.step_checks.table import TOGETHER, entry

LOOPS = {"rows", "loop", "borders", "load"}  # places of steps that decide what is loaded
MOST_PROGRAMS, MOST_ACCESSES = 16, 3900  # all of which worker/accesses.py notes
MOST_TURNS, TRIES = 8, 16  # of a loop that is asked about; variants of a file
VARIANTS = "one-too-many", "wrong-comparison", "wrong-flag"  # a term left out, and so on
SECONDS, SAME, OTHER = 10.0, 1e-5, 1e-2  # for a variant; errors of rows that are right, and not


class Question(NamedTuple):
    """texts, answer: sentences with `code`.  drawn: a picture of the answer."""

    stage: int
    topic: str
    texts: tuple[str, ...]
    answer: str
    drawn: Markup = Markup()


class Loop(NamedTuple):
    """The turns of every program's loop over the tiles of a tensor with so many rows or elements.
    flagged: whether every turn says whether it is masked; words: on the launch."""

    tensor: str
    unit: str
    count: int
    size: int
    program: str
    turns: list[list[Access]]
    flagged: bool
    words: str  # without sizes of tiles: these are in the student's file


class File:
    """A graded file.  odd: whether the student's place in the class is odd, so that neighbours get
    other numbers."""

    def __init__(self, folder: Path, graded: dict, options: Options, seed: str, odd: int):
        self.stage, self.graded, self.odd = STAGES[graded["stage"]], graded, odd
        self.options = replace(options, directory=folder, imports=Imports())
        self.read = submission.read(folder, self.stage.filename, self.stage.entry)
        self.random = random.Random(f"{seed}/{self.stage.number}")
        self.seed = self.random.getrandbits(32)
        lights = {one["id"]: one["light"] for one in graded.get("steps", ())}
        self.right = {id for id in self.stage.steps if lights.get(id) == "right"
                      or graded["outcome"] == "pass" and lights.get(id) != "wrong"}

    @cached_property
    def traced(self) -> tuple[Built, list[Loop]]:
        """A call whose last tile is ragged, and the loops that it runs; none if a step for them is
        wrong.  Raises SubmissionError."""
        def launches(built: Built) -> list[Launch]:
            return run_chosen(self.stage, self.options, self.read.source,
                              lambda session: session.accesses(built.call)) if knows else []

        knows = self.stage.needs_triton and all(
            step in self.right for step, places in self.stage.steps.items()
            if {place.split()[-1] for place in places.split(", ")} & LOOPS)
        size = max([16 if knows else 64, *(
            one.tile[1] - one.tile[0] + 1 for launch in launches(self.built(128))
            for program in launch.programs for one in program)])
        built = self.built(size * (3 + self.odd) + self.random.randrange(3, size - 1, 2))
        return built, [loop for launch in launches(built)
                       for loop in itertools.islice(_loops(launch), 1)]

    def built(self, N: int) -> Built:
        """A call of one head."""
        case = Case(self.stage.number, "picture", N, M=40 + self.odd)
        if not self.stage.sums_rows:
            case = example(self.stage, N, grads=("q", "k", "v") * self.stage.differentiates, D=32)
            case = replace(case, sinks=case.sinks and 5 + self.odd, window=case.window and (
                self.random.choice((8, N // 3)) + self.odd))
        return build(case, self.seed)

    def asked(self, topic: str, loops: list[Loop], text: str, answer: str,
              drawn: str = "") -> Question:
        """A question about the traced call.  loops: the one that it is about, if any."""
        stage, call, case = self.stage, self.traced[0].call, self.traced[0].case
        given = ", ".join([*(str(one).removeprefix("@") for one in call.args),
                           *(f"{name}={value}" for name, value in call.kwargs.items())])
        shapes = f"x of shape ({case.M}, {case.N})" if stage.sums_rows else \
            f"q, k and v of shape (1, 1, {case.N}, {case.D})"
        called = f"{stage.entry}.{stage.attribute}" if stage.attribute else stage.entry
        return Question(stage.number, topic, (
            f"`{stage.filename}`: `{called}({given})` is called with {shapes} in float32"
            + ", in Triton's interpreter" * stage.needs_triton
            + ", and then its backward" * bool(case.grads) + ".",
            *(loop.words for loop in loops), text), answer, Markup(drawn))


def _loops(launch: Launch) -> Iterator[Loop]:
    """The loops of a launch with one axis of programs, which keep within their tensors."""
    every = [one for program in launch.programs for one in program]
    if not math.prod(launch.grid) == len(launch.programs) == max(launch.grid) <= MOST_PROGRAMS \
            or len(every) > MOST_ACCESSES or any(
                one.is_outside(launch.tensors[one.tensor]) for one in every):
        return
    sizes = {}
    for tensor in launch.tensors:
        heights = {one.tile[1] - one.tile[0] + 1 for one in every
                   if (one.verb, one.tensor) == ("load", tensor)}
        # Powers of two are what tl.arange gives; others come of columns past the last one.
        if len(heights) == 1 and (size := heights.pop()) > 1 and not size & size - 1:
            sizes[tensor] = size
    for tensor, size in sizes.items():
        turns = [[next(some) for _, some in itertools.groupby(
            (one for one in program if (one.verb, one.tensor) == ("load", tensor)),
            lambda one: one.tile[:2])] for program in launch.programs]
        count, columns = launch.tensors[tensor]
        alike = len({tuple(one.tile[:2] for one in some) for some in turns}) < 2
        if max(map(len, turns)) > 2 and not alike:
            yield Loop(tensor, "rows" if columns > 1 else "elements", count, size,
                       f"tl.program_id({launch.grid.index(max(launch.grid))})", turns,
                       all(one.masked is not None for some in turns for one in some),
                       f"`{launch.kernel}` runs as {len(turns)} programs.")


def loads(file: File) -> Iterator[Question]:
    """Which tiles does a program load, and which programs load a row?"""
    for loop in file.traced[1]:
        marked = ", with a * if it is loaded with `MASKED=True`" * loop.flagged

        def star(turns: list[Access], loop: Loop = loop) -> str:
            return "*" if loop.flagged and any(one.masked for one in turns) else ""

        for number, turns in enumerate(loop.turns):
            if number % 2 == file.odd and 1 < len(turns) <= MOST_TURNS:
                yield file.asked("tiles", [loop], (
                    f"Which tiles of `{loop.tensor}` does the program with `{loop.program} == "
                    f"{number}` load, in which order? Give the first of the {loop.unit} of each"
                    f"{marked}."), ", ".join(f"{one.tile[0]}{star([one])}" for one in turns),
                    _picture(loop, [number]))
        for row in range(1 + 2 * file.odd, loop.count, 4):
            reads = {number: here for number, turns in enumerate(loop.turns) if (here := [
                one for one in turns if one.lanes and one.lanes[0] <= row <= one.lanes[1]])}
            if 0 < len(reads) < len(loop.turns):
                yield file.asked("programs", [loop], (
                    f"Which programs load {loop.unit[:-1]} {row} of `{loop.tensor}`? Give the "
                    f"`{loop.program}` of each{marked}."), ", ".join(
                        f"{number}{star(here)}" for number, here in reads.items()),
                    _picture(loop, range(len(loop.turns))))


def _picture(loop: Loop, programs: Sequence[int]) -> Markup:
    """The tiles that programs load; nothing if they are no grid."""
    seen, masked = np.zeros((2, len(programs), -(-loop.count // loop.size)), int)
    for row, number in enumerate(programs):
        for one in loop.turns[number]:
            tile, rest = divmod(one.tile[0], loop.size)
            if rest or not 0 <= one.tile[0] < loop.count:
                return Markup()
            seen[row, tile] += 1
            masked[row, tile] |= bool(one.masked)
    return svg.tiles(f"program, {loop.tensor} tiles of {loop.size}", seen, seen > 0, masked > 0,
                     masked < 0, list(programs), range(0, loop.count, loop.size))[0].drawn


def softmax(file: File) -> Iterator[Question]:
    """What are alpha, l and m of two rows after a tile?"""
    steps, ids = {step.id: step for step in file.read.steps}, tuple(
        file.stage.steps_of(("softmax", "sums")))
    if file.stage.sums_rows or {*ids} - (steps.keys() & file.right):
        return
    pick, hidden = file.random.randrange, -math.inf
    m, up, down = 2 * pick(4) + file.odd, pick(1, 4), pick(1, 3)
    other = [(m + 1, 2 + pick(3), (m, hidden, m + 1 - down)), (m + 1, 2 + pick(3), (hidden,) * 3),
             (hidden, 0, (m - 1, m, hidden))][pick(3)]
    rows = {2: (m, 2 * pick(1, 4) + file.odd, (m + up - down, m + up, hidden)), 3 + pick(2): other}
    asked = TOGETHER.get(ids) or entry(ids[0])
    one = asked.examples()[0]
    given = one.given | {name: one.given[name].copy() for name in ("s", "m_i", "l_i", "acc")}
    for row, (old, total, scores) in rows.items():
        given["s"][..., row, :], given["acc"][..., row, :] = hidden, float(total > 0)
        given["m_i"][..., row], given["l_i"][..., row] = old, total
        given["s"][..., row, :3] = scores
    in_kernel = {"scale_log2e": 1.0, "keep": np.isfinite(given["s"])}
    one = replace(one, given=given | {name: in_kernel[name] for name in in_kernel & given.keys()})
    with contextlib.closing(Runner(file.stage, file.options, file.read)) as runner:
        answers = runner.ask(ids[-1], runner.text(ids, asked, [one]), asked, [one])
    left = observe(answers[0]).programs[0]
    for base, name in ((2.0, "2"), (math.e, "e")):
        said, fits = [], True
        for row, (old, total, scores) in rows.items():
            new = max(old, *scores)
            alpha, p = base ** (old - new), [base ** (score - new) for score in scores]
            fits = fits and all(np.allclose(left[leaf][..., row], x, 1e-5) for leaf, x in (
                ("m_new", new), ("l_i", total * alpha + sum(p))))
            said.append(f"Row {row}: m = {new}, alpha = {name}^{old - new} = {alpha:.4g}, l = "
                        f"{' + '.join([f'{total} * {alpha:.4g}', *map('{:.4g}'.format, p)])} = "
                        f"{total * alpha + sum(p):.5g}.")
        if fits:
            yield Question(file.stage.number, "softmax", (
                f"`{file.stage.filename}`, step {ids[0]}, below line {steps[ids[0]].first_line}: "
                "a tile of keys has the scores below, which are already multiplied by what your "
                "code multiplies them by. -inf is a hidden key; all other keys of the tile are "
                "hidden, too.",
                *(f"Row {row}: {', '.join(map(str, scores))}. Before this tile, m = {old} and l = "
                  f"{total}." for row, (old, total, scores) in rows.items()),
                "What are m, alpha and l of both rows after this tile?"), " ".join(said))


def variant(file: File) -> Iterator[Question]:
    """If one line read differently, which rows of o would be right all the same?"""
    (built, loops), stage, options = file.traced, file.stage, replace(file.options, timeout=SECONDS)
    if file.graded["outcome"] != "pass" or stage.sums_rows or bool(loops) != stage.needs_triton:
        return
    calls = [replace(build(built.case, seed).call, grads=(), douts={})
             for seed in (file.seed, file.seed + 1)]  # what holds for both is no accident

    def rows_of_o(source: bytes) -> np.ndarray:
        return run_chosen(stage, options, source, lambda session: np.stack([
            session.run(call).outputs[0]["o"][0, 0].double().numpy() for call in calls]))

    right, some = rows_of_o(file.read.source), list(dict.fromkeys(_variants(file)))[file.odd::2]
    for line, old, new, source in file.random.sample(some, min(TRIES, len(some))):
        try:
            changed = rows_of_o(source)
        except SubmissionError:
            continue
        off = np.abs(changed - right).max(2) / np.abs(right).max(2)
        same = off[0] < SAME
        ends = np.flatnonzero(np.diff([False, *same, False])).reshape(-1, 2).tolist()
        if 0 < same.sum() < len(same) and len(ends) < 3 and (
                np.where(same, off < SAME, ~(off < OTHER))).all():
            yield file.asked("variant", loops[:1], (
                f"Suppose line {line} read `{new}` in place of `{old}`. Which rows of o would "
                "still be right, and why?"), " and ".join(
                    f"{first}" + f" to {end - 1}" * (end - first > 1) for first, end in ends))
            return


def _variants(file: File) -> Iterator[tuple[int, str, str, bytes]]:
    """Lines of the forward's steps, what they read and might read, and the file with that."""
    runner = Runner(file.stage, file.options, file.read)
    rows = runner.blanks.rows
    for id in file.stage.steps_of(("softmax", "sums", "mask", "borders", "loop")):
        if (asked := entry(id)) is None or id not in runner.blanks.steps:
            continue
        examples = asked.examples()
        text = runner.text((id,), asked, examples)
        kinds = {name: repair.kind(value) for name, value in examples[0].given.items()}
        for change in repair.changes(text, kinds, asked.leaves, calls=tuple(asked.fakes)):
            both = zip(text.split("\n"), change.text.split("\n"), strict=False)
            lines = [(line, new.strip()) for line, (old, new) in enumerate(both, 1) if old != new]
            if change.id in VARIANTS and len(lines) == 1:
                line, new = lines[0][0], re.sub(
                    r"(?<![\w\])])\((\w+)\)", r"\1", lines[0][1])  # (x) - y
                old = rows[line - 1].strip()
                yield line, old, new, "".join([*rows[:line - 1], rows[line - 1].replace(
                    old, new), *rows[line:]]).encode()


def of_files(files: list[File], seed: str) -> list[Question]:
    """Up to three questions, of as many kinds and stages as there are."""
    chosen, made, found, kinds = random.Random(seed), [], {}, (loads, softmax, variant)
    pairs = [(make, file) for make in kinds for file in files]
    chosen.shuffle(pairs)
    for wanted in kinds:
        for pair in sorted(pairs, key=lambda pair: (pair[0] is not wanted, sum(
                one.stage == pair[1].stage.number for one in made))):
            # A file may not get through the call, or have blanks that cannot be run.
            with contextlib.suppress(SubmissionError, LookupError, TypeError, ValueError):
                if pair not in found:
                    found[pair] = []
                    found[pair] = list(pair[0](pair[1]))
            left = [one for one in found[pair] if one not in made]
            topics = {one[:2] for one in left}
            if topics := sorted(topics - {one[:2] for one in made} or topics):
                topic = chosen.choice(topics)
                made.append(chosen.choice([one for one in left if one[:2] == topic]))
                break
    return made


def of_class(results: Path, options: Options, seed: int, student: str, say: Callable[[str], None]
             ) -> dict[Path, bytes]:
    """The pages of everyone with a file to ask about, and the answers.  student: the only one to
    ask, if not "".  Raises ValueError: no one has that name, or a file is not as it was graded."""
    if why := interpreter_fault():
        raise ValueError(why)
    reports = list(enumerate(read_reports(results)))
    found, asked = [], [each for each in reports if not student or student.casefold() in (
        each[1][name].casefold() for name in ("student", "key", "id", "login"))]
    if student and len(asked) != 1:
        raise ValueError(f"--student: want the name, id or login of one student; got {student}")
    for place, report in asked:
        say(f"{place + 1} of {len(reports)}: {report['student']}")
        folder, salt = results / "submissions" / report["key"], f"{seed}/{report['key']}"
        files = [File(folder, graded, options, salt, place % 2) for graded in report["stages"]
                 if graded["outcome"] not in UNSETTLED | {"missing", "rejected", "not_started"}]
        for file in files:
            if sha256(file.read.source or b"") != file.graded["sha256"]:
                raise ValueError(f"want the file that was graded; got {file.read.path}, which was "
                                 "changed since")
        found.append((report, of_files(files, salt)))

    def page(some: list, answered: bool) -> bytes:
        return rendered("questions.html", students=some, seed=seed, answered=answered,
                        draw=svg.draw, drawings=Markup(svg.STYLE + svg.PANELS))

    made = {results / "questions" / f"{report['key']}.html": page([(report, questions)], False)
            for report, questions in found if questions}
    suffix = f"-{asked[0][1]['key']}" * bool(student)
    return made | {results / f"answers{suffix}.html": page(found, True)}
