"""Ways to write `double(x) -> 2 * x` that Triton's compiler takes, one kernel for each kind."""

from typing import NamedTuple

import torch
import triton
import triton.language as tl

NOTHING = tl.constexpr(None)


class Pair(NamedTuple):
    first: object
    second: object


class Nested(NamedTuple):
    inner: Pair
    other: int


@triton.jit
def _product(pair: Pair):
    return pair.first * pair.second


@triton.jit
def _with(x, factor):
    return Pair(first=x, second=factor)


@triton.jit
def _annotated(x: torch.Tensor, factor: "int", by: tl.constexpr) -> torch.Tensor:
    result: torch.Tensor = x * factor * by
    return result


@triton.jit
def _attributes_kernel(x_ptr, y_ptr, n, nested, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.static_assert(x.dtype.primitive_bitwidth == 32 and x.dtype.itemsize == 4)
    tl.static_assert(x.dtype.fp_mantissa_width == 23 and x.dtype.exponent_bias == 127)
    tl.static_assert(offs.dtype.int_bitwidth == 32 and offs.dtype.is_int_signed())
    tl.static_assert(offs.dtype.int_signedness == tl.dtype.SIGNEDNESS.SIGNED)
    tl.static_assert(x.type.scalar.name == "fp32" and x.type.nbytes == 4 * x.numel.value)
    tl.static_assert(not x_ptr.dtype.const and x_ptr.dtype.element_ty == x.dtype)
    tile = x.reshape(8, 8)
    x = tl.maximum(tile.T.T, tile, propagate_nan=tl.PropagateNan.ALL).reshape(64)
    tl.store(y_ptr + offs, x * 2, mask=offs < n)


@triton.jit
def _named_tuples_kernel(x_ptr, y_ptr, n, nested, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs * nested.inner.first, mask=offs < n, other=0.0)
    first, second = nested.inner
    tl.store(y_ptr + offs * first, _product(_with(x, second)) * nested[1], mask=offs < n)


@triton.jit
def _lookups_kernel(x_ptr, y_ptr, n, nested, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    x = getattr(x, "to")(getattr(tl, "float32"))  # noqa: B009
    if hasattr(x, "dtype"):
        x = _annotated(x, 1, by=2)
    tl.store(y_ptr + offs, x, mask=offs < n)


@triton.jit
def _conditions_kernel(x_ptr, y_ptr, n, nested, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    assert BLOCK == 64, f"want 64; got {BLOCK}"
    tl.device_assert(n > 0, "n")
    y, i = x * 0 if NOTHING is None else x, 0
    if NOTHING is not None or nested is None:
        y = x
    while tl.condition(i < 2, disable_licm=True):
        y, i = y + x, i + 1
    tl.store(y_ptr + offs, y, mask=offs < n)


def _launch(kernel, x):
    y = torch.empty_like(x)
    kernel[(1,)](x, y, x.numel(), Nested(Pair(1, 2), 1), BLOCK=64)
    return y


def attributes(x):
    return _launch(_attributes_kernel, x)


def named_tuples(x):
    return _launch(_named_tuples_kernel, x)


def lookups(x):
    return _launch(_lookups_kernel, x)


def conditions(x):
    return _launch(_conditions_kernel, x)
