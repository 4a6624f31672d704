"""python -m tools.stage_table > docs/stages.md: what a student writes, and what is given."""

import ast
from pathlib import Path

from grader.assignment.submission import steps
from grader.course.stages import STAGES

ROOT = Path(__file__).parent.parent
INTRO = """\
# The stages, counted

Code lines, without docstrings, comments and blanks. *New* lines stand in steps that are new in
their stage, *carried over* in steps that are a paste of an earlier one; *given* is the rest.
Written by `python -m tools.stage_table`, and held to it by a test.

| stage | new | carried over | given | docstring | steps in the order of the file, new ones bold |
|---|---|---|---|---|---|
"""


def code_lines(source: str) -> set[int]:
    """Numbers of the lines that hold code: no docstring, no comment, not blank."""
    docstrings = set()
    for node in ast.walk(ast.parse(source)):
        body = getattr(node, "body", None)
        if isinstance(node, (ast.Module, ast.FunctionDef, ast.ClassDef)) and body:
            first = body[0]
            if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant):
                docstrings |= set(range(first.lineno, first.end_lineno + 1))
    return {i for i, line in enumerate(source.splitlines(), 1)
            if line.strip() and not line.strip().startswith("#") and i not in docstrings}


def carried(source: str) -> dict[str, str]:
    """Step -> the earlier step that it is a paste of."""
    return {step.id: step.origin for step in steps(source) if step.origin}


def row(number: int) -> str:
    """One stage's line of the table."""
    source = (ROOT / STAGES[number].filename).read_text("utf-8")
    lines, pasted, regions = code_lines(source), carried(source), steps(source)
    inside = {step.id: sum(step.first_line < i < step.last_line for i in lines) for step in regions}
    old = sum(count for step, count in inside.items() if step in pasted)
    new = sum(inside.values()) - old
    text = len((ast.get_docstring(ast.parse(source)) or "").splitlines())
    names = "; ".join(f"{s.id} = {pasted[s.id]}" if s.id in pasted else
                      f"**{s.id}** {s.title.rstrip('.')}"
                      for s in regions)
    return f"| {number} | {new} | {old} | {len(lines) - new - old} | {text} | {names} |"


def page() -> str:
    """The whole of docs/stages.md."""
    return INTRO + "".join(row(number) + "\n" for number in STAGES)


if __name__ == "__main__":
    print(page(), end="")
