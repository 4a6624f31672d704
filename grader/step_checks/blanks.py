"""Makes a blank's text ready to run on its own, and tells whether the code around it was changed.

A skeleton is a function without its blanks.  skeletons.toml has a digest of each of its lines, and
given_lines.json what each digest stands for.  A step in a changed skeleton is not checked, because
its names may mean something else there.

    python -m grader.step_checks.blanks        rewrites both files, in the course's repository
"""

import ast
import hashlib
import io
import json
import re
import tokenize
import tomllib
from functools import cache
from pathlib import Path

from grader.assignment import submission
from grader.assignment.record import WARM_UPS
from grader.assignment.submission import Step
from grader.course.stages import STAGES
from grader.text import syntax_tree

RECORD = Path(__file__).with_name("skeletons.toml")
LINES = Path(__file__).with_name("given_lines.json")
KINDS = tokenize.NAME, tokenize.OP, tokenize.NUMBER, tokenize.STRING
STARTS = tokenize.NEWLINE, tokenize.NL, tokenize.INDENT, tokenize.DEDENT, tokenize.COMMENT


class Blanks:
    """The blanks of a file.  source: its text, which must be valid Python."""

    def __init__(self, source: str, steps: tuple[Step, ...]):
        self.rows, self.steps = submission.lines(source), {step.id: step for step in steps}
        self.blank = set(submission.blank_steps(source))
        self.nodes = [node for node in syntax_tree(source).body
                      if isinstance(node, ast.FunctionDef | ast.ClassDef | ast.Assign)]
        self.skeletons = skeletons(source, steps)
        self.functions = {node.name: [one.arg for one in node.args.args] for node in self.nodes
                          if isinstance(node, ast.FunctionDef)}
        self.numbers = [name for name in map(_name, self.nodes) if name.startswith(("LOG", "LN"))]

    def function(self, id: str) -> str:
        """The function or class that the step is in; "" if there is none, or two."""
        line = self.steps[id].first_line
        name = next((_name(node) for node in self.nodes
                     if node.lineno <= line <= node.end_lineno + 1), "")
        return name if self.skeletons.get(name) else ""

    def body(self, id: str) -> list[str]:
        """The blank's rows, indented by four."""
        step = self.steps[id]
        marker = self.rows[step.first_line - 1]
        indent = marker[:len(marker) - len(marker.lstrip())]
        return ["    " + row.removeprefix(indent) if row.strip() else "\n"
                for row in self.rows[step.first_line:step.last_line - 1]]

    def text(self, ids: tuple[str, ...], given: dict[str, bool], kernel: bool,
             also: str = "") -> str:
        """A function `step` made of these blanks, in this order, on their lines of the file.

        given: its arguments, and whether each is a constexpr; also: what further values it leaves.

        Raises:
            ValueError: a blank by itself is not valid Python.
        """
        arguments = ", ".join(name + ": tl.constexpr" * known for name, known in given.items())
        first = self.steps[ids[0]].first_line
        rows = ["\n"] * (first - 2) + ["@triton.jit\n" if kernel else "\n",
                                       f"def step({arguments}):\n"]
        for id in ids:
            step = self.steps[id]
            rows += ["\n"] * (step.first_line - len(rows)) + self.body(id)
        text = "".join(rows) + f"    _leave(locals(){also and f' | {also}'})\n"
        try:
            compile(text, "step", "exec", dont_inherit=True)
        except SyntaxError as error:
            raise ValueError(f"no block of Python by itself: {error.msg}") from None
        return text

    def names(self, id: str) -> tuple[set[str], set[str]]:
        """-> the names that a blank binds; the names that it reads."""
        tree = syntax_tree("if True:\n" + "".join(self.body(id)) + "    pass\n")
        names = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
        own = {node.arg if isinstance(node, ast.arg) else node.name for node in ast.walk(tree)
               if isinstance(node, ast.arg | ast.FunctionDef | ast.ClassDef)}
        return (own | {node.id for node in names if isinstance(node.ctx, ast.Store)},
                {node.id for node in names if isinstance(node.ctx, ast.Load)})

    def around(self, ids: tuple[str, ...]) -> set[str]:
        """The names that the function binds outside of these blanks, arguments included."""
        node = next(node for node in self.nodes if _name(node) == self.function(ids[0]))
        blanks = [range(self.steps[id].first_line, self.steps[id].last_line) for id in ids]
        return {one.arg if isinstance(one, ast.arg) else one.id for one in ast.walk(node)
                if isinstance(one, ast.arg) or isinstance(getattr(one, "ctx", None), ast.Store)
                and isinstance(one, ast.Name) and not any(one.lineno in lines for lines in blanks)}

    def constants(self, id: str) -> set[str]:
        """The constexpr arguments of the blank's function."""
        node = next(node for node in self.nodes if _name(node) == self.function(id))
        return {one.arg for one in ast.walk(node) if isinstance(one, ast.arg)
                and one.annotation is not None and any(
                    "constexpr" in str(getattr(part, key, "")) for part in ast.walk(one.annotation)
                    for key in ("id", "attr", "value"))}

    def changed(self, id: str) -> str:
        """What is not as given in the step's function, or in given code that its blank uses, such
        as "You changed line 12, `end = N`"; "" if nothing is."""
        given, own = given_skeletons().get(id.partition(".")[0], {}), self.function(id)
        for name in (own, *sorted(self.names(id)[1] & given.keys() - {own})):
            if given.get(name, "") != self.skeletons.get(name):
                was, now = given.get(name, "").split(), self.skeletons.get(name, "").split()
                at = next((i for i, pair in enumerate(zip(was, now, strict=False))
                           if pair[0] != pair[1]), min(len(was), len(now)))
                lines = next((_lines(node, self.rows, tuple(self.steps.values()))
                              for node in self.nodes if _name(node) == name), [])
                if not lines or not was:
                    return f"You changed {name or 'the function around this step'}"
                number = lines[min(at, len(lines) - 1)][1]
                row = self.rows[number - 1].strip()
                here = f"line {number}, `{row if len(row) < 100 else row[:96] + ' ...'}`"
                if len(was) == len(now) and was[at] in given_lines():
                    return f"You changed {here}: it was `{given_lines()[was[at]]}`"
                return f"A given line is missing above {here}" if was[at + 1:at + 2] == now[
                    at:at + 1] or at == len(now) else f"You changed {here}"
        return ""


def skeletons(source: str, steps: tuple[Step, ...]) -> dict[str, str]:
    """Name -> digests of the lines of every function, class and constant of a file, without its
    blanks; "" for a name that is bound twice.  Comments, docstrings and layout do not count."""
    rows, found = submission.lines(source), {}
    for node in syntax_tree(source).body:
        if name := _name(node):
            digests = " ".join(digest for digest, _ in _lines(node, rows, steps))
            found[name] = "" if name in found else digests
    return found


def _lines(node: ast.stmt, rows: list[str], steps: tuple[Step, ...]) -> list[tuple[str, int]]:
    """The digest of each line of a function, class or constant, and its number in the file; of a
    blank there is one line.  rows: the file's."""
    rows = rows.copy()
    for step in steps:
        marker = rows[step.first_line - 1]
        rows[step.first_line - 1] = marker.replace(
            marker.strip(), "step_" + step.id.partition(".")[2])
        rows[step.first_line:step.last_line] = ["\n"] * (step.last_line - step.first_line)
    first = min([node.lineno, *(one.lineno for one in getattr(node, "decorator_list", ()))])
    text = "".join(rows[first - 1:_end(node, steps)])
    found, words, previous = [], [], tokenize.NEWLINE
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        is_docstring = token.type == tokenize.STRING and previous in STARTS
        if token.type in KINDS and not is_docstring:
            words.append(token)
        elif token.type == tokenize.NEWLINE and words:
            # A trailing comma is layout.
            line = re.sub(r",(?=\n[)\]}])", "", "\n".join(word.string for word in words))
            found.append((hashlib.sha256(line.encode()).hexdigest()[:6],
                          first - 1 + words[0].start[0]))
            words = []
        previous = token.type
    return found


def _end(node: ast.stmt, steps: tuple[Step, ...]) -> int:
    """The last line of a node, or of an empty blank at its end."""
    return max([node.end_lineno, *(step.last_line for step in steps
                                   if node.lineno <= step.first_line <= node.end_lineno + 1)])


def _name(node: ast.stmt) -> str:
    if isinstance(node, ast.FunctionDef | ast.ClassDef):
        return node.name
    targets = getattr(node, "targets", ())
    return targets[0].id if len(targets) == 1 and isinstance(targets[0], ast.Name) else ""


@cache
def given_skeletons() -> dict[str, dict[str, str]]:
    """Stage, or W for the warm-ups -> name -> digests, of the course's own files."""
    return tomllib.loads(RECORD.read_text("utf-8"))


@cache
def given_lines() -> dict[str, str]:
    """Digest -> the line that it stands for, or the first of its rows."""
    return json.loads(LINES.read_text("utf-8"))


def record_lines(root: Path) -> str:
    """The contents of given_lines.json for the problem files and warm-ups in root."""
    found = {}
    for name in [*(f"problem_{stage}.py" for stage in STAGES), WARM_UPS]:
        source = (root / name).read_text("utf-8")
        rows, steps = submission.lines(source), tuple(submission.steps(source))
        for node in filter(_name, syntax_tree(source).body):
            found |= {digest: row for digest, number in _lines(node, rows, steps)
                      if not (row := rows[number - 1].strip()).startswith("#")}  # of a blank
    return json.dumps(found, indent=0, sort_keys=True) + "\n"


def record(root: Path) -> str:
    """The contents of skeletons.toml for the problem files and warm-ups in root."""
    parts = ["# Digests of the lines of the problem files' functions, without blanks: blanks.py.\n"]
    files = {**{stage: f"problem_{stage}.py" for stage in STAGES}, "W": WARM_UPS}
    for stage, name in files.items():
        source = (root / name).read_text("utf-8")
        found = skeletons(source, tuple(submission.steps(source)))
        parts.append(f"\n[{stage}]\n" + "".join(f'{name} = "{digest}"\n'
                                                for name, digest in found.items()))
    return "".join(parts)


if __name__ == "__main__":
    RECORD.write_text(record(RECORD.parents[2]), "utf-8")
    LINES.write_text(record_lines(RECORD.parents[2]), "utf-8")
