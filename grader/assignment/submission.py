"""Reads a submission's file without importing it: does it exist, is it Python, is it begun?

A step is the region between `# BEGIN SOLUTION 4.2` and `# END SOLUTION 4.2`; the comment above it,
`# Step 4.2 -- Question or goal.`, gives its title, or
`# Step 4.3 -- Copied from step 3.3: its purpose.` says that it is a copy of an earlier one.
"""

import ast
import bisect
import codecs
import errno
import hashlib
import os
import re
import stat
import textwrap
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal

from grader.assignment import template
from grader.text import UNPARSABLE, decode, is_notebook, lines, stranger, syntax_tree

MAX_BYTES = 1 << 18  # the longest solved stage has 42 KiB; parsing a huge file stalls the grader
MARKER = re.compile(r"#[ \t]*(BEGIN|END) SOLUTION\b(.*)")  # of a stripped line
STEP_ID = re.compile(r"(?:\d+|W)\.\d+")  # W: in warmups.py
# "Carried over": in assignments made before December 2026
CARRIED = re.compile(r"(?:Copied from|Carried over:) step (\d+\.\d+)[:.,]")
BLANK_RAISE = re.compile(r"""raise NotImplementedError\(["']step ((?:\d+|W)\.\d+)["']\)""")

NARROW = ("float16", "bfloat16")

State = Literal["missing", "not_started", "syntax_error", "ready"]


@dataclass(frozen=True)
class Step:
    """One solution region.  Its first and last line, counted from 1, are the two markers."""

    id: str
    title: str  # "" if no comment gives one
    first_line: int
    last_line: int

    @property
    def origin(self) -> str:
        """The step that this one is a copy of, such as "3.3"; "" if it is new."""
        match = CARRIED.match(self.title)
        return match[1] if match else ""

    @property
    def words(self) -> str:
        """ "step 4.3, copied from step 3.3"."""
        return f"step {self.id}" + f", copied from step {self.origin}" * bool(self.origin)


@dataclass(frozen=True)
class Submission:
    """A file, read once; `source` is graded, whatever happens to the file meanwhile.

    sha256: of the bytes on the disk.  source: those bytes after plain().  tree: its syntax, None if
    Python cannot parse it; kept, because deep nesting parses only while few calls are under way.
    """

    path: Path
    source: bytes | None
    sha256: str | None
    state: State = "ready"
    sentence: str = ""
    line: int | None = None
    blank_steps: tuple[str, ...] = ()
    steps: tuple[Step, ...] = ()  # empty if the markers are gone or damaged
    unwritten: tuple[tuple[int, int], ...] = ()  # lines of empty blocks in the original template
    tree: ast.Module | None = field(default=None, repr=False, compare=False)

    @property
    def located(self) -> str:
        """The sentence, after its place, "problem_4.py:7: ", if it is one of Python's; the others
        say where themselves."""
        if self.line is not None and re.match(r"\w+Error: ", self.sentence):
            return f"{self.path.name}:{self.line}: {self.sentence}"
        return self.sentence

    @property
    def nothing_yet(self) -> str:
        """A sentence on blocks of the original template that are still empty, or "" """
        where = ", ".join(f"{first}-{last}" for first, last in self.unwritten)
        return f"nothing is written here yet: {self.path.name}, lines {where}." if where else ""

    @property
    def _rows(self) -> list[str]:
        """The lines of a file with steps; others may be no text at all."""
        return lines(decode(self.source)) if self.steps else []

    @property
    def unreached(self) -> tuple[str, ...]:
        """In a file whose cases all pass: blank steps that would raise, so no case reached them.

        A blank step that would not raise may be written elsewhere.
        """
        rows = self._rows
        inside = {step.id: rows[step.first_line:step.last_line - 1] for step in self.steps}
        return tuple(id for id in self.blank_steps
                     if id not in inside or any("raise" in row for row in inside[id]))

    @property
    def left_raises(self) -> dict[str, str]:
        """Steps that are written, though the starter's raise is still there -> what to do."""
        rows, found = self._rows, {}
        for step in self.steps:
            inside = rows[step.first_line:step.last_line - 1]
            line = next((step.first_line + i for i, row in enumerate(inside, start=1)
                         if BLANK_RAISE.match(row.lstrip())), step.first_line)
            if step.id in self.blank_steps and not is_blank_text("".join(inside)):
                found[step.id] = (f"your code is there; delete line {line}, "
                                  "raise NotImplementedError.")
            elif step.title and line > step.first_line and not re.match(
                    r"\s*(#|$)", rows[step.first_line - 2]):
                found[step.id] = (f"your code stands above line {step.first_line}, BEGIN SOLUTION: "
                                  f"move it below, and delete line {line}, the raise.")
        return found

    def step_at(self, line: int | None) -> Step | None:
        """The step that a line of the file belongs to."""
        return next((step for step in self.steps
                     if line is not None and step.first_line <= line <= step.last_line), None)

    def own_line(self, error_line: int | None, lines: tuple[int, ...]) -> int | None:
        """The student's line to show for an error: the first of its lines, innermost first, that is
        in a step; else the line that raised it."""
        return next((line for line in (error_line, *lines) if self.step_at(line)), error_line)

    def beside(self, line: int | None) -> str:
        """A sentence if this line imports another file of the same folder, or "" """
        names = []
        for node in ast.walk(self.tree):
            if isinstance(node, ast.Import | ast.ImportFrom) and node.lineno == line:
                names += [getattr(node, "module", None) or alias.name for alias in node.names]
        for top in (name.partition(".")[0] for name in names):
            for there in (f"{top}.py", top, f"{top}.ipynb"):
                if (self.path.parent / there).exists():
                    return (f"{there} lies beside it, but a file is graded alone: put what it "
                            f"needs of that into {self.path.name}")
        return ""

    def steps_towards(self, lines: tuple[int, ...]) -> list[Step]:
        """The steps above these lines in the same functions: an address used there was made in
        them."""
        functions = [node for node in ast.walk(self.tree)
                     if isinstance(node, ast.FunctionDef)]
        found = []
        for line in lines:
            begins = max((node.lineno for node in functions
                          if node.lineno <= line <= node.end_lineno), default=line)
            found += [step for step in self.steps if begins <= step.first_line <= line]
        return list(dict.fromkeys(found))

    def parameters(self, entry: str) -> set[str]:
        """The parameters of the function of that name."""
        return {argument.arg for node in ast.walk(self.tree)
                if isinstance(node, ast.FunctionDef) and node.name == entry
                for argument in (*node.args.args, *node.args.kwonlyargs)}

    @property
    def blank_new(self) -> tuple[str, ...]:
        """Blank steps that the student has yet to write."""
        others = {*self.blank_carried, *self.left_raises}
        return tuple(id for id in self.blank_steps if id not in others)

    @property
    def to_write(self) -> tuple[str, ...]:
        """The same in the order in which a kernel can be run soonest: first the steps that the
        file's first kernel needs, wherever they are, and last those for an argument that may be
        None."""
        functions = {node.name: node for node in self.tree.body
                     if isinstance(node, ast.FunctionDef)} if self.tree else {}
        kernels: list[list[str]] = []  # each with the functions below it: a blank may call them
        for name in functions:
            if name.endswith("_kernel"):
                kernels.append([])
            if kernels:
                kernels[-1].append(name)
        needed: dict[str, int] = {}  # function -> its first kernel
        for number, left in enumerate(kernels):
            while left:
                if (name := left.pop()) not in needed:
                    needed[name] = number
                    left += {one.id for one in ast.walk(functions[name])
                             if isinstance(one, ast.Name)} & functions.keys()
        lines = {step.id: step.first_line for step in self.steps}
        optional = [node for name in needed for node in ast.walk(functions[name])
                    if isinstance(node, ast.If) and "is not None" in ast.unparse(node.test)]

        def holds(node: ast.stmt, id: str) -> bool:
            line = lines.get(id, 0)  # the markers may be gone
            return node.lineno <= line <= node.end_lineno + 1  # an empty blank at its end

        def rank(id: str) -> tuple[bool, int]:
            inside = [needed.get(name, len(kernels)) for name, node in functions.items()
                      if holds(node, id)]
            return any(holds(node, id) for node in optional), [*inside, len(kernels)][0]

        return tuple(sorted(self.blank_new, key=rank))

    @property
    def blank_carried(self) -> tuple[str, ...]:
        """Blank steps that are to be copied from earlier ones."""
        left = self.left_raises  # which reads the whole text
        return tuple(step.id for step in self.steps
                     if step.origin and step.id in self.blank_steps and step.id not in left)

    def blanks(self) -> tuple[str, ...]:
        """Sentences on what is still to fill in, and how."""
        said = [f"step {id}: {words}" for id, words in self.left_raises.items()]
        said += [f"still to write: {', '.join(self.blank_new)}."] * bool(self.blank_new)
        if self.blank_carried:
            stage = self.blank_carried[0].partition(".")[0]
            said.append(f"python -m grader.carry {stage} copies what you wrote before into "
                        f"{', '.join(self.blank_carried)}, or says what is in the way.")
        return tuple(said)


def read(directory: Path, filename: str, entry: str) -> Submission:
    """Read directory/filename; entry is the name the stage calls."""
    path = Path(directory) / filename
    try:
        if not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(directory)):
            # The grader may be able to read solutions that the sender of the link cannot.
            raise OSError(errno.ELOOP, "it is a link to a file outside this folder")
        data = read_regular(path)
    except OSError as error:
        sentence = f"there is no {path}" if isinstance(error, FileNotFoundError) else (
            f"cannot read {path}: {error.strerror}")
        return Submission(path, None, None, "missing", sentence)
    return of_bytes(path, data, entry)


def of_bytes(path: Path, data: bytes, entry: str) -> Submission:
    """As read(), of what the file holds."""
    file = Submission(path, plain(data), hashlib.sha256(data).hexdigest())
    if len(data) > MAX_BYTES:
        return replace(file, state="syntax_error", sentence=(
            f"want a file of at most {MAX_BYTES} bytes; got a longer one"))
    try:
        text = decode(file.source)
    except SyntaxError as error:  # without the source, so that it is not decoded again
        return replace(file, source=None, state="syntax_error", sentence=error.msg,
                       line=error.lineno)
    blocks, is_template = template.unwritten(text)
    file = _parsed(replace(file, unwritten=blocks), text, entry)
    if file.state == "syntax_error":  # what would answer all the same is run, but not this
        begun = not is_template or not template.breaks_only_there(text, blocks)
        return replace(file, unwritten=(), **{} if begun else {
            "state": "not_started", "sentence": f"{file.nothing_yet} {file.located}"})
    if is_template and not file.steps and file.state == "ready":
        return replace(file, state="not_started", sentence=file.nothing_yet)
    return file


def _parsed(file: Submission, text: str, entry: str) -> Submission:
    """The file with what its text says."""
    name = file.path.name

    def broken(sentence: str, line: int | None = None) -> Submission:
        return replace(file, state="syntax_error", sentence=sentence, line=line)

    if is_notebook(text):
        return broken(f"{name} holds a notebook, and a Python file is wanted: download it as .py "
                      "(Colab: File, Download; Jupyter: File, Save and Export)")
    try:
        tree = syntax_tree(file.source, name)
    except SyntaxError as error:  # includes IndentationError and TabError
        return broken(stranger(text, error.lineno) or f"{type(error).__name__}: {error.msg}",
                      error.lineno)
    except (RecursionError, MemoryError) as error:  # which name no line
        return broken(f"{type(error).__name__}: nested too deeply for Python to read",
                      _first_too_deep(text))
    blank = blank_steps(text)
    file = replace(file, tree=tree, blank_steps=blank)
    if _is_blank_body(tree.body):
        return replace(file, state="not_started", sentence=f"{name} is empty")
    file = replace(file, steps=tuple(_undamaged(text)))
    sentence = ""
    if file.steps and {step.id for step in file.steps} <= set(blank) and not file.left_raises:
        sentence = f"no step of {name} is filled in yet"
    elif not file.steps and _is_blank_entry(tree, entry):
        sentence = f"{entry} in {name} has no body yet"
    return replace(file, state="not_started", sentence=sentence) if sentence else file


def _first_too_deep(text: str) -> int:
    """The first line up to which a text is nested too deeply to be parsed."""
    rows = lines(text)

    def is_too_deep(number: int) -> bool:
        try:
            syntax_tree("".join(rows[:number]))
        except (RecursionError, MemoryError):
            return True
        except SyntaxError:  # it ends in the middle of a statement
            pass
        return False

    return bisect.bisect_left(range(1, len(rows)), True, key=is_too_deep) + 1


def steps(source: str) -> list[Step]:
    """The solution regions in order.

    Raises:
        ValueError: a region is nested, unclosed, unmatched, without an id, or its id is repeated.
    """
    rows = lines(source)
    titles = {match[1]: match[2].strip() for row in rows
              if (match := re.match(r"[ \t]*# Step ((?:\d+|W)\.\d+) -- (.*)", row))}
    found: list[Step] = []
    seen: set[str] = set()
    opened: tuple[str, int] | None = None
    for number, row in enumerate(rows, start=1):
        marker = MARKER.match(row.strip())
        if not marker:
            continue
        kind, name = marker[1], marker[2].strip()
        if not STEP_ID.fullmatch(name):
            raise ValueError(f"line {number}: want an id such as 4.2 after SOLUTION; got {name!r}")
        if kind == "BEGIN":
            if opened:
                raise ValueError(f"line {number}: step {name} begins inside step {opened[0]}")
            if name in seen:
                raise ValueError(f"line {number}: step {name} is there twice")
            opened = (name, number)
        else:
            if not opened or opened[0] != name:
                inside = f"step {opened[0]}" if opened else "no step"
                raise ValueError(f"line {number}: step {name} ends inside {inside}")
            found.append(Step(name, titles.get(name, ""), opened[1], number))
            seen.add(name)
            opened = None
    if opened:
        raise ValueError(f"line {opened[1]}: step {opened[0]} is never closed")
    return found


def _undamaged(source: str) -> list[Step]:
    """The solution regions; none if the student moved the markers."""
    try:
        return steps(source)
    except ValueError:
        return []


def blank_steps(source: str) -> tuple[str, ...]:
    """Ids of the blank steps, in the order of the file; works without markers, too."""
    rows = lines(source)
    blank = [step.id for step in _undamaged(source)
             if is_blank_text("".join(rows[step.first_line:step.last_line - 1]))]
    # A raise in a comment is a note, not a step.
    stripped = "".join(row for row in rows if not row.lstrip().startswith("#"))
    return tuple(dict.fromkeys(blank + BLANK_RAISE.findall(stripped)))


def read_regular(path: Path) -> bytes:
    """The first MAX_BYTES + 1 bytes of a regular file; reading a pipe or a device might never
    end."""
    handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    with open(handle, "rb") as file:
        if not stat.S_ISREG(os.fstat(handle).st_mode):
            raise OSError(errno.EINVAL, "it is not a regular file")
        return file.read(MAX_BYTES + 1)


def plain(data: bytes) -> bytes:
    """The file without byte-order mark and "\\r".  Python reads it all the same; Triton, and our
    own search for a kernel's text, would stumble over them."""
    return data.removeprefix(codecs.BOM_UTF8).replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def is_blank_text(text: str) -> bool:
    try:
        return _is_blank_body(syntax_tree(textwrap.dedent(text)).body)
    except UNPARSABLE:
        return False


def _is_blank_body(body: list[ast.stmt]) -> bool:
    """Whether it is only strings, `...`, `pass` and `raise NotImplementedError`."""
    return all(map(template.is_blank, body))


def _is_blank_entry(tree: ast.Module, entry: str) -> bool:
    """Whether the entry point exists and is blank; in a class, every method."""
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name == entry:
            if isinstance(node, ast.FunctionDef):
                return _is_blank_body(node.body)
            methods = [item for item in node.body if isinstance(item, ast.FunctionDef)]
            others = [item for item in node.body if not isinstance(item, ast.FunctionDef)]
            return _is_blank_body(others) and all(_is_blank_body(item.body) for item in methods)
    return False


def misjoined_tiles(tree: ast.Module) -> tuple[int, str] | None:
    """The line of the first `and`, `or`, `not` or a < b < c on values in a kernel, and a sentence
    on it.

    On tiles, Triton's interpreter, being Python, keeps only one of the parts.  In the test of an
    `if` or a static_assert they join constants or single numbers, which is fine.
    """
    for function in ast.walk(tree):
        if not isinstance(function, ast.FunctionDef) or not any(
                "jit" in _name(node) for one in function.decorator_list for node in ast.walk(one)):
            continue
        inside = [node for statement in function.body for node in ast.walk(statement)]
        tests = {inner for node in inside for test in _conditions(node)
                 for inner in ast.walk(test)}
        for node in inside:  # what decorates a kernel joins Python's own values
            if node in tests or not isinstance(node, ast.BoolOp | ast.UnaryOp | ast.Compare) or all(
                    part.id.isupper() for part in ast.walk(node) if isinstance(part, ast.Name)):
                continue  # the last: they are named like constants
            if isinstance(node, ast.BoolOp):
                word, part, sign = ("and", "last", "&") if isinstance(node.op, ast.And) else \
                    ("or", "first", "|")
                return node.lineno, (
                    f"`{word}` does not join tiles: only its {part} part counts. Write {sign}, and "
                    f"parentheses around each comparison: (a < b) {sign} (c < d).")
            if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
                return node.lineno, ("`not` asks for one truth value, and a tile has many. Write ~ "
                                     "and parentheses: ~(a < b).")
            if isinstance(node, ast.Compare) and len(node.ops) > 1:
                return node.lineno, (
                    "a chain of comparisons does not work on tiles: only its last one counts. "
                    "Write (a < b) & (c < d); without the parentheses & comes before <.")
    return None


def narrow_arguments(tree: ast.Module) -> list[tuple[int, str]]:
    """-> line and text of each parameter with a 16-bit float as its annotation.  Triton rounds the
    argument to that on a GPU; its interpreter does not."""
    return [(argument.lineno, ast.unparse(argument)) for node in ast.walk(tree)
            if isinstance(node, ast.FunctionDef) for argument in node.args.args
            if argument.annotation is not None and _name(argument.annotation) in NARROW]


def _conditions(node: ast.AST) -> list[ast.expr]:
    """The expressions that a statement or a static_assert tests for truth."""
    if isinstance(node, ast.If | ast.IfExp | ast.While | ast.Assert):
        return [node.test]
    asserts = isinstance(node, ast.Call) and _name(node.func) == "static_assert"
    return node.args[:1] if asserts else []


def _name(node: ast.AST) -> str:
    """The name of a variable, or of an attribute without what it belongs to; else ""."""
    return getattr(node, "id", "") or getattr(node, "attr", "")


def foreign_texts(source: bytes, texts: list[tuple[str, str]]) -> list[str]:
    """Names of the functions whose text is not in the file.  texts: (name, dedented text)."""
    there = _without_indentation(decode(source))
    return [name for name, text in texts if not text or _without_indentation(text) not in there]


def _without_indentation(text: str) -> str:
    return "\n".join(line.strip() for line in text.strip().splitlines())
