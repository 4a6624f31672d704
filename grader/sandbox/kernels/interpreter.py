"""Triton's interpreter as a worker has it: held to the tensors there are.

Memory beyond a tensor is somebody else's: the interpreter reads and writes it without a word, and
a GPU does so most times.  Here such a lane is an error in the line that did it.
"""

import ast
import contextlib
import functools
import inspect
import operator
import os
import sys
from types import SimpleNamespace

import numpy as np

from . import foreign

NEAR = 65536  # bytes past a tensor that are still blamed on it; worker.py leaves so many free
HELD = "_held_by_a_constant"  # a name of the interpreter's, in every kernel
POINTERS = ("create_addptr", "create_splat", "create_expand_dims", "create_broadcast",
            "create_reshape", "create_trans")  # what makes pointers of pointers


class OutOfBounds(IndexError):
    """A lane that is not masked off reads or writes where no tensor is.

    tensor: what the kernel calls the one that the lane's pointer was made of; lanes: which of the
    tile they are.
    """

    def __init__(self, verb: str, count: int, tensor: str = "", lanes: str = ""):
        call, self.id = {"reads": ("tl.load", "out-of-bounds-read"),
                         "writes": ("tl.store", "out-of-bounds-write")}[verb]
        self.what = (f"{call} {verb} {count} number{'s' * (count > 1)} outside of "
                     + ("its tensor" if tensor else "every tensor"))
        place = f"at {tensor}" * bool(tensor) + ", " * bool(tensor and lanes) + lanes
        self.wants = f"{place}: " * bool(place) + ("no mask leaves them out, or their address "
                                                   "(tile, stride, head, batch) is wrong")
        super().__init__(f"{self.what}, {self.wants}")


def hold_to(extents, named) -> None:
    """extents() -> a list of (first byte, byte after the last) of every tensor alive; named() -> of
    those that the kernel was given (name, first byte, bytes of a number, shape, strides)."""
    from triton.runtime import interpreter

    builder = type(interpreter.interpreter_builder)
    load, store = builder.create_masked_load, builder.create_masked_store

    def masked_load(self, ptrs, mask, *args, **kwargs):
        _check(ptrs, mask, "reads", extents, named)
        return load(self, ptrs, mask, *args, **kwargs)

    def masked_store(self, ptrs, value, mask, *args, **kwargs):
        _check(ptrs, mask, "writes", extents, named)
        return store(self, ptrs, value, mask, *args, **kwargs)

    builder.create_masked_load, builder.create_masked_store = masked_load, masked_store
    for name in POINTERS:
        if make := getattr(builder, name, None):
            setattr(builder, name, _followed(make))


def _followed(make):
    """The same, and what it makes knows the pointer it began with, as base."""
    @functools.wraps(make)
    def followed(self, *args, **kwargs):
        made = make(self, *args, **kwargs)
        if not made.dtype.is_ptr():
            return made
        for one in args[:2]:  # a splat's first argument is its type
            if hasattr(one, "base"):
                made.base = one.base
            elif hasattr(one, "data") and one.data.size == 1 and one.dtype.is_ptr():
                made.base = int(one.data.flat[0])
        return made
    return followed


@contextlib.contextmanager
def watched_loads(loaded, begins):
    """While it lasts, loaded(numbers) is told what the lanes of a load read that are not masked
    off, and begins() is called before every program."""
    if os.environ.get("TRITON_INTERPRET") != "1":
        yield
        return
    from triton.runtime import interpreter

    builder = type(interpreter.interpreter_builder)
    load, place = builder.create_masked_load, builder.set_grid_idx

    def watched_load(self, ptrs, mask, *args, **kwargs):
        result = load(self, ptrs, mask, *args, **kwargs)
        lanes = True if mask is None else np.broadcast_to(mask.data, result.data.shape)
        loaded(result.data[lanes])
        return result

    def watched_place(self, *args):
        begins()
        return place(self, *args)

    builder.create_masked_load, builder.set_grid_idx = watched_load, watched_place
    try:
        yield
    finally:
        builder.create_masked_load, builder.set_grid_idx = load, place


def take_other_names(names: dict) -> None:
    """Let a file with these globals call tl.load by a name of its own, as the compiler does: `from
    triton.language import load`.  A launch puts the interpreter's functions into triton.language,
    and not there."""
    from triton import language

    homes = {id(value): (home, name) for home in (language.math, language.core, language)
             for name, value in vars(home).items() if callable(value)}
    for name, value in list(names.items()):
        home, own = homes.get(id(value), (None, ""))
        if home is not None and (not isinstance(value, type) or own in ("range", "static_range")):
            names[name] = _looked_up(home, own, value)


def _looked_up(home, name: str, plain):
    def call(*args, **kwargs):
        return getattr(home, name)(*args, **kwargs)
    return functools.update_wrapper(call, plain)


def know_constants() -> None:
    """Take `lang.constexpr` and `from triton.language import constexpr as CE` for what they are.

    The interpreter compiles a kernel anew with annotations as text, and knows tl.constexpr's.
    """
    from triton.language import constexpr
    from triton.runtime.interpreter import GridExecutor

    begin = GridExecutor.__init__

    def is_constant(annotation, names: dict) -> bool:
        with contextlib.suppress(Exception):  # text that is no name of the file's
            annotation = eval(annotation, names) if isinstance(annotation, str) else annotation
        return annotation is constexpr

    @functools.wraps(begin)
    def begun(self, fn, *args, **kwargs):
        begin(self, fn, *args, **kwargs)
        self.constexprs += [name for name, annotation in fn.__annotations__.items()
                            if name not in self.constexprs
                            and is_constant(annotation, fn.__globals__)]

    GridExecutor.__init__ = begun


class _Identities(ast.NodeTransformer):
    """Has `X is None` compare what a constant X holds, as the compiler does."""

    def visit_Compare(self, node: ast.Compare) -> ast.Compare:
        self.generic_visit(node)
        if all(isinstance(sign, ast.Is | ast.IsNot) for sign in node.ops):
            node.left, *node.comparators = (
                ast.copy_location(ast.Call(ast.Name(HELD, ast.Load()), [one], []), one)
                for one in (node.left, *node.comparators))
        return node


def compare_constants() -> None:
    """Let `is` see through tl.constexpr(None) of the file."""
    from triton.language import core
    from triton.runtime import interpreter

    plain = interpreter.FunctionRewriter.ast_transformer
    setattr(interpreter, HELD, core._unwrap_if_constexpr)  # whose names its kernels all have
    interpreter.FunctionRewriter.ast_transformer = SimpleNamespace(
        visit=lambda tree: plain.visit(_Identities().visit(tree)))


def insist() -> None:
    """Whatever a file makes of TRITON_INTERPRET, its kernels are interpreted; and one that exec()
    made is refused, as by the compiler, which reads a kernel's text."""
    import triton
    from triton.runtime.interpreter import InterpretedFunction

    triton.knobs.runtime.interpret = True
    make = InterpretedFunction.__init__

    @functools.wraps(make)
    def made(self, fn, *args, **kwargs):
        try:
            inspect.getsourcelines(fn)
        except OSError as error:
            raise ValueError("@jit functions should be defined in a Python file") from error
        make(self, fn, *args, **kwargs)

    InterpretedFunction.__init__ = made


def refuse_truth(path: str) -> None:
    """A tile that a line of this file asks for one truth value, as `if`, max() and `x if c else y`
    do, is an error there; the interpreter itself says True of every tile."""
    from triton.runtime import interpreter

    if not (patch := getattr(interpreter, "_patch_lang_tensor", None)):
        return
    known: dict[tuple, str] = {}

    def patched(tensor, *scope):
        patch(tensor, *scope)
        own = tensor.__bool__

        def asked(self):
            frame = sys._getframe(1)
            if self.handle.data.size > 1 and frame.f_code.co_filename == path:
                place = frame.f_code, frame.f_lineno
                if place not in known:
                    known[place] = foreign.truth(path, frame.f_lineno, self.handle.data.shape)
                if known[place]:
                    raise foreign.TruthOfATile(known[place])
            return own(self)

        tensor.__bool__ = asked

    interpreter._patch_lang_tensor = patched


def compiled(module) -> str:
    """The name of a kernel of the file's that would be compiled all the same, or "" """
    from triton.runtime.jit import JITFunction

    return next((name for name, x in vars(module).items() if isinstance(x, JITFunction)), "")


def is_gluon(kernel) -> bool:
    """Whether a kernel is written in Gluon, which is only ever compiled."""
    return bool(getattr(kernel, "is_gluon", lambda: False)())


def ask_conditions() -> None:
    """`while tl.condition(i < n)`: an object without a truth of its own is always true."""
    from triton.language import core

    if condition := getattr(core, "condition", None):
        condition.__bool__ = lambda self: bool(self.condition)


def multiply_constants() -> None:
    """Let a constant of the file stand left of a tensor, LOG2E * sink, as a compiled kernel may.

    The interpreter makes another constant of that, which tl's functions then refuse.
    """
    from triton.language import core

    def beside(name: str, constants):
        def apply(self, other):
            if isinstance(other, core.tensor):
                return getattr(operator, name)(self.value, other)
            return constants(self, other)
        return apply

    for name in ("add", "sub", "mul", "truediv"):
        method = f"__{name}__"
        setattr(core.constexpr, method, beside(name, getattr(core.constexpr, method)))


def _check(ptrs, mask, verb: str, extents, named) -> None:
    addresses = ptrs.data
    if mask is not None:
        addresses = addresses[np.broadcast_to(mask.data, addresses.shape)]
    if not addresses.size:
        return
    known = extents()
    if not known:  # outside of a watched call
        return
    low, high = int(addresses.min()), int(addresses.max())
    if any(first <= low and high < end for first, end in known):  # all in one tensor, as a rule
        return
    tile = ptrs.data.astype(np.int64)
    asked = np.ones(tile.shape, bool) if mask is None else np.broadcast_to(mask.data, tile.shape)
    inside = np.zeros(tile.shape, bool)
    for first, end in known:
        inside |= (tile >= first) & (tile < end)
    outside = asked & ~inside
    if not outside.any():
        return
    tensor = tensor_of(getattr(ptrs, "base", None), tile[asked], named())
    if tensor is None:
        raise OutOfBounds(verb, int(outside.sum()), "", _lanes(outside))
    name, *place = tensor
    here = _heads(tile, *place)
    outside = asked & (here < 0)  # what lies around a tensor in its storage is no part of it
    lanes = _lanes(outside)
    own = here[asked & (here >= 0)][:1]
    if lanes and own.size and (other := asked & (here >= 0) & (here != own)).any():
        lanes += f", {_lanes(other, whole=False)} in another head"
    raise OutOfBounds(verb, int(outside.sum()), name, lanes)


def tensor_of(base: int | None, asked: np.ndarray, named: list[tuple]) -> tuple | None:
    """Of these tensors the one that a pointer was made of; where that is not known the one that its
    first lane lies in, or within NEAR bytes of."""
    pointer, found = int(asked[0]) if base is None else base, []
    for number, (_, first, size, shape, strides) in enumerate(named):
        last = first + size * sum((n - 1) * m for n, m in zip(shape, strides, strict=True))
        away = max(first - pointer, pointer - last, 0)
        found.append((away, abs(first - pointer), number))
    away, _, number = min(found, default=(NEAR + 1, 0, 0))
    return named[number] if away <= NEAR else None


def addresses_of(first: int, size: int, shape: list[int], strides: list[int]) -> np.ndarray:
    """Of every number of a tensor, in its order."""
    there = np.full(1, first)
    for n, stride in zip(shape, strides, strict=True):
        there = np.add.outer(there, np.arange(n) * stride * size)
    return there.ravel()


def _heads(addresses: np.ndarray, first: int, size: int, shape: list[int], strides: list[int]
           ) -> np.ndarray:
    """Which head of a tensor each address lies in, all leading axes counted as one; -1: in none."""
    there = addresses_of(first, size, shape, strides)
    rows = int(np.prod(shape[2:])) if len(shape) > 2 else there.size
    order = np.argsort(there, kind="stable")
    at = np.searchsorted(there, addresses, sorter=order).clip(max=max(there.size - 1, 0))
    if not there.size:
        return np.full(addresses.shape, -1)
    at = order[at]
    return np.where(there[at] == addresses, at // max(rows, 1), -1)


def _lanes(outside: np.ndarray, whole: bool = True) -> str:
    """Where the lanes are: "rows 40-63 of the (64, 16) tile", "lanes 40-63 of 64"; "" of one.
    whole: of how many is said, too."""
    if outside.size == 1:
        return ""
    axes = ("lane",) if outside.ndim == 1 else ("row", "column")
    said = []
    for axis, name in enumerate(axes[:outside.ndim]):
        others = tuple(other for other in range(outside.ndim) if other != axis)
        at = np.flatnonzero(outside.any(others))
        if len(at) < outside.shape[axis]:
            span = f"s {at[0]}-{at[-1]}" if len(at) > 1 else f" {at[0]}"
            said.append(name + span)
    size = str(outside.size) if outside.ndim == 1 else f"the {outside.shape} tile"
    return (" and ".join(said) or "all") + f" of {size}" * whole
