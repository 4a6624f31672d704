"""Runs one blank of the file on its own: takes values in, returns the values it leaves.

Each of the request's texts is a function `step` made of the file's own lines, with their line
numbers, so that an error names the student's line.  It runs with the imported file's names, and
calls its functions, except for those that the request replaces by fakes, which record their
arguments.

A value is a number, None, or one of these:

    {"tile": array}            a Triton tensor; on the way out a PyTorch tensor, too
    {"torch": array, "strides"}    a PyTorch tensor, on the way in; {"slice"}, {"needs_input_grad"}
    {"pointer": name, "at": array}    addresses, in elements from the beginning of memory `name`
    {"tuple": [values]}        {"other": name of its type, or a quoted str}, on the way out
"""

import ast
import inspect
import io
import linecache
import signal
import threading
from contextlib import contextmanager
from types import SimpleNamespace

import numpy as np
import torch

from ..kernels import hooks
from ..wire import pack_array, unpack_array
from . import crashes

CALLS = 500  # of fakes in one example
MARGIN = 1 << 16  # unused bytes on each side of a memory


class Endless(BaseException):
    """The step took too long, or made too many calls; `except Exception` does not catch it."""


class Misused(Exception):
    """(id, text): a fake was called in a wrong way.  In a run of the whole file that may raise
    nothing, or something that explains less."""


class Memory:
    """Named arrays that pointers point into, each with unused memory on both sides."""

    def __init__(self, arrays: dict[str, np.ndarray]):
        self.arrays, self.names = {}, {}
        for name, array in arrays.items():
            edge = MARGIN // array.itemsize
            whole = np.zeros(array.size + 2 * edge, array.dtype)
            self.arrays[name] = whole[edge:edge + array.size]
            self.arrays[name][:] = array.ravel()

    def extents(self) -> list[tuple[int, int]]:
        """What a kernel may access, for bounds.Bounds; one empty extent if it may access
        nothing."""
        return [(a.ctypes.data, a.ctypes.data + a.nbytes) for a in self.arrays.values()] or [(0, 0)]

    def address(self, name: str, at: int) -> int:
        array = self.arrays[name]
        return array.ctypes.data + at * array.itemsize

    def place(self, addresses: np.ndarray) -> tuple[str, np.ndarray]:
        """The memory that holds these addresses, or is next to them; where in it, in elements."""
        addresses = addresses.astype(np.int64)
        middle = int(np.median(addresses)) if addresses.size > 1 else int(addresses.flat[0])
        name = min(self.arrays, key=lambda name: abs(
            middle - self.address(name, self.arrays[name].size // 2)), default="")
        if not name:
            return "", addresses
        array = self.arrays[name]
        return name, (addresses - array.ctypes.data) // array.itemsize


def run(worker, request: dict) -> list[list[dict]]:
    """-> for each text and each example {"programs": [name -> value], "calls", "memory",
    "changed": the given PyTorch tensors that it changed in place}, or {"error"} from
    crashes.explain(); if the request's "explains" is False, without words, because finding them
    takes longer than the step."""
    answers = []
    for text in request["texts"]:
        with _shown(worker.path, text):
            answers.append(_run(worker, request, text))
    return answers


def _run(worker, request: dict, text: str) -> list[dict]:
    namespace = dict(vars(worker.module))
    originals = {name: namespace.get(name) for name in request["fakes"]}
    left: list[dict] = []
    if request["kernel"]:  # the text needs triton and tl, which the file mostly has
        import triton
        import triton.language as tl
        namespace = {"triton": triton, "tl": tl} | namespace
    namespace["_leave"] = lambda names: left.append(
        {name: names[name] for name in request["asked"] if name in names})
    namespace["_differentiated"] = _differentiated
    exec(compile(text, worker.path, "exec"), namespace)
    function = namespace["step"]
    if request["kernel"]:
        function.rewrite()
    answers = []
    for example in request["examples"]:
        left.clear()
        calls: list[dict] = []
        memory = Memory({name: unpack_array(a) for name, a in example["memory"].items()})
        given = {name: _made(value, memory) for name, value in example["given"].items()}
        versions = {name: value._version for name, value in given.items()
                    if isinstance(value, torch.Tensor)}
        for name, kind in request["fakes"].items():
            namespace[name] = _stand_in(name, originals[name], kind, given, calls, memory)
        worker.replaying = memory  # all that a kernel may access
        try:
            with _limited(request["seconds"]), hooks.listening(UndefinedElements()):
                if request["kernel"]:
                    function[(example["programs"],)](**given)
                else:
                    function(**given)
            answers.append({
                "programs": [{name: _told(value, memory) for name, value in names.items()}
                             for names in left],
                "calls": calls,
                "changed": [name for name in versions if given[name]._version > versions[name]],
                "memory": {name: pack_array(memory.arrays[name]) for name in example["read"]}})
        except Endless as error:
            line = next(iter(crashes.lines_of(error, worker.path)[::-1]), None)
            sentence = str(error) + _unchanged(text, line) * ("grows" not in str(error))
            answers.append({"error": {"id": "timeout", "sentence": sentence, "line": line,
                                      "column": None}})
        except Misused as error:
            line = next(iter(crashes.lines_of(error, worker.path)[::-1]), None)
            id, said = error.args
            answers.append({"error": {"id": id, "sentence": said, "line": line, "column": None}})
        except BaseException as error:
            if not request["explains"]:
                answers.append({"error": {"id": "", "sentence": "", "line": None, "column": None}})
                break
            found = crashes.explain(error, worker.path, "in this step")
            if found["outcome"] == "skipped":  # not the step's fault
                raise
            answers.append({"error": {key: found[key]
                                      for key in ("id", "sentence", "line", "column")}})
        finally:
            worker.replaying = None
        if "error" in answers[-1]:
            break
    return answers


# --------------------------------------------------------------------- values
def _made(value, memory: Memory):
    """The object for a value that is given to a step."""
    if not isinstance(value, dict):
        return value
    if "tuple" in value:
        return tuple(_made(item, memory) for item in value["tuple"])
    if "slice" in value:
        return slice(*value["slice"])
    if "needs_input_grad" in value:
        made = type("FunctionCtx", (SimpleNamespace,), {})  # a step may keep things on its class
        return made(needs_input_grad=tuple(value["needs_input_grad"]))
    if "torch" in value:
        whole = torch.from_numpy(unpack_array(value["torch"]).copy())
        if 0 in value["strides"]:
            return whole[tuple(slice(1 if stride == 0 else None) for stride in value["strides"])
                         ].expand(whole.shape)
        return torch.empty_strided(whole.shape, value["strides"], dtype=whole.dtype).copy_(whole)
    if "pointer" in value:
        name, at = value["pointer"], value["at"]
        return hooks.pointer(memory.address(name, at), memory.arrays[name].dtype)
    return hooks.tile(unpack_array(value["tile"]).copy())


def _told(value, memory: Memory):
    """The value to send for an object."""
    if isinstance(value, bool | int | float | None):
        return value
    if value is ...:
        return {"other": "`...`, which writes nothing"}
    if type(value).__name__ == "constexpr":
        return _told(value.value, memory)
    if isinstance(value, tuple | list) or type(value).__name__ == "tuple":
        return {"tuple": [_told(item, memory) for item in value]}
    if (numbers := hooks.numbers(value)) is not None:
        if value.dtype.is_ptr():
            name, at = memory.place(numbers)
            return {"pointer": name, "at": pack_array(np.asarray(at))}
        return {"tile": pack_array(numbers)}
    if type(value).__module__ == "torch" and hasattr(value, "detach"):
        if value.dtype is torch.bfloat16:  # which NumPy has not
            return {"other": "bfloat16: keep it in float32"}
        return {"tile": pack_array(value.detach().numpy())}
    if isinstance(value, np.ndarray | np.generic):
        return {"tile": pack_array(np.asarray(value))}
    return {"other": repr(value)[:50] if isinstance(value, str) else type(value).__name__[:50]}


# ------------------------------------------------------------------ stand-ins
def _stand_in(name: str, original, kind, given: dict, calls: list, memory: Memory):
    """The fake that replaces a function of the file.

    kind: the names of the arguments that it returns, changed differently at every call; or "store",
    which stores a tile's rows as _store() does; or one of WANTED, a kernel to be launched.
    """
    if isinstance(kind, str) and kind in WANTED:
        return _Launched(name, original.fn, kind, calls)
    signature = inspect.signature(getattr(original, "fn", original))
    known: dict[int, tuple] = {}  # values told before, which no kernel can change

    def told(value):
        if id(value) not in known:
            known[id(value)] = value, _told(value, memory)
        return known[id(value)][1]

    def called(*args, **kwargs):
        kwargs.pop("_semantic", None)
        bound = _bound(name, signature, args, kwargs)
        bound.apply_defaults()
        number = len(calls)
        if number >= CALLS:
            raise Endless(f"it calls {name} more than {CALLS} times" + _standing(calls[-9:]))
        calls.append({"function": name, "arguments": {
            key: told(value) for key, value in bound.arguments.items()}})
        if kind == "store":
            return _store(memory, **bound.arguments)
        results = [hooks.tile(np.full(hooks.numbers(given[key]).shape, 3.0 * number + i + 1,
                                      np.float32)) for i, key in enumerate(kind)]
        return results[0] if len(results) == 1 else tuple(results)
    return called


def _standing(calls: list[dict]) -> str:
    """Which argument is the same tile's first row in all calls, in words."""
    first, *others = (call["arguments"] for call in calls)
    for key, value in first.items():
        if key.startswith("start") and all(other.get(key) == value for other in others):
            return f", always for the same tile: {key} never grows"
    return ""


def _unchanged(text: str, line: int | None) -> str:
    """The names in the condition of the loop around this line that the loop never changes."""
    loops = [node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.While)
             and line is not None and node.lineno <= line <= node.end_lineno]
    for loop in loops[-1:]:
        made = {node.id for node in ast.walk(loop) if isinstance(node, ast.Name)
                and isinstance(node.ctx, ast.Store)}
        read = [node.id for node in ast.walk(loop.test) if isinstance(node, ast.Name)]
        if read and not made & set(read):
            return f": its loop goes on while {ast.unparse(loop.test)}, and changes none of these"
    return ""


def _store(memory: Memory, ptr, tile, bh, rows, N, D) -> None:
    """Store rows of a contiguous (B, H, N, D) tensor: row i of head bh is row bh * N + i."""
    def number(value) -> np.ndarray:
        held = hooks.numbers(value)
        return np.asarray(getattr(value, "value", value) if held is None else held)

    name, at = memory.place(number(ptr).reshape(-1)[:1])
    tile, rows, width = number(tile), number(rows).reshape(-1), int(number(D).reshape(-1)[0])
    target, wanted = memory.arrays[name], rows < number(N).reshape(-1)[0]
    if tile.ndim != 2 or len(tile) != len(rows):
        raise ValueError(f"want a tile of {len(rows)} rows to store; got shape {tile.shape}")
    where = at + (number(bh).reshape(-1)[0].astype(np.int64) * number(N).reshape(-1)[0] + rows)[
        :, None] * width + np.arange(width)
    where, values = where[wanted], tile[wanted][:, :width]
    if where.size and not (0 <= where.min() and where.max() < target.size):
        raise IndexError(f"_store writes outside of {name}")
    target[where] = values.astype(target.dtype)


def _bound(name: str, signature: inspect.Signature, args, kwargs) -> inspect.BoundArguments:
    try:
        return signature.bind(*args, **kwargs)
    except TypeError as error:
        raise TypeError(f"{error}. {name} takes {', '.join(signature.parameters)}: compare your "
                        "call with this list, from left to right") from None


WANTED = {  # a kernel of step 2.6 or W.7 -> how many programs it needs
    "dx": lambda given: _cdiv(given.M, given.BLOCK_M) * _cdiv(given.N, given.BLOCK_N),
    "dw": lambda given: _cdiv(given.N, given.BLOCK_N),
    "softmax": lambda given: _cdiv(given.M, given.BLOCK_M),
    "softmax backward": lambda given: _cdiv(given.M, given.BLOCK_M),
}


def _differentiated(function, x, dy, *more) -> dict:
    """-> y and dx of the autograd.Function for x, more and the upstream gradient dy."""
    y = function.apply(x.requires_grad_(), *more)
    if y is None:
        return {"y": None, "dx": None}
    # Not torch.autograd.grad, whose checks import sympy.
    dx, = torch.autograd.Variable._execution_engine.run_backward(
        (y,), (dy,), False, False, (x,), allow_unreachable=True, accumulate_grad=False)
    return {"y": y, "dx": dx}


def _cdiv(a: int, b: int) -> int:
    return -(-a // b)


class _Launched:
    """A right kernel of WANTED, in PyTorch; its launch is as strict as Triton's."""

    def __init__(self, name: str, function, kind: str, calls: list[dict]):
        self.name, self.signature, self.kind = name, inspect.signature(function), kind
        self.calls = calls

    def __call__(self, *args, **kwargs):
        raise Misused("grid-wrong", "a kernel is launched with a grid before its arguments: "
                      f"{self.name}[grid](...)")

    def __getitem__(self, grid):
        def launch(*args, num_warps=None, num_stages=None, **kwargs):
            given = SimpleNamespace(**_bound(self.name, self.signature, args, kwargs).arguments)
            self.check(given, self.programs(grid(vars(given)) if callable(grid) else grid))
            self.run(given)
        return launch

    def programs(self, grid) -> tuple[int, ...]:
        if isinstance(grid, tuple | list) and 0 < len(grid) <= 3 and all(
                hasattr(n, "__index__") for n in grid):
            return tuple(map(int, grid))
        raise Misused("grid-wrong", "the grid must be a tuple of one to three whole numbers, as in "
                      f"{self.name}[(programs,)](...); got {grid!r}"
                      + ": without a comma, brackets make no tuple" * isinstance(grid, int))

    def check(self, given: SimpleNamespace, programs: tuple[int, ...]) -> None:
        """Record the launch.

        Raises:
            Misused: the grid is too short, a side of a tile does not fit, or strides do not belong
                to their tensors.
        """
        for name, handed in vars(given).items():
            if name.startswith("BLOCK_") and (handed < 1 or handed & (handed - 1)):
                raise Misused("handed-wrongly", f"{self.name} is handed {name}={handed}: the side "
                              "of a tile must be a power of two, and triton.next_power_of_2(n) is "
                              "the first one from n on")
        if self.kind.startswith("softmax"):
            self.check_rows(given)
        wanted = WANTED[self.kind](given)
        if programs[0] < wanted or max(programs[1:], default=1) > 1:
            raise Misused("handed-wrongly", f"{self.name} is launched with the grid {programs}; it "
                          f"should be ({wanted},), because its programs are numbered along one "
                          "axis")
        for name, handed in vars(given).items():
            if not name.startswith("stride_"):
                continue
            tensor = getattr(given, name[len("stride_"):-1] + "_ptr")
            axis = tensor.dim() - 1 if name[-1] == "n" else 0
            if tensor.shape[axis] > 1 and handed != tensor.stride(axis):
                raise Misused("handed-wrongly", f"{self.name} is handed {name}={handed}, and along "
                              f"that axis {name[len('stride_'):-1]} has the stride "
                              f"{tensor.stride(axis)}")
        self.calls.append({"function": self.name, "arguments": {
            "programs": programs[0], "wanted": wanted, "BLOCK_M": given.BLOCK_M}})

    def check_rows(self, given: SimpleNamespace) -> None:
        """As check(), of W.7's kernels."""
        into, of = ("y", "x") if self.kind == "softmax" else ("dx", "dy")
        shape, target = tuple(getattr(given, f"{of}_ptr").shape), getattr(given, f"{into}_ptr")
        if shape != (given.M, given.N):
            raise Misused("handed-wrongly", f"{self.name} is handed M={given.M}, N={given.N}, and "
                          f"{of} has the shape {shape}")
        if given.BLOCK_N < given.N:
            raise Misused("handed-wrongly", f"{self.name} is handed BLOCK_N={given.BLOCK_N}, and a "
                          f"row of N={given.N} numbers must fit into a tile")
        if target.shape != shape:
            raise Misused("handed-wrongly", f"{self.name} is handed {into} of the shape "
                          f"{tuple(target.shape)}, want {shape}")
        if not target.is_contiguous():
            raise Misused("handed-wrongly", f"{self.name} is handed {into} with the strides "
                          f"{target.stride()}, and stores as if it were contiguous: "
                          "torch.empty_like(x) keeps the strides of x, torch.empty(M, N, ...) does "
                          "not")

    def run(self, given: SimpleNamespace) -> None:
        M, N = given.M, given.N

        def part(name: str, size: tuple[int, ...], strides: tuple[int, ...]) -> torch.Tensor:
            tensor = getattr(given, f"{name}_ptr")
            try:
                return torch.as_strided(tensor, size, strides)
            except RuntimeError:
                raise Misused(
                    "handed-wrongly", f"{self.name} is handed M={M}, N={N} and as {name} a tensor "
                    f"of shape {tuple(tensor.shape)}, in which {list(size)} numbers do not fit: "
                    "compare the call with its arguments, from left to right") from None

        if self.kind == "softmax":
            x = part("x", (M, N), (given.stride_xm, given.stride_xn))
            given.y_ptr.copy_(torch.softmax(given.scale * x, dim=1))
            return
        if self.kind == "softmax backward":
            dy, y = part("dy", (M, N), (given.stride_dym, given.stride_dyn)), given.y_ptr
            given.dx_ptr.copy_(given.scale * y * (dy - (y * dy).sum(dim=1, keepdim=True)))
            return
        dy = part("dy", (M,), (given.stride_dym,)).double()
        if self.kind == "dw":
            x = part("x", (M, N), (given.stride_xm, given.stride_xn))
            part("dw", (N,), (1,)).copy_(dy @ x.double())
        else:
            w = part("w", (N,), (given.stride_wn,))
            part("dx", (M, N), (given.stride_dxm, given.stride_dxn)).copy_(
                dy[:, None] * w.double())


# --------------------------------------------------------------------- limits
@contextmanager
def _shown(path: str, text: str):
    """Within this block, inspect and linecache read this text as the file's.  Its function ends
    where the text does, which inspect would find out by reading it token by token, three times."""
    real, block = linecache.cache.get(path), inspect.getblock
    linecache.cache[path] = len(text), None, list(io.StringIO(text)), path
    inspect.getblock = lambda rows: rows if rows[0] == "@triton.jit\n" else block(rows)
    try:
        yield
    finally:
        inspect.getblock = block
        linecache.cache.pop(path)
        if real is not None:
            linecache.cache[path] = real


@contextmanager
def _limited(seconds: float):
    """Raise Endless after so much CPU time, in whatever line is running."""
    def over(number, frame):
        raise Endless(f"it did not end within {seconds:g} s of CPU time")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGPROF, over)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


class UndefinedElements(hooks.Listener):
    """Sets masked elements of a load without `other=` to NaN, because a GPU may return anything."""

    def loaded(self, access: hooks.Access, numbers: np.ndarray) -> None:
        if not access.has_other and numbers.dtype.kind == "f":
            numbers[~access.lanes] = np.nan
