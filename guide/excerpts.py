"""Finds what the guide quotes: steps of the problem files, and mistakes by name."""

import ast
import re
import textwrap
import tomllib
from functools import cache
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
TEXT = ROOT / "guide" / "text"
STAGES = range(1, 10)


def address(what: str) -> str | None:
    """The address "Guide" or "Repository" of [project.urls] in pyproject.toml, or None."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return project.get("urls", {}).get(what)


class Missing(LookupError):
    """What a page quotes no longer exists."""


class Slip(NamedTuple):
    """A common mistake: its statements, right and wrong, and the grader's words."""

    right: str
    wrong: str
    mistake: str
    rule: str


def step(number: str) -> str:
    """The solution of a step such as "4.2", from problem_4.py, without its indent."""
    path = ROOT / f"problem_{number.split('.')[0]}.py"
    marker = re.escape(number) + r"\n"
    found = re.search(rf"# BEGIN SOLUTION {marker}(.*?)\n *# END SOLUTION {marker}",
                      path.read_text(encoding="utf-8"), re.DOTALL)
    if found is None:
        raise Missing(f"want a step {number} in {path.name}; got none")
    return textwrap.dedent(found[1])


def definition(stage: str, name: str) -> str:
    """A whole function or class of problem_4.py, or of guide/worked.py if stage is "worked"."""
    path = ROOT / (f"problem_{stage}.py" if stage.isdigit() else f"guide/{stage}.py")
    found = re.search(rf"^(@[^\n]*\n)?(?:def|class) {re.escape(name)}\(.*?(?=^\S|\Z)",
                      path.read_text(encoding="utf-8").replace("\n):", "\n ):"),
                      re.DOTALL | re.MULTILINE)
    if found is None:
        raise Missing(f"want a function or class {name} in {path.name}; got none")
    return found[0].replace("\n ):", "\n):").strip()


class Open(NamedTuple):
    """An exercise with more than one answer: the question, and what a good answer has."""

    question: str
    answer: str


def open_exercises() -> dict[str, Open]:
    """The open exercises of open.md, by number."""
    text = (TEXT / "open.md").read_text(encoding="utf-8")
    found = re.findall(r"^```{open} (\d+)\n(.*?)\n===\n(.*?)\n```$", text, re.DOTALL | re.MULTILINE)
    return {number: Open(question, answer) for number, question, answer in found}


def kernel(stage: str) -> list[tuple[str, str]]:
    """(name, text) of every function between the banners "kernel" and "launch" of a problem file,
    in order, without the comments that ask for steps and without markers."""
    source = (ROOT / f"problem_{stage}.py").read_text(encoding="utf-8")
    found = re.search(r"^# -+ kernel\n(.*?)^# -+ launch", source, re.DOTALL | re.MULTILINE)
    if found is None:
        raise Missing(f"want the banners kernel and launch in problem_{stage}.py; got none")
    text = re.sub(r"^ *# Step .*\n(?: *#   .*\n)*", "", found[1], flags=re.MULTILINE)
    text = re.sub(r"^ *# (?:(?:BEGIN|END) SOLUTION .*|-+.*)\n", "", text, flags=re.MULTILINE)
    parts = re.split(r"^(?=@triton\.jit)", text, flags=re.MULTILINE)[1:]
    return [(re.search(r"def (\w+)", part)[1], part.strip()) for part in parts]


@cache
def _mutants(stage: int) -> dict[str, dict]:
    """The mutants of the catalogue, and those written as a new student's mistakes."""
    folder = ROOT / "attacks"
    catalogue, students = (tomllib.loads(path.read_text(encoding="utf-8"))["mutant"] for path in (
        folder / "mutants" / f"stage_{stage}.toml", folder / "students.toml"))
    return {m["id"]: m for m in (*(m for m in students if m["stage"] == stage), *catalogue)}


@cache
def _names() -> dict[str, dict]:
    return tomllib.loads((ROOT / "attacks" / "names.toml").read_text(encoding="utf-8"))


@cache
def _table() -> dict:
    from grader.step_checks.mistakes import known

    return known()


def _statements(source: str, start: int, end: int) -> tuple[int, int]:
    """The range of all statements that source[start:end] touches; for a loop, only its head."""
    lines = source.splitlines(keepends=True)
    first, last = (source.count("\n", 0, at) + 1 for at in (start, end))
    touched = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.stmt):
            continue
        end_of_node = node.end_lineno
        if hasattr(node, "body"):
            end_of_node = max(node.lineno, node.body[0].lineno - 1)
            while not lines[end_of_node - 1].split("#")[0].strip():
                end_of_node -= 1
        if node.lineno <= last and end_of_node >= first:
            touched.append((node.lineno, end_of_node))
    first, last = min(a for a, _ in touched), max(b for _, b in touched)
    return (min(start, sum(map(len, lines[: first - 1]))),
            max(end, sum(map(len, lines[:last]))))


def slip(stage: int, name: str) -> Slip:
    """A mutant of the catalogue, in whole statements, with the words of the diagnosis that names
    it, or else what it breaks."""
    if name not in _mutants(stage):
        raise Missing(f"want a mutant {name} of stage {stage} in attacks/; got none")
    mutant, names = _mutants(stage)[name], _names()
    source = (ROOT / f"problem_{stage}.py").read_text(encoding="utf-8")
    start = source.find(mutant["old"])
    if start < 0:
        raise Missing(f"want the text of {name} in problem_{stage}.py; got none")
    end = start + len(mutant["old"])
    begin, stop = _statements(source, start, end)

    def shown(middle):
        text = textwrap.dedent(source[begin:start] + middle + source[end:stop])
        return re.sub(r"^# (BEGIN|END).*", "", text, flags=re.MULTILINE).strip()

    expected = (mutant.get("names") or names.get(f"stage_{stage}", {}).get(name)
                or names["any"].get(name))
    diagnosis = _table().get(expected[0] if isinstance(expected, list) else expected)
    said = ((mutant["breaks"], "") if diagnosis is None or "{" in diagnosis.words
            else (diagnosis.words, diagnosis.rule))
    return Slip(shown(mutant["old"]), shown(mutant["new"]), *said)
