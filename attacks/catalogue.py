"""Reads the catalogue: one Attack per entry.

A mutant is a table in its stage's TOML file.  It says what it `breaks`, and puts `new` in place of
`old` in the solved file (`edits`: further pairs; `count`: how often the text occurs; `beyond`: what
it breaks is beyond the assignment, so that it passes, and only such a case fails).  An unfinished
file is a table, too; `steps` gives the text of a step in place of its solution, "" leaves it blank.
Honest files that differ from a solved one in a place or two are in honest/patches.toml; `unmarked`
removes the step markers.  All others are files: a docstring that says what it tries, then comments:

    # stage: 3                 graded as problem_3.py
    # base: problem_3.py       put the solved file first; this one may override parts of it
    # with: copied, in_numpy   then these files of pieces/, which several attacks share, imports
                               included
    # outcome: rejected        the outcome it must get; several are separated by commas
    # says: words              text that must be in the report
    # device: any              any, cpu or cuda: where to run it
    # options: --timeout 5     command-line options
    # cases: all               for a destructive file; otherwise the standard cases are enough
    # cases: timed             the benchmark, too, on a GPU
    # cases: whole             through the command line, beside another stage

A dishonest file must really do what it tries.  It is based on a solved file, which passes without
it, or it is rejected, which needs right numbers.  If neither shows it, the file calls fired(), from
pieces/fired.py, where its attack happens.  The outcome is that on a CPU; on a GPU it may fail in
any way.
"""

import ast
import os
import re
import textwrap
import tomllib
from dataclasses import dataclass
from pathlib import Path

from grader.assignment import submission
from grader.course.stages import STAGES

HERE = Path(__file__).parent
ROOT = HERE.parent
KINDS = ("mutants", "unfinished", "dishonest", "destructive", "honest")
EXPECTED = {"mutants": ("wrong",), "unfinished": ("wrong", "crashed", "not_started")}
# Mutants that no step check can show, by the ends of their ids: 32-bit offsets need gigabytes on a
# GPU, bfloat16 needs a GPU, wrong strides the file's own tensors, a buffer that is kept a second
# call.
UNSEEN = ("in_int32", "in_32_bits", "dv_accumulator_in_input_dtype", "dx_with_strides_of_x",
          "dw_in_one_buffer")
KEYS = {"stage", "base", "with", "outcome", "says", "device", "options", "cases"}


@dataclass(frozen=True)
class Attack:
    """One submission and the outcomes allowed for it."""

    kind: str
    id: str
    stage: int
    tries: str
    source: bytes
    outcomes: tuple[str, ...]
    says: str = ""
    device: str = "any"
    options: tuple[str, ...] = ()
    form: str = "file"  # or "folder", "fifo", "link"; source is a link's target
    quick: bool = False  # the standard cases are enough
    timed: bool = False  # on a GPU only the benchmark shows it
    whole: bool = False  # through the command line
    beyond: bool = False  # it fails only cases beyond the assignment
    based: bool = False  # based on a solved file, which passes
    marked: bool = False  # it reports that its attack happened

    @property
    def name(self) -> str:
        return f"stage_{self.stage}/{self.id}" if self.kind in EXPECTED else self.id


def attacks(kinds=KINDS) -> list[Attack]:
    """All entries of these kinds, in order of stage."""
    found = []
    for kind in kinds:
        if kind in EXPECTED:
            found += [mutant for stage in STAGES for mutant in mutants(stage, kind)]
        if kind == "honest":
            found += solved() + patched()
        found += [from_file(path) for path in sorted((HERE / kind).glob("*.py"))]
        table = HERE / kind / "files.toml"  # for files that cannot have comments
        if table.exists():
            rows = tomllib.loads(table.read_text("utf-8"))
            found += [_from_table(kind, row) for row in rows["file"] + rows["made"]]
    return found


def solved() -> list[Attack]:
    """The solved files of this repository."""
    return [Attack("honest", f"problem_{n}", n, "the solved file",
                   (ROOT / f"problem_{n}.py").read_bytes(), ("pass",)) for n in STAGES]


def patched() -> list[Attack]:
    """Solved files that are right in another way in a place or two."""
    rows = tomllib.loads((HERE / "honest" / "patches.toml").read_text("utf-8"))["patch"]
    return [_mutant(row["stage"], row, (ROOT / f"problem_{row['stage']}.py").read_text("utf-8"),
                    "honest") for row in rows]


def mutants(stage: int, kind: str = "mutants") -> list[Attack]:
    """The solved file of a stage with one mistake each, or with steps missing."""
    path = HERE / kind / f"stage_{stage}.toml"
    solved = (ROOT / f"problem_{stage}.py").read_text("utf-8")
    rows = tomllib.loads(path.read_text("utf-8")) if path.exists() else {}
    return [_mutant(stage, row, solved, kind) for row in rows.get(kind.removesuffix("s"), [])]


def _mutant(stage: int, row: dict, solved: str, kind: str = "mutants") -> Attack:
    source = _with_steps(solved, row["steps"]) if "steps" in row else solved
    edits = [[row["old"], row["new"]]] if "old" in row else []
    for old, new in edits + row.get("edits", []):
        found, want = source.count(old), row.get("count", 1)
        if found != want:
            raise ValueError(f"stage {stage}, {row['id']}: want {want} of {old!r}; got {found}")
        source = source.replace(old, new)
    if row.get("unmarked"):
        source = re.sub(r"^ *# (BEGIN|END) SOLUTION .*\n", "", source, flags=re.MULTILINE)
    passes = "equivalent" in row or "beyond" in row
    outcomes = ("pass",) if passes else tuple(row.get("outcome", EXPECTED[kind]))
    return Attack(kind, row["id"], stage, row.get("equivalent") or row["breaks"], source.encode(),
                  outcomes, row.get("says", ""), device=row.get("device", "any"),
                  beyond="beyond" in row)


def changed_step(attack: Attack) -> str:
    """The one step in which a mutant differs from the solved file; "" if there are more places."""
    solved = (ROOT / f"problem_{attack.stage}.py").read_text("utf-8")
    inside, around = [], []
    for text in (attack.source.decode(), solved):
        rows, steps = submission.lines(text), submission.steps(text)
        inside.append({step.id: rows[step.first_line:step.last_line - 1] for step in steps})
        for step in reversed(steps):
            del rows[step.first_line:step.last_line - 1]
        around.append(rows)
    changed = [id for id in inside[1] if inside[0].get(id) != inside[1][id]]
    return changed[0] if len(changed) == 1 and around[0] == around[1] else ""


def _with_steps(solved: str, texts: dict[str, str]) -> str:
    """The solved file with other texts in these steps.  texts: id -> text."""
    rows, regions = solved.splitlines(keepends=True), submission.steps(solved)
    if unknown := texts.keys() - {step.id for step in regions}:
        raise ValueError(f"want steps of the file; got {', '.join(sorted(unknown))}")
    for step in reversed(regions):
        if step.id in texts:
            marker = rows[step.first_line - 1]
            text = texts[step.id].strip("\n") or f'raise NotImplementedError("step {step.id}")'
            text = textwrap.indent(text, marker[:len(marker) - len(marker.lstrip())])
            rows[step.first_line:step.last_line - 1] = [text + "\n"]
    return "".join(rows)


def from_file(path: Path) -> Attack:
    """Read a file of the catalogue."""
    text = path.read_text("utf-8")
    tree = ast.parse(text)
    header = dict(re.findall(r"^# (\w+): (.+)$", text, re.MULTILINE)[:len(KEYS)])
    header = {key: value.strip() for key, value in header.items() if key in KEYS}
    missing = {"stage", "outcome"} - header.keys()
    if missing or not ast.get_docstring(tree):
        raise ValueError(f"{path.name}: want a docstring, stage and outcome; got {sorted(header)}")
    pieces = _words(header.get("with", ""), ",")
    before = [ROOT / header["base"]] if "base" in header else []
    before += [HERE / "pieces" / f"{name}.py" for name in pieces]
    source = "\n\n".join([*(part.read_text("utf-8") for part in before), text])
    return Attack(
        path.parent.name, path.stem, int(header["stage"]),
        " ".join(ast.get_docstring(tree).split()), source.encode(), _words(header["outcome"], ","),
        header.get("says", ""), header.get("device", "any"), _words(header.get("options", "")),
        quick=path.parent.name == "destructive" and header.get("cases") != "all",
        timed=header.get("cases") == "timed", whole=header.get("cases") == "whole",
        based="base" in header, marked="fired" in pieces)


def _from_table(kind: str, row: dict) -> Attack:
    form = "link" if "link" in row else row.get("kind", "file")
    if "hex" in row:
        source = bytes.fromhex(row["hex"])
    else:
        text = row.get("text") or "".join(_repeated(part, count)
                                          for part, count in row.get("parts", ()))
        if row.get("base"):
            text = (ROOT / f"problem_{row['stage']}.py").read_text("utf-8") + text
        text = row.get("link", text.replace("\n", row.get("newline", "\n")))
        source = text.encode(row.get("coding", "utf-8"))
    return Attack(kind, row["id"], row["stage"], row["tries"], source,
                  _words(row["outcome"], ","), row.get("says", ""), form=form, quick=True)


def _repeated(part: str, count: int) -> str:
    """The part, repeated; %d becomes the number of the copy."""
    if "%d" not in part:
        return part * count
    return "".join(part.replace("%d", str(i)) for i in range(count))


def place(attack: Attack, folder: Path) -> None:
    """Put an attack into a submission's folder."""
    path = folder / f"problem_{attack.stage}.py"
    if attack.form == "link":
        path.symlink_to(attack.source.decode())
    elif attack.form == "folder":
        path.mkdir()
    elif attack.form == "fifo":
        os.mkfifo(path)
    else:
        path.write_bytes(attack.source)


def _words(text: str, separator: str | None = None) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(separator) if word.strip())
