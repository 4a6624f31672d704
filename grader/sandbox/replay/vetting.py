"""What a kernel's text may say: Triton's language, and no more of Python.

A replaying worker runs such text in the interpreter, which would run anything.
"""

import ast
import builtins
import inspect

BUILTINS = {"range", "min", "max", "abs", "len", "int", "float", "bool", "tuple", "isinstance",
            "print", "sum", "str", "slice", "zip", "enumerate", "list"}
MODULES = ("triton.language", "triton.experimental.gluon.language")  # and what they hold
REFUSED = (ast.Import, ast.ImportFrom, ast.Global, ast.Nonlocal, ast.ClassDef, ast.Try, ast.With,
           ast.AsyncFunctionDef, ast.AsyncWith, ast.AsyncFor, ast.Await, ast.Yield, ast.YieldFrom,
           ast.Delete)
PLAIN_HELPERS = {"cdiv", "next_power_of_2"}  # of the package triton itself
CLASSES = {"range", "static_range", "dtype", "pointer_type", "block_type", "constexpr", "tensor",
           "tuple", "tensor_descriptor", "tensor_descriptor_type", "condition"}


class Unrepeatable(Exception):
    """Why a plan cannot be carried out, in words for the student."""


class NotTriton(Unrepeatable):
    """Of a kernel's text: what Triton does not have, so that it compiles nowhere."""


def builtin_names() -> dict:
    """Python's own functions that a kernel may use."""
    return {name: getattr(builtins, name) for name in BUILTINS}


def vet(text: str, scope: dict, name: str, first: int = 1) -> None:
    """Refuse what is more than Triton's language.

    Raises:
        Unrepeatable: text holds such a thing; scope is what its global names stand for, first its
            line in the file.
    """
    (definition,) = ast.parse(text).body
    if not isinstance(definition, ast.FunctionDef) or definition.decorator_list:
        raise Unrepeatable(f"{name} is no plain function")
    inner = {id(node.value) for node in ast.walk(definition) if isinstance(node, ast.Attribute)}
    raised = {id(part) for node in ast.walk(definition) if isinstance(node, ast.Raise)
              for part in ast.walk(node)}
    own = {node.arg for node in ast.walk(definition) if isinstance(node, ast.arg)}
    own |= {node.id for node in ast.walk(definition)
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    for node in ast.walk(definition):
        where = f"line {first - 1 + getattr(node, 'lineno', 1)}, in {name},"
        if isinstance(node, REFUSED):
            raise Unrepeatable(f"{where} holds {type(node).__name__}, no part of Triton's language")
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            _vet_chain(node, scope, own, where)
        in_use = isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
        if in_use and node.id not in own and id(node) not in raised:
            # A name that stands for nothing is an error of its own, if the line is ever reached.
            if node.id not in scope and node.id not in BUILTINS and hasattr(builtins, node.id):
                raise Unrepeatable(f"{where} uses {node.id}, which a kernel cannot")


def _vet_chain(node: ast.Attribute, scope: dict, own: set[str], where: str) -> None:
    names, whole = [], node
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    root = getattr(node, "id", None)
    if root in scope and root not in own and inspect.ismodule(scope[root]):
        found = scope[root]
        while names and inspect.ismodule(found):
            found = getattr(found, names.pop(0), None)
            if inspect.ismodule(found) and not found.__name__.startswith(MODULES):
                raise Unrepeatable(f"{where} uses the module {found.__name__}")
        if found is None:
            raise NotTriton(f"{where} uses {ast.unparse(whole)}, which Triton does not have")
        if not is_language(found):
            raise Unrepeatable(f"{where} uses {ast.unparse(whole)}, which a kernel cannot")
    elif root in scope and root not in own and getattr(scope[root], "__name__", "") == "constants":
        names = names[1:]
    if refused := [name for name in names if name not in _attributes()]:
        raise NotTriton(f"{where} reads .{refused[0]}, which a tile does not have")


def is_language(found) -> bool:
    """Whether a kernel may use this part of a module."""
    import triton.language as tl

    if isinstance(found, tl.dtype | tl.constexpr | int | float) or found is tl.constexpr:
        return True
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


_allowed_attributes: set[str] = set()


def _attributes() -> set[str]:
    if not _allowed_attributes:
        import triton.language as tl

        for owner in (tl.tensor, tl.dtype, tl.pointer_type, tl.block_type, tl.constexpr,
                      tl.core.tensor_descriptor_base):
            _allowed_attributes.update(name for name in dir(owner) if not name.startswith("_"))
        _allowed_attributes.update({  # set by no class, but by its __init__
            "T", "type", "shape", "dtype", "value", "element_ty", "scalar", "numel", "strides",
            "block_shape", "values", "append"})
        _allowed_attributes.discard("handle")
    return _allowed_attributes
