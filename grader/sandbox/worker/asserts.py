"""Says which assert of the file failed, and with what values."""

import ast
import linecache
from contextlib import suppress
from traceback import walk_tb
from types import ModuleType

from ..kernels.hooks import numbers

VALUES, LONGEST = 8, 150  # values shown; characters of a condition


def failed(error: BaseException, path: str, message: str) -> str:
    """ "tl.static_assert(BLOCK_N <= D) does not hold: BLOCK_N is 64, D is 16"; "" if the error does
    not come from an assert of this file, Python's or Triton's.  message: the assert's own."""
    frames = list(walk_tb(error.__traceback__))
    if type(error).__name__ == "CompileTimeAssertionFailure":
        compilers = [frame.f_locals.get("self") for frame, _ in frames]
        scopes = next(((one.gscope, one.lscope) for one in reversed(compilers)
                       if hasattr(one, "lscope")), ({}, {}))
        found, condition = error.node.func, error.node.args[0]
    elif isinstance(error, AssertionError):
        own = [(frame, line) for frame, line in frames if frame.f_code.co_filename == path]
        if not own:
            return ""
        frame, line = own[-1]
        found, condition = _stands_at(path, line, frames[-1][0].f_code)
        scopes = frame.f_globals, frame.f_locals
    else:
        return ""
    if condition is None:
        return ""
    said = ast.unparse(condition)
    said = said if len(said) <= LONGEST else said[:LONGEST - 3] + "..."
    said = f"{ast.unparse(found)}({said})" if found else f"assert {said}"
    values = ", ".join(list(dict.fromkeys(_values(condition, scopes)))[:VALUES])
    return f"{said} does not hold" + f": {values}" * bool(values) + (
        f" ({message.strip()[:300]})" * bool(message.strip()))


def _stands_at(path: str, line: int, raised_in) -> tuple[ast.expr | None, ast.expr | None]:
    """-> the function, None for a Python assert; the condition.

    raised_in: the code that raised the error, which must be the assert's own.
    """
    # From linecache, because a step that runs on its own has another text than the file.
    for node in ast.walk(ast.parse("".join(linecache.getlines(path)))):
        if not (hasattr(node, "lineno") and node.lineno <= line <= node.end_lineno):
            continue
        if isinstance(node, ast.Assert) and raised_in.co_filename == path:
            return None, node.test
        if isinstance(node, ast.Call) and node.args and "assert" in raised_in.co_name:
            if getattr(node.func, "attr", getattr(node.func, "id", "")) == "static_assert":
                return node.func, node.args[0]
    return None, None


def _values(node: ast.AST, scopes: tuple[dict, dict]) -> list[str]:
    """ "D is 16" for every name, attribute and item of an expression that is a plain number."""
    if isinstance(node, ast.Call):
        called = [node.func.value] if isinstance(node.func, ast.Attribute) else []
        return [said for part in (*called, *node.args) for said in _values(part, scopes)]
    if isinstance(node, ast.Name | ast.Attribute | ast.Subscript):
        with suppress(Exception):  # the file's own objects may raise anything
            if isinstance(node, ast.Attribute) and isinstance(
                    _value(node.value, scopes), ModuleType):  # a constant of a library
                return []
            if said := _said(_value(node, scopes)):
                return [f"{ast.unparse(node)} is {said}"]
    return [said for part in ast.iter_child_nodes(node) for said in _values(part, scopes)]


def _value(node: ast.expr, scopes: tuple[dict, dict]):
    return eval(compile(ast.Expression(node), "", "eval"), *scopes)


def _said(value) -> str:
    """A number, a dtype or a shape in words; "" for anything else."""
    if type(value).__name__ == "constexpr":
        value = value.value
    if (data := numbers(value)) is not None and data.size == 1:
        value = data.item()
    if isinstance(value, bool | int | float | str) or type(value).__name__ == "dtype":
        return str(value)[:50]
    if isinstance(value, tuple) and 0 < len(value) <= VALUES and all(map(_said, value)):
        return f"({', '.join(map(_said, value))})"
    return ""
