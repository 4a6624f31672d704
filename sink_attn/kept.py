"""Plans, compiled kernels and descriptors, kept from call to call to save the host's time."""

import contextlib

import torch

MOST = 1000  # of each kind: a program whose lengths never recur must not keep them all

_plans = {}
_kernels = {}  # compiled; Triton's own lookup takes longer than the rest of a call
_descriptors = {}  # a program's tensors are often allocated at the same addresses again


def plan(key, make, *args):
    """Returns make(*args), or what it returned for the same key.  A plan holds no tensor."""
    found = _plans.get((make, key))
    if found is None:
        found = make(*args)
        _keep(_plans, (make, key), found)
    return found


def launch(key, function, grid, *args, **options):
    """Launch function[grid](*args); from the second time on, without looking up its kernel.

    Args:
        key: differs between launches that are compiled differently.
        args: all arguments, constexprs included.
        options: num_warps and the like.
    """
    kernel = _kernels.get(key)
    if kernel is None:
        _keep(_kernels, key, function[grid](*args, **options))
    else:
        kernel[grid](*args)


def describe(x: torch.Tensor, block, make):
    """Returns make(x, block), a tensor descriptor, or the one kept for x's form and address.

    A kept descriptor does not keep x alive.
    """
    key = x.data_ptr(), x.shape, x.stride(), x.dtype, block, make
    found = _descriptors.get(key)
    if found is None:
        found = make(x, block)
        if found.base is x:  # that of a copy is not kept, and keeps its copy alive
            found.base = _Place(x)
            _keep(_descriptors, key, found)
    return found


def forget() -> None:
    """Drop everything that was kept, after a change in how kernels are launched."""
    for memory in (_plans, _kernels, _descriptors):
        memory.clear()


def _keep(memory: dict, key, value) -> None:
    if len(memory) >= MOST:
        memory.clear()
    memory[key] = value


class _Place:
    """The dtype and address of a tensor, all that a kept descriptor needs of it."""

    def __init__(self, x: torch.Tensor):
        self.dtype, self.address = x.dtype, x.data_ptr()

    def data_ptr(self) -> int:
        return self.address


_HERE = contextlib.nullcontext()


def on(device: torch.device):
    """Returns torch.cuda.device(device), or a context that does nothing if there is no need."""
    if device.type != "cuda" or torch.cuda.current_device() == device.index:
        return _HERE
    return torch.cuda.device(device)


def form(*tensors) -> tuple:
    """Returns all properties of tensors (or None) that decide what is compiled and launched."""
    return tuple([
        None if x is None else (x.shape, x.stride(), x.dtype, x.data_ptr() % 16) for x in tensors
    ])
