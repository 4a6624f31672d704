"""`double(x) -> 2 * x` by what runs on a GPU, and in an interpreter only as far as NumPy goes."""

import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice
from triton.language.extra.libdevice import exp2 as two_to_the


@triton.jit
def _libdevice_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    sign = libdevice.copysign(two_to_the(x * 0), x)
    nought = libdevice.log(libdevice.exp(libdevice.abs(x) / 8)) * 0
    root = libdevice.sqrt_rn(libdevice.pow(x, 2.0)) + libdevice.hypot(libdevice.erf(x) * 0, nought)
    y = tl.where(libdevice.isnan(x) != 0, x, libdevice.fma(sign, root, x))
    tl.store(y_ptr + offs, y, mask=offs < n)


@triton.jit
def _unknown_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.store(y_ptr + offs, x * 2 + 0 * libdevice.normcdf(x), mask=offs < n)


@triton.jit
def _assembly_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    y = tl.inline_asm_elementwise("add.f32 $0, $1, $1;", "=r,r", [x], dtype=tl.float32,
                                  is_pure=True, pack=1)
    tl.store(y_ptr + offs, y, mask=offs < n)


@triton.jit
def _twice(x):
    return x * 2


@triton.jit
def _mapped_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.store(y_ptr + offs, tl.map_elementwise(_twice, x), mask=offs < n)


@triton.jit
def _double_kernel(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.store(y_ptr + offs, x * 2, mask=offs < n)


def _launch(kernel, x):
    y = torch.empty_like(x)
    return y, kernel[(1,)](x, y, x.numel(), BLOCK=64)


def by_libdevice(x):
    return _launch(_libdevice_kernel, x)[0]


def unknown(x):
    return _launch(_unknown_kernel, x)[0]


def assembly(x):
    return _launch(_assembly_kernel, x)[0]


def mapped(x):
    return _launch(_mapped_kernel, x)[0]


def warmed_up(x):
    compiled = _double_kernel.warmup(x, x, x.numel(), BLOCK=64, grid=(1,))
    compiled._init_handles()
    return _launch(_double_kernel, x)[0]


def launched_by_its_handle(x):
    y = torch.empty_like(x)
    _double_kernel.warmup(x, y, x.numel(), BLOCK=64, grid=(1,))[(1,)](x, y, x.numel())
    return y


def warmed_up_in_vain(x):
    _double_kernel.warmup(x, x, x.numel(), BLOCK=64, grid=(1,))
    return _launch(_double_kernel, x)[0]


def registers(x):
    y, compiled = _launch(_double_kernel, x)
    assert compiled.n_regs < 256
    return y


def metadata_read(x):
    y, compiled = _launch(_double_kernel, x)
    assert compiled.metadata.shared is not None
    return y


def cached(x):
    assert _double_kernel.cache_key
    return _launch(_double_kernel, x)[0]


def events(x):
    torch.cuda.Event(enable_timing=True)
    return _launch(_double_kernel, x)[0]


def misspelled(x):
    return _double_kernel.lunch(x)
