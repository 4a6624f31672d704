"""What PyTorch's operations in a trace do: move numbers, compute one by one, reduce, add up, more.

course/operators.tsv says it of every operation there is; tools/operators.py found it out by calling
them.
"""

import functools
import math
from dataclasses import dataclass
from pathlib import Path

import torch

from grader.text import escape

TABLE = Path(__file__).with_name("operators.tsv")
# Of what the table has as "adds" and "computes": PyTorch may reduce, and prepare whole numbers.
REDUCTIONS = set("""
    sum mean amax amin max min any all aminmax linalg_vector_norm norm cumsum cumsum_ floor_divide
    isin bucketize searchsorted
""".split())
MOST = 1 << 60  # no count is larger
UNTABLED = {"_pin_memory", "resize_", "nonzero"}  # no probe shows that these compute nothing
FREE = ("looks", "fresh", "constant", "moves")  # kinds that compute no numbers
LEAST = 256  # numbers an operation counts for at least: many small ones are one large one


@dataclass(frozen=True)
class Operation:
    """One of a trace.  name: "aten::mul.Tensor"; kind: of the table, or "reduces", "unknown".

    numbers: as many as it computed; made, sides: bytes of the largest result, and how long the
    results are along each dimension; line: of the student's file, None where autograd called it;
    addends: of what adds.
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
    """Of an operation that adds entries up at indices: how many numbers are added, to how many, and
    how many at most go together, by one index."""

    numbers: int
    into: int
    together: int


def operation(step: list, of_inputs: bool = True) -> Operation:
    """Of a trace's step ["op", ...].  of_inputs: what it is given was made of the inputs' numbers.

    Raises:
        ValueError, KeyError, TypeError, IndexError, AttributeError: it is no such step.
    """
    name = escape(str(step[1]))[:100]
    given, made = list(_tensors(step[2:4])), list(_tensors(step[4]))
    kind, named = _kind(name), {}
    if kind == "adds":
        named = _named(name, step[2], step[3])
        kind = "moves" if named.get("accumulate") is False else kind
    if kind not in FREE and given and not of_inputs and not any(
            tensor.floats for tensor in given + made):
        kind = "moves"  # whole numbers and masks: which tile goes where, not attention
    largest = max((tensor.numbers for tensor in given + made), default=0)
    if "_foreach_" in name:
        largest = sum(tensor.numbers for tensor in given)
    numbers = max(LEAST, largest)
    if kind in FREE:  # one by one into a tensor is no way to move
        in_place = name.partition(".")[0].endswith("_") or "index_put" in name
        numbers = LEAST if in_place else 0
    line = step[5] if len(step) > 5 and type(step[5]) is int else None
    largest_made = max((tensor.bytes for tensor in made), default=0)
    sides = frozenset(side for tensor in made for side in tensor.shape)
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
    """The operation of this name in the PyTorch of here, or None."""
    packet, _, overload = name.removeprefix("aten::").partition(".")
    return getattr(getattr(torch.ops.aten, packet, None), overload or "default", None)


def _named(name: str, args, kwargs) -> dict:
    """Arguments by the names of the operation's schema, defaults among them."""
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
                yield _Tensor(tuple(map(size, item[2])), dtype)
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


def size(value) -> int:
    """value, if it is a count."""
    if type(value) is not int or not 0 <= value <= MOST:
        raise ValueError(f"want a count; got {str(value)[:100]}")
    return value
