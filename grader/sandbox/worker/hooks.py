"""Has the launches of Triton kernels recorded, and compilations announced."""

import contextlib
import functools
import inspect
import sys

from .recorder import current


def install(on_phase) -> None:
    """Have launches recorded, and tell the parent when a compilation begins and ends.

    on_phase: called with "compile" and with "case".
    """
    try:
        import triton.compiler
        from triton.runtime.autotuner import Autotuner
        from triton.runtime.interpreter import InterpretedFunction
        from triton.runtime.jit import JITFunction
    except ImportError:  # stage 1 needs no Triton
        return

    InterpretedFunction.run = _recorded(InterpretedFunction.run)
    JITFunction.run = _recorded(JITFunction.run)
    bench = Autotuner._bench

    @functools.wraps(bench)
    def benchmarked(self, *args, **kwargs):
        recorder = current()
        with contextlib.nullcontext() if recorder is None else recorder.unrecorded():
            return bench(self, *args, **kwargs)

    Autotuner._bench = benchmarked

    # `handle = kernel.warmup(...); handle[grid](...)` goes past JITFunction.run.
    pick = triton.compiler.CompiledKernel.__getitem__

    @functools.wraps(pick)
    def handle(self, grid):
        launcher = pick(self, grid)

        def launch_handle(*args, **kwargs):
            recorder = current()
            if recorder is not None:
                function = self.src.fn
                bound = dict(zip(function.arg_names, args, strict=False))
                bound |= {function.arg_names[path[0]]: value
                          for path, value in self.src.constants.items()}
                options = {name: getattr(self.metadata, name, None)
                           for name in ("num_warps", "num_stages", "num_ctas", "maxnreg")}
                recorder.launch(function, bound, grid, options)
            return launcher(*args, **kwargs)

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
    # asserts.py reads in the compiler's frames what a static_assert's names stood for.
    sys.modules["triton.compiler.compiler"].filter_traceback = lambda error: None


def load_launcher() -> None:
    """Have Triton do for this GPU what its first launch would: it may take a C compiler."""
    with contextlib.suppress(Exception):  # what is wrong will show at a launch
        import triton

        assert triton.runtime.driver.active.utils


def _recorded(run):
    @functools.wraps(run)
    def recorded(self, *args, grid, warmup, **kwargs):
        recorder = current()
        if recorder is None or warmup:
            return run(self, *args, grid=grid, warmup=warmup, **kwargs)
        try:
            bound, options = _bound(self, args, kwargs)
        except TypeError:  # Triton has words of its own for it
            return run(self, *args, grid=grid, warmup=warmup, **kwargs)
        if callable(grid):
            grid = grid(dict(bound))
        recorder.launch(self, bound, grid, options)
        try:
            with recorder.unrecorded():  # the interpreter moves tensors with PyTorch
                return run(self, *args, grid=grid, warmup=warmup, **kwargs)
        except Exception:
            recorder.take_back_launch()
            raise

    return recorded


def _bound(kernel, args, kwargs) -> tuple[dict, dict]:
    """Arguments by the names of the kernel's parameters; what else was given are options."""
    signature = inspect.signature(kernel.fn)
    named = {name: value for name, value in kwargs.items() if name in signature.parameters}
    options = {name: value for name, value in kwargs.items() if name not in named}
    bound = signature.bind(*args, **named)
    bound.apply_defaults()
    return dict(bound.arguments), options
