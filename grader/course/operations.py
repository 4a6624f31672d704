"""Tells what a PyTorch operation in a trace does: move numbers, compute them, reduce, add up.

operators.tsv says it for every operation; tools/operators.py wrote it by calling them all.
"""

import functools
import math
from dataclasses import dataclass
from pathlib import Path

import torch

from grader.text import escape

TABLE = Path(__file__).with_name("operators.tsv")
# Operations that the table lists under "adds" and "computes", and that are allowed as reductions.
REDUCTIONS = set("""
    sum mean amax amin max min any all aminmax linalg_vector_norm norm cumsum cumsum_ floor_divide
    isin bucketize searchsorted
""".split())
MOST = 1 << 60  # no count is larger
UNTABLED = {"_pin_memory", "resize_", "nonzero"}  # they compute nothing, but cannot be probed
FREE = ("looks", "fresh", "constant", "moves")  # kinds that compute no numbers
LEAST = 256  # numbers that even a small operation counts for


@dataclass(frozen=True)
class Operation:
    """One operation of a trace.

    name: such as "aten::mul.Tensor".  kind: the table's, "reduces" or "unknown".  numbers: how many
    it computed.  made, sides: bytes of the largest result, and the lengths along each dimension of
    the results and of what they are made from.  line: in the student's file; None if autograd
    called it.  addends: what is added, for an operation that adds.
    """

    name: str
    kind: str
    numbers: int
    made: int
    sides: frozenset[int]
    line: int | None
    addends: "Addends | None" = None

    @property
    def packet(self) -> str:
        """ "mul" """
        return self.name.removeprefix("aten::").partition(".")[0]


@dataclass(frozen=True)
class Addends:
    """How an operation adds entries at indices: how many numbers, to how many sums, and the most
    that go to one index."""

    numbers: int
    into: int
    together: int


def operation(step: list, of_inputs: bool = True) -> Operation:
    """Read a trace's step ["op", ...].  of_inputs: whether its arguments depend on the inputs.

    Raises:
        ValueError, KeyError, TypeError, IndexError, AttributeError: step is no such step.
    """
    name = escape(str(step[1]))[:100]
    given, made = list(_tensors(step[2:4])), list(_tensors(step[4]))
    kind, named = _kind(name), {}
    if kind == "adds":
        named = _named(name, step[2], step[3])
        kind = "moves" if named.get("accumulate") is False else kind
    if kind not in FREE and given and not of_inputs and not any(
            tensor.floats for tensor in given + made):
        kind = "moves"  # integers and masks say which tile goes where; no attention
    largest = max((tensor.numbers for tensor in given + made), default=0)
    if "_foreach_" in name:
        largest = sum(tensor.numbers for tensor in given)
    numbers = max(LEAST, largest)
    if kind in FREE:  # filling a tensor number by number does not count as a move
        in_place = name.partition(".")[0].endswith("_") or "index_put" in name
        numbers = LEAST if in_place else 0
    line = step[5] if len(step) > 5 and type(step[5]) is int else None
    largest_made = max((tensor.bytes for tensor in made), default=0)
    sides = frozenset(side for tensor in given + made for side in tensor.shape)
    return Operation(name, kind, numbers, largest_made, sides, line,
                     _addends(named, made) if kind == "adds" else None)


@functools.cache
def _table() -> dict[str, str]:
    rows = (row.split("\t") for row in TABLE.read_text("utf-8").splitlines() if row[:1] != "#")
    return {name: kind for name, kind in rows}


@functools.cache
def _kind(name: str) -> str:
    space, _, rest = name.partition("::")
    packet = rest.partition(".")[0]
    if space != "aten":
        return "unknown"
    if packet in UNTABLED:
        return "moves"
    if packet in REDUCTIONS:
        return "reduces"
    found = _table().get(rest) or _table().get(packet, "unknown")
    if found in ("unknown", "not run") and (known := _known(name)) is not None:
        return "pointwise" if torch.Tag.pointwise in known.tags else found
    return found


@functools.cache
def _known(name: str):
    """The operation of this name in the installed PyTorch, or None."""
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)


def _named(name: str, args, kwargs) -> dict:
    """The arguments by name, defaults included."""
    found = _known(name)
    if found is None:
        return {}
    arguments = found._schema.arguments
    values = {argument.name: argument.default_value for argument in arguments
              if argument.has_default_value()}
    values |= dict(zip((argument.name for argument in arguments), args, strict=False))
    return values | dict(kwargs["dict"] if isinstance(kwargs, dict) and "dict" in kwargs else ())


@dataclass(frozen=True)
class _Tensor:
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def numbers(self) -> int:
        return math.prod(self.shape)

    @property
    def bytes(self) -> int:
        return self.numbers * self.dtype.itemsize

    @property
    def floats(self) -> bool:
        return self.dtype.is_floating_point or self.dtype.is_complex


def _tensors(value):
    """Every tensor in an encoded value."""
    if isinstance(value, list):
        for item in value:
            yield from _tensors(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key == "tensor":
                dtype = getattr(torch, item[4])
                if not isinstance(dtype, torch.dtype):
                    raise ValueError(f"want a dtype; got {item[4]!r:.100}")
                yield _Tensor(sizes(item[2]), dtype)
            else:
                yield from _tensors(item)


def _addends(named: dict, made: list[_Tensor]) -> Addends:
    source = next((tensor for name in ("values", "source", "src", "grad_output", "grad")
                   for tensor in _tensors(named.get(name))), None)
    indices = [tensor for name in ("indices", "index") for tensor in _tensors(named.get(name))]
    if source is None or not indices:
        return Addends(MOST, 1, 0)
    into = max((tensor.numbers for tensor in [*_tensors(named.get("self")), *made]), default=0)
    axis = named.get("dim")
    if type(axis) is int and source.shape:
        together = source.numbers // max(1, source.shape[axis % len(source.shape)])
    else:
        together = source.numbers // max(1, *(tensor.numbers for tensor in indices))
    return Addends(source.numbers, into, together)


def sizes(shape) -> tuple[int, ...]:
    """Return shape if it is a tensor's: a product of 60,000 sizes would take a minute."""
    if len(shape) > 64:  # as in PyTorch
        raise ValueError(f"want at most 64 dimensions; got {len(shape)}")
    return tuple(map(size, shape))


def size(value) -> int:
    """Return value if it is a valid count."""
    if type(value) is not int or not 0 <= value <= MOST:
        raise ValueError(f"want a count; got {str(value)[:100]}")
    return value
