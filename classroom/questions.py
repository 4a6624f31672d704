"""Makes three questions per student on the student's own graded files, and the answers apart.

Nothing is looked up in a solution, and no model writes here: every answer is what the student's
file did in the sandbox, or arithmetic on the numbers that the question prints.  Only steps that are
right in the file are asked about.  Neighbours on the roster get other programs and lengths.
"""

import math
import random
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from markupsafe import Markup, escape

from classroom.pages import rendered
from classroom.reports import UNSETTLED, read_reports
from grader.assignment import submission
from grader.assignment.record import sha256
from grader.course.calls import Access, Launch, SubmissionError
from grader.course.cases import Case
from grader.course.inputs import Built, build
from grader.course.stages import STAGES, interpreter_fault
from grader.drawings import svg
from grader.host.options import Options
from grader.judge.chosen_case import run_chosen
from grader.judge.pictures import example

TRACE = "what its programs load"  # the kinds of questions
LOOPS = {"rows", "loop", "borders", "load"}  # places of steps that decide what is loaded
MOST_TURNS = 8  # of a loop that is asked about
MOST_PROGRAMS, MOST_ACCESSES = 16, 3900  # all of which worker/accesses.py notes


@dataclass(frozen=True)
class Question:
    """texts, answer: sentences with `code`.  blank, drawn: a picture to fill in, and filled in."""

    stage: int
    texts: tuple[str, ...]
    answer: str
    blank: Markup = Markup()
    drawn: Markup = Markup()


class File:
    """A graded file.  odd: whether the student has an odd place in the class."""

    def __init__(self, folder: Path, graded: dict, options: Options, seed: str, odd: int):
        self.stage, self.graded, self.odd = STAGES[graded["stage"]], graded, odd
        self.options = replace(options, directory=folder)
        self.read = submission.read(folder, self.stage.filename, self.stage.entry)
        self.random = random.Random(f"{seed}/{self.stage.number}")
        self.seed = self.random.getrandbits(32)
        self._traced: tuple[Built, list[Launch]] | None = None

    def is_right(self, step: str) -> bool:
        lights = {one["id"]: one["light"] for one in self.graded.get("steps", ())}
        return lights.get(step) == "right" or (
            self.graded["outcome"] == "pass" and lights.get(step) != "wrong")

    def steps(self, *places: str) -> list[str]:
        """The steps that hold such a place, in any of the stage's kernels."""
        return [step for step, own in self.stage.steps.items()
                if {place.split()[-1] for place in own.split(", ")} & {*places}]

    def traced(self) -> tuple[Built, list[Launch]]:
        """A call of which the last tile is ragged, and its launches with a loop of which all is
        known.  Raises SubmissionError."""
        if self._traced is None:
            case = self.case(128)
            sizes = [one.tile[1] - one.tile[0] + 1 for launch in self.run(case)[1]
                     for program in launch.programs for one in program]
            size = max(16, *sizes) if sizes else 16
            length = size * (3 + self.odd) + self.random.randrange(3, size - 1, 2)
            built, launches = self.run(self.case(length))
            self._traced = built, [one for one in launches if _is_known(one)]
        return self._traced

    def case(self, N: int) -> Case:
        """A call of one head."""
        if self.stage.sums_rows:
            return Case(self.stage.number, "picture", N, M=40 + self.odd)
        case = example(self.stage, N, grads=("q", "k", "v") * self.stage.differentiates)
        window = case.window and self.random.choice((8, N // 3)) + self.odd
        return replace(case, D=32, window=window, sinks=case.sinks and 5 + self.odd)

    def run(self, case: Case) -> tuple[Built, list[Launch]]:
        built = build(case, self.seed)
        return built, run_chosen(self.stage, self.options, self.read.source,
                                 lambda session: session.accesses(built.call))


def _is_known(launch: Launch) -> bool:
    """Whether all programs of a launch are noted, and numbered along one axis, and keep within
    their tensors."""
    every = [one for program in launch.programs for one in program]
    return (sum(n > 1 for n in launch.grid) == 1 and len(every) < MOST_ACCESSES
            and math.prod(launch.grid) == len(launch.programs) <= MOST_PROGRAMS
            and all(launch.programs)
            and not any(one.is_outside(launch.tensors[one.tensor]) for one in every))


# ------------------------------------------------------------------- from the trace
@dataclass(frozen=True)
class Loop:
    """The turns of every program's loop over the tiles of a tensor.  name: of its rows, or
    columns; end: how many there are; own: tile sizes of other tensors, in words."""

    launch: Launch
    tensor: str
    name: str
    end: int
    turns: tuple[tuple[Access, ...], ...]
    size: int
    others: str

    def tile(self, one: Access) -> tuple[int, int]:
        return one.tile[:2] if self.name == "rows" else one.tile[2:]

    def lanes(self, one: Access) -> tuple[int, int] | None:
        return one.lanes and (one.lanes[:2] if self.name == "rows" else one.lanes[2:])

    @property
    def axis(self) -> int:
        return next(axis for axis, n in enumerate(self.launch.grid) if n > 1)

    def program(self, number: int) -> str:
        return f"the program with `tl.program_id({self.axis}) == {number}`"

    @property
    def flagged(self) -> bool:
        """Whether the file says of every turn whether it is masked."""
        return all(one.masked is not None for turns in self.turns for one in turns)


def _loops(launches: list[Launch]) -> Iterator[Loop]:
    """The first loop over tiles in each launch."""
    for launch in launches:
        longest = max(launch.programs, key=len)
        loads = [one for one in longest if one.verb == "load"]
        for tensor in dict.fromkeys(one.tensor for one in loads):
            for name, part in (("rows", slice(0, 2)), ("columns", slice(2, 4))):
                def place(one: Access, part: slice = part) -> tuple:
                    return one.tile[part]

                turns = tuple(tuple(_changes([one for one in program if one.verb == "load"
                                              and one.tensor == tensor], place))
                              for program in launch.programs)
                tiles = {place(one) for each in turns for one in each}
                sizes = {last - first + 1 for first, last in tiles}
                if max(map(len, turns)) < 3 or len(sizes) > 1 or min(sizes) < 2:
                    continue
                others = {other: one.tile[1] - one.tile[0] + 1 for one in loads
                          if (other := one.tensor) != tensor and launch.tensors[other][1] > 1}
                yield Loop(launch, tensor, name, launch.tensors[tensor][name == "columns"],
                           turns, sizes.pop(), ", ".join(
                               f"of `{other}` {size} rows" for other, size in others.items()))
                break
            else:
                continue
            break


def _changes(loads: list[Access], place: Callable[[Access], tuple]) -> list[Access]:
    """The loads at which the place changes."""
    return [one for before, one in zip([None, *loads], loads, strict=False)
            if before is None or place(before) != place(one)]


def _called(file: File, built: Built) -> str:
    """The call, in words."""
    call, case, stage = built.call, built.case, file.stage
    given = [*(str(one).removeprefix("@") for one in call.args),
             *(f"{name}={value}".replace("=@", "=") for name, value in call.kwargs.items())]
    shapes = f"x of shape ({case.M}, {case.N})" if stage.sums_rows else \
        f"q, k and v of shape (1, 1, {case.N}, {case.D})"
    entry = f"{stage.entry}.{stage.attribute}" if stage.attribute else stage.entry
    return (f"`{stage.filename}`: `{entry}({', '.join(given)})` is called with {shapes} in float32,"
            f" in Triton's interpreter{', and then its backward' * bool(case.grads)}.")


def _told(file: File, built: Built, loop: Loop) -> tuple[str, ...]:
    launch = loop.launch
    return (_called(file, built), f"`{launch.kernel}` runs as {len(launch.programs)} programs. Its "
            f"tiles of `{loop.tensor}` have {loop.size} {loop.name}"
            + f", those {loop.others}" * bool(loop.others) + ".")


def _known_loop(file: File) -> tuple[Built, Loop] | None:
    if not all(map(file.is_right, file.steps(*LOOPS))) or not file.stage.needs_triton:
        return None
    built, launches = file.traced()
    loops = list(_loops(launches))
    return (built, file.random.choice(loops)) if loops else None


def visits(file: File) -> Question | None:
    """Which tiles does a program load, and which with MASKED?"""
    if not (found := _known_loop(file)):
        return None
    built, loop = found
    fit = [number for number, turns in enumerate(loop.turns) if number % 2 == file.odd
           and 1 < len(turns) <= MOST_TURNS]
    if not fit:
        return None
    number = file.random.choice(fit)
    turns = loop.turns[number]
    said = [f"{loop.tile(one)[0]}" + "*" * bool(loop.flagged and one.masked) for one in turns]
    return Question(file.stage.number, (*_told(file, built, loop), (
        f"Which tiles of `{loop.tensor}` does {loop.program(number)} load, in which order? Give "
        f"the first of the {loop.name} of each"
        + ", and a * where it is loaded with `MASKED=True`" * loop.flagged + ".")),
        ", ".join(said), *_pictures(loop, [number]))


def ragged(file: File) -> Question | None:
    """Which rows does a program load in a turn at the end, and why are they fewer?"""
    if not (found := _known_loop(file)):
        return None
    built, loop = found
    fit = []
    for number, turns in enumerate(loop.turns):
        for turn in {0, len(turns) - 1} if len(turns) > 1 else ():
            (first, last), lanes = loop.tile(turns[turn]), loop.lanes(turns[turn])
            if lanes == (first, loop.end - 1) and last >= loop.end:
                fit.append((number, turn, first))
    if not fit:
        return None
    number, turn, first = file.random.choice(fit)
    return Question(file.stage.number, (*_told(file, built, loop), (
        f"Which {loop.name} of `{loop.tensor}` does {loop.program(number)} load in the "
        f"{'last' if turn else 'first'} turn of its loop (line {loop.turns[number][turn].line}), "
        f"and why are they fewer than {loop.size}?")),
        f"{first} to {loop.end - 1}: the tensor has {loop.end} {loop.name}, and the mask of the "
        f"load leaves out the other {first + loop.size - loop.end} of the tile.")


def readers(file: File) -> Question | None:
    """Which programs load a row?"""
    if not (found := _known_loop(file)):
        return None
    built, loop = found

    def reads(row: int) -> dict[int, bool]:
        return {number: any(one.masked for one in here) for number, turns in enumerate(loop.turns)
                if (here := [one for one in turns if (lanes := loop.lanes(one))
                             and lanes[0] <= row <= lanes[1]])}

    rows = [row for row in range(3, loop.end, 2) if row % 4 == 1 + 2 * file.odd
            and 0 < len(reads(row)) < len(loop.turns)]
    if not rows:
        return None
    row = file.random.choice(rows)
    return Question(file.stage.number, (*_told(file, built, loop), (
        f"Which programs load {loop.name[:-1]} {row} of `{loop.tensor}`? Give their "
        f"`tl.program_id({loop.axis})`" + ", with a * where it is in a tile that is loaded with "
        "`MASKED=True`" * loop.flagged + ".")),
        ", ".join(f"{number}" + "*" * (loop.flagged and masked)
                  for number, masked in reads(row).items()), *_pictures(loop, range(len(
                      loop.turns))))


def _pictures(loop: Loop, programs) -> tuple[Markup, Markup]:
    """The tiles of these programs to fill in, and filled in; nothing if they are no grid."""
    count = -(-loop.end // loop.size)
    seen, masked = np.zeros((2, len(programs), count), int)
    for row, number in enumerate(programs):
        for one in loop.turns[number]:
            first = loop.tile(one)[0]
            if first % loop.size or first >= loop.end:
                return Markup(), Markup()
            seen[row, first // loop.size] += 1
            masked[row, first // loop.size] |= bool(one.masked)
    columns = [loop.size * tile for tile in range(count)]
    nothing = np.zeros_like(seen)
    return tuple(svg.tiles(f"program, {loop.tensor} tiles of {loop.size}", visits, visits > 0,
                           masked > 0, nothing > 0, list(programs), columns)[0].drawn
                 for visits in (nothing, seen))


# ------------------------------------------------------------------------ a class
MAKERS = ((TRACE, visits), (TRACE, ragged), (TRACE, readers))
KINDS = (TRACE, TRACE, TRACE)  # of a student's three questions


def of_files(files: list[File], seed: str) -> list[Question]:
    """Three questions, of as many kinds and stages as there are."""
    chosen, done, made = random.Random(seed), set(), []
    pairs = [(kind, make, file) for kind, make in MAKERS for file in files]
    chosen.shuffle(pairs)
    for wanted in KINDS:
        for _, make, file in sorted(pairs, key=lambda pair: (
                pair[0] != wanted, sum(one.stage == pair[2].stage.number for one in made))):
            if (make, file.stage.number) in done:
                continue
            done.add((make, file.stage.number))
            try:
                question = make(file)
            except SubmissionError:  # it does not get through this call
                continue
            if question is not None:
                made.append(question)
                break
    return made


def of_class(results: Path, options: Options, seed: int, student: str, say: Callable[[str], None]
             ) -> dict[Path, bytes]:
    """The pages of everyone with a file to ask about, and the answers.  student: the only one to
    ask, if not everyone.  Raises ValueError: nobody is called that, or a file is not the one that
    was graded."""
    if why := interpreter_fault():
        raise ValueError(why)
    reports, found = read_reports(results), []
    only = [report["key"] for report in reports if student.casefold() in (
        report[name].casefold() for name in ("student", "key", "id", "login"))]
    if student and len(only) != 1:
        raise ValueError(f"--student: want the name, id or login of one student; got {student}")
    for place, report in enumerate(reports):
        if not student or report["key"] in only:
            say(f"{place + 1} of {len(reports)}: {report['student']}")
            folder, salt = results / "submissions" / report["key"], f"{seed}/{report['key']}"
            files = [File(folder, graded, options, salt, place % 2) for graded in report["stages"]
                     if graded["outcome"] not in UNSETTLED | {
                         "missing", "rejected", "not_started"}]
            for file in files:
                if sha256(file.read.source or b"") != file.graded["sha256"]:
                    raise ValueError(f"want the file that was graded; got {file.read.path}, which "
                                     "was changed since")
            found.append((report, of_files(files, salt)))

    def page(some: list, answered: bool) -> bytes:
        return rendered("questions.html", students=some, seed=seed, answered=answered, code=_code,
                        draw=svg.draw, drawings=Markup(svg.STYLE + svg.PANELS))

    made = {results / "questions" / f"{report['key']}.html": page([(report, questions)], False)
            for report, questions in found if questions}
    return made | {results / (f"answers-{only[0]}.html" if student else "answers.html"): page(
        found, True)}


def _code(text: str) -> Markup:
    """Text with its `code` marked."""
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))
