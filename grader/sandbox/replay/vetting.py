"""Checks that a kernel's text is Triton's language and no other Python.

A replaying worker runs the text in the interpreter, which would run anything.
"""

import ast
import builtins
import functools
import inspect

BUILTINS = {"range", "min", "max", "abs", "len", "int", "float", "bool", "tuple", "isinstance",
            "print", "sum", "str", "slice", "zip", "enumerate", "list"}
MODULES = ("triton.language", "triton.experimental.gluon.language")  # and their contents
REFUSED = (ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.ClassDef, ast.Try, ast.With,
           ast.AsyncFunctionDef, ast.AsyncWith, ast.AsyncFor, ast.Await, ast.Yield, ast.YieldFrom,
           ast.Delete, ast.Match)  # the last reads attributes by names in its patterns
PLAIN_HELPERS = {"cdiv", "next_power_of_2"}  # in the package triton itself
CLASSES = {"range", "static_range", "dtype", "pointer_type", "block_type", "constexpr", "tensor",
           "tuple", "tensor_descriptor", "tensor_descriptor_type", "condition", "const", "slice",
           "PROPAGATE_NAN"}
LOOKED_UP = {"getattr", "hasattr"}  # Python functions that a kernel may call with a name
# A comprehension or a lambda may have an argument of this name, and the text around it would then
# read Python's own: no variable is called so.
NEVER_NAMES = {"getattr", "hasattr", "setattr", "delattr", "eval", "exec", "compile", "open",
               "vars", "dir", "globals", "locals", "type", "object", "super", "breakpoint",
               "memoryview", "classmethod", "staticmethod", "property"}


class Unrepeatable(Exception):
    """Why a trace cannot be repeated, in words for the student."""


class NotTriton(Unrepeatable):
    """A kernel's text has what Triton does not, so it compiles nowhere."""


def builtin_names() -> dict:
    """Python's built-in functions that a kernel may use."""
    return {name: getattr(builtins, name) for name in BUILTINS | LOOKED_UP}


class Anything:
    """Stands for a name that only annotations use, such as PyTorch's Tensor."""

    def __getattr__(self, name: str) -> "Anything":
        if name == "__triton_aggregate__":  # or Triton would look for its fields for ever
            raise AttributeError(name)
        return self

    __call__ = __getitem__ = __or__ = __ror__ = lambda self, *_, **__: self


def in_annotations(definition: ast.FunctionDef) -> list[ast.AST]:
    """All nodes in the annotations of a function and of its variables."""
    return [part for node in ast.walk(definition) for name in ("annotation", "returns")
            for part in ast.walk(getattr(node, name, None) or ast.Pass())]


def only_annotates(text: str) -> set[str]:
    """The names that a function's text uses only in annotations."""
    (definition,) = ast.parse(text).body
    notes = {id(part) for part in in_annotations(definition)}
    names = [node for node in ast.walk(definition) if isinstance(node, ast.Name)]
    return {node.id for node in names if id(node) in notes} - {
        node.id for node in names if id(node) not in notes}


def vet(text: str, scope: dict, name: str, first: int = 1, fields: frozenset[str] = frozenset()
        ) -> None:
    """Reject text that is not Triton's language.

    scope: the values of its global names.  name: the function's, and first its line in the file,
    for the message.  fields: the field names of the trace's named tuples.

    Raises:
        Unrepeatable: the text uses something else.
    """
    (definition,) = ast.parse(text).body
    if not isinstance(definition, ast.FunctionDef) or definition.decorator_list:
        raise Unrepeatable(f"{name} is no plain function")
    inner = {id(node.value) for node in ast.walk(definition) if isinstance(node, ast.Attribute)}
    calls = [node for node in ast.walk(definition) if isinstance(node, ast.Call)]
    called = {id(node.func) for node in calls}
    lookups = [node for node in calls if getattr(node.func, "id", "") in LOOKED_UP]
    inner |= {id(node.args[0]) for node in lookups if node.args}
    raised = {id(part) for node in ast.walk(definition) if isinstance(node, ast.Raise)
              for part in ast.walk(node) if _is_exception(part)}
    own = {node.arg for node in ast.walk(definition) if isinstance(node, ast.arg)}
    own |= {node.id for node in ast.walk(definition)
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    if taken := sorted(one for one in own if one in NEVER_NAMES or one.startswith("__")
                       or inspect.ismodule(scope.get(one))):
        raise Unrepeatable(f"{name} has a variable {taken[0]}, which a kernel cannot")
    scope = {name: value for name, value in scope.items() if name not in own}
    known = _attributes() | {one for one in fields if not one.startswith("_")} - _ways_out()
    for node in ast.walk(definition):
        where = f"line {first - 1 + getattr(node, 'lineno', 1)}, in {name},"
        if isinstance(node, REFUSED):
            raise Unrepeatable(f"{where} holds {type(node).__name__}, no part of Triton's language")
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            _vet_chain(node, scope, known, where)
        if node in lookups:
            _vet_lookup(node, scope, known, where)
        in_use = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        if in_use and node.id not in own and id(node) not in raised:
            # An unknown name raises its own error if its line is ever reached.
            allowed = BUILTINS | LOOKED_UP if id(node) in called else BUILTINS
            if node.id not in scope and node.id not in allowed and hasattr(builtins, node.id):
                raise Unrepeatable(f"{where} uses {node.id}, which a kernel cannot")
            if inspect.ismodule(scope.get(node.id)) and id(node) not in inner:
                raise Unrepeatable(f"{where} hands on the module {node.id}")


def _is_exception(node: ast.AST) -> bool:
    found = getattr(builtins, node.id, None) if isinstance(node, ast.Name) else None
    return inspect.isclass(found) and issubclass(found, BaseException)


def _vet_lookup(node: ast.Call, scope: dict, known: set[str], where: str) -> None:
    """Allow getattr(x, "name"), which is x.name, and hasattr(x, "name")."""
    value, name = (*node.args, None, None)[:2]
    if not isinstance(name, ast.Constant) or not isinstance(name.value, str):
        raise Unrepeatable(f"{where} uses {ast.unparse(node)}, which a kernel cannot")
    if node.func.id == "getattr":
        _vet_chain(ast.Attribute(value, name.value), scope, known, where)


def _vet_chain(node: ast.Attribute, scope: dict, known: set[str], where: str) -> None:
    names, whole = [], node
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    found = scope.get(getattr(node, "id", None))
    if isinstance(found, Anything):
        return
    if inspect.ismodule(found):
        while names and inspect.ismodule(found):
            found = getattr(found, names.pop(0), None)
            if inspect.ismodule(found) and not found.__name__.startswith(MODULES):
                raise Unrepeatable(f"{where} uses the module {found.__name__}")
        if found is None:
            raise NotTriton(f"{where} uses {ast.unparse(whole)}, which Triton does not have")
        if not is_language(found):
            raise Unrepeatable(f"{where} uses {ast.unparse(whole)}, which a kernel cannot")
    elif getattr(found, "__name__", "") == "constants":
        names = names[1:]
    if refused := [name for name in names if name not in known]:
        raise NotTriton(f"{where} reads .{refused[0]}, which a tile does not have")


def is_language(found) -> bool:
    """Whether a kernel may use this member of a module."""
    import triton.language as tl

    if isinstance(found, tl.dtype | tl.constexpr | int | float) or found is tl.constexpr:
        return True
    if not tl.core.is_builtin(found):  # the interpreter may have replaced a builtin by its own
        found = getattr(found, "__wrapped__", found)
    if inspect.isclass(found):
        return issubclass(found, tl.dtype | range) or found.__name__ in CLASSES
    module = str(getattr(found, "__module__", ""))
    if module == "math" or found.__class__.__name__ == "builtin_function_or_method":
        return module == "math"
    if not module.startswith("triton"):
        return False
    if module.startswith("triton.language.extra"):
        return True
    kinds = ("JITFunction", "InterpretedFunction", "ConstexprFunction")
    return (tl.core.is_builtin(found) or type(found).__name__ in kinds
            or getattr(found, "__name__", "") in PLAIN_HELPERS)


@functools.cache
def _attributes() -> set[str]:
    """The attributes of objects in a kernel, without those that lead out of the language."""
    import triton.language as tl

    dtypes = [one for one in vars(tl).values() if isinstance(one, tl.dtype)]
    pointer, block = tl.pointer_type(tl.float32), tl.block_type(tl.float32, [1])
    objects = [*dtypes, pointer, block, tl.constexpr(1), tl.tensor(None, tl.int32),
               tl.tuple([tl.constexpr(1)]), tl.core.tensor_descriptor_base, tl.dtype.KIND,
               tl.dtype.SIGNEDNESS, tl.PropagateNan]
    names = {name for one in objects for name in (*dir(one), "types", "fields", "strides",
                                                  "block_shape", "append")}
    return {name for name in names if not name.startswith("_")} - _ways_out()


@functools.cache
def _ways_out() -> set[str]:
    """The attributes that lead from an interpreted kernel's objects to Python's."""
    from triton.runtime.interpreter import InterpretedFunction

    return {"handle", "mro", "to_ir", "fn", "rewriter", *dir(InterpretedFunction)}
