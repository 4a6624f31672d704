"""Checks that a kernel's text names nothing that Triton's language does not have.

The interpreter runs a line only if a case reaches it, and it runs whatever Python does.
"""

import ast
import builtins
import functools
import inspect

BUILTINS = ("range", "min", "max", "abs", "len", "int", "float", "bool", "tuple", "isinstance",
            "print", "sum", "str", "slice", "zip", "enumerate", "list", "hasattr")
WAYS_OUT = {"handle", "mro", "to_ir"}  # attributes that lead from a tile to Python
MODULES = ("triton.language", "triton.experimental.gluon.language")  # and their contents


class Unrepeatable(Exception):
    """Why a trace cannot be repeated, in words for the student."""


class NotTriton(Unrepeatable):
    """A kernel's text has what Triton does not, so it compiles nowhere."""


def builtin_names() -> dict:
    """Python's built-in functions that a kernel may use."""
    return {name: getattr(builtins, name) for name in BUILTINS} | {"getattr": _looked_up}


def _looked_up(value, name: str, *default):
    found = getattr(value, name, *default)
    if name.startswith("_") or name in WAYS_OUT or inspect.ismodule(found):
        raise NotTriton(f"a kernel reads .{name}, which a tile does not have")
    return found


class Anything:
    """Stands for a name that only annotations use, such as PyTorch's Tensor."""

    def __getattr__(self, name: str) -> "Anything":
        if name == "__triton_aggregate__":  # or Triton would look for its fields for ever
            raise AttributeError(name)
        return self

    __call__ = __getitem__ = __or__ = __ror__ = lambda self, *_, **__: self


def only_annotates(text: str) -> set[str]:
    """The names that a function's text uses only in annotations."""
    nodes = list(ast.walk(ast.parse(text)))
    notes = {id(part) for node in nodes for name in ("annotation", "returns")
             for part in ast.walk(getattr(node, name, None) or ast.Pass())}
    names = [node for node in nodes if isinstance(node, ast.Name)]
    return {node.id for node in names if id(node) in notes} - {
        node.id for node in names if id(node) not in notes}


def vet(text: str, scope: dict, name: str, first: int = 1, fields: frozenset[str] = frozenset()
        ) -> None:
    """Reject text with an attribute that leads out of Triton's language.

    scope: the values of its global names.  name: the function's, and first its line in the file,
    for the message.  fields: the field names of the trace's named tuples.

    Raises:
        Unrepeatable: the text has one.
    """
    nodes = list(ast.walk(ast.parse(text)))
    inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    own = {node.arg for node in nodes if isinstance(node, ast.arg)}
    own |= {node.id for node in nodes
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)}
    scope = {name: value for name, value in scope.items() if name not in own}
    for node in nodes:
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            _vet_chain(node, scope, _attributes() | fields,
                       f"line {first - 1 + node.lineno}, in {name},")


def _vet_chain(node: ast.Attribute, scope: dict, known: frozenset[str], where: str) -> None:
    names, whole = [], node
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    found = scope.get(getattr(node, "id", None))
    if isinstance(found, Anything):
        return
    if inspect.ismodule(found):
        while names and inspect.ismodule(found) and not names[0].startswith("__"):
            found = getattr(found, names.pop(0), None)
            if inspect.ismodule(found) and not found.__name__.startswith(MODULES):
                raise Unrepeatable(f"{where} uses the module {found.__name__}")
        if found is None:
            raise NotTriton(f"{where} uses {ast.unparse(whole)}, which Triton does not have")
    elif getattr(found, "__name__", "") == "constants":
        names = names[1:]
    if refused := [name for name in names if name not in known]:
        raise NotTriton(f"{where} reads .{refused[0]}, which a tile does not have")


@functools.cache
def _attributes() -> frozenset[str]:
    """The attributes of objects in a kernel."""
    import triton.language as tl

    dtypes = [one for one in vars(tl).values() if isinstance(one, tl.dtype)]
    pointer, block = tl.pointer_type(tl.float32), tl.block_type(tl.float32, [1])
    objects = [*dtypes, pointer, block, tl.constexpr(1), tl.tensor(None, tl.int32),
               tl.tuple([tl.constexpr(1)]), tl.core.tensor_descriptor_base, tl.dtype.KIND,
               tl.dtype.SIGNEDNESS, tl.PropagateNan]
    names = {name for one in objects for name in (*dir(one), "types", "fields", "strides",
                                                  "block_shape", "append")}
    return frozenset(name for name in names if name[0] != "_") - WAYS_OUT
