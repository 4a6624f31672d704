"""What a call leaves for the next one, which then costs the host less: plans, kernels, descriptors.
"""

import contextlib

import torch

MOST = 1000  # of each kind; a program whose lengths never come back must not keep them all

_plans = {}
_kernels = {}  # compiled; Triton's own search for one takes longer than all the rest of a call
_descriptors = {}  # a program's tensors come back to the same places


def plan(key, make, *args):
    """make(*args), or what it returned where the key was the same.  It holds no tensor."""
    found = _plans.get((make, key))
    if found is None:
        found = make(*args)
        _keep(_plans, (make, key), found)
    return found


def launch(key, function, grid, *args, **options):
    """function[grid](*args), and from the second time on without asking which kernel that is.

    key tells apart what is compiled differently.  args are all arguments, constexprs included.
    """
    kernel = _kernels.get(key)
    if kernel is None:
        _keep(_kernels, key, function[grid](*args, **options))
    else:
        kernel[grid](*args)


def describe(x: torch.Tensor, block, make):
    """make(x, block), a tensor descriptor, or the one that was kept for the form and place of x.

    It does not keep x alive.
    """
    key = x.data_ptr(), x.shape, x.stride(), x.dtype, block, make
    found = _descriptors.get(key)
    if found is None:
        found = make(x, block)
        if found.base is x:  # one of a copy is not kept, and keeps the copy
            found.base = _Place(x)
            _keep(_descriptors, key, found)
    return found


def forget() -> None:
    """For those who change how kernels are launched."""
    for memory in (_plans, _kernels, _descriptors):
        memory.clear()


def _keep(memory: dict, key, value) -> None:
    if len(memory) >= MOST:
        memory.clear()
    memory[key] = value


class _Place:
    """What a kept descriptor needs of a tensor: where it lies.  Does not keep it alive."""

    def __init__(self, x: torch.Tensor):
        self.dtype, self.address = x.dtype, x.data_ptr()

    def data_ptr(self) -> int:
        return self.address


_HERE = contextlib.nullcontext()


def on(device: torch.device):
    """torch.cuda.device(device); nothing where that is the current one already, or a CPU."""
    if device.type != "cuda" or torch.cuda.current_device() == device.index:
        return _HERE
    return torch.cuda.device(device)


def form(*tensors) -> tuple:
    """All by which tensors, or None, tell apart what is compiled and how it is launched."""
    return tuple([
        None if x is None else (x.shape, x.stride(), x.dtype, x.data_ptr() % 16) for x in tensors
    ])
