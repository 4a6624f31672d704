"""`double(x) -> 2 * x` by autotuned kernels."""

import torch
import triton
import triton.language as tl

CONFIGS = [triton.Config({"BLOCK": 16}), triton.Config({"BLOCK": 4}, num_warps=2)]


def _plain(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.store(y_ptr + offs, x * 2, mask=offs < n)


def _adding(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.atomic_add(y_ptr + offs, x * 2, mask=offs < n)


def _second_is_wrong(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.store(y_ptr + offs, x * (2 if BLOCK == 16 else 3), mask=offs < n)


def _first_is_refused(x_ptr, y_ptr, n, BLOCK: tl.constexpr):
    tl.static_assert(BLOCK < 16)
    offs = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    x = tl.load(x_ptr + offs, mask=offs < n, other=0.0)
    tl.store(y_ptr + offs, x * 2, mask=offs < n)


def _autotuned(function, **options):
    return triton.autotune(configs=CONFIGS, key=["n"], **options)(triton.jit(function))


_plain_kernel = _autotuned(_plain)
_adding_kernel = _autotuned(_adding)
_reset_kernel = _autotuned(_adding, reset_to_zero=["y_ptr"])
_restored_kernel = _autotuned(_adding, restore_value=["y_ptr"])
_second_kernel = _autotuned(_second_is_wrong)
_refused_kernel = _autotuned(_first_is_refused)
_pruned_kernel = _autotuned(_second_is_wrong, prune_configs_by={
    "early_config_prune": lambda configs, named, **kwargs: configs[:1]})
_heuristic_kernel = triton.autotune(configs=[triton.Config({}), triton.Config({}, num_warps=2)],
                                    key=["n"], rep=1)(
    triton.heuristics({"BLOCK": lambda named: 4})(triton.jit(_plain)))
_tuned_heuristic_kernel = triton.heuristics(
    {"n": lambda named: named["x_ptr"].numel()})(_plain_kernel)


def _launch(kernel, x, **arguments):
    y = torch.zeros_like(x)
    kernel[lambda meta: (triton.cdiv(12, meta.get("BLOCK", 4)),)](x, y, **arguments)
    return y


def plain(x):
    return _launch(_plain_kernel, x, n=x.numel())


def adding(x):
    return _launch(_adding_kernel, x, n=x.numel())


def reset(x):
    return _launch(_reset_kernel, x, n=x.numel())


def restored(x):
    return _launch(_restored_kernel, x, n=x.numel())


def second_is_wrong(x):
    return _launch(_second_kernel, x, n=x.numel())


def first_is_refused(x):
    return _launch(_refused_kernel, x, n=x.numel())


def pruned(x):
    return _launch(_pruned_kernel, x, n=x.numel())


def heuristic(x):
    return _launch(_heuristic_kernel, x, n=x.numel())


def tuned_heuristic(x):
    return _launch(_tuned_heuristic_kernel, x)


module_level = plain(torch.ones(12, device="cuda"))
