"""Find the bug: your own solved stage, wrong in one place:  python -m grader.hunt 4

It makes the folder hunt_4 with your problem_4.py, one line of it changed, and says what a colleague
would report.  Ask for other cases, find the line, fix it, and call it again.
"""

import argparse
import ast
import base64
import contextlib
import itertools
import json
import random
import re
import secrets
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

from grader.assignment import record, submission
from grader.course import own_cases
from grader.course.calls import SubmissionError
from grader.course.case_table import listed
from grader.course.cases import Case
from grader.course.correctness import how_far
from grader.course.inputs import build
from grader.course.stages import STAGES, Stage, interpreter_fault, no_triton
from grader.diagnosis.describe import locate
from grader.diagnosis.samples import Sample
from grader.host.files import keep
from grader.host.options import Options, open_session
from grader.report.results import WRONG, StepCheck
from grader.sandbox.wire import dtype_name
from grader.step_checks import repair
from grader.step_checks.checks import Runner
from grader.step_checks.table import entry
from grader.text import escape

FIELDS = ("M", "N", "NK", "window", "sinks", "HQ", "HKV", "B", "D", "dtype", "is_causal", "scale",
          "family", "layout")  # of a case that can be asked
CHANGES, CASES, CRASH = 24, 5, "it crashes:"  # changes to try; cases to ask, after a plain one


def read(folder: Path) -> dict:
    """The record of a hunt.  Raises ValueError if it is damaged."""
    try:
        return json.loads(base64.b64decode((folder / record.HUNT).read_bytes()))
    except ValueError as error:
        raise ValueError(f"want {folder / record.HUNT} as it was made; got {error!r}") from None


def write(folder: Path, hunt: dict) -> None:
    """The answer is packed, so that nobody reads it by accident."""
    (folder / record.HUNT).write_bytes(base64.b64encode(json.dumps(hunt).encode()))


def stands_in_the_way(folder: Path) -> bool:
    """Whether a hunt is on in this folder, and is not given up when asked; no answer means no."""
    hunt = read(folder)
    if not hunt["over"]:
        print(f"A hunt is on in {escape(str(folder))}, and a report would name the mistake.")
        with contextlib.suppress(EOFError):
            hunt["over"] = input("Give it up? [y/N] ").strip().lower() in ("y", "yes")
            write(folder, hunt)
    return not hunt["over"]


def words(case: Case) -> str:
    """A case as --ask takes it: what is not said has its usual value."""
    usual = {field.name: field.default for field in fields(Case)}
    usual["is_causal"] = case.course_stage.is_causal
    return " ".join(f"{name}={dtype_name(said) if name == 'dtype' else said}" for name in FIELDS
                    if (said := getattr(case, name)) != usual[name])


def asked(stage: Stage, words: str) -> Case:
    """The case of these words; ValueError if there is no such case."""
    row = {}
    for word in words.replace(",", " ").split():
        name, _, said = word.partition("=")
        if name == "stage" or name in row:
            raise ValueError(f"want a case of stage {stage.number}, each of its fields once; got "
                             f"{word}")
        row[name] = said
        with contextlib.suppress(ValueError):  # a name, such as float16
            row[name] = json.loads(said.lower())
    return own_cases.case(row | {"stage": stage.number})


def can_be_asked(case: Case) -> bool:
    with contextlib.suppress(ValueError):
        return asked(case.course_stage, words(case)) == replace(case, group="robust")
    return False


def bare(row: str) -> str:
    """A line without parentheses that mean nothing."""
    with contextlib.suppress(SyntaxError):  # of a line that is a part of a statement
        for at in (place.start() for place in re.finditer(r"\(", row)):
            depths = itertools.accumulate((char == "(") - (char == ")") for char in row[at:])
            end = at + next((i for i, depth in enumerate(depths) if not depth), 0)
            shorter = row[:at] + row[at + 1:end] + row[end + 1:]
            if ast.dump(ast.parse(shorter.strip())) == ast.dump(ast.parse(row.strip())):
                return bare(shorter)
    return row


def slips(file: submission.Submission, runner: Runner, rng: random.Random) -> Iterator[tuple]:
    """-> the file with a slip in one line of a step, and the step.  Each kind of slip in each step
    has its turn: else the kinds with the most places would come most often."""
    rows, left = submission.lines(submission.decode(file.source)), {}
    for step in file.steps:
        if (asked := entry(step.id)) is None or runner.blanks.changed(step.id):
            continue
        text = runner.text((step.id,), asked, asked.examples())
        kinds = {name: repair.kind(value) for name, value in asked.examples()[0].given.items()}
        for change in repair.changes(text, kinds, asked.leaves):
            was, now = text.splitlines(), change.text.splitlines()
            if len(was) == len(now) and sum(map(str.__ne__, was, now)) == 1:
                left.setdefault((step.id, change.id), []).append((step, was, now))
    keys = rng.sample(sorted(left), len(left))
    for step, was, now in (left[key].pop(rng.randrange(len(left[key])))
                           for _ in range(CHANGES) for key in keys if left[key]):
        now = [*map(lambda old, new: bare(new) if bare(old) == old else new, was, now)]
        indent = re.match(" *", rows[step.first_line - 1])[0]
        body = [f"{indent}{row.removeprefix('    ')}\n" if row.strip() else "\n"
                for row in now[step.first_line:-1]]
        yield "".join([*rows[:step.first_line], *body, *rows[step.last_line - 1:]]), step.id


def catalogued(stage: Stage, rng: random.Random) -> Iterator[tuple[str, str]]:
    """-> the course's file with a mistake of its catalogue; of which step, the checks will say."""
    text = (record.ROOT / stage.filename).read_text("utf-8")
    path = record.ROOT / f"attacks/mutants/stage_{stage.number}.toml"
    mutants = tomllib.loads(path.read_text("utf-8"))["mutant"]
    for mutant in rng.sample(mutants, len(mutants)):
        if not mutant.keys() & {"beyond", "edits", "count"} and text.count(mutant["old"]) == 1:
            yield text.replace(mutant["old"], mutant["new"]), ""


class Hunt:
    """A stage, the folder of its hunt, and the seed that chooses the change and the cases."""

    def __init__(self, stage: Stage, folder: Path, seed: int):
        self.stage, self.folder, self.seed = stage, folder, seed
        self.options, self.rng = Options(folder, "cpu", seed, 20.0), random.Random(seed)
        plain, *others = [
            asked(stage, words(case)) for case in (
                replace(case, repeats=1, refill=False)
                for case in listed(stage.number, "cpu", False) if not case.course)
            if case.N <= 600 and can_be_asked(case)]
        self.cases = [plain, *self.rng.sample(others, min(CASES, len(others)))]

    def answers(self, source: bytes, cases: list) -> Iterator[tuple]:
        """Run these cases until one is wrong.  -> each, with how far off it is, or CRASH and why,
        and where; "" twice if it is right."""
        with open_session(self.stage, self.options, source) as session:
            try:
                case = cases[0]
                session.load(self.stage.entry, self.stage.attribute, self.stage.positional)
                for case in cases:
                    reply = session.run((built := build(case, self.seed)).call)
                    got = reply.tensors
                    sample, far, where = Sample.of(built, got, "cpu"), "", ""
                    for name in sample.wrong[:1]:
                        verdict = sample.verdicts[name]
                        found = locate(case, sample.exact, name, got[name], verdict)
                        far = (found.what[0] if verdict.nan else how_far(name, verdict)).rstrip(".")
                        where = "; ".join(filter(None, (found.where, found.worst)))
                    yield case, far, where
                    if far:
                        break
            except SubmissionError as error:
                yield case, f"{CRASH} {error.located(self.stage.filename).splitlines()[0]}", ""

    def red(self, file: submission.Submission, step: str) -> StepCheck | None:
        """The first red step, with what is said of it."""
        with contextlib.closing(Runner(self.stage, self.options, file)) as runner:
            return next((one for one in runner.lights(step) if one.light == WRONG), None)

    def start(self, course: bool) -> str:
        """Make the folder.  -> what a colleague reports; ValueError if the stage is not solved."""
        path = (record.ROOT if course else Path()) / self.stage.filename
        file = submission.read(path.parent, self.stage.filename, self.stage.entry)
        why = file.sentence or "; ".join(file.blanks()) or "no step markers" * (not file.steps)
        if why := why or [*self.answers(file.source, self.cases)][-1][1]:
            raise ValueError(f"want {path} solved; got: {why}")
        with contextlib.closing(Runner(self.stage, self.options, file)) as runner:
            made = catalogued(self.stage, self.rng) if course else slips(file, runner, self.rng)
        best = None
        for _, (text, step) in zip(range(CHANGES), made, strict=False):
            found = [*self.answers(text.encode(), self.cases)]
            far = found[-1][1]
            fits = far and CRASH not in far and not (len(found) == 1 and best)
            if fits and (red := self.red(replace(file, source=text.encode()), step)):
                best = text, red, found
                if len(found) > 1:  # right in a plain case
                    break
        if best is None:
            raise ValueError(f"want a change of {path} that shows; got none by seed {self.seed}")
        text, red, found = best
        plain, (case, far, _) = found[0][0], found[-1]
        fine = f"; fine for {words(plain)}" * (plain != case)
        self.folder.mkdir(parents=True, exist_ok=(self.folder / record.HUNT).is_file())
        if (there := self.folder / self.stage.filename).exists():  # of the hunt before
            kept = keep(there, Path(".autograder", self.folder.name, there.name))
            print(f"{escape(str(there))} as it was is kept as {escape(str(kept))}")
        there.write_text(text, "utf-8")
        write(self.folder, hunt := {
            "stage": self.stage.number, "seed": self.seed, "asked": 0, "over": False,
            "report": f"{far.split(' (')[0]} for {words(case)}{fine}.", "step": red.id,
            "mistake": red.says or red.change or red.lines[0],
            "said": "\n  ".join((f"step {red.id}: {red.lines[0]}", *red.lines[1:]))})
        return hunt["report"]

    def look(self, hunt: dict, file: submission.Submission) -> tuple[str, bool]:
        """-> what to say; whether the line is back, whatever its form."""
        *_, (case, far, _) = self.answers(file.source, self.cases)
        if far:
            return f"Not yet: {far.split(' (')[0]} for {words(case)}.", False
        if self.red(file, hunt["step"]):
            return "Not yet: the cases tried are right, but others are not.", False
        write(self.folder, hunt | {"over": True})
        return (f"Solved. Questions asked: {hunt['asked']}. The mistake: {hunt['mistake']}\n"
                f"The grader would have said:\n  {hunt['said']}"), True

    def ask(self, hunt: dict, file: submission.Submission, case: Case) -> str:
        """The numbers for one case, and where it is wrong."""
        write(self.folder, hunt | {"asked": hunt["asked"] + 1})
        (_, far, where), = self.answers(file.source, [case])
        return f"{words(case)}: {(far or 'right').rstrip('.')}." + f" Where: {where}." * bool(where)


def main(arguments: list[str] | None = None) -> int:
    """Return 0 if a hunt was begun, asked or solved, 1 if it is not solved yet, 2 on an error."""
    parser = argparse.ArgumentParser(
        prog="python -m grader.hunt", description=__doc__.partition("\n\n")[2],
        epilog="exit code: 0 begun, answered or solved; 1 not solved yet; 2 an error")
    parser.add_argument("stage", type=int, choices=sorted(STAGES), metavar="STAGE",
                        help="4 hunts in problem_4.py, which must be solved")
    parser.add_argument("--ask", metavar="CASE", help='the numbers for a case, "N=130 window=17"')
    parser.add_argument("--folder", type=Path, metavar="DIR", help="default: hunt_STAGE")
    parser.add_argument("--seed", type=int, metavar="N", help="the same change; once solved, anew")
    parser.add_argument("--course", action="store_true", help="a catalogued mistake in its file")
    options = parser.parse_args(arguments)
    stage, folder = STAGES[options.stage], options.folder or Path(f"hunt_{options.stage}")
    try:
        if options.course and record.read(record.ROOT):
            raise ValueError("want --course in the course's checkout; got an assignment")
        if stage.needs_triton and (lacking := no_triton() or interpreter_fault()):
            raise ValueError(lacking)
        there = (folder / record.HUNT).is_file()
        if there and not (read(folder)["over"] and options.seed is not None):
            hunt, file = read(folder), submission.read(folder, stage.filename, stage.entry)
            if hunt["stage"] != stage.number or file.state != "ready":
                raise ValueError(f"want stage {hunt['stage']} in {folder}, as a file that can be "
                                 f"run; got {file.located}")
            if options.seed not in (None, hunt["seed"]):
                raise ValueError(f"want the hunt in {folder} solved before another seed; got "
                                 f"--seed {options.seed}")
            one = Hunt(stage, folder, hunt["seed"])
            if options.ask is not None:
                print(escape(one.ask(hunt, file, asked(stage, options.ask))))
                return 0
            said, solved = one.look(hunt, file)
            print(escape(said if solved else f"{said}\nReported: {hunt['report']}"))
            if solved or hunt["over"]:
                print("Next: add --seed and a number to this command for another hunt")
            return int(not solved)
        if options.ask is not None or folder.exists() and not there:
            raise ValueError(f"want a hunt in {folder}, or nothing there and no --ask; got neither")
        seed = secrets.randbits(32) if options.seed is None else options.seed
        print("Changing one line. This can take a minute.", flush=True)
        case = "M=30 N=130" if stage.sums_rows else "N=130" + " window=17" * stage.windowed
        print(f"A colleague reports: {Hunt(stage, folder, seed).start(options.course)}\n"
              f"One line of {folder / stage.filename} is wrong (--seed {seed}).\n"
              f"Next: add --ask \"{case}\" to this command for the numbers of a case, or fix the "
              "line and run this command without --ask")
        return 0
    except (ValueError, OSError) as error:
        print(escape(f"error: {error}"), file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
