"""Finds what a kernel borrows from Python, PyTorch or NumPy, and says what to write instead.

A tile is neither a list nor a PyTorch tensor.  If a kernel treats it as one, Triton's interpreter
raises an error that explains little, or does something other than a GPU's compiler.
"""

import ast
import difflib
import linecache
import re

TILES = {  # Python functions -> what to write instead; {0}: the first argument
    "sum": "tl.sum({0}, axis=1), the sum of each row, or axis=0 where there is one axis",
    "abs": "tl.abs({0})",
    "len": "the length of an axis is {0}.shape[0]", "float": "{0}.to(tl.float32)",
    "int": "{0}.to(tl.int32)", "round": "tl.floor({0} + 0.5)", "range": "tl.arange(0, {last})",
    "any": "tl.max({0}, axis=0) of 0 and 1", "all": "tl.min({0}, axis=0) of 0 and 1",
    "sorted": "tl.sort({0})", "pow": "x * x, or tl.exp2(x) for 2 to the x",
}
SAME = {  # functions and methods of PyTorch, NumPy and math that have another name in tl
    "max": "tl.max({0}, axis=1)", "amax": "tl.max({0}, axis=1)", "min": "tl.min({0}, axis=1)",
    "sum": "tl.sum({0}, axis=1)", "mean": "tl.sum({0}, axis=1) / N", "matmul": "tl.dot({all})",
    "mm": "tl.dot({all})", "bmm": "tl.dot({all})", "dot": "tl.dot({all})",
    "transpose": "tl.trans({0})", "mT": "tl.trans({0})", "t": "tl.trans({0})",
    "H": "tl.trans({0})", "arange": "tl.arange(0, {last})",
    "ones": "tl.full({0}, 1.0, tl.float32)", "zeros": "tl.zeros([rows, columns], tl.float32)",
    "empty": "tl.zeros([rows, columns], tl.float32)", "inf": 'float("-inf")',
    "full": "tl.full([rows, columns], value, tl.float32)",
    "tensor": "tl.full([rows, columns], value, tl.float32)",
    "pow": "x * x, or tl.exp2(x) for 2 to the x", "sqrt": "tl.sqrt({0})",
    "ceil": "tl.cdiv(a, b), a / b rounded up", "float": "{0}.to(tl.float32)",
    "half": "{0}.to(tl.float16)", "bfloat16": "{0}.to(tl.bfloat16)", "int": "{0}.to(tl.int32)",
    "long": "{0}.to(tl.int64)", "type": "{0}.to(dtype)",
    "masked_fill": "tl.where(condition, value, {0})",
    "unsqueeze": "{0}[:, None] for a column, {0}[None, :] for a row",
    "size": "{0}.shape[0]", "dim": "len({0}.shape)", "item": "{0} itself", "clone": "{0} + 0",
    "contiguous": "{0} itself", "lt": "{0} < ...", "le": "{0} <= ...", "gt": "{0} > ...",
    "ge": "{0} >= ...", "eq": "{0} == ...", "copy_": "tl.store", "fill_": "tl.full",
}
NUMBERS = {  # of math, NumPy and PyTorch
    "inf": 'float("inf"), or float("-inf") for minus infinity', "nan": 'float("nan")',
    "pi": "3.141592653589793", "e": "2.718281828459045"}
LIBRARIES = {"torch": "PyTorch's tensors", "np": "NumPy's arrays", "numpy": "NumPy's arrays",
             "math": "single numbers of Python"}
WHOLE = re.compile(r"unexpected type fp\d+|interpreted as an integer|must all be ints"
                   r"|type pointer<\S+ and \S*(fp|float)|arguments must be of type tl.constexpr"
                   r"|'float' object|got fp32|cannot be cast|int.* expected", re.IGNORECASE)


class TruthOfATile(TypeError):
    """A tile was used as a truth value, which is always True in Triton's interpreter."""


def truth(path: str, line: int, shape: tuple[int, ...]) -> str:
    """What to say if a line of a kernel uses a tile of this shape as a truth value; "" for `and`,
    `or`, `not` and a < b < c, which submission.py explains."""
    statement = _statement(path, line)
    if statement is None:
        return ""
    for node in _parts(statement):
        if _calls(node) in ("max", "min") and len(node.args) > 1:
            return (f"`{_short(node)}` is Python's and returns one of the two as a whole. Write "
                    f"tl.{_calls(node)}imum({_all(node)}), which compares element by element")
    many = f"needs a single condition, but this is a tile {tuple(shape)}. Write"
    masked = "tl.where(condition, x, y), which chooses element by element"
    if isinstance(statement, ast.If):
        return (f"`if {_short(statement.test)}` {many} {masked}, or give the condition to tl.load "
                "or tl.store as mask=")
    if isinstance(statement, ast.While):
        return (f"`while {_short(statement.test)}` {many} one whose condition is a number, and "
                "mask= for the rest")
    if any(isinstance(node, ast.IfExp) for node in _parts(statement)):
        return f"`x if condition else y` {many} {masked}"
    return ""


def instead(path: str, line: int | None, said: str) -> tuple[int, str] | None:
    """What the line of a kernel that raised an error borrows, and what to write instead.

    said: the error's message.  -> line, sentence; the line may be an earlier one, which made the
    value.  None if nothing in the line is known to be foreign.
    """
    statement = None if line is None else _statement(path, line)
    unknown = re.search(r"name '(\w+)' is not defined|^(\w+) is not defined", said)
    if statement is None:
        return None
    name = unknown and (unknown[1] or unknown[2])
    for node in _parts(statement) if name in LIBRARIES else ():
        if isinstance(node, ast.Attribute) and ast.unparse(node.value) == name \
                and node.attr in NUMBERS:
            return line, (f"`{_short(node)}`: {name} is not defined, because this file does not "
                          f"import it. Write {NUMBERS[node.attr]}")
    if name and name not in LIBRARIES | TILES:
        meant = 'float("inf")' if name == "inf" else f"tl.{name}" * (name in _language())
        return (line, f"`{name}` is not defined here. Write {meant}") if meant else None
    if isinstance(statement, ast.For) and _calls(statement.iter).endswith("tl.arange"):
        return line, (f"`{_short(statement.iter)}` makes a tile, but a loop needs numbers. "
                      f"Write range({_all(statement.iter)})")
    if isinstance(statement, ast.For) and (
            "not iterable" in said and not _calls(statement.iter)
            or "has no len" in said and "len(" in ast.unparse(statement.iter)):
        return line, (f"`for {_short(statement.target)} in {_short(statement.iter)}`: a kernel "
                      "cannot loop over a tile. An operation on a tile is applied to all of its "
                      "elements at once")
    for node in sorted(_parts(statement), key=lambda node: getattr(node, "lineno", line) != line):
        if found := _call(node, said) or _subscript(node, said) or _attribute(node, said) \
                or _value(node):
            return line, found
        if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Pow) and "pow()" in said:
            return line, (f"`{_short(node)}`: ** does not work on tiles. Write tl.exp2(x) "
                          "for 2 to the x, and x * x for a square")
    return _fraction(path, line, statement, said)


# ------------------------------------------------------------------ what may stand there
def _call(node, said: str) -> str:
    if not isinstance(node, ast.Call):
        return ""
    name, shown = _calls(node), _short(node)
    if name == "print":
        return (f"`{shown}`: print works in the interpreter only. Remove it, or write "
                'tl.device_print("x", x), which also works on a GPU')
    if name in ("max", "min") and not said.endswith("not defined"):
        if len(node.args) == 1:
            return (f"`{shown}` is Python's and works on lists. Write "
                    f"tl.{name}({_first(node)}, axis=1), the "
                    f"{'largest' if name == 'max' else 'smallest'} of each row, or axis=0 where "
                    "there is one axis")
        return ""
    if name in TILES and (name not in ("range", "float", "int", "len") or re.search(
            r"'range'|0-dimensional|real number|has no len|not supported", said)):
        return f"`{shown}` is Python's and does not work on a tile. Write " \
               f"{_filled(TILES[name], node)}"
    library, _, function = name.rpartition(".")
    if library in LIBRARIES:
        return (f"`{shown}` works on {LIBRARIES[library]}, and a kernel has tiles. Write "
                + _filled(SAME.get(function, f"tl.{function}({{all}})" if function in _language()
                                   else "what tl has for it"), node))
    if name in ("tl.arange", "triton.language.arange") and "arange" in said:
        if len(node.args) == 1:
            return f"`{shown}` needs a first number. Write tl.arange(0, {_first(node)})"
    if name.endswith("program_id") and not node.args and "axis" in said:
        return f"`{shown}` needs an axis. Write {name}(0), for a grid with one axis"
    return ""


def _value(node) -> str:
    """A pointer in place of the numbers at that address, or a text in place of a number."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Mult | ast.Div):
        parts = [node.left, node.right]
    elif re.fullmatch(r"tl\.(math\.)?(dot|trans|where|sum|max|maximum|exp2?|log2?)", _calls(node)):
        parts = node.args
    else:
        return ""
    for part in parts:
        name = part.value if isinstance(part, ast.Subscript) else part
        if isinstance(name, ast.Name) and re.search(r"ptrs?$", name.id):
            return (f"`{_short(node)}`: {name.id} is an address, not the numbers there. Load them "
                    f"first, as in tl.load({name.id}{' + offs' * (name.id[-1] == 'r')}, mask=mask, "
                    "other=0.0)")
        if isinstance(part, ast.Constant) and isinstance(part.value, str):
            return (f'`{_short(node)}`: "{part.value}" is a text, not a number. Write '
                    f'float("{part.value}")')
    return ""


def _subscript(node, said: str) -> str:
    if not isinstance(node, ast.Subscript):
        return ""
    parts = node.slice.elts if isinstance(node.slice, ast.Tuple) else [node.slice]
    axes = [part for part in parts if not (isinstance(part, ast.Constant) and part.value is None
                                           or isinstance(part, ast.Slice) and not (
                                               part.lower or part.upper or part.step))]
    index, value, shown = ast.unparse(node.slice), ast.unparse(node.value), _short(node)
    refused = re.search("not iterable|tensor index|0-dimensional|item assignment|setitem"
                        "|not subscriptable|unsupported", said, re.IGNORECASE)
    if not axes or not refused or re.search(r"shape$|strides$|\)$", value):
        return ""
    store = isinstance(node.ctx, ast.Store)
    if re.search(r"ptrs?\b", value):
        if len(axes) > 1:
            index = "rows[:, None] * row_stride + columns[None, :]"
        call = f"tl.store({value} + {index}, value, mask=...)" if store else \
            f"tl.load({value} + {index}, mask=..., other=0.0)"
        return f"`{shown}`: a pointer is not an array. Write {call}"
    if store:
        return (f"`{shown} = ...`: elements of a tile cannot be assigned one by one. Write "
                f"{value} = tl.where(condition, value, {value})")
    return (f"`{shown}`: a tile cannot be indexed; only None and : may stand in its brackets. "
            "Load the part that you need, or mask the rest with tl.where")


def _attribute(node, said: str) -> str:
    missing = re.search(r"'(tensor|module 'triton.language)'? ?(object )?has no attribute '(\w+)'"
                        r"|module 'triton.language' has no attribute '(\w+)'", said)
    name = missing and (missing[3] or missing[4])
    if not missing or not isinstance(node, ast.Attribute) or node.attr != name:
        return ""
    value, shown = ast.unparse(node.value), _short(node)
    if value in ("tl", "triton.language"):
        said, value = f"`{shown}`: there is no such function.", "x"
        near = [f"tl.{one}" for one in difflib.get_close_matches(name, _language(), 1, 0.7)]
    else:
        said = f"`{shown}`: PyTorch tensors have that, and this is a tile."
        near = [f"tl.{name}({{0}}, ...)"] if name in _language() else []
    meant = SAME.get(name) or next(iter(near), "")
    return said + f" Write {meant}".format(value, all=f"{value}, ...", last="BLOCK") * bool(meant)


def _fraction(path: str, line: int, statement, said: str) -> tuple[int, str] | None:
    """The `/` that made a fraction where an integer is needed: in this statement, or where a name
    that it reads was assigned."""
    function = _function(path, line)
    if function is None or not WHOLE.search(said):
        return None
    read = {node.id for node in _parts(statement) if isinstance(node, ast.Name)}
    before = [one for one in ast.walk(function) if isinstance(one, ast.Assign)
              and one.lineno < line and read & {
                  node.id for target in one.targets for node in ast.walk(target)
                  if isinstance(node, ast.Name)}]
    for one in (statement, *reversed(before)):
        for node in _parts(one):
            if isinstance(node, ast.BinOp) and isinstance(node.op, ast.Div):
                left, right = ast.unparse(node.left), ast.unparse(node.right)
                return node.lineno, (
                    f"`{_short(node)}` is a fraction, and a whole number is needed. Write // "
                    f"instead of /, or tl.cdiv({left}, {right}) to round up")
    return None


# ------------------------------------------------------------------ the text
def _tree(path: str) -> ast.Module | None:
    try:
        return ast.parse("".join(linecache.getlines(path)))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _function(path: str, line: int) -> ast.FunctionDef | None:
    """The kernel that the line is in."""
    tree = _tree(path)
    return next((node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)
                 and node.lineno <= line <= node.end_lineno
                 and any("jit" in ast.unparse(one) for one in node.decorator_list)),
                None) if tree else None


def _statement(path: str, line: int) -> ast.stmt | None:
    """The innermost statement of a kernel that the line is in."""
    function = _function(path, line)
    found = [node for node in ast.walk(function) if isinstance(node, ast.stmt)
             and node is not function and node.lineno <= line <= node.end_lineno
             ] if function else []
    return max(found, key=lambda node: (node.lineno, -node.end_lineno), default=None)


def _parts(statement: ast.stmt) -> list[ast.AST]:
    """Its own expressions, without those of nested statements."""
    found, waiting = [], [statement]
    while waiting:
        node = waiting.pop(0)
        found.append(node)
        waiting += [child for child in ast.iter_child_nodes(node)
                    if not isinstance(child, ast.stmt)]
    return found


def _calls(node) -> str:
    """The name that is called, such as "max" or "torch.exp"; "" for anything else."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name | ast.Attribute):
        return ""
    return ast.unparse(node.func)


def _short(node) -> str:
    text = ast.unparse(node)
    return text if len(text) <= 50 else text[:47] + "..."


def _first(node: ast.Call) -> str:
    return ast.unparse(node.args[0]) if node.args else "x"


def _all(node: ast.Call) -> str:
    return ", ".join(map(ast.unparse, node.args))


def _filled(words: str, node: ast.Call) -> str:
    last = ast.unparse(node.args[-1]) if node.args else "BLOCK"
    return words.format(_first(node), all=_all(node), last=last)


def _language() -> list[str]:
    import triton.language as tl
    return [name for name in dir(tl) if name[0] != "_" and callable(getattr(tl, name))
            and name.islower()]
