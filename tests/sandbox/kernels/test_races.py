"""Two programs that meet in one number are found, and those that take turns are not accused."""

import pytest

from grader.course.calls import Race
from grader.host.processes import Worker
from grader.host.session import Session
from tests.sessions import double_call

pytestmark = pytest.mark.interpreter

KERNEL = """
import torch
import triton
import triton.language as tl


@triton.jit
def kernel(x_ptr, y_ptr, sum_ptr, lock_ptr, GROUPS: tl.constexpr):
    p = tl.program_id(0)
    at = tl.arange(0, 4)
    x = tl.load(x_ptr + p * 4 + at)
    tl.store(y_ptr + p * 4 + at, 2 * x)
{body}


def call(x):
    y, sums = torch.empty_like(x), torch.zeros(3, 4)
    kernel[(3, 1)](x, y, sums, torch.zeros(1, dtype=torch.int32), GROUPS=1)
    return y
"""


def race_of(*body: str, again: str = "") -> Race | None:
    """again: what call() does after the launch."""
    source = KERNEL.format(body="\n".join(f"    {row}" for row in body))
    source = source.replace("    return y", f"    {again}\n    return y")
    with Session(Worker(source.encode(), "kernels.py", device="cpu", interpret=True),
                 60.0) as session:
        session.load("call", None, ("x",))
        return session.run(double_call()).race


@pytest.mark.parametrize("body, verb, index, line", [
    (["s = tl.load(sum_ptr + at)", "tl.store(sum_ptr + at, s + x)"], "reads", (0, 0), 13),
    (["tl.store(sum_ptr + at, x)"], "writes", (0, 0), 13),
    (["tl.store(sum_ptr + p + at, x)"], "writes", (0, 1), 13),  # the tiles overlap
    (["if p == 0:", "    tl.store(sum_ptr + at, x)", "tl.atomic_add(sum_ptr + at, x)"],
     "writes", (0, 0), 15),
    (["tl.atomic_add(sum_ptr + at, x)", "tl.store(sum_ptr + at, x)"], "writes", (0, 0), 13),
], ids=["added", "overwritten", "overlapping", "begun by one", "atomic and plain"])
def test_a_number_that_two_programs_meet_in_is_told_with_both_and_the_line(body, verb, index, line):
    found = race_of(*body)
    assert (found.verb, found.tensor, found.index) == (verb, "sum_ptr", index)
    assert found.programs == ((0,), (1,)) and found.line == line


@pytest.mark.parametrize("body", [
    ["tl.atomic_add(sum_ptr + at, x)"],
    ["tl.store(sum_ptr + at, 3.0)"],  # the same from all
    ["tl.store(sum_ptr + p * 4 + at, x)", "s = tl.load(sum_ptr + p * 4 + at)",
     "tl.store(sum_ptr + p * 4 + at, s + x)"],  # each its own
    ["while tl.atomic_cas(lock_ptr, 0, 1) == 1:", "    pass",
     "tl.store(sum_ptr + at, tl.load(sum_ptr + at) + x)", "tl.atomic_xchg(lock_ptr, 0)"],
    ["tl.store(sum_ptr + p * 4 + at, x)", "if tl.atomic_add(lock_ptr, 1) == 2:",
     "    tl.store(sum_ptr + at, tl.load(sum_ptr + 4 + at))"],  # the last one sums up
    ["tl.store(sum_ptr + at, x, mask=at == p)"],
], ids=["atomic", "the same", "its own", "a lock", "the last one", "masked apart"])
def test_programs_that_take_turns_or_keep_apart_are_not_accused(body):
    assert race_of(*body) is None


def test_a_program_that_waited_excuses_no_later_one():
    found = race_of("if p == 0:", "    tl.atomic_cas(lock_ptr, 0, 1)", "else:",
                    "    tl.store(sum_ptr + at, x)")
    assert (found.verb, found.tensor, found.programs) == ("writes", "sum_ptr", ((1,), (2,)))


def test_the_next_launch_may_read_what_another_program_of_the_one_before_wrote():
    other = "z = tl.load(x_ptr + (p + 1) % 3 * 4 + at)"
    launch = "kernel[(3, 1)](y, torch.empty_like(y), sums, sums, GROUPS=1)"
    assert race_of(other, again=launch) is None
    assert race_of(other.replace("x_ptr", "y_ptr")) is not None


@pytest.mark.parametrize("said", [
    {}, "x", {"verb": "eats", "programs": [[0], [1]], "tensor": "", "index": [], "line": 1},
    {"verb": "reads", "programs": [[0]], "tensor": "", "index": [], "line": 1},
    {"verb": "reads", "programs": [[0], [-1]], "tensor": "", "index": [], "line": 1}])
def test_what_is_no_account_of_a_race_is_refused(said):
    with pytest.raises((ValueError, TypeError, KeyError)):
        Race.read(said)
