"""Reads a call's trace: its launches, PyTorch operations and memory.

A trace comes from the worker and can be trusted only because replay.py repeats it: what it leaves
out does not happen in the repetition.
"""

import json
import math

from grader.course.cases import Case
from grader.course.operations import MOST, Operation, operation, size, sizes
from grader.sandbox.wire import DTYPES, storages_in
from grader.text import escape


class Trace:
    """A trace, parsed.  text: as it came from the worker.

    Raises:
        ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError: it is no trace.
    """

    def __init__(self, text: str):
        self.text = text
        self.value = json.loads(text)
        self.steps = self.value["steps"]
        self.backward_from = size(self.value["backward"])
        self.cut = "cut" in self.value  # too long to be recorded or repeated
        forward, backward = self.steps[:self.backward_from], self.steps[self.backward_from:]
        self.launches, self.backward_launches = _launches(forward), _launches(backward)
        made_of: set[int] = set()
        storages = self.value["storages"]
        self.operations = _operations(forward, storages, made_of)
        self.backward_operations = _operations(backward, storages, made_of)
        launches = [step for step in self.steps if step[0] == "launch"]
        self.kernels = {self._name(step[1]) for step in launches}
        self.arguments = [(name, _checked(value)) for step in launches
                          for name, value in step[3].items()]
        self.texts = [(escape(str(function["name"]))[:200], str(function["text"]))
                      for function in self.value["functions"]]
        self.peak_bytes = size(self.value["cut"]) if self.cut else self._peak_bytes()
        self.kept_bytes = sum(size(about["bytes"]) for about in self.value["storages"]
                              if "kept" in about)
        self.answers_kept = any(count != self.launches for count in self.value["again"])
        self.results_written = self._results_written()
        self.read = [size(line) for line in self.value.get("read", ())]

    def _name(self, number: int) -> str:
        function = self.value["functions"][number]
        return escape(f"{function['name']}@{function['line']}")[:200]

    def _peak_bytes(self) -> int:
        """The most bytes held at once, without inputs, outputs and gradients."""
        storages, end = self.value["storages"], len(self.steps)
        held = {number: size(about["bytes"]) for number, about in enumerate(storages)
                if not {"input", "kept"} & about.keys()}
        first, last = {}, {}
        for at, step in enumerate(self.steps):
            for number in storages_in(step):
                first.setdefault(number, at)
                last[number] = at
        for number, count in _results(self.value):  # count what is there beside the result
            if number in held:
                held[number], last[number] = max(0, held[number] - count), end
        change = [0] * (end + 2)
        for number, count in held.items():
            freed = min(size(storages[number].get("freed", 0)), end)  # before this step
            change[first.get(number, 0)] += count
            change[max(last.get(number, 0) + 1, freed)] -= count
        live = peak = 0
        for more in change:
            live += more
            peak = max(peak, live)
        return peak

    def _results_written(self) -> bool:
        """Whether every result depends on memory that a launch could have written."""
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
        number, _, shape, _, dtype = _checked(result)["tensor"]
        found.append((number, math.prod(shape) * DTYPES[dtype].itemsize))
    return found


def _checked(argument):
    """The argument of a kernel, or a result.  Raises as Trace if it is an ill-formed tensor."""
    if isinstance(argument, dict) and "tensor" in argument:
        number, _, shape, _, _ = argument["tensor"]
        size(number)
        sizes(shape)
    return argument


def _launches(steps) -> int:
    return sum(step[0] == "launch" for step in steps)


def _operations(steps, storages, made_of) -> tuple[Operation, ...]:
    """made_of: the storages so far whose numbers depend on the inputs."""
    found = []
    for step in steps:
        of_inputs = any(number in made_of or "input" in storages[number]
                        for number in storages_in(step[2:4] if step[0] == "op" else step[3]))
        if of_inputs:
            made_of.update(storages_in(step))
        if step[0] == "op":
            found.append(operation(step, of_inputs))
    return tuple(found)


def arithmetic(operations: tuple[Operation, ...]) -> int:
    """How many numbers PyTorch computed."""
    return min(sum(operation.numbers for operation in operations), MOST)


def kept_in_16_bits(case: Case, trace: Trace) -> str:
    """A sentence if a kernel was given a statistic of rows (one number per query and head) in 16
    bits, or "" """
    if case.course_stage.sums_rows or case.HQ == case.HKV * case.D:  # k could be mistaken for it
        return ""
    given = {number for number, about in enumerate(trace.value["storages"]) if "input" in about}
    given |= {one["tensor"][0] for one in trace.value["outputs"] + trace.value["gradients"]}
    launches = [step for step in trace.steps if step[0] == "launch"]
    for name, value in (one for step in launches for one in step[3].items()):
        if not (isinstance(value, dict) and "tensor" in value):
            continue
        number, _, shape, _, dtype = value["tensor"]
        if dtype in ("float16", "bfloat16") and number not in given \
                and math.prod(shape) == case.B * case.HQ * case.N and case.N in shape[-2:]:
            return (f"{escape(name)[:50]} holds one number per row, in {dtype}: lse, delta and "
                    "other statistics of a row belong in float32.")
    return ""
