"""Compiles a submission's kernels for a GPU without having one.

Each launch becomes a compilation with the same arguments, and nothing runs.  Create CompileOnly
before anything imports Triton.
"""

import ast
import functools
import os
import time


class _CompiledBefore(Exception):
    """Raised instead of compiling a variant again.  args: its hash."""


class _Later:
    """What a launch returns if its variant was compiled before; to read it is to compile it."""

    def __init__(self, compile):
        self._compile = compile

    def __getattr__(self, name):
        return getattr(self._compile(), name)


class CompileOnly:
    """Makes @triton.jit give real JITFunctions, from now on, whose launches only compile.

    known: the variants that need no compiling, Triton's hash -> bytes of shared memory.
    """

    def __init__(self):
        # Triton's own library (tl.sum, tl.zeros) is decorated at its import and must not become
        # interpreted.  Submissions look for the variable afterwards, so it is set again.
        interpret = os.environ.pop("TRITON_INTERPRET", None)
        import triton
        import triton.compiler.compiler as compiler
        from triton.runtime.errors import OutOfResources
        from triton.runtime.jit import JITFunction

        triton.knobs.runtime.interpret = False
        if interpret is not None:
            os.environ["TRITON_INTERPRET"] = interpret
        self.only_notes = False  # record launches without compiling them
        self.launched = False  # whether any kernel was
        self.ends_at_ptx = False
        self.known: dict[str, int] = {}
        # One entry per variant: hash, name, line, shared_bytes, seconds, warnings [line, text].
        self.kernels: dict[str, dict] = {}
        lost = _note_lost_values()
        compile_kernel, open_cache = JITFunction.run, compiler.get_cache_manager
        skipping = False

        def open_unless_known(variant):  # compile() calls it before it does any work
            if skipping and variant in self.known:
                raise _CompiledBefore(variant)
            return open_cache(variant)

        compiler.get_cache_manager = open_unless_known

        @functools.wraps(compile_kernel)
        def compile_only(function, *args, grid, warmup, **kwargs):
            nonlocal skipping
            self.launched = True
            if self.only_notes:
                return None
            start, told, skipping = time.perf_counter(), len(lost), not warmup
            try:
                kernel = compile_kernel(function, *args, grid=grid, warmup=True, **kwargs)
            except _CompiledBefore as known:
                (variant,) = known.args
                self._note(function, variant, self.known[variant])
                return _Later(lambda: compile_only(
                    function, *args, grid=grid, warmup=True, **kwargs))
            finally:
                skipping = False
            seconds = time.perf_counter() - start
            driver = triton.runtime.driver.active
            limit = driver.utils.get_device_properties(0)["max_shared_mem"]
            shared = kernel.metadata.shared
            if shared > limit:
                raise OutOfResources(f"{shared} bytes", f"{limit} bytes", "shared memory")
            self._note(function, kernel.hash, shared, seconds, [*lost.items()][told:])
            return kernel

        JITFunction.run = compile_only

    def _note(self, function, variant: str, shared: int, seconds=0.0, warnings=()) -> None:
        self.kernels.setdefault(variant, {
            "hash": variant, "name": function.__name__, "line": _line(function),
            "shared_bytes": shared, "seconds": seconds, "warnings": warnings})

    def end_at_ptx(self) -> None:
        """From now on leave out optimisations and the assembler, half of the time.  All errors show
        before these."""
        if self.ends_at_ptx:
            return
        from triton.backends.nvidia.compiler import CUDABackend

        self.ends_at_ptx, os.environ["DISABLE_LLVM_OPT"] = True, "1"
        add_stages = CUDABackend.add_stages

        @functools.wraps(add_stages)
        def added(backend, stages, *args):
            add_stages(backend, stages, *args)
            stages["cubin"] = lambda ptx, metadata: b""

        CUDABackend.add_stages = added


def _line(kernel) -> int:
    """The line of the kernel's def, below its decorators, as the interpreter gives it."""
    first = kernel.starting_line_number
    return next((line for line, text in enumerate(kernel.raw_src, first)
                 if text.strip().startswith("def ")), first)


def _note_lost_values() -> dict[int, str]:
    """-> where the compiler, from now on, silently loses a "previous value": line of the file ->
    sentence.

    Triton (3.6 to 3.9) carries a name from one iteration to the next only if a dry run of the body
    gives it a new value.  With `b = a` before the loop, and `b = a` in it above the line that
    changes `a`, the dry run finds the same value, and the kernel keeps reading the first one.
    """
    from triton.compiler.code_generator import (
        CodeGenerator,
        _is_triton_value,
        flatten_values_to_ir,
    )

    lost: dict[int, str] = {}
    find_carries = CodeGenerator._find_carries

    @functools.cache  # a kernel is compiled many times
    def read_in(function) -> list[tuple[str, int]]:
        return _uses(function.parse(), ast.Load)

    @functools.wraps(find_carries)
    def noted(self, loop, before, *args, **kwargs):
        carried, *more = find_carries(self, loop, before, *args, **kwargs)
        held = {name: flatten_values_to_ir([value]) for name, value in before.items()
                if _is_triton_value(value)}
        changing = [held[name] for name in carried]
        last_stored = dict(_uses(loop, ast.Store))
        for name in last_stored.keys() & held.keys() - set(carried):
            last = last_stored[name]
            if held[name] in changing and any(
                    loop.lineno <= line <= last or line > loop.end_lineno
                    for read, line in read_in(self.jit_fn) if read == name):
                lost[self.begin_line + last] = (
                    f"the compiler loses the new value of {name}: it is still the value from "
                    "before the loop in every round (the interpreter does not show this); "
                    f"write `{name} = ... + 0` to make it a value of its own")
        return carried, *more

    CodeGenerator._find_carries = noted
    return lost


def _uses(tree: ast.AST, context: type) -> list[tuple[str, int]]:
    """Each use of a name in this context, with its line; the last lines last."""
    return sorted(((node.id, node.lineno) for node in ast.walk(tree) if isinstance(node, ast.Name)
                   and isinstance(node.ctx, context)), key=lambda use: use[1])
