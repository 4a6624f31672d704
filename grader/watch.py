"""What a worker sees while a submission runs: launches, PyTorch operations, memory.

All of it could be forged by the file under test, so it is used only against a submission.
Loaded by worker.py by path; imports nothing of the grader.
"""

import contextlib
import functools
import sys
import weakref

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# Fresh memory is often zero and then looks like a result, so these come back full of NaN.
UNINITIALISED = {
    "empty", "empty_like", "empty_strided", "empty_permuted", "new_empty", "new_empty_strided",
}

noted_at_import: set[str] = set()
PYTORCH = {"aten", "prim", "prims", "profiler"}

_current = None  # the Watch in force; launches on autograd's own threads must find it too


class Watch(TorchDispatchMode):
    """Use as `with watch:` around a forward, then again around its backward.

    inputs: the storages' 1-D tensors, which do not count as memory of the call.
    ledger: of ledger.py; traces: of trace.py, one for the forward, one for the backward.
    """

    supports_higher_order_operators = True  # flex_attention is one

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: nothing is compiled here, and importing torch._dynamo would cost a second."""
        return False

    def __init__(self, inputs, on_cuda: bool, ledger=None, traces=(), mark=contextlib.nullcontext,
                 importing: bool = False):
        super().__init__()
        self.on_cuda, self.ledger, self.traces, self.mark = on_cuda, ledger, traces, mark
        self.backward = False
        self.poison = True
        self.ablated = False  # kernels are launched in name only
        self.paused = 0
        self.launches = [0, 0]  # forward, backward
        self.kernels: set[str] = set()  # what was launched: name@line
        # What no call should do, in words; what was noted at the import counts in every call.
        self.noted: set[str] = noted_at_import if importing else set(noted_at_import)
        self.attentions: set[str] = set()  # seen here where nothing is recorded
        self.threads = len(sys._current_frames())
        self.live_bytes = self.peak_bytes = 0  # on CUDA peak_bytes is what came before a restart
        self.sizes = {tensor.untyped_storage()._cdata: 0 for tensor in inputs}
        self.base = None

    def __enter__(self):
        global _current
        _current = self
        if self.on_cuda and self.base is None:
            torch.cuda.reset_peak_memory_stats()
            self.base = torch.cuda.memory_allocated()
        if self.traces:
            self.traces[self.backward].__enter__()
        if self.ledger:
            self.ledger.cover()
        return super().__enter__()

    def returns(self, results) -> None:
        """What a call returned, while the watch is still in force."""
        if self.ledger:
            self.ledger.uncover(results)

    def __exit__(self, *error):
        global _current
        _current = None
        super().__exit__(*error)
        if self.ledger:
            self.ledger.uncover()
        if self.traces:
            self.traces[self.backward].__exit__(*error)

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if self.paused:
            return func(*args, **(kwargs or {}))
        result = None
        if not self.traces and "attention" in func.__name__:
            self.attentions.add(func.__name__.partition(".")[0])
        if self.ledger:
            self.ledger.uncover((args, kwargs))
            # What an operator of the file's own allocates, no mode sees.
            self.ledger.lenient = getattr(func, "namespace", "aten") not in PYTORCH
        try:
            result = func(*args, **(kwargs or {}))
            name = getattr(func, "overloadpacket", func).__name__
            if self.poison and name in UNINITIALISED:
                with self.mark():
                    _fill_with_nan(result)
        finally:
            if self.ledger:
                self.ledger.lenient = False
                self.ledger.cover((args, kwargs, result))
        if not self.on_cuda:
            self._track(result)
        return result

    @contextlib.contextmanager
    def launching(self, name: str, line: int, arguments):
        """Around the launch of a kernel.  Yields whether it is to run."""
        self.launches[self.backward] += 1
        self.kernels.add(f"{name}@{line}")
        if len(sys._current_frames()) > self.threads and not self.on_cuda:
            self.noted.add("a thread of the file's own that ran beside a kernel")
        if self.ablated:
            yield False
            return
        if self.ledger:
            self.ledger.uncover(arguments)
            self.ledger.uncover()  # a kernel may hold addresses of others
        self.paused += 1  # the interpreter moves tensors with PyTorch: not the student's doing
        try:
            with self.mark(launch=True):
                yield True
        finally:
            self.paused -= 1
            if self.ledger:
                self.ledger.cover()

    def _track(self, result) -> None:
        for tensor in tree_leaves(result):
            if not isinstance(tensor, torch.Tensor) or tensor.layout is not torch.strided:
                continue
            storage = tensor.untyped_storage()
            key = storage._cdata
            if key not in self.sizes:
                self.sizes[key] = storage.nbytes()
                self.live_bytes += storage.nbytes()
                self.peak_bytes = max(self.peak_bytes, self.live_bytes)
                weakref.finalize(storage, self._freed, key)

    def _freed(self, key: int) -> None:
        self.live_bytes -= self.sizes.pop(key, 0)

    @contextlib.contextmanager
    def only_memory(self):
        """Measure without poisoning.  On CUDA the allocator counts, so no mode is needed."""
        self.poison = False
        if not self.on_cuda:
            with self:
                yield
        else:
            torch.cuda.reset_peak_memory_stats()
            self.base = torch.cuda.memory_allocated()
            yield

    def peak(self) -> int:
        if self.on_cuda:
            return max(self.peak_bytes, torch.cuda.max_memory_allocated() - self.base)
        return self.peak_bytes

    @contextlib.contextmanager
    def uncounted_memory(self):
        """For the autotuner, which clears the cache with 256 MiB of its own."""
        self.peak_bytes = self.peak()
        yield
        if self.on_cuda:
            torch.cuda.reset_peak_memory_stats()

    def evidence(self, results) -> dict:
        """results: outputs and gradients; their memory is what every right answer needs."""
        size = sum(tensor.numel() * tensor.element_size() for tensor in results)
        if not self.traces:
            return {
                "launches": 0, "backward_launches": 0, "torch_ops": sorted(self.attentions),
                "backward_torch_ops": [], "arithmetic": 0, "backward_arithmetic": 0,
                "strange": sorted(self.noted), "kept_bytes": 0, "kernels": [],
                "device_kernels": [], "transferred": 0, "peak_bytes": max(0, self.peak() - size),
            }
        forward, backward = self.traces
        return {
            # As recorded below Python; a count of our own could be written to.
            "launches": forward.launches,
            "backward_launches": backward.launches,
            "torch_ops": sorted(forward.products),
            "backward_torch_ops": sorted(backward.products),
            "arithmetic": forward.arithmetic,
            "backward_arithmetic": backward.arithmetic,
            "strange": sorted(self.noted | (self.ledger.strange if self.ledger else set())),
            "kept_bytes": self.ledger.kept_bytes() if self.ledger else 0,
            "kernels": sorted(self.kernels),
            "device_kernels": sorted(forward.kernels | backward.kernels),
            "transferred": forward.transferred + backward.transferred,
            "peak_bytes": max(0, self.peak() - size),
        }


def _fill_with_nan(tensor: torch.Tensor) -> None:
    if tensor.dtype in (torch.float16, torch.bfloat16, torch.float32, torch.float64):
        tensor.fill_(float("nan"))
    elif tensor.dtype in (torch.int32, torch.int64):
        tensor.fill_(torch.iinfo(tensor.dtype).max)


def _note(owner, name: str, words: str, when=lambda args: True) -> None:
    """Have calls of owner.name noted: numbers leave PyTorch there, or come in."""
    plain = getattr(owner, name)

    @functools.wraps(plain)
    def noted(*args, **kwargs):
        if _current is not None and not _current.paused and when(args):
            _current.noted.add(words)
        return plain(*args, **kwargs)

    setattr(owner, name, noted)


def _replaces_an_operator(args) -> bool:
    """torch.library.Library(self, "aten", "IMPL"), by anybody but PyTorch."""
    caller = sys._getframe(2).f_globals.get("__name__", "")
    return len(args) > 1 and args[1] == "aten" and not caller.startswith("torch")


def _line(function) -> int:
    """Where a kernel is defined: two of one name are told apart."""
    return getattr(getattr(function, "__code__", None), "co_firstlineno", 0)


def install(on_phase) -> list[type]:
    """Count Triton's launches and tell the parent when a compilation begins and ends.

    on_phase: called with "compile" and with "case".  -> the classes it put its own methods into.
    """
    try:
        import triton.compiler
        from triton.runtime.autotuner import Autotuner
        from triton.runtime.interpreter import GridExecutor
        from triton.runtime.jit import JITFunction
    except ImportError:  # stage 1 needs no Triton
        return []

    _note(torch.Tensor, "numpy", "Tensor.numpy()")
    _note(torch.Tensor, "__array__", "Tensor.__array__()")
    _note(torch, "from_numpy", "torch.from_numpy()")
    _note(torch.Tensor, "tolist", "Tensor.tolist()", lambda args: args[0].numel() > 64)
    _note(torch.library.Library, "__init__", "operators of PyTorch's that it replaced",
          _replaces_an_operator)
    launch = GridExecutor.__call__

    @functools.wraps(launch)
    def interpreted(self, *args, **kwargs):
        if _current is None:
            return launch(self, *args, **kwargs)
        with _current.launching(self.fn.__name__, _line(self.fn), (args, kwargs)) as live:
            return launch(self, *args, **kwargs) if live else None

    GridExecutor.__call__ = interpreted

    run = JITFunction.run

    @functools.wraps(run)
    def compiled(self, *args, grid, warmup, **kwargs):
        if _current is None or warmup:
            return run(self, *args, grid=grid, warmup=warmup, **kwargs)
        with _current.launching(self.fn.__name__, _line(self.fn), (args, kwargs)) as live:
            return run(self, *args, grid=grid, warmup=warmup, **kwargs) if live else None

    JITFunction.run = compiled

    bench = Autotuner._bench

    @functools.wraps(bench)
    def benchmarked(self, *args, **kwargs):
        if _current is None:
            return bench(self, *args, **kwargs)
        with _current.uncounted_memory(), _current.mark():
            return bench(self, *args, **kwargs)

    Autotuner._bench = benchmarked

    # `handle = kernel.warmup(...); handle[grid](...)` goes past JITFunction.run.
    pick = triton.compiler.CompiledKernel.__getitem__

    @functools.wraps(pick)
    def handle(self, grid):
        launcher = pick(self, grid)

        def launch_handle(*args, **kwargs):
            if _current is None:
                return launcher(*args, **kwargs)
            with _current.launching(self.metadata.name, 0, (args, kwargs)) as live:
                return launcher(*args, **kwargs) if live else None

        return launch_handle

    triton.compiler.CompiledKernel.__getitem__ = handle

    compile_kernel = triton.compiler.compile

    @functools.wraps(compile_kernel)
    def announced(*args, **kwargs):
        on_phase("compile")
        result = compile_kernel(*args, **kwargs)
        on_phase("case")
        return result

    for module in (triton.compiler, sys.modules["triton.compiler.compiler"]):
        module.compile = announced
    triton.compile = announced
    return [GridExecutor, JITFunction, Autotuner, triton.compiler.CompiledKernel]
