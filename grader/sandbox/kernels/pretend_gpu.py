"""Lets code written for a GPU run where there is none, in Triton's interpreter or its compiler.

A submission may say `assert q.is_cuda`, `device="cuda"` or `torch.cuda.device(q.device)`, and be
right.  In a CPU worker every tensor therefore claims to be on cuda:0, and every request for that
device is answered with CPU memory.
"""

import contextlib
import functools
from types import SimpleNamespace

import torch

# Bytes of shared memory one program may use: CUDA C++ programming guide, "technical
# specifications per compute capability" (the opt-in maximum per block).
SHARED_BYTES = {75: 65536, 80: 166912, 86: 101376, 89: 101376, 90: 232448, 100: 232448, 120: 101376}
_GPU, _CPU = torch.device("cuda", 0), torch.device("cpu")
installed = False  # for good, by install()


FACTORIES = (
    "empty", "zeros", "ones", "full", "arange", "linspace", "eye", "tensor", "as_tensor",
    "scalar_tensor", "rand", "randn", "randint", "randperm", "empty_strided", "empty_permuted",
    "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like",
    "randint_like", "tril_indices", "triu_indices",
)
METHODS = ("to", "type", "new_empty", "new_zeros", "new_ones", "new_full", "new_tensor",
           "new_empty_strided")


def _on_cpu(function):
    """The same function, with every mention of a CUDA device sent to the CPU.

    Plain wrappers, because a TorchFunctionMode is off inside torch.autograd.grad, and so inside a
    submission's backward.
    """

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        kwargs.pop("pin_memory", None)
        device = kwargs.get("device")
        if device is not None:
            kwargs["device"] = _CPU if isinstance(device, int) else _cpu_for(device)
        return function(*map(_cpu_for, args), **kwargs)

    return wrapper


def _cpu_for(value):
    """A CUDA device, named in any way but a bare number, becomes the CPU."""
    is_cuda = isinstance(value, torch.device) and value.type == "cuda"
    return _CPU if is_cuda or (isinstance(value, str) and value.startswith("cuda")) else value


def _uncompiled(function=None, **options):
    """torch.compile, which would generate code for a GPU."""
    return (lambda plain: plain) if function is None else function


class _Nothing(contextlib.nullcontext):
    """`with torch.cuda.device(...)`: a class, because PyTorch asks isinstance of it."""


class _Properties(SimpleNamespace):
    """Of the GPU that is pretended; absent.py knows the name, for others are asked for."""


class _Driver:
    """Stands in for Triton's CUDA driver: names a target, launches nothing."""

    def __init__(self, capability: int):
        from triton.backends.compiler import GPUTarget

        self.capability = capability
        self.target = GPUTarget("cuda", capability, 32)
        self.utils = SimpleNamespace(get_device_properties=lambda device: {
            "max_shared_mem": SHARED_BYTES.get(capability, 101376), "multiprocessor_count": 132,
            "warpSize": 32, "max_num_regs": 65536, "sm_clock_rate": 1755000,
            "mem_clock_rate": 2619000, "mem_bus_width": 5120,
        })

    def get_current_target(self):
        return self.target

    def get_current_device(self):
        return 0

    def set_current_device(self, device):
        pass

    def get_current_stream(self, device=0):
        return 0

    def get_device_capability(self, device=0):
        return divmod(self.capability, 10)

    def get_active_torch_device(self):
        return _GPU

    def get_device_interface(self):
        return torch.cuda


def _first_that_fits(self, *args, **kwargs):
    """Autotuner.run without a clock: the first configuration that fits the device."""
    from triton.runtime.errors import OutOfResources

    self.nargs = dict(zip(self.arg_names, args, strict=False))
    configs = self.prune_configs(kwargs)
    for config in configs:
        chosen = config.all_kwargs()
        if config.pre_hook is not None:
            config.pre_hook({**self.nargs, **kwargs, **chosen})
        try:
            result = self.fn.run(*args, **kwargs, **chosen)
        except OutOfResources:
            if config is configs[-1]:
                raise
            continue
        self.best_config = config
        return result


def install(capability: int) -> None:
    """Pretend that a GPU of this capability (90 for sm_90) is present, for good."""
    global installed
    installed = True
    torch.Tensor.is_cuda = property(lambda self: True)
    torch.Tensor.device = property(lambda self: _GPU)
    for name in FACTORIES:
        setattr(torch, name, _on_cpu(getattr(torch, name)))
    for name in METHODS:
        setattr(torch.Tensor, name, _on_cpu(getattr(torch.Tensor, name)))
    torch.compile = _uncompiled
    torch.set_default_device = _on_cpu(torch.set_default_device)
    torch.Tensor.cuda = torch.Tensor.pin_memory = lambda self, *args, **kwargs: self
    torch.Tensor.get_device = lambda self: 0

    major, minor = divmod(capability, 10)
    properties = _Properties(
        name="no GPU", major=major, minor=minor, multi_processor_count=132,
        total_memory=80 << 30, warp_size=32, L2_cache_size=50 << 20,
        shared_memory_per_block_optin=SHARED_BYTES.get(capability, 101376),
    )
    stream = SimpleNamespace(cuda_stream=0, synchronize=lambda: None)
    stubs = {
        "is_available": lambda: True, "device_count": lambda: 1, "current_device": lambda: 0,
        "synchronize": lambda device=None: None, "set_device": lambda device: None,
        "get_device_capability": lambda device=None: (major, minor),
        "get_device_name": lambda device=None: properties.name,
        "get_device_properties": lambda device=None: properties,
        "is_bf16_supported": lambda including_emulation=True: True,
        "current_stream": lambda device=None: stream,
        "device": _Nothing, "device_of": _Nothing, "stream": _Nothing,
    }
    for name, stub in stubs.items():
        setattr(torch.cuda, name, stub)

    try:
        import triton
        from triton.runtime.autotuner import Autotuner
    except ImportError:  # stage 1 needs no Triton
        return
    triton.runtime.driver.set_active(_Driver(capability))
    Autotuner.run = _first_that_fits
