"""Triton kernels for `double(x) -> 2 * x`, right and wrong in ways only a compiler or only an
interpreter shows."""

import os

import torch
import triton
import triton.language as tl

BLOCK = 64


@triton.jit
def _double(x):
    return x * 2


@triton.jit
def _double_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.store(y_ptr + offs, _double(x), mask=offs < n)


@triton.jit
def _broken_helper(x):
    return x + missing_name  # noqa: F821 -- on purpose


@triton.jit
def _broken_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.store(y_ptr + offs, _broken_helper(x), mask=offs < n)


@triton.jit
def _continue_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    for start in range(0, n, BLOCK):
        offs = start + tl.arange(0, BLOCK)
        if start > n:
            continue
        tl.store(y_ptr + offs, tl.load(x_ptr + offs, mask=offs < n) * 2, mask=offs < n)


@triton.jit
def _blank_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    # BEGIN SOLUTION 4.2
    raise NotImplementedError("step 4.2")  # TODO: your code here
    # END SOLUTION 4.2
    tl.store(y_ptr + offs, x * 2, mask=offs < n)  # noqa: F821


@triton.jit
def _big_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    rows, cols = tl.arange(0, BLOCK), tl.arange(0, BLOCK)
    tile = rows[:, None] * BLOCK + cols[None, :]
    acc = tl.zeros([BLOCK, BLOCK], tl.float32)
    for start in range(0, n, BLOCK):
        a = tl.load(x_ptr + start + tile)
        b = tl.load(y_ptr + start + tile)
        acc = tl.dot(a, b, acc)
    tl.store(y_ptr + tile, acc)


@triton.jit
def _lost_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    """2 * x, and a sum of previous values that the compiler gets wrong."""
    offs = tl.arange(0, BLOCK)
    a = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    previous = a
    total = a * 0
    for _ in range(3):
        total += previous
        previous = a  # the marked line
        a = a + 1
    tl.store(y_ptr + offs, total, mask=offs < n)


@triton.jit
def _outside_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK).to(tl.int64) + (1 << 40)
    tl.store(y_ptr + offs, 1.0)


def _launch(kernel, x, block=BLOCK, **options):
    y = torch.empty_like(x)
    kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](
        x, y, x.numel(), BLOCK=block, **options
    )
    return y


def right(x):
    assert x.is_cuda, "want a CUDA tensor"
    return _launch(_double_kernel, x)


def broken(x):
    return _launch(_broken_kernel, x)


def with_continue(x):
    return _launch(_continue_kernel, x)


def blank(x):
    return _launch(_blank_kernel, x)


def too_big(x):
    return _launch(_big_kernel, x, block=256, num_warps=8)


def loses_value(x):
    return _launch(_lost_kernel, x)


def outside(x):
    return _launch(_outside_kernel, x)


def out_of_memory(x):
    return torch.empty(1 << 45, device=x.device)


tuned_kernel = triton.autotune(
    configs=[triton.Config({"BLOCK": 256}, num_warps=8), triton.Config({"BLOCK": 64})], key=["n"],
)(_double_kernel)
tuned_big_kernel = triton.autotune(
    configs=[triton.Config({"BLOCK": 256}, num_warps=8), triton.Config({"BLOCK": 64})], key=["n"],
)(_big_kernel)


def tuned(x):
    y = torch.empty_like(x)
    tuned_kernel[lambda meta: (triton.cdiv(x.numel(), meta["BLOCK"]),)](x, y, x.numel())
    return y


def tuned_to_fit(x):
    y = torch.empty_like(x)
    tuned_big_kernel[(1,)](x, y, x.numel())
    return y


class Double(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return right(x)

    @staticmethod
    def backward(ctx, dy):
        return right(dy.contiguous())


def differentiable(x):
    return Double.apply(x)


def interpreted(x):
    return torch.full_like(x, float(os.environ["TRITON_INTERPRET"]))


@triton.jit
def _unmasked_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    tl.store(y_ptr + offs, x * 2, mask=offs < n)


def unmasked(x):
    return _launch(_unmasked_kernel, x)


@triton.jit
def _strayed_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    away = ((y_ptr.to(tl.int64) - x_ptr.to(tl.int64)) // 4).to(tl.int64)
    offs = away + tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs)
    tl.store(y_ptr + offs, x * 2, mask=offs < n)


def strayed(x):
    return _launch(_strayed_kernel, x)


@triton.jit
def _wide_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n)
    tl.store(y_ptr + offs, x * 2, mask=offs <= n)


def wide(x):
    return _launch(_wide_kernel, x)
