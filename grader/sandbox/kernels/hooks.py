"""Hooks into Triton; the one module that knows the inside of its interpreter, 3.6 to 3.9.

interpret() makes the interpreter accept and reject what the compiler does, and tell listeners what
each kernel does to memory.  Listeners do not affect each other, so their order does not matter.
watch_launches() hands every launch to the recorder, interpreted or compiled. 
interpreter_speedups.py uses inside names, too, but only to save time: if one is gone, it leaves
that part alone.
"""

import ast
import contextlib
import functools
import inspect
import operator
import sys
from traceback import walk_stack
from types import SimpleNamespace

import numpy as np

from . import foreign, gpu_only, pretend_gpu

UNWRAPPED = "_unwrapped_for_is"  # a name in the interpreter's module, and so in every kernel
POINTERS = ("create_addptr", "create_splat", "create_expand_dims", "create_broadcast",
            "create_reshape", "create_trans")  # what makes pointers from pointers


# ------------------------------------------------------------------ what kernels do to memory
class Access:
    """One load, store or atomic operation of a program.

    tile: the addresses of all lanes.  lanes: those that no mask turns off; addresses: their
    addresses, flattened.  base: the address that the pointer was made from; None if not known.
    has_other: whether `other=` gives masked lanes a value.
    """

    def __init__(self, pointers, mask, other=None):
        self.tile, self.base = pointers.data, getattr(pointers, "base", None)
        self.lanes = (np.ones(self.tile.shape, bool) if mask is None
                      else np.broadcast_to(mask.data, self.tile.shape))
        self.addresses = self.tile[self.lanes]
        self.has_other = other is not None

    def within(self, extents) -> tuple[int, int] | None:
        """The extent (first byte, byte after the last) that holds all addresses, or None."""
        low, high = int(self.addresses.min()), int(self.addresses.max())
        return next((one for one in extents if one[0] <= low and high < one[1]), None)


class Listener:
    """Is told what kernels do, in order; a subclass overrides what it needs to know."""

    def launch(self, grid: tuple[int, ...]) -> None:
        """Before the first program."""

    def program(self, place: tuple[int, ...]) -> None:
        """Before each program."""

    def load(self, access: Access) -> None:
        """Before a load."""

    def loaded(self, access: Access, numbers: np.ndarray) -> None:
        """After a load.  Only numbers of masked lanes may be changed."""

    def store(self, access: Access, numbers: np.ndarray) -> None:
        """Before a store."""

    def atomic(self, access: Access, numbers: np.ndarray, adds: bool) -> None:
        """Before an atomic operation.  adds: it combines floating-point numbers; others may be used
        by programs to wait for each other."""


listeners: list[Listener] = []  # those active now


def line_at_work(path: str) -> int | None:
    """The line of the file that is running; None in autograd's own code after it."""
    frames = walk_stack(sys._getframe())  # in a thread of autograd, all there are
    return next((line for frame, line in frames if frame.f_code.co_filename == path), None)


def argument_at_work(path: str, name: str) -> bool | None:
    """The flag that the running functions of the file were given under this name; None if
    without."""
    for frame, _ in walk_stack(sys._getframe()):
        if frame.f_code.co_filename == path and name in frame.f_code.co_varnames:
            value = frame.f_locals.get(name)
            held = numbers(value)
            return bool(np.any(getattr(value, "value", value) if held is None else held))
    return None


@contextlib.contextmanager
def listening(listener: Listener):
    """Within this block, the listener is told, too."""
    listeners.append(listener)
    try:
        yield
    finally:
        listeners.remove(listener)


def _tell_listeners(core, interpreter) -> None:
    builder = interpreter.InterpreterBuilder
    load, store = builder.create_masked_load, builder.create_masked_store
    rmw, cas = builder.create_atomic_rmw, builder.create_atomic_cas
    set_dim, set_idx = builder.set_grid_dim, builder.set_grid_idx

    def tell(event: str, *about) -> None:
        for listener in listeners:
            getattr(listener, event)(*about)

    def set_grid_dim(self, *sizes):
        tell("launch", sizes)
        return set_dim(self, *sizes)

    def set_grid_idx(self, *place):
        tell("program", place)
        return set_idx(self, *place)

    def masked_load(self, pointers, mask, other, *args, **kwargs):
        access = Access(pointers, mask, other)
        tell("load", access)
        result = load(self, pointers, mask, other, *args, **kwargs)
        tell("loaded", access, result.data)
        return result

    def masked_store(self, pointers, value, mask, *args, **kwargs):
        tell("store", Access(pointers, mask), value.data)
        return store(self, pointers, value, mask, *args, **kwargs)

    def atomic_rmw(self, operation, pointer, value, mask, *args, **kwargs):
        adds = value.dtype.scalar.is_floating() and "XCHG" not in str(operation)
        tell("atomic", Access(pointer, mask), value.data, adds)
        return rmw(self, operation, pointer, value, mask, *args, **kwargs)

    def atomic_cas(self, pointer, compared, value, *args, **kwargs):
        tell("atomic", Access(pointer, None), value.data, False)
        return cas(self, pointer, compared, value, *args, **kwargs)

    builder.set_grid_dim, builder.set_grid_idx = set_grid_dim, set_grid_idx
    builder.create_masked_load, builder.create_masked_store = masked_load, masked_store
    builder.create_atomic_rmw, builder.create_atomic_cas = atomic_rmw, atomic_cas


def _follow_pointers(core, interpreter) -> None:
    """Give each pointer the address it was made from, as base."""
    def followed(make):
        @functools.wraps(make)
        def made(self, *args, **kwargs):
            result = make(self, *args, **kwargs)
            for one in args[:2] if result.dtype.is_ptr() else ():  # a splat's first is its type
                if hasattr(one, "base"):
                    result.base = one.base
                elif hasattr(one, "data") and one.data.size == 1 and one.dtype.is_ptr():
                    result.base = int(one.data.flat[0])
            return result
        return made

    for name in POINTERS:
        if make := getattr(interpreter.InterpreterBuilder, name, None):
            setattr(interpreter.InterpreterBuilder, name, followed(make))


# ------------------------------------------------------------------ what a kernel may say
def interpret(path: str) -> None:
    """Prepare this process to interpret the kernels of the file at path, before importing it."""
    from triton.language import core
    from triton.runtime import interpreter

    for hook in (_insist, _tell_listeners, _follow_pointers, _multiply_constants, _add_no_names,
                 _compare_constants, _know_constants, _ask_conditions, _lack_a_gpu):
        hook(core, interpreter)
    _refuse_truth(interpreter, path)


def take_other_names(names: dict) -> None:
    """Let a file with these globals call tl.load by another name, as with `from triton.language
    import load`.  A launch replaces only the functions in triton.language itself."""
    from triton import language

    homes = {id(value): (home, name) for home in (language.math, language.core, language)
             for name, value in vars(home).items() if callable(value)}

    def looked_up(home, name: str, plain):
        def call(*args, **kwargs):
            return getattr(home, name)(*args, **kwargs)
        return functools.update_wrapper(call, plain)

    for name, value in list(names.items()):
        home, own = homes.get(id(value), (None, ""))
        if home is not None and (not isinstance(value, type) or own in ("range", "static_range")):
            names[name] = looked_up(home, own, value)


def compiled(module) -> str:
    """The name of a kernel of the file that would be compiled in spite of us, or "" """
    from triton.runtime.jit import JITFunction

    return next((name for name, x in vars(module).items() if isinstance(x, JITFunction)), "")


def is_gluon(kernel) -> bool:
    """Whether a kernel is written in Gluon, which is always compiled."""
    return bool(getattr(kernel, "is_gluon", lambda: False)())


def _insist(core, interpreter) -> None:
    """Interpret kernels whatever the file does to TRITON_INTERPRET; and reject a kernel made by
    exec(), as the compiler does, which needs its text."""
    import triton

    triton.knobs.runtime.interpret = True
    make = interpreter.InterpretedFunction.__init__

    @functools.wraps(make)
    def made(self, fn, *args, **kwargs):
        try:
            inspect.getsourcelines(fn)
        except OSError as error:
            raise ValueError("@jit functions should be defined in a Python file") from error
        make(self, fn, *args, **kwargs)

    interpreter.InterpretedFunction.__init__ = made


def _add_no_names(core, interpreter) -> None:
    """Leave math, np and whatever else the interpreter's module has out of the file, which they
    would be copied into: a kernel that names them without an import compiles on no GPU."""
    execute = interpreter.FunctionRewriter._compile_and_exec

    @functools.wraps(execute)
    def executed(self, tree):
        names = self.fn.__globals__
        before, own = set(names), set(self.fn.__code__.co_names)
        function = execute(self, tree)
        needed = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)} - own
        for name in names.keys() - before - needed:
            found = names.pop(name)
            if found in (core, interpreter.tl):  # a launch looks for them, whatever their names
                names[found.__name__] = found
        return function

    interpreter.FunctionRewriter._compile_and_exec = executed


def _multiply_constants(core, interpreter) -> None:
    """Allow a constant of the file to the left of a tensor (LOG2E * sink), as the compiler does.

    The interpreter would make another constant of it, which tl's functions reject.
    """
    def beside(name: str, constants):
        def apply(self, other):
            if isinstance(other, core.tensor):
                return getattr(operator, name)(self.value, other)
            return constants(self, other)
        return apply

    for name in ("add", "sub", "mul", "truediv"):
        method = f"__{name}__"
        setattr(core.constexpr, method, beside(name, getattr(core.constexpr, method)))


class _Identities(ast.NodeTransformer):
    """Makes `X is None` look into a constant X, as the compiler does."""

    def visit_Compare(self, node: ast.Compare) -> ast.Compare:
        self.generic_visit(node)
        if all(isinstance(sign, ast.Is | ast.IsNot) for sign in node.ops):
            node.left, *node.comparators = (
                ast.copy_location(ast.Call(ast.Name(UNWRAPPED, ast.Load()), [one], []), one)
                for one in (node.left, *node.comparators))
        return node


def _compare_constants(core, interpreter) -> None:
    """Make `is` look into a tl.constexpr(None) of the file."""
    plain = interpreter.FunctionRewriter.ast_transformer
    setattr(interpreter, UNWRAPPED, core._unwrap_if_constexpr)
    interpreter.FunctionRewriter.ast_transformer = SimpleNamespace(
        visit=lambda tree: plain.visit(_Identities().visit(tree)))


def _know_constants(core, interpreter) -> None:
    """Understand `lang.constexpr` and `from triton.language import constexpr as CE`.

    The interpreter sees annotations as text, and knows only "tl.constexpr".
    """
    begin = interpreter.GridExecutor.__init__

    def is_constant(annotation, names: dict) -> bool:
        with contextlib.suppress(Exception):  # text that is not a name in the file
            annotation = eval(annotation, names) if isinstance(annotation, str) else annotation
        return annotation is core.constexpr

    @functools.wraps(begin)
    def begun(self, fn, *args, **kwargs):
        begin(self, fn, *args, **kwargs)
        self.constexprs += [name for name, annotation in fn.__annotations__.items()
                            if name not in self.constexprs
                            and is_constant(annotation, fn.__globals__)]

    interpreter.GridExecutor.__init__ = begun


def _ask_conditions(core, interpreter) -> None:
    """Evaluate `while tl.condition(i < n)`, whose object would otherwise always be true."""
    core.condition.__bool__ = lambda self: bool(self.condition)


def _refuse_truth(interpreter, path: str) -> None:
    """Raise an error where a line of this file uses a tile as a truth value, as `if`, max() and
    `x if c else y` do; in the interpreter every tile is true."""
    patch = interpreter._patch_lang_tensor
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


def _lack_a_gpu(core, interpreter) -> None:
    """Do by NumPy what the interpreter cannot, or raise gpu_only.NeedsGPU."""
    from triton.language.extra import cuda, libdevice

    for name, function in list(vars(cuda.libdevice).items()):
        if core.is_builtin(function):
            # As in the compiler, names of the one stand for those of the other.
            for home in (libdevice, cuda.libdevice):
                setattr(home, name, functools.wraps(function)(functools.partial(
                    function, _semantic=interpreter.interpreter_semantic)))

    def elementwise(builder, library, path, symbol: str, arguments: list, kind, is_pure):
        found = gpu_only.libdevice(symbol, [argument.data for argument in arguments])
        return interpreter.TensorHandle(
            found.astype(interpreter._get_np_dtype(kind)), kind.scalar)

    run = interpreter.InterpretedFunction.run

    @functools.wraps(run)
    def run_and_compile_nothing(self, *args, **kwargs):
        run(self, *args, **kwargs)
        return gpu_only.CompiledKernel() if pretend_gpu.installed else None

    interpreter.InterpreterBuilder.create_extern_elementwise = elementwise
    interpreter.InterpretedFunction.run = run_and_compile_nothing


# ------------------------------------------------------------------ tiles as NumPy has them
def tile(array: np.ndarray):
    """A tensor of the interpreter; a single number if the array has no axes."""
    import triton.language as tl

    dtype = _dtype(array.dtype)
    kind = tl.block_type(dtype, list(array.shape)) if array.ndim else dtype
    return _tensor(array.reshape(array.shape or 1), dtype, kind)


def pointer(address: int, dtype: np.dtype):
    """A pointer to numbers of this dtype."""
    import triton.language as tl

    kind = tl.pointer_type(_dtype(dtype))
    return _tensor(np.array([address], np.uint64), kind, kind)


def numbers(value) -> np.ndarray | None:
    """The contents of a tensor of the interpreter; addresses if it holds pointers.  None for
    anything else."""
    data = getattr(getattr(value, "handle", None), "data", None)
    if data is None:
        return None
    return np.asarray(data) if value.type.is_block() else np.asarray(data).reshape(-1)[0]


def _tensor(data: np.ndarray, dtype, kind):
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    return tl.core.tensor(TensorHandle(data, dtype), kind)


def _dtype(dtype: np.dtype):
    import triton.language as tl

    return tl.int1 if dtype.kind == "b" else getattr(tl, dtype.name)


# ------------------------------------------------------------------ launches, interpreted or not
def watch_launches(recorder, on_phase) -> None:
    """Record launches, and tell the parent when a compilation begins and ends.

    recorder() -> the active Recorder or None.  on_phase: called with "compile" and with "case".
    """
    try:
        import triton.compiler.compiler as compiler
        from triton.runtime.autotuner import Autotuner
        from triton.runtime.interpreter import InterpretedFunction
        from triton.runtime.jit import JITFunction
    except ImportError:  # stage 1 needs no Triton
        return

    def unrecorded(call, self, args, kwargs):
        with recorder().unrecorded() if recorder() else contextlib.nullcontext():
            return call(self, *args, **kwargs)

    def recorded(run):
        @functools.wraps(run)
        def launched(self, *args, grid, warmup, **kwargs):
            given = {"grid": grid, "warmup": warmup, **kwargs}
            if recorder() is None or warmup:
                return run(self, *args, **given)
            try:
                bound, options = _bound(self, args, kwargs)
            except TypeError:  # Triton will report it
                return run(self, *args, **given)
            given["grid"] = grid(dict(bound)) if callable(grid) else grid
            recorder().launch(self, bound, given["grid"], options)
            try:
                return unrecorded(run, self, args, given)  # the interpreter copies tensors
            except Exception:
                recorder().take_back_launch()
                raise
        return launched

    InterpretedFunction.run = recorded(InterpretedFunction.run)
    JITFunction.run = recorded(JITFunction.run)
    bench = Autotuner._bench
    Autotuner._bench = functools.wraps(bench)(
        lambda self, *args, **kwargs: unrecorded(bench, self, args, kwargs))

    # `handle = kernel.warmup(...); handle[grid](...)` goes past JITFunction.run.
    pick = compiler.CompiledKernel.__getitem__

    @functools.wraps(pick)
    def handle(self, grid):
        launcher = pick(self, grid)

        def launch_handle(*args, **kwargs):
            if recorder() is not None:
                function = self.src.fn
                bound = dict(zip(function.arg_names, args, strict=False))
                bound |= {function.arg_names[path[0]]: value
                          for path, value in self.src.constants.items()}
                options = {name: getattr(self.metadata, name, None)
                           for name in ("num_warps", "num_stages", "num_ctas", "maxnreg")}
                recorder().launch(function, bound, grid, options)
            return launcher(*args, **kwargs)

        return launch_handle

    compiler.CompiledKernel.__getitem__ = handle
    compile_kernel = compiler.compile

    @functools.wraps(compile_kernel)
    def announced(*args, **kwargs):
        on_phase("compile")
        try:
            return compile_kernel(*args, **kwargs)
        finally:
            on_phase("case")

    for module in (compiler, sys.modules["triton.compiler"], sys.modules["triton"]):
        module.compile = announced
    # asserts.py reads a static_assert's values from the compiler's frames.
    compiler.filter_traceback = lambda error: None


def load_launcher() -> None:
    """Do what Triton's first launch on this GPU would do, which may run a C compiler."""
    with contextlib.suppress(Exception):  # errors will show at a launch
        import triton

        assert triton.runtime.driver.active.utils


def _bound(kernel, args, kwargs) -> tuple[dict, dict]:
    """-> the arguments by parameter of the kernel; the remaining ones, which are options."""
    signature = inspect.signature(kernel.fn)
    named = {name: value for name, value in kwargs.items() if name in signature.parameters}
    options = {name: value for name, value in kwargs.items() if name not in named}
    bound = signature.bind(*args, **named)
    bound.apply_defaults()
    return dict(bound.arguments), options
