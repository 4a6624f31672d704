"""Finds the blocks of the original assignment's templates that are still empty.

A block begins with a comment such as `# --- STUDENT IMPLEMENTATION REQUIRED HERE ---` and ends with
one such as `# --- END OF STUDENT IMPLEMENTATION ---`; if that is missing, where the next block
begins or the code is less indented.
"""

import ast
import itertools
import re
import textwrap

from grader.text import UNPARSABLE, syntax_tree

BEGIN = re.compile(r"\s*#.*\bstudent[\s_-]*implementation\b", re.IGNORECASE)
# The first `end` of a line is enough: trying every other one takes seconds on a line of 40 KB.
END = re.compile(r"\s*#(?>.*?\bend\b).*\bimplementation\b", re.IGNORECASE)
MAKERS = {"empty", "empty_like", "new_empty", "zeros", "zeros_like", "new_zeros"}


def unwritten(text: str) -> tuple[tuple[tuple[int, int], ...], bool]:
    """-> first and last line of every empty block; whether all blocks are empty."""
    rows = text.split("\n")
    found = _blocks(rows)
    empty = [(first, last) for first, last, must_say in found
             if _says_nothing(rows[first - 1:last], must_say)]
    return tuple(empty), 0 < len(empty) == len(found)


def breaks_only_there(text: str, empty: tuple[tuple[int, int], ...]) -> bool:
    """Whether a text that is not Python would be, with `pass` in these empty blocks."""
    rows = text.split("\n")
    for first, last in reversed(empty):
        begin = next(row for row in rows[first - 1:last] if row.strip())
        rows[first - 1:last] = [begin[:_indent(begin)] + "pass"]
    try:
        syntax_tree("\n".join(rows))
    except UNPARSABLE:
        return False
    return True


def _blocks(rows: list[str]) -> list[tuple[int, int, bool]]:
    """-> (first line, last line, whether only a statement can make it count as empty)."""
    marks = [(at, bool(END.match(row))) for at, row in enumerate(rows, start=1)
             if END.match(row) or BEGIN.match(row)]
    blocks, opened = [], False
    for (at, is_end), (after, has_end) in itertools.pairwise([*marks, (len(rows) + 1, False)]):
        if not is_end:
            last = after if has_end else _dedent(rows, at, after) - 1
            while not rows[last - 1].strip():
                last -= 1
            blocks.append((at, last, False))
        elif not opened:  # an end without a beginning
            first = at
            while first > 1 and re.match(r"\s*(#|pass\b|\.\.\.|$)", rows[first - 2]):
                first -= 1
            blocks.append((first, at, True))
        opened = not is_end
    return blocks


def _dedent(rows: list[str], at: int, end: int) -> int:
    """The first less indented line between `at` and `end`; else end."""
    indent = _indent(rows[at - 1])
    return next((number for number in range(at + 1, end)
                 if rows[number - 1].strip() and _indent(rows[number - 1]) < indent), end)


def _indent(row: str) -> int:
    return len(row) - len(row.lstrip())


def _says_nothing(block: list[str], must_say: bool) -> bool:
    code = "\n".join(row for row in block if not row.lstrip().startswith("#"))
    try:
        body = syntax_tree(textwrap.dedent(code)).body
    except UNPARSABLE:  # something is written
        return False
    return (bool(body) or not must_say) and _are_nothing(body, set())


def _are_nothing(body: list[ast.stmt], made: set[str]) -> bool:
    """Whether the statements compute nothing; made: names of empty values, extended here."""
    return all(is_blank(statement) or _is_nothing(statement, made) for statement in body)


def is_blank(statement: ast.stmt) -> bool:
    """Whether it is a string, `...`, `pass` or `raise NotImplementedError`."""
    if isinstance(statement, ast.Pass):
        return True
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant):
        return statement.value.value is ... or isinstance(statement.value.value, str)
    if isinstance(statement, ast.Raise):
        raised = statement.exc.func if isinstance(statement.exc, ast.Call) else statement.exc
        return isinstance(raised, ast.Name) and raised.id == "NotImplementedError"
    return False


def _is_nothing(statement: ast.stmt, made: set[str]) -> bool:
    """Whether it only names or returns None, zeros or fresh memory, or holds only such
    statements."""
    match statement:
        case ast.Assign(targets=targets, value=value):
            made |= {node.id for target in targets for node in ast.walk(target)
                     if isinstance(node, ast.Name)}
            return _is_empty(value, made)
        case ast.AnnAssign(target=ast.Name(id=name), value=value):
            made.add(name)
            return _is_empty(value, made)
        case ast.Return(value=value):
            return _is_empty(value, made)
        case ast.For() | ast.While() | ast.If():
            return _are_nothing(statement.body + statement.orelse, made)
        case ast.With() | ast.FunctionDef() | ast.ClassDef():
            return _are_nothing(statement.body, made)
    return False


def _is_empty(value: ast.expr | None, made: set[str]) -> bool:
    match value:
        case None:
            return True
        case ast.Constant(value=number):
            return number is None or number is ... or number == 0
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return all(_is_empty(part, made) for part in parts)
        case ast.Call(func=ast.Attribute(attr=name)) | ast.Call(func=ast.Name(id=name)):
            return name in MAKERS
        case ast.Name(id=name):
            return name in made
    return False
