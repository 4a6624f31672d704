"""Records what a call does to memory, as a trace that another process can repeat.

A trace holds the PyTorch operations below autograd and the launches of Triton kernels, in order.
In it tensors are views of numbered storages, so Python objects do not matter.  What bypasses
PyTorch and Triton (NumPy, ctypes, a list, another thread) is missing from the trace, and replay.py
then computes something else.  kernels/hooks.py calls launch().

    trace       {"storages", "functions", "steps", "backward": first step of it, "outputs",
               "gradients": encoded tensors, "again": launches of every further call,
               "read": lines of the file that took a number out of a tensor}
    storage    {"bytes", "input": name} or {"bytes", "kept": base64 of zlib's, or None, "moved":
               addresses in it} or {"bytes"}: made by a step; "freed": the step before which it was
               let go
    step       ["op", "aten::mul.Tensor", args, kwargs, results, line of the file or None]
               ["launch", function, grid, {argument: value}, options]
    function   {"name", "line", "first": line, with decorators, "text", "kind", "options",
               "names": what its globals stand for}

Of a call with more than LONGEST steps only a summary is kept: "cut" is the most bytes it held at
once, the steps are one of each operation, and it cannot be replayed.

Values are JSON; a dict with one key says what kind of value it holds, see encode().
"""

import ast
import base64
import contextlib
import dataclasses
import functools
import inspect
import numbers
import sys
import textwrap
import weakref
import zlib

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from ..kernels.hooks import line_at_work
from ..wire import LONGEST, UNINITIALISED, poison

KEPT = 1 << 22  # the largest tensor from before the call (a mask, say) to be put into a trace
ADDRESSES = 1 << 32  # smaller numbers are no addresses
SYMBOLS = (torch.dtype, torch.memory_format, torch.layout)
JIT_OPTIONS = ("noinline", "do_not_specialize", "do_not_specialize_on_alignment")

_current = None  # the active Recorder; launches on autograd's threads must find it, too


def current() -> "Recorder | None":
    """The active Recorder."""
    return _current


class Recorder(TorchDispatchMode):
    """Use as `with recorder:` around a forward, then, after begin_backward(), around a backward.

    inputs: name -> a 1-D tensor over the part of a storage that may be touched.  path: the file's.
    """

    supports_higher_order_operators = True  # such as flex_attention

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """False: nothing is compiled here, and importing torch._dynamo takes a second."""
        return False

    def __init__(self, inputs, on_cuda: bool, path: str = ""):
        super().__init__()
        self.path = path
        self.on_cuda = on_cuda
        self.paused = 0
        self.steps: list[list] = []
        self.storages: list[dict] = []
        self.alive: dict[int, weakref.ref] = {}  # number -> the storage
        self.storage_numbers: dict[int, int] = {}  # by the storage's object, while it lives
        self.functions: list[dict] = []
        self.function_numbers: dict[int, int] = {}
        self.began_backward = None
        self.read: set[int | None] = set()
        # names and lines of the operations, once there are too many
        self.cut: dict[str, int | None] | None = None
        self.launched = self.live = self.peak = 0  # launches; bytes of live storages, at most
        self.eager = contextlib.ExitStack()
        self.inputs = list(inputs.values())
        for name, tensor in inputs.items():
            self._number(tensor.untyped_storage(), {"input": name})

    def __enter__(self):
        global _current
        _current = self
        self.eager.enter_context(uncompiled())  # compiled code would bypass the recorder
        return super().__enter__()

    def __exit__(self, *error):
        global _current
        _current = None
        super().__exit__(*error)
        self.eager.close()

    def begin_backward(self) -> None:
        self.began_backward = len(self.steps)

    def trace(self, outputs, gradients, again) -> dict:
        """What was recorded; to be called at the end.  again: the recorders of later calls."""
        if self.cut is not None:
            results = sum(x.untyped_storage().nbytes() for x in (*outputs, *gradients))
            steps = [["op", name, [], {}, [], line] for name, line in self.cut.items()]
            return {"again": [later.launched for later in again], "storages": [],
                    "functions": [], "steps": steps, "backward": len(steps), "outputs": [],
                    "gradients": [], "cut": max(0, self.peak - results)}
        return {
            "again": [later.launched for later in again],
            "storages": self.storages, "functions": self.functions, "steps": self.steps,
            "backward": len(self.steps) if self.began_backward is None else self.began_backward,
            "outputs": self.encode(list(outputs)), "gradients": self.encode(list(gradients)),
            "read": sorted(self.read - {None})[:10],
        }

    def extents(self) -> list[tuple[int, int]]:
        """First byte and end of every input and of every storage of the call."""
        return [(first, end) for _, first, end in self._tensors()]

    def named(self) -> list[tuple[str, int, int, list[int], list[int]]]:
        """For every tensor of the last launch: the kernel's name for it, its first byte, the bytes
        per number, shape and strides."""
        arguments = self.steps[-1][3] if self.steps and self.steps[-1][0] == "launch" else {}
        places = {number: first for number, first, _ in self._places()}
        given = [(name, value["tensor"]) for name, value in arguments.items()
                 if isinstance(value, dict) and value.get("tensor", [None])[0] in places]
        return [(name, places[number] + offset * (size := getattr(torch, dtype).itemsize), size,
                 shape, strides) for name, (number, offset, shape, strides, dtype) in given]

    def _tensors(self):
        for number, x in enumerate(self.inputs):
            yield number, x.data_ptr(), x.data_ptr() + x.nbytes
        for number, first, end in self._places():
            if "input" not in self.storages[number]:
                yield number, first, end

    def _places(self):
        for number, reference in list(self.alive.items()):
            storage = reference()
            if storage is not None:
                yield number, storage.data_ptr(), storage.data_ptr() + storage.nbytes()

    def _freed(self, key: int, number: int) -> None:
        self.storages[number]["freed"] = len(self.steps)
        if self.storages[number].keys() == {"bytes", "freed"}:
            self.live -= self.storages[number]["bytes"]
        self.alive.pop(number, None)
        if self.storage_numbers.get(key) == number:
            del self.storage_numbers[key]

    # ------------------------------------------------------------- operations
    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        if self.paused:
            return func(*args, **kwargs)
        space = getattr(func, "namespace", "")
        if space != "aten" and isinstance(func, torch._ops.OpOverload):
            return self._own_operator(func, args, kwargs)
        if space != "aten":  # a higher-order operator
            self._add(["op", str(func), [], {}, [], self._line()])
            return func(*args, **kwargs)
        before = (), {}
        if self.cut is None:
            before = self.encode(list(args)), self.encode(dict(kwargs))
        result = func(*args, **kwargs)
        if func is torch.ops.aten._local_scalar_dense.default:
            self.read.add(self._line())
        if func.overloadpacket.__name__ in UNINITIALISED:
            poison(result)
        if not _only_looks(func):
            made = [self._encode_tensor(leaf, {}) for leaf in tree_leaves(result)
                    if isinstance(leaf, torch.Tensor)]
            self._add(["op", func.name(), *before, made, self._line()])
        return result

    def _add(self, step: list) -> None:
        if self.cut is None and len(self.steps) == LONGEST:
            self.cut = {step[1]: step[5] for step in reversed(self.steps) if step[0] == "op"}
            self.steps.clear()
        if self.cut is None:
            self.steps.append(step)
        elif step[0] == "op":
            self.cut.setdefault(step[1], step[5])

    def _line(self) -> int | None:
        return line_at_work(self.path)

    def _own_operator(self, func, args, kwargs):
        """Record what happens inside an operator of the file's own, not the operator."""
        key = torch._C.DispatchKey.CUDA if self.on_cuda else torch._C.DispatchKey.CPU
        TorchDispatchMode.__enter__(self)  # it is off while it handles an operation
        try:
            return func.redispatch(torch._C.DispatchKeySet(key), *args, **kwargs)
        finally:
            TorchDispatchMode.__exit__(self, None, None, None)

    @contextlib.contextmanager
    def unrecorded(self):
        """Do not record the block: operations of the grader or of Triton, trials of an
        autotuner."""
        self.paused += 1
        try:
            yield
        finally:
            self.paused -= 1

    # ----------------------------------------------------------------- values
    def encode(self, value):
        """The value as JSON, or as a dict that says what it is."""
        if isinstance(value, torch.Tensor):
            return self._encode_tensor(value, None)
        if value is None or isinstance(value, bool | str):
            return value
        if isinstance(value, numbers.Integral):
            return self._encode_int(int(value))
        if isinstance(value, numbers.Real):
            return float(value)
        if isinstance(value, list):
            return [self.encode(item) for item in value]
        if isinstance(value, tuple):
            items = [self.encode(item) for item in value]
            fields = _fields(type(value))
            return {"named": [fields, items]} if fields else {"tuple": items}
        if isinstance(value, dict):
            return {"dict": [[str(key), self.encode(item)] for key, item in value.items()]}
        if isinstance(value, SYMBOLS):
            return {"torch": str(value).removeprefix("torch.")}
        if isinstance(value, torch.device):
            return {"device": value.type}
        return self._encode_of_triton(value)

    def _encode_of_triton(self, value):
        kind = type(value).__name__
        if kind == "constexpr":
            return {"constexpr": self.encode(value.value)}
        if kind == "dtype" and type(value).__module__.startswith("triton.language"):
            return {"tl": value.name}
        if kind in ("JITFunction", "InterpretedFunction"):
            return {"function": self._function(value)}
        if kind == "TensorDescriptor":
            return {"descriptor": [[field.name, self.encode(getattr(value, field.name))]
                                   for field in dataclasses.fields(value)]}
        if kind == "TensorWrapper":  # from triton.reinterpret
            return {"reinterpret": [self.encode(value.base), self.encode(value.dtype)]}
        return {"other": kind}

    def _encode_tensor(self, tensor, fresh):
        if tensor.layout is not torch.strided:
            return {"other": str(tensor.layout)}
        number = self._number(tensor.untyped_storage(), fresh)
        return {"tensor": [number, tensor.storage_offset(), list(tensor.shape),
                           list(tensor.stride()), str(tensor.dtype).removeprefix("torch.")]}

    def _number(self, storage, about) -> int:
        """The number of a storage.  about: the trace's entry if it is new; None if no step made
        it."""
        number = self.storage_numbers.get(storage._cdata)
        if number is None:
            number = self.storage_numbers[storage._cdata] = len(self.storages)
            self.alive[number] = weakref.ref(storage)
            weakref.finalize(storage, self._freed, storage._cdata, number)
            self.storages.append({"bytes": storage.nbytes(), **(about or {})})
            if about == {}:
                self.live += storage.nbytes()
                self.peak = max(self.peak, self.live)
            if about is None:
                self.storages[number] |= self._numbers_in(storage)
        elif (more := storage.nbytes() - self.storages[number]["bytes"]) > 0:  # it has grown
            self.storages[number]["bytes"] += more
            self.live += more
            self.peak = max(self.peak, self.live)
        return number

    def _numbers_in(self, storage) -> dict:
        """The contents of a storage from before the call, or that no recorded step made, with
        addresses marked."""
        if storage.nbytes() > KEPT or not storage.data_ptr():
            return {"kept": None}
        with self.unrecorded(), torch.no_grad():
            device = storage.device
            seen = torch.empty(0, dtype=torch.uint8, device=device).set_(storage)
            there = torch.empty(storage.nbytes(), dtype=torch.uint8).copy_(seen).numpy()
        words = there[:len(there) // 8 * 8].view(np.uint64)
        moved = [[8 * at, number, int(words[at]) - first] for number, first, end in self._places()
                 for at in np.flatnonzero((words >= first) & (words < end)).tolist()]
        packed = zlib.compress(there.tobytes(), 1)  # an N x N mask becomes small
        return {"kept": base64.b64encode(packed).decode(), "moved": moved}

    def _encode_int(self, value: int):
        """The number, or storage and byte in it if a tensor of the call is at this address."""
        for number, first, end in self._places() if value > ADDRESSES else ():
            if first <= value < end:
                return {"address": [number, value - first]}
        return value

    # --------------------------------------------------------------- launches
    def launch(self, kernel, arguments: dict, grid, options: dict) -> None:
        """Record a launch.  kernel: a jitted function; arguments: by name of parameter."""
        if not self.paused:
            self.launched += 1
            self._add([
                "launch", self._function(kernel), [int(size) for size in grid],
                {name: self.encode(value) for name, value in arguments.items()},
                {name: value if value is None or isinstance(value, int | str) else
                 {"other": type(value).__name__} for name, value in options.items()}])

    def take_back_launch(self) -> None:
        """Forget the last launch: it failed, and an autotuner, say, goes on without it."""
        if not self.paused:
            self.launched -= 1
            if self.cut is None:
                self.steps.pop()

    def _function(self, function) -> int:
        """The number of a kernel, or of a function that a kernel calls."""
        plain = getattr(function, "fn", function)
        number = self.function_numbers.get(id(plain))
        if number is None:
            number = self.function_numbers[id(plain)] = len(self.functions)
            self.functions.append({})
            self.functions[number] = self._describe(function, plain)
        return number

    def _describe(self, function, plain) -> dict:
        kind = {"JITFunction": "jit", "InterpretedFunction": "jit",
                "ConstexprFunction": "constexpr"}.get(type(function).__name__, "plain")
        about = {"name": plain.__name__, "line": 0, "first": 0, "text": "", "kind": kind,
                 "names": [], "options": {}}
        try:
            text, first, line = _definition(plain)
        except (OSError, TypeError, SyntaxError, ValueError):  # it has no text
            return about
        about |= {"text": text, "line": line, "first": first}
        if kind == "jit":
            settings = getattr(function, "kwargs", None) or vars(function)
            about["options"] = {name: self.encode(settings[name]) for name in JIT_OPTIONS
                                if settings.get(name)}
        scope = dict(plain.__globals__)
        for name, cell in zip(plain.__code__.co_freevars, plain.__closure__ or (), strict=True):
            with contextlib.suppress(ValueError):  # a closure cell that is still empty
                scope[name] = cell.cell_contents
        about["names"] = [[name, self._global(scope[name], attributes)]
                          for name, attributes in _names(text).items() if name in scope]
        return about

    def _global(self, value, attributes: set[str]):
        if inspect.ismodule(value):
            return {"module": value.__name__}
        module = str(getattr(getattr(value, "fn", value), "__module__", ""))
        if module.startswith("triton.") and hasattr(value, "__name__"):
            return {"from": [module, value.__name__]}
        if inspect.isfunction(value) or type(value).__name__ == "ConstexprFunction":
            return {"function": self._function(value)}
        if isinstance(value, type) and (fields := _fields(value)):
            return {"fields": fields}
        found = self.encode(value)
        if found == {"other": type(value).__name__} and attributes:  # such as a class of constants
            return {"constants": [[name, self.encode(getattr(value, name, None))]
                                  for name in sorted(attributes)]}
        return found


def _fields(kind: type) -> list[str]:
    """The name of a class of named tuples, and its fields; [] for another class."""
    names = getattr(kind, "_fields", ()) if issubclass(kind, tuple) else ()
    return [kind.__name__, *map(str, names)] if names else []


def uncompiled():
    """Within `with uncompiled():`, torch.compile has no effect.  flex_attention imports Dynamo when
    it is first called, which would then compile the recorder."""
    if sys.modules.keys() & {"torch._dynamo", "torch.nn.attention.flex_attention"}:
        return torch.compiler.set_stance("force_eager")
    return contextlib.nullcontext()


@functools.cache
def _definition(plain) -> tuple[str, int, int]:
    """-> the text of a function without decorators and indentation; its first line in the file with
    decorators, and without."""
    rows, first = inspect.getsourcelines(plain)
    text = textwrap.dedent("".join(rows))
    start = ast.parse(text).body[0].lineno - 1
    return text.split("\n", start)[start], max(first, 1), max(first, 1) + start


@functools.cache
def _names(text: str) -> dict[str, set[str]]:
    """The names that a function uses but does not set -> the attributes it reads from each."""
    nodes = list(ast.walk(ast.parse(text)))
    own = {node.arg for node in nodes if isinstance(node, ast.arg)}
    own |= {node.id for node in nodes
            if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load)}
    found: dict[str, set[str]] = {}
    for node in nodes:
        if isinstance(node, ast.Name) and node.id not in own:
            found.setdefault(node.id, set())
    for node in nodes:
        if isinstance(node, ast.Attribute) and getattr(node.value, "id", None) in found:
            found[node.value.id].add(node.attr)
    return found


@functools.cache
def _only_looks(func) -> bool:
    """Whether an operation neither computes nor writes: a view, or a number read into Python."""
    schema = func._schema
    if schema.is_mutable:
        return False
    tensors = [found for found in schema.returns if "Tensor" in str(found.type)]
    return all(found.alias_info is not None for found in tensors)
