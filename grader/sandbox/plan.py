"""What a plan of a call consists of: launches, PyTorch operations, memory.

The plan comes from the worker, and is believed only because replay.py carries it out: what it
leaves out does not happen there.
"""

import json
import math

from grader.inside.wire import DTYPES, UNINITIALISED, storages_in
from grader.text import escape

# Moving numbers about is not computing with them.
MOVES = UNINITIALISED | set("""
    _to_copy clone constant_pad_nd zeros zeros_like ones ones_like full full_like new_zeros
    new_ones new_full cat stack arange scalar_tensor eye index_select index gather repeat
    repeat_interleave resize_ roll flip lift_fresh lift_fresh_copy _pin_memory detach view_copy
    tril triu tril_ triu_ masked_select nonzero
""".split())
WRITES = {"copy_", "fill_", "zero_", "masked_fill_", "index_put_", "_index_put_impl_",
          "index_copy_", "scatter_", "detach_", "_foreach_zero_"}
REDUCTIONS = set("""
    sum mean amax amin max min any all aminmax linalg_vector_norm norm cumsum cumsum_ masked_fill
    where floor_divide linspace isin bucketize searchsorted
""".split())
MOST = 1 << 60  # no count is larger
LEAST = 256  # numbers an operation counts for at least: many small ones are one large one


class Plan:
    """text: the worker's plan, as it arrived.

    Raises:
        ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError: it is no plan.
    """

    def __init__(self, text: str):
        self.text = text
        self.value = json.loads(text)
        self.steps = self.value["steps"]
        self.backward_from = _size(self.value["backward"])
        self.cut = "cut" in self.value  # too long to be written down, or carried out again
        forward, backward = self.steps[:self.backward_from], self.steps[self.backward_from:]
        self.launches, self.backward_launches = _launches(forward), _launches(backward)
        self.operations, self.backward_operations = _operations(forward), _operations(backward)
        self.arithmetic, self.backward_arithmetic = _arithmetic(forward), _arithmetic(backward)
        self.kernels = {self._name(step[1]) for step in self.steps if step[0] == "launch"}
        self.texts = [(escape(str(function["name"]))[:200], str(function["text"]))
                      for function in self.value["functions"]]
        self.peak_bytes = _size(self.value["cut"]) if self.cut else self._peak_bytes()
        self.kept_bytes = sum(_size(about["bytes"]) for about in self.value["storages"]
                              if "kept" in about)
        self.answers_kept = any(count != self.launches for count in self.value["again"])
        self.results_written = self._results_written()

    def _name(self, number: int) -> str:
        function = self.value["functions"][number]
        return escape(f"{function['name']}@{function['line']}")[:200]

    def _peak_bytes(self) -> int:
        """The most bytes held at once beside inputs, outputs and gradients."""
        storages, end = self.value["storages"], len(self.steps)
        held = {number: _size(about["bytes"]) for number, about in enumerate(storages)
                if not {"input", "kept"} & about.keys()}
        first, last = {}, {}
        for at, step in enumerate(self.steps):
            for number in storages_in(step):
                first.setdefault(number, at)
                last[number] = at
        for number, size in _results(self.value):  # what is there beside the result itself counts
            if number in held:
                held[number], last[number] = max(0, held[number] - size), end
        change = [0] * (end + 2)
        for number, size in held.items():
            freed = min(_size(storages[number].get("freed", 0)), end)  # before this step
            change[first.get(number, 0)] += size
            change[max(last.get(number, 0) + 1, freed)] -= size
        live = peak = 0
        for more in change:
            live += more
            peak = max(peak, live)
        return peak

    def _results_written(self) -> bool:
        """Whether every result depends on memory that a launch could write to."""
        inputs = {number for number, about in enumerate(self.value["storages"])
                  if "input" in about}
        reached: set[int] = set()
        for step in self.steps:
            numbers = set(storages_in(step)) - inputs
            if step[0] == "launch" or numbers & reached:
                reached |= numbers
        return all(number in reached for number, _ in _results(self.value))


def _results(value: dict) -> list[tuple[int, int]]:
    """(storage, bytes) of every output and gradient."""
    found = []
    for result in value["outputs"] + value["gradients"]:
        number, _, shape, _, dtype = result["tensor"]
        found.append((number, math.prod(map(_size, shape)) * DTYPES[dtype].itemsize))
    return found


def _launches(steps) -> int:
    return sum(step[0] == "launch" for step in steps)


def _operations(steps) -> tuple[str, ...]:
    return tuple(sorted({escape(str(step[1]))[:100] for step in steps if step[0] == "op"}))


def _arithmetic(steps) -> int:
    """Numbers that PyTorch computed with."""
    total = 0
    for step in steps:
        if step[0] != "op":
            continue
        packet = str(step[1]).removeprefix("aten::").partition(".")[0]
        if packet in WRITES:
            total += LEAST  # moving a number at a time is no way to move
        elif packet not in MOVES:
            total += max(LEAST, _numbers(list(_shapes(step[2:]))))
    return min(total, MOST)


def _shapes(value):
    if isinstance(value, list):
        for item in value:
            yield from _shapes(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key == "tensor":
                yield [_size(size) for size in item[2]]
            else:
                yield from _shapes(item)


def _numbers(shapes) -> int:
    """How many numbers an operation on tensors of these shapes computes: they broadcast."""
    together = [1] * max(map(len, shapes), default=0)
    for shape in shapes:
        for axis, size in enumerate(reversed(shape)):
            together[axis] = max(together[axis], size)
    alone = max(map(math.prod, shapes), default=0)
    # Shapes that do not broadcast belong to an operation of another kind.
    fits = all(size in (1, together[axis]) for shape in shapes
               for axis, size in enumerate(reversed(shape)))
    return math.prod(together) if fits else alone


def _size(value) -> int:
    if type(value) is not int or not 0 <= value <= MOST:
        raise ValueError(f"want a count; got {str(value)[:100]}")
    return value
