"""python -m tools.stage_table > docs/stages.md: what a student writes, and what is given."""

import ast
from pathlib import Path

from grader.assignment.submission import steps
from grader.course.stages import STAGES

ROOT = Path(__file__).parent.parent
INTRO = """\
# All problems and steps, with the number of lines you write

Lines of code, without docstrings, comments and blank lines. *New*: in steps that are new in this
problem. *Copied*: in steps that are the same as an earlier one, which `python -m grader.carry`
copies for you. *Given*: all other lines. Made by `python -m tools.stage_table`.

| problem | new | copied | given | docstring | title |
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
    """One problem's line of the table."""
    source = (ROOT / STAGES[number].filename).read_text("utf-8")
    lines, copied, regions = code_lines(source), carried(source), steps(source)
    inside = {step.id: sum(step.first_line < i < step.last_line for i in lines) for step in regions}
    old = sum(count for step, count in inside.items() if step in copied)
    new = sum(inside.values()) - old
    text = ast.get_docstring(ast.parse(source)).splitlines()
    title = text[0].partition(" -- ")[2].rstrip(".")
    return f"| {number} | {new} | {old} | {len(lines) - new - old} | {len(text)} | {title} |\n"


def listed(number: int) -> str:
    """One problem's steps, in the order of its file."""
    rows = "".join(f"- {step.id} = {step.origin}\n" if step.origin else
                   f"- **{step.id}** {step.title}\n"
                   for step in steps((ROOT / STAGES[number].filename).read_text("utf-8")))
    return f"\n## Problem {number}\n\n{rows}"


def page() -> str:
    """The whole of docs/stages.md."""
    return INTRO + "".join([*map(row, STAGES), *map(listed, STAGES)])


if __name__ == "__main__":
    print(page(), end="")
