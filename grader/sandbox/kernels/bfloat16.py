"""Lets Triton's interpreter compute with bfloat16 as a GPU does: in float32, rounded afterwards.

It keeps a bfloat16 as the whole number of its 16 bits, and up to Triton 3.9 multiplies, adds and
compares these (triton#11584): a product of two tiles then has numbers such as 1e10, of which the
file knows nothing.
"""

import contextlib
import functools

import numpy as np


def compute() -> None:
    """Wrap the interpreter's arithmetic; if a name is missing, that part stays as it is."""
    import triton.language as tl
    from triton.runtime import interpreter

    handle = interpreter.TensorHandle

    def is_half(one) -> bool:
        return isinstance(one, handle) and one.dtype.scalar == tl.bfloat16

    def wide(one):
        return handle(widened(one.data), tl.float32) if is_half(one) else one

    def in_float32(real):
        @functools.wraps(real)
        def computed(self, *args):
            if not any(map(is_half, args)) or args[-1] is np.where:  # which only chooses
                return real(self, *args)
            made = real(self, *map(wide, args))
            if made.dtype.scalar == tl.float32 and made.data.dtype == np.float32:
                return handle(rounded(made.data), tl.bfloat16)
            return made
        return computed

    def product(real):
        @functools.wraps(real)
        def computed(self, a, b, d, *more):
            return real(self, wide(a), wide(b), d, *more)
        return computed

    def cast(real):
        @functools.wraps(real)
        def computed(self, src, dst_type):
            if is_half(src) and dst_type.scalar != tl.bfloat16:
                src = wide(src)
            elif dst_type.scalar == tl.bfloat16 and not is_half(src):
                return handle(rounded(src.data.astype(np.float32)), tl.bfloat16)
            return src if src.dtype.scalar == dst_type.scalar else real(self, src, dst_type)
        return computed

    def reduced(real):
        @functools.wraps(real)
        def computed(self, input):
            if not isinstance(input, tuple):
                return real(self, input)  # which calls this again, with a tuple
            half = [is_half(tile.handle) for tile in input]
            made = real(self, tuple(as_tile(wide(tile.handle), tile) if one else tile
                                    for tile, one in zip(input, half, strict=True)))
            return tuple(as_tile(handle(rounded(tile.handle.data), tl.bfloat16), tile)
                         if one and tile.dtype == tl.float32 else tile
                         for tile, one in zip(made, half, strict=True))
        return computed

    def as_tile(numbers, like):
        kind = numbers.dtype.scalar
        return tl.core.tensor(numbers, tl.block_type(kind, list(like.shape))
                              if like.type.is_block() else kind)

    with contextlib.suppress(AttributeError):
        operation = interpreter.ReduceScanOpInterface
        operation.apply = reduced(operation.apply)
    builder = interpreter.InterpreterBuilder
    for name, wrap in (("binary_op", in_float32), ("unary_op", in_float32),
                       ("ternary_op", in_float32), ("create_fma", in_float32),
                       ("create_dot", product), ("cast_impl", cast)):
        with contextlib.suppress(AttributeError):
            setattr(builder, name, wrap(getattr(builder, name)))
    if not hasattr(builder, "get_bf16"):  # a constant, such as the 1.0 in x + 1.0
        builder.get_bf16 = lambda self, value: handle(
            rounded(np.array([value], np.float32)), tl.bfloat16)


def widened(bits: np.ndarray) -> np.ndarray:
    """The numbers of these bits, in float32."""
    return (bits.astype(np.uint32) << 16).view(np.float32)


def rounded(numbers: np.ndarray) -> np.ndarray:
    """float32 -> the bits of the nearest bfloat16, and of the even one of two; NaN stays NaN."""
    bits = np.ascontiguousarray(numbers).view(np.uint32)
    near = ((bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16).astype(np.uint16)
    return np.where(np.isnan(numbers), np.uint16(0x7FC0), near).reshape(numbers.shape)
