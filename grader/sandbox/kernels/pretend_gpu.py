"""Lets code written for a GPU run without one, in Triton's interpreter or its compiler.

A right submission may contain `assert q.is_cuda`, `device="cuda"` or `torch.cuda.device(q.device)`.
So in a CPU worker every tensor claims to be on cuda:0, and every request for that device gets CPU
memory.
"""

import contextlib
import functools
from traceback import walk_tb
from types import SimpleNamespace

import torch

from ..wire import FEW_MULTIPROCESSORS

# Bytes of shared memory one program may use: CUDA C++ programming guide, "technical
# specifications per compute capability" (the opt-in maximum per block).
SHARED_BYTES = {75: 65536, 80: 166912, 86: 101376, 89: 101376, 90: 232448, 100: 232448, 120: 101376}
_GPU, _CPU = torch.device("cuda", 0), torch.device("cpu")
installed = False  # set by install(), for good


FACTORIES = (
    "empty", "zeros", "ones", "full", "arange", "linspace", "eye", "tensor", "as_tensor",
    "scalar_tensor", "rand", "randn", "randint", "randperm", "empty_strided", "empty_permuted",
    "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like",
    "randint_like", "tril_indices", "triu_indices",
)
METHODS = ("to", "type", "new_empty", "new_zeros", "new_ones", "new_full", "new_tensor",
           "new_empty_strided")


def _on_cpu(function):
    """The same function, with every CUDA device replaced by the CPU.

    It is a plain wrapper because a TorchFunctionMode is off inside torch.autograd.grad, and so
    inside a submission's backward.
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
    """Replace a CUDA device, in any form but a bare number, by the CPU."""
    is_cuda = isinstance(value, torch.device) and value.type == "cuda"
    return _CPU if is_cuda or (isinstance(value, str) and value.startswith("cuda")) else value


def _uncompiled(function=None, **options):
    """In place of torch.compile, which would generate code for a GPU."""
    return (lambda plain: plain) if function is None else function


class _Nothing(contextlib.nullcontext):
    """In place of torch.cuda.device; a class, because PyTorch uses it in isinstance."""


class _Properties(SimpleNamespace):
    """Properties of the pretended GPU.  absent.py knows this class's name, from errors about
    properties that it lacks."""


properties = _Properties(name="no GPU", multi_processor_count=FEW_MULTIPROCESSORS,
                         total_memory=80 << 30, warp_size=32, L2_cache_size=50 << 20)


class _Driver(SimpleNamespace):
    """In place of Triton's CUDA driver: it names a target and launches nothing."""


class Tuning:
    """What a worker without a GPU notes of autotuned kernels, and which configuration it runs."""

    def __init__(self):
        self.configurations: dict[str, list[str]] = {}  # by kernel launched
        # A kernel, the number of the configuration to run, and whether to run as if timed before.
        self.wanted: tuple[str, int, bool] | None = None
        self.changed: set[str] = set()  # arguments that change with each run


tuning = Tuning()


def _without_a_clock(self, *args, **kwargs):
    """In place of Autotuner.run: run the first configuration that fits the device.  For the wanted
    kernel run the wanted one and, if asked, run it beforehand as when a GPU times it."""
    name, chosen, timed = self.base_fn.__name__, None, False
    tuning.configurations[name] = [_words(config) for config in self.configs]
    self.nargs = dict(zip(self.arg_names, args, strict=False))
    configs = self.prune_configs(kwargs)
    if tuning.wanted is not None and tuning.wanted[0] == name:
        _, number, timed = tuning.wanted
        chosen = self.configs[number % len(self.configs)]
        # A configuration that is pruned, or does not fit, would not be chosen on a GPU either.
        configs = [config for config in configs if config is chosen] + [
            config for config in configs if config is not chosen]
    for config in configs:
        settings = config.all_kwargs()
        named = {**self.nargs, **kwargs, **settings}
        try:
            if timed and len(configs) > 1:
                _run_as_if_timed(self, args, kwargs, config, named)
            if config.pre_hook is not None:
                config.pre_hook(named)
            result = self.fn.run(*args, **kwargs, **settings)
        except Exception as error:
            if config is configs[-1] or not _passed_over(error):
                raise
            continue
        self.best_config = config
        return result


def _run_as_if_timed(tuner, args, kwargs, config, named: dict) -> None:
    """Run twice, with the hooks that reset and restore memory."""
    tensors = {name: x.detach() for name, x in named.items() if isinstance(x, torch.Tensor)}

    def twice(call, quantiles=None):
        call()
        before = {name: x.clone() for name, x in tensors.items()}
        call()
        tuning.changed |= {name for name, x in tensors.items() if not torch.equal(
            *(one.contiguous().view(-1).view(torch.uint8) for one in (x, before[name])))}
        return [0.0] * 3

    tuner.do_bench = twice
    tuner._bench(*args, config=config, **kwargs)
    tuner.pre_hook(named, reset_only=True)


def _words(config) -> str:
    settings = {**config.kwargs, "num_warps": config.num_warps, "num_stages": config.num_stages}
    return ", ".join(f"{name}={value}" for name, value in settings.items())


def _passed_over(error: BaseException) -> bool:
    """Whether the autotuner tries the next configuration after this error."""
    while error.__cause__ is not None:  # the interpreter wraps it once per function
        error = error.__cause__
    if type(error).__name__ in ("OutOfResources", "CompileTimeAssertionFailure", "PTXASError"):
        return True
    names = [frame.f_code.co_name for frame, _ in walk_tb(error.__traceback__)]
    return names[-1:] == ["_new_static_assert"]


def install(capability: int) -> None:
    """Pretend for good that there is a GPU of this capability (90 for sm_90)."""
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
    properties.major, properties.minor = major, minor
    properties.shared_memory_per_block_optin = SHARED_BYTES.get(capability, 101376)
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
        from triton.backends.compiler import GPUTarget
        from triton.runtime.autotuner import Autotuner
    except ImportError:  # stage 1 needs no Triton
        return
    target = GPUTarget("cuda", capability, 32)
    triton.runtime.driver.set_active(_Driver(
        get_current_target=lambda: target, get_current_device=lambda: 0,
        set_current_device=lambda device: None, get_current_stream=lambda device=0: 0,
        get_device_capability=lambda device=0: (major, minor),
        get_active_torch_device=lambda: _GPU, get_device_interface=lambda: torch.cuda,
        utils=SimpleNamespace(get_device_properties=lambda device: {
            "max_shared_mem": properties.shared_memory_per_block_optin,
            "multiprocessor_count": properties.multi_processor_count, "warpSize": 32,
            "max_num_regs": 65536, "sm_clock_rate": 1755000, "mem_clock_rate": 2619000,
            "mem_bus_width": 5120})))
    Autotuner.run = _without_a_clock
