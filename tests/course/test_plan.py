"""What a plan says of a call, and what is no plan."""

import json

import pytest

from grader.course.operations import LEAST
from grader.course.plan import Plan, arithmetic
from tests.sessions import names, plan


def test_launches_operations_and_memory_are_counted_by_pass():
    seen = plan(launches=2, backward_launches=1, operations=("aten::mul.Tensor",), scratch=64)
    assert (seen.launches, seen.backward_launches) == (2, 1)
    assert names(seen.operations) == ["aten::mul.Tensor"]
    assert arithmetic(seen.operations) == LEAST and seen.backward_operations == ()
    assert seen.peak_bytes == 64 and seen.kernels == {"kernel@3"} and seen.results_written


def test_results_that_no_launch_could_write_are_known():
    assert not plan(launches=0, backward_launches=0, operations=("aten::clone",)).results_written


@pytest.mark.parametrize("spoil", [
    lambda value: value.pop("steps"), lambda value: value.update(backward=-1),
    lambda value: value.update(backward=10**30), lambda value: value.update(outputs=[3]),
    lambda value: value["storages"][1].update(bytes=-5),
    lambda value: value["steps"].append(["launch", 99, [1], {}, {}]),
    lambda value: value["steps"].append([]), lambda value: value.update(functions=None),
    lambda value: value["outputs"][0]["tensor"].__setitem__(4, "float1"),
    lambda value: value["outputs"][0]["tensor"].__setitem__(2, [10**40]),
])
def test_what_is_no_plan_is_an_error_of_a_known_kind(spoil):
    value = json.loads(plan().text)
    spoil(value)
    with pytest.raises((ValueError, KeyError, TypeError, IndexError, AttributeError)):
        Plan(json.dumps(value))
