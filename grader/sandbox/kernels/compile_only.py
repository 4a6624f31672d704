"""Compiles a submission's kernels for a GPU without having one.

Each launch becomes a compilation with the same arguments, and nothing runs.  Create CompileOnly
before anything imports Triton.
"""

import ast
import functools
import os
import time
from pathlib import Path


class CompileOnly:
    """Makes @triton.jit give real JITFunctions, from now on, whose launches only compile.

    capability: 90 for sm_90.  path: the submission's file.
    """

    def __init__(self, capability: int, path: str):
        # Triton's own library (tl.sum, tl.zeros) is decorated at its import and must not become
        # interpreted.  Submissions look for the variable afterwards, so it is set again.
        interpret = os.environ.pop("TRITON_INTERPRET", None)
        import triton
        from triton.runtime.errors import OutOfResources
        from triton.runtime.jit import JITFunction

        triton.knobs.runtime.interpret = False
        if interpret is not None:
            os.environ["TRITON_INTERPRET"] = interpret
        self.path = path
        self.only_notes = False  # record launches without compiling them
        self.launched = False  # whether any kernel was
        self.ends_at_ptx = False
        self.kernels: dict[str, dict] = {}  # one entry per compiled variant
        compile_kernel = JITFunction.run

        @functools.wraps(compile_kernel)
        def compile_only(function, *args, grid, warmup, **kwargs):
            self.launched = True
            if self.only_notes:
                return None
            start = time.perf_counter()
            kernel = compile_kernel(function, *args, grid=grid, warmup=True, **kwargs)
            seconds = time.perf_counter() - start
            driver = triton.runtime.driver.active
            limit = driver.utils.get_device_properties(0)["max_shared_mem"]
            shared = kernel.metadata.shared
            if shared > limit:
                raise OutOfResources(f"{shared} bytes", f"{limit} bytes", "shared memory")
            self.kernels.setdefault(kernel.hash, {
                "name": function.__name__, "shared_bytes": shared, "seconds": seconds,
                "function": function,
            })
            return kernel

        JITFunction.run = compile_only

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

    def report(self) -> list[dict]:
        """One dict per compiled variant: name, line, shared_bytes, seconds, warnings [line,
        text]."""
        tree = ast.parse(Path(self.path).read_bytes())  # bytes, so that its coding line counts
        functions = {node.name: node for node in tree.body if isinstance(node, ast.FunctionDef)}
        report, told = [], set()
        for kernel in self.kernels.values():
            warnings = []
            for name in sorted(_reachable(kernel["function"].__name__, functions)):
                if name not in told:
                    told.add(name)
                    warnings += [[line, text] for line, text in lost_values(functions[name])]
            report.append({
                "name": kernel["name"], "line": _line(kernel["function"]),
                "shared_bytes": kernel["shared_bytes"],
                "seconds": kernel["seconds"], "warnings": warnings,
            })
        return report


def _line(kernel) -> int:
    """The line of the kernel's def, below its decorators, as the interpreter gives it."""
    first = kernel.starting_line_number
    return next((line for line, text in enumerate(kernel.raw_src, first)
                 if text.strip().startswith("def ")), first)


def _reachable(name: str, functions: dict[str, ast.FunctionDef]) -> set[str]:
    """The kernel and every function of the file that it calls, directly or not."""
    found, waiting = set(), [name]
    while waiting:
        name = waiting.pop()
        if name in functions and name not in found:
            found.add(name)
            waiting += [node.id for node in ast.walk(functions[name]) if isinstance(node, ast.Name)]
    return found


# ---------------------------------------------------------- lost previous values
def lost_values(function: ast.FunctionDef) -> list[tuple[int, str]]:
    """Loops in which the compiler silently loses a "previous value": (line, sentence).

    Triton (3.6 to 3.9) carries a name from one iteration to the next only if a dry run of the body
    gives it a new value.  With `b = a` before the loop, and `b = a` in it above the line that
    changes `a`, the dry run finds the same value, and the kernel keeps reading the first one.  To
    find such names, this function numbers values as the dry run does: a copy of a name has the same
    number, anything else gets a new one.
    """
    return _Numbering(function).warnings


class _Numbering:
    def __init__(self, function: ast.FunctionDef):
        self.function = function
        self.next_number = 0
        self.warnings: list[tuple[int, str]] = []
        values = {argument.arg: self._new() for argument in ast.walk(function.args)
                  if isinstance(argument, ast.arg)}
        self._block(function.body, values)

    def _new(self) -> int:
        self.next_number += 1
        return self.next_number

    def _block(self, statements, values: dict[str, int]) -> None:
        for statement in statements:
            if isinstance(statement, ast.For | ast.While):
                self._loop(statement, values)
            elif isinstance(statement, ast.If):
                self._branches(statement, values)
            elif isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
                self._assign(statement, values)

    def _assign(self, statement, values: dict[str, int]) -> None:
        if isinstance(statement, ast.AugAssign):
            pairs = [(statement.target, None)]
        elif isinstance(statement, ast.AnnAssign):
            pairs = [(statement.target, statement.value)]
        else:
            pairs = [pair for target in statement.targets
                     for pair in _pairs(target, statement.value)]
        numbers = []
        for _, value in pairs:
            copied = isinstance(value, ast.Name) and value.id in values
            numbers.append(values[value.id] if copied else self._new())
        for (target, _), number in zip(pairs, numbers, strict=True):
            for name in _names(target):
                values[name] = number

    def _branches(self, statement: ast.If, values: dict[str, int]) -> None:
        """A name keeps its number through an `if` only if both branches agree."""
        then, other = dict(values), dict(values)
        self._block(statement.body, then)
        self._block(statement.orelse, other)
        for name in then.keys() | other.keys():
            same = then.get(name) == other.get(name)
            values[name] = then[name] if same else self._new()

    def _loop(self, loop, values: dict[str, int]) -> None:
        if isinstance(loop, ast.For) and _is_unrolled(loop):  # unrolled: no loop is left
            for name in _stored(loop):
                values[name] = self._new()
            return
        before = dict(values)
        first = dict(values)
        silent = len(self.warnings)
        if isinstance(loop, ast.For):
            for name in _names(loop.target):
                first[name] = self._new()
        self._block(loop.body, first)
        del self.warnings[silent:]  # warnings of an inner loop come from the second round
        second = dict(first)
        self._block(loop.body, second)
        for name in before:
            kept = first[name] == before[name] and second[name] != first[name]
            if kept and _read_late(self.function, loop, name):
                line = _last_assignment(loop, name)
                self.warnings.append((line, (
                    f"the compiler loses the new value of {name}: it is still the value from "
                    f"before the loop in every round (the interpreter does not show this); "
                    f"write `{name} = ... + 0` to make it a value of its own"
                )))
        for name in first:
            if first[name] != before.get(name):
                values[name] = self._new()


def _pairs(target, value):
    """The assignments in a statement: two in `a, b = c, d`, else one."""
    if (isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple)
            and len(target.elts) == len(value.elts)):
        return list(zip(target.elts, value.elts, strict=True))
    if isinstance(target, ast.Tuple):
        return [(element, None) for element in target.elts]
    return [(target, value)]


def _names(target) -> list[str]:
    return [node.id for node in ast.walk(target) if isinstance(node, ast.Name)]


def _stored(node) -> set[str]:
    return {part.id for part in ast.walk(node)
            if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store)}


def _is_unrolled(loop: ast.For) -> bool:
    called = loop.iter.func if isinstance(loop.iter, ast.Call) else None
    return "static_range" in (getattr(called, "attr", ""), getattr(called, "id", ""))


def _last_assignment(loop, name: str) -> int:
    lines = [node.lineno for node in ast.walk(loop)
             if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Store)]
    return max(lines, default=loop.lineno)


def _read_late(function, loop, name: str) -> bool:
    """Whether the lost value is read: in the loop above its assignment, or after the loop."""
    assigned = _last_assignment(loop, name)
    for node in ast.walk(function):
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load):
            if loop.lineno <= node.lineno <= assigned or node.lineno > loop.end_lineno:
                return True
    return False

