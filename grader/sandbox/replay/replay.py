"""Repeats a trace of recorder.py in a process that never saw the submission run.

Only the text of the kernels comes here.  vetting.py rejects whatever is not Triton, because the
interpreter would run any Python.
"""

import base64
import collections
import functools
import hashlib
import itertools
import json
import math
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import torch
from torch.utils._pytree import tree_leaves

from ..kernels import hooks
from ..wire import UNINITIALISED, poison, storages_in
from .vetting import (
    MODULES,
    Anything,
    NotTriton,
    Unrepeatable,
    builtin_names,
    only_annotates,
    vet,
)

LIBRARIES = ("numpy", "torch")
PLAIN = "__plain__"  # one decorator in place of the file's
_scopes: list[tuple[dict, dict[str, str]]] = []  # globals, and the meaning of each name
_built: dict[str, object] = {}  # functions made from their texts, by Replay._key


class Replay:
    """One trace, on inputs given by the caller.

    trace: see recorder.py.  storages: name -> 1-D tensor on the device, for the trace's inputs.
    folder: the kernels' text is written there, because Triton reads it from a file.
    """

    def __init__(self, trace: dict, storages: dict[str, torch.Tensor], device: str, folder: str,
                 interpreted: bool):
        self.trace, self.device = trace, device
        self.folder, self.interpreted = Path(folder), interpreted
        self.storages: dict[int, torch.UntypedStorage] = {}
        self.last_use = _last_uses(trace)
        self.functions: dict[int, object] = {}
        self.inputs = {}
        for number, about in enumerate(trace["storages"]):
            if "input" in about:
                self.inputs[number] = storages[about["input"]]
                self.storages[number] = storages[about["input"]].untyped_storage()
        self._keep()

    def run(self) -> list[torch.Tensor]:
        """Take every step.  -> the outputs and the gradients.

        Raises:
            Unrepeatable: a step cannot be repeated.
        """
        if self.trace["functions"] and not self.interpreted:
            import triton

            triton.set_allocator(_allocate)
        for at, step in enumerate(self.trace["steps"]):
            if step[0] == "op":
                self._operation(*step[1:])
            else:
                self._launch(*step[1:])
            for number in self.last_use.get(at, ()):
                self.storages.pop(number, None)
        return [self.decode(one) for one in self.trace["outputs"] + self.trace["gradients"]]

    def extents(self) -> list[tuple[int, int]]:
        """First byte and end of every input and of every live storage."""
        inputs = [(x.data_ptr(), x.data_ptr() + x.nbytes) for x in self.inputs.values()]
        made = [(s.data_ptr(), s.data_ptr() + s.nbytes())
                for number, s in self.storages.items() if number not in self.inputs]
        return inputs + made

    def _keep(self) -> None:
        """Make the storages that existed before the call, and correct addresses in them."""
        kept = {n: about for n, about in enumerate(self.trace["storages"]) if "kept" in about}
        for number, about in kept.items():
            there = torch.full((about["bytes"],), 255, dtype=torch.uint8)  # NaN in every float
            if about["kept"] is not None and about["bytes"]:
                packed = zlib.decompressobj()
                numbers = packed.decompress(base64.b64decode(about["kept"]), about["bytes"])
                there = torch.frombuffer(bytearray(numbers), dtype=torch.uint8)
            self.storages[number] = there.to(self.device, copy=True).untyped_storage()
        for number, about in kept.items():
            for at, other, byte in about.get("moved", ()):
                target = self._tensor([number, at // 8, [], [], "int64"])
                target.fill_(self._at(other, byte))

    # ----------------------------------------------------------------- values
    def decode(self, value):
        """The value here of an encoded value."""
        if isinstance(value, list):
            return [self.decode(item) for item in value]
        if not isinstance(value, dict):
            return value
        ((kind, what),) = value.items()
        return getattr(self, "_" + kind)(what)

    def _other(self, what):
        raise Unrepeatable(f"it passed a {what} on, which is neither a tensor nor a number")

    def _tensor(self, what) -> torch.Tensor:
        number, offset, shape, stride, dtype = what
        storage = self.storages.get(number)
        if storage is None:
            raise Unrepeatable("it used memory that nothing earlier in the call had made")
        empty = torch.empty(0, dtype=getattr(torch, dtype), device=storage.device)
        return empty.set_(storage, offset, shape, stride)

    def _at(self, number: int, byte: int) -> int:
        if number not in self.storages:
            raise Unrepeatable("it used the address of a tensor that is gone")
        return self.storages[number].data_ptr() + byte

    def _tuple(self, what):
        return tuple(self.decode(item) for item in what)

    def _named(self, what):
        fields, items = what
        return self._fields(fields)(*map(self.decode, items))

    def _fields(self, what):
        return _named_tuple(*map(str, what))

    def _dict(self, what):
        return {key: self.decode(item) for key, item in what}

    def _torch(self, what):
        found = getattr(torch, what)
        if not isinstance(found, torch.dtype | torch.memory_format | torch.layout):
            raise Unrepeatable(f"it passed torch.{what} on")
        return found

    def _device(self, what):
        return torch.device(self.device if what == "cuda" else what)

    def _address(self, what):
        return self._at(*what)

    def _constexpr(self, what):
        import triton.language as tl

        return tl.constexpr(self.decode(what))

    def _tl(self, what):
        import triton.language as tl

        return next(value for value in vars(tl).values()
                    if isinstance(value, tl.dtype) and value.name == what)

    def _function(self, number: int):
        if number not in self.functions:
            self._build(number)
        return self.functions[number]

    def _descriptor(self, what):
        from triton.tools.tensor_descriptor import TensorDescriptor

        return TensorDescriptor(**{name: self.decode(item) for name, item in what})

    def _reinterpret(self, what):
        import triton

        return triton.reinterpret(*map(self.decode, what))

    def _constants(self, what):
        return type("constants", (), {name: self.decode(item) for name, item in what})

    def _module(self, name: str):
        if name in ("triton", "math") or name.startswith(MODULES):
            __import__(name)
            return sys.modules[name]
        if name in LIBRARIES:  # the compiler takes their numbers, and no function of theirs
            module = ModuleType(name)
            vars(module).update(inf=math.inf, nan=math.nan, pi=math.pi, e=math.e)
            return module
        raise NotTriton(f"a kernel uses {name}, which Triton does not have")

    def _from(self, what):
        module, name = what
        if not module.startswith("triton."):
            raise Unrepeatable(f"a kernel uses {module}.{name}")
        __import__(module)
        return getattr(sys.modules[module], name)

    # ------------------------------------------------------------------ steps
    def _operation(self, name: str, args, kwargs, results, line=None) -> None:
        packet, _, overload = name.removeprefix("aten::").partition(".")
        found = getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)
        # A name of the trace's own making could lead to any attribute and change PyTorch itself.
        if not isinstance(found, torch._ops.OpOverload) or not name.startswith("aten::"):
            raise Unrepeatable(f"PyTorch has no operation {name} of its own")
        if any(argument.name == "filename" for argument in found._schema.arguments):
            raise Unrepeatable(f"it used a file, by {name}")
        result = found(*self.decode(args), **self.decode(kwargs))
        if packet in UNINITIALISED:
            poison(result)
        made = [leaf for leaf in tree_leaves(result) if isinstance(leaf, torch.Tensor)]
        for tensor, said in itertools.zip_longest(made, results):
            self._made(name, tensor, said)

    def _made(self, name: str, tensor, said) -> None:
        """Check that a result is what the trace says, and give it its number in the trace."""
        if tensor is None or not isinstance(said, dict) or "tensor" not in said:
            raise Unrepeatable(f"{name} gave another number of tensors")
        number, offset, shape, stride, dtype = said["tensor"]
        storage = tensor.untyped_storage()
        same = (list(tensor.shape) == shape and tensor.dtype is getattr(torch, dtype)
                and list(tensor.stride()) == stride
                and tensor.storage_offset() == offset
                and storage.nbytes() == self.trace["storages"][number]["bytes"])
        if not same:
            raise Unrepeatable(f"{name} gave a tensor of another shape")
        known = self.storages.setdefault(number, storage)
        if known.data_ptr() != storage.data_ptr():
            raise Unrepeatable(f"{name} gave memory that another tensor has")

    def _launch(self, number: int, grid, arguments, options):
        kernel = self._function(number)
        if "ir_override" in options:  # another text in place of the kernel's
            raise Unrepeatable("a kernel was launched with the option ir_override")
        given = {name: self.decode(value) for name, value in [*arguments.items(), *options.items()]}
        return kernel[tuple(grid)](**given)

    def _build(self, number: int) -> None:
        """Make a function from its text, once for all traces that use it."""
        about = self.trace["functions"][number]
        if not about["text"]:
            raise Unrepeatable(f"{about['name']} has no text in the file")
        key = self._key(number, ())
        if key in _built:
            self.functions[number] = _built[key]
            return
        text, values, functions = about["text"], {}, []
        notes = only_annotates(text)
        for name, value in about["names"]:
            if isinstance(value, dict) and "function" in value:
                functions.append((name, value["function"]))
                continue
            try:
                values[name] = (Anything() if name in notes and _is_library(value)
                                else self._global(value))
            except Unrepeatable:
                if name not in notes:
                    raise
                values[name] = Anything()
        # The interpreter looks for the language among the globals, whatever its name.
        given = {"__name__": "submission", "__builtins__": builtin_names(),
                 "triton.language": self._module("triton.language")}
        try:
            vet(text, given | values | {name: None for name, _ in functions}, about["name"],
                int(about["line"]), frozenset(_fields_in(self.trace)))
        except NotTriton:
            if about["kind"] == "constexpr":  # Python runs these, not Triton's compiler
                raise Unrepeatable(f"{about['name']} holds more than Triton's language") from None
            raise
        scope = self._scope(about)
        scope |= values | given  # a name in the trace must not replace Python's functions
        if self.interpreted:
            hooks.take_other_names(scope)
        path = self.folder / f"kernel_{key}.py"
        path.write_text(_in_its_place(text, about["first"], about["line"]), "utf-8")
        name, unset = about["name"], object()
        before, scope[PLAIN] = scope.get(name, unset), lambda function: function
        exec(compile(path.read_text("utf-8"), str(path), "exec"), scope)
        plain = scope.pop(name)
        if before is not unset:  # another function of the same name
            scope[name] = before
        self.functions[number] = _built[key] = _decorated(plain, about["kind"], {
            name: self.decode(value) for name, value in about["options"].items()})
        try:
            for name, other in functions:  # only now, because they may call this one
                scope[name] = self._function(other)
        except Exception:
            del _built[key], self.functions[number]  # another trace with it fails alike
            raise

    def _scope(self, about: dict) -> dict:
        """Globals for a function, shared with functions built before if no name has another meaning
        there, as functions of one file share theirs: Triton's key of a kernel depends on it."""
        meant = {name: self._meaning(value) for name, value in about["names"]}
        for scope, meanings in _scopes:  # noqa: B007
            if all(meanings.get(name, meaning) == meaning for name, meaning in meant.items()):
                break
        else:
            _scopes.append(({}, {}))
            scope, meanings = _scopes[-1]
        meanings |= meant
        return scope

    def _meaning(self, value) -> str:
        if isinstance(value, dict) and "function" in value:
            return self._key(value["function"], ())
        return json.dumps(value)

    def _key(self, number: int, above: tuple[int, ...]) -> str:
        """A key for a function and all it calls, made from their texts and constants."""
        if number in above:
            return f"above {above.index(number)}"
        about = dict(self.trace["functions"][number])
        about["names"] = [
            [name, self._key(value["function"], (*above, number))
             if isinstance(value, dict) and "function" in value else value]
            for name, value in about["names"]]
        return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:32]

    def _global(self, value):
        found = self.decode(value)
        if not self.interpreted and isinstance(found, bool | int | float | str | tuple):
            import triton.language as tl  # the compiler accepts no other constants of a module

            return tl.constexpr(found)
        return found


def _is_library(value) -> bool:
    return isinstance(value, dict) and value.get("module") in LIBRARIES


@functools.cache
def _named_tuple(name: str, *fields: str) -> type:
    return collections.namedtuple(name, fields)


def _fields_in(value) -> Iterator[str]:
    """The field names of a trace's named tuples."""
    if isinstance(value, dict):
        yield from map(str, value.get("fields", ())[1:])
        yield from map(str, value.get("named", [()])[0][1:])
    for part in value.values() if isinstance(value, dict) else value:
        if isinstance(part, dict | list):
            yield from _fields_in(part)


def _in_its_place(text: str, first: int, line: int) -> str:
    """The function's text at its line in the file, with as many lines of decorators, so that Triton
    compiles exactly the same."""
    above = max(0, int(line) - int(first))
    return "\n" * (int(line) - above - 1) + (f"@{PLAIN}" + "\n" * above) * bool(above) + text


def _allocate(size: int, alignment: int, stream) -> torch.Tensor:
    """The allocator of kernels that make descriptors; the memory is aligned to 512 bytes."""
    return torch.empty(size, dtype=torch.int8, device="cuda")


def _decorated(plain, kind: str, options: dict):
    import triton

    if kind == "jit":
        return triton.jit(plain, **options)
    if kind == "constexpr":
        from triton.runtime.jit import constexpr_function

        return constexpr_function(plain)
    return plain


def _last_uses(trace: dict) -> dict[int, list[int]]:
    """Step -> the storages that are not needed after it."""
    last: dict[int, int] = {}
    for at, step in enumerate(trace["steps"]):
        for number in storages_in(step):
            last[number] = at
    for number in storages_in([trace["outputs"], trace["gradients"]]):
        last[number] = len(trace["steps"])
    for number, about in enumerate(trace["storages"]):
        if "input" in about or "kept" in about:  # an address may refer to them
            last.pop(number, None)
    gone: dict[int, list[int]] = {}
    for number, at in last.items():
        gone.setdefault(at, []).append(number)
    return gone
