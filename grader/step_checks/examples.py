"""Describes an example of a step: the names given, the values left, and how to compare them."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from grader.course.calls import SubmissionError
from grader.sandbox.wire import pack_array, unpack_array

LOG2E, LN2 = 1.4426950408889634, 0.6931471805599453
EXACT, ROUNDED = 1e-5, 2e-3  # relative errors in float32, and with a product in float16


@dataclass(frozen=True)
class Pointer:
    """An address or a tile of them; at: elements from the beginning of the memory `name`."""

    name: str
    at: object


@dataclass(frozen=True)
class Saved:
    """The ctx of an autograd.Function's backward."""

    needs_input_grad: tuple[bool, ...]


@dataclass
class Observed:
    """What a run left: per program a dict of names, the calls of fakes as (function, arguments),
    the memory, and the given PyTorch tensors that it changed; or an error."""

    programs: list[dict]
    calls: list[tuple[str, dict]]
    memory: dict[str, np.ndarray]
    error: dict | None = None
    changed: tuple[str, ...] = ()


@dataclass(frozen=True)
class Wrong:
    """Why a step is wrong, in at most three lines.  shown: the whole of it, for --step.
    note: it is right, and this is only said beside it; id: of the mistake, if that is known.

    name: of the value that is wrong; want, got: both in words; others: further names that are
    wrong; at: the place that the first line shows, where most others are right; ratio: what all
    that is wrong is too large by, if that is one factor; place: of a crash, "problem_1.py:95";
    array: name, wanted, got and which of it is wrong; drawn: other evidence (evidence.py).
    """

    lines: tuple[str, ...]
    shown: tuple[str, ...] = ()
    note: bool = False
    id: str | None = None
    name: str = ""
    want: str = ""
    got: str = ""
    others: tuple[str, ...] = ()
    at: tuple[int, ...] = ()
    ratio: float | None = None
    rounded: bool = False  # whether all errors are as small as those of 16 bits
    place: str = ""
    array: tuple | None = None
    drawn: dict = field(default_factory=dict)

    @property
    def names(self) -> frozenset[str]:
        """Of all that is wrong; what is said of it, where it has no name."""
        return frozenset((self.name or self.lines[0], *self.others))


@dataclass(frozen=True)
class Example:
    """given: name -> number, NumPy array (a tile), Pointer, tuple; check(left) -> what is wrong.

    words: the input in a few numbers.  variants() -> id of a mistake -> whether left is what it
    leaves (named.py).  exact(left): whether it is what the lesson's own answer leaves, where check
    takes more than that.  about(at): what is special about the row at this place.
    """

    words: str
    given: dict
    check: Callable[[Observed], Wrong | None]
    memory: dict[str, np.ndarray] = field(default_factory=dict)
    programs: int = 1
    variants: Callable[[], dict[str, Callable[[Observed], bool]]] | None = None
    exact: Callable[[Observed], bool] | None = None
    about: Callable[[tuple[int, ...]], str] | None = None

    def remark(self, found: Wrong, named: bool = False) -> str:
        """A sentence to add after the number shown, or "".  named: whether the mistake has a name,
        which says more than the size of the error."""
        if found.ratio is not None and number(found.ratio) == "1":
            return ""  # too near for a factor, and nearer than 16 bits
        if found.ratio is not None:
            names = {name: value for name, value in self.given.items()
                     if type(value) in (int, float)}
            what = f"Every wrong element of {found.name}" if found.name else "Every wrong number"
            return f" {what} is {factor(found.ratio, names)} times the right one."
        if found.rounded:
            return "" if named else " An error this small usually comes from rounding to 16 bits."
        said = self.about(found.at) if self.about and found.at else ""
        return f" In this row {said}." if said else ""

    def request(self, kernel: bool) -> dict:
        """The request for sandbox/worker/run_step.py."""
        return {"given": {name: _packed(value, kernel) for name, value in self.given.items()},
                "memory": {name: pack_array(array) for name, array in self.memory.items()},
                "programs": self.programs, "read": list(self.memory)}


@dataclass(frozen=True)
class StepSpec:
    """How a step is checked.  leaves: the names that later code uses; constants: the given names
    that are constexprs; fakes: see run_step.py; kernel: Triton, or else PyTorch; also: a call of
    what the step defines, which returns more of what it leaves.
    """

    leaves: tuple[str, ...]
    examples: Callable[[], list[Example]]
    constants: tuple[str, ...] = ()
    fakes: dict = field(default_factory=dict)
    kernel: bool = True
    also: str = ""

    def without(self, *names: str) -> "StepSpec":
        """The same without these given names."""
        return replace(self, examples=lambda: [replace(one, given={
            name: value for name, value in one.given.items() if name not in names})
            for one in self.examples()])


def _packed(value, kernel: bool):
    if isinstance(value, np.ndarray | np.generic):
        array = np.asarray(value)
        if kernel:
            return {"tile": pack_array(array)}
        return {"torch": pack_array(array), "strides": [n // array.itemsize for n in array.strides]}
    if isinstance(value, Pointer):
        return {"pointer": value.name, "at": int(value.at)}
    if isinstance(value, slice):
        return {"slice": [value.start, value.stop]}
    if isinstance(value, tuple):
        return {"tuple": [_packed(item, kernel) for item in value]}
    if isinstance(value, Saved):
        return {"needs_input_grad": list(value.needs_input_grad)}
    return value


def unpacked(value):
    """The value that a worker sent.

    Raises:
        ValueError, TypeError, KeyError: it sent no valid value.
    """
    if not isinstance(value, dict):
        if not isinstance(value, bool | int | float | None):
            raise ValueError("want a value")
        return value
    if "tile" in value:
        return unpack_array(value["tile"])
    if "tuple" in value:
        return tuple(map(unpacked, value["tuple"]))
    if "pointer" in value:
        return Pointer(str(value["pointer"])[:50], unpack_array(value["at"]))
    return str(value["other"])[:50]


def observe(answer: dict) -> Observed:
    """What one example left, from a worker's answer; raises as unpacked()."""
    if "error" in answer:
        error = answer["error"]
        line, column = (number if type(number) is int else None
                        for number in (error["line"], error["column"]))
        return Observed([], [], {}, {"id": str(error["id"]), "line": line, "column": column,
                                     "sentence": str(error["sentence"])[:600]})
    programs = [{str(name): unpacked(value) for name, value in names.items()}
                for names in answer["programs"]]
    calls = [(str(call["function"]), {str(name): unpacked(value)
                                      for name, value in call["arguments"].items()})
             for call in answer["calls"]]
    return Observed(programs, calls, {str(name): unpack_array(array)
                                      for name, array in answer["memory"].items()},
                    changed=tuple(map(str, answer["changed"])))


def guarded(check: Callable[[], Any], failed: Callable[[str], Any]) -> Any:
    """Call check(); if it has a fault itself, report that to failed() and go on.

    Raises:
        SubmissionError: as check(), for the caller to handle.
    """
    try:
        return check()
    except SubmissionError:
        raise
    except Exception as error:
        return failed(f"{type(error).__name__}: {error}")


# ------------------------------------------------------------------ comparing
def same(got, want) -> bool:
    """Whether two values are equal; numbers to a millionth, whatever their dtype."""
    if isinstance(want, tuple):
        return isinstance(got, tuple) and len(got) == len(want) and all(map(same, got, want))
    if isinstance(want, Pointer):
        return isinstance(got, Pointer) and got.name == want.name and same(got.at, want.at)
    if want is None or isinstance(want, str):
        return got is want or got == want
    if isinstance(got, tuple | Pointer | str) or got is None:
        return False
    got, want = np.asarray(got, np.float64), np.asarray(want, np.float64)
    if got.size != want.size:
        return False
    got = got.reshape(want.shape)
    return bool((got == want).all()) or np.allclose(got, want, 1e-6, 1e-6, equal_nan=True)


def difference(name: str, got, want: np.ndarray, error: float = EXACT,
               free: np.ndarray | None = None) -> Wrong | None:
    """What is wrong with a tile; None if each row is near the wanted one, relative to its largest
    numbers.  free: where values do not matter, broadcast to want."""
    want = np.asarray(want, np.float64)
    if isinstance(got, tuple | Pointer | str) or got is None:
        kind = {tuple: "several values", Pointer: "an address, of which tl.load reads the numbers"
                }.get(type(got), str(got))
        return unlike(name, _kind(want), kind)
    dtype, got = getattr(got, "dtype", ""), np.asarray(got).astype(np.float64)
    try:
        got = np.broadcast_to(got, want.shape)
    except ValueError:
        more = ", its transpose" * (got.ndim > 1 and got.shape == want.shape[::-1])
        more += ": the last axis is not summed" * (got.ndim > 1 and got.shape[:-1] == want.shape)
        return unlike(name, f"shape {want.shape}", got.shape, more=more)
    finite = np.where(np.isfinite(want), np.abs(want), 0.0)
    size = finite.max(axis=-1, keepdims=True) if want.ndim else finite
    with np.errstate(all="ignore"):
        off = np.abs(got - want)
        wrong = ~(off <= error * (size + 1e-6))
    wrong &= ~(got == want) & ~(np.isnan(got) & np.isnan(want))
    if free is not None:
        wrong &= ~np.broadcast_to(free, want.shape)
    if not wrong.any():
        return None
    at = tuple(int(i) for i in np.argwhere(wrong)[0])
    where = f"[{', '.join(map(str, at))}]" if at else ""
    count = f" ({int(wrong.sum())} of {wrong.size} are wrong)" if want.ndim else ""
    rounded = bool(wrong.mean() > 0.2 and (off < 2.0**-8 * size)[wrong].all())
    found = unlike(name, number(want[at]), number(got[at]), where, count)
    if rounded and dtype == np.float16:
        found = replace(found, lines=(f"{name} is float16: keep it in float32. {found.lines[0]}",))
    return replace(found, rounded=rounded and dtype != np.float16,
                   at=at if wrong.mean() < 0.5 else (), array=(name, want, got, wrong),
                   ratio=ratio(got[wrong], want[wrong], np.broadcast_to(size, want.shape)[wrong]))


def unlike(name: str, want, got, where: str = "", more: str = "", id: str | None = None) -> Wrong:
    """A value of that name that is another than it should be.  where: in it; more: said after."""
    return Wrong((f"{name}{where}: want {want}; got {got}{more}.",), id=id, name=name,
                 want=str(want), got=str(got))


def ratio(got: np.ndarray, want: np.ndarray, size) -> float | None:
    """got / want, if it is the same for at least three numbers.  size: of the numbers around
    them."""
    large = np.isfinite(got) & np.isfinite(want) & (np.abs(want) > 0.1 * size)
    if large.sum() < 3 or not (np.isfinite(got) == np.isfinite(want)).all():
        return None
    ratios = got[large] / want[large]
    middle = float(np.median(ratios))
    return middle if abs(middle) > 1e-6 and np.allclose(got, middle * want, 1e-4, 1e-4 * np.max(
        np.abs(got[large]))) else None


def factor(ratio: float, names: dict[str, float]) -> str:
    """A factor in words: "1.2247 (sqrt(1.5))".  names: numbers that it may be made of."""
    known = {"log2(e)": LOG2E, "ln(2)": LN2}
    for name, value in names.items():
        if value > 0 and value != 1:
            known |= {name: value, f"1 / {name}": 1 / value, f"sqrt({name})": value**0.5,
                      f"1 / sqrt({name})": value**-0.5}
    for under in range(1, 5):
        for over in range(1, 17):
            known[f"sqrt({over / under:g})"] = (over / under)**0.5
    whole = abs(ratio) * 12  # halves, thirds and quarters speak for themselves
    if abs(whole - round(whole)) > 1e-4 * whole:
        found = [name for name, value in known.items() if abs(ratio - value) < 1e-4 * value]
        if len(found) == 1:  # else it may be any of them
            return f"{number(ratio)} ({found[0]})"
    return number(ratio)


def _kind(want: np.ndarray) -> str:
    return f"numbers of shape {want.shape}" if want.ndim else "a number"


def number(value) -> str:
    """A number, in short: 3, 0.25, -inf."""
    return f"{float(value):.5g}"


def first(*found: Wrong | None) -> Wrong | None:
    """The first Wrong, with the names of the others, or else the first note."""
    wrong = [one for one in found if one and not one.note]
    return replace(wrong[0], others=tuple(set().union(*(one.names for one in wrong[1:])))) \
        if wrong else next(filter(None, found), None)


def randoms(seed: int):
    """-> a function shape -> normally distributed float32 numbers, the same for the same seed."""
    generator = np.random.default_rng(seed)
    return lambda *shape: generator.standard_normal(shape).astype(np.float32)
