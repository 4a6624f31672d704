"""What a trace says of a call, and what is no trace."""

import json

import pytest

from grader.course.operations import LEAST
from grader.course.trace import Trace, arithmetic
from tests.sessions import names, trace


def test_launches_operations_and_memory_are_counted_by_pass():
    seen = trace(launches=2, backward_launches=1, operations=("aten::mul.Tensor",), scratch=64)
    assert (seen.launches, seen.backward_launches) == (2, 1)
    assert names(seen.operations) == ["aten::mul.Tensor"]
    assert arithmetic(seen.operations) == LEAST and seen.backward_operations == ()
    assert seen.peak_bytes == 64 and seen.kernels == {"kernel@3"} and seen.results_written


def test_results_that_no_launch_could_write_are_known():
    assert not trace(launches=0, backward_launches=0, operations=("aten::clone",)).results_written


def test_whole_numbers_made_of_the_inputs_are_computed_with_and_other_ones_are_not():
    value = json.loads(trace().text)
    value["storages"] = [{"bytes": 16, "input": "q"}] + [{"bytes": 32}] * 4
    whole = [{"tensor": [number, 0, [2, 2], [2, 1], "int64"]} for number in range(5)]
    value["steps"] = [
        ["op", "aten::_to_copy", [value["outputs"][0]], {"dict": []}, [whole[1]]],
        ["op", "aten::mm", [whole[1], whole[1]], {"dict": []}, [whole[2]]],
        ["op", "aten::mm", [whole[3], whole[3]], {"dict": []}, [whole[4]]],
    ]
    value["backward"] = 3
    assert [operation.kind for operation in Trace(json.dumps(value)).operations] == [
        "moves", "computes", "moves"]


@pytest.mark.parametrize("spoil", [
    lambda value: value.pop("steps"), lambda value: value.update(backward=-1),
    lambda value: value.update(backward=10**30), lambda value: value.update(outputs=[3]),
    lambda value: value["storages"][1].update(bytes=-5),
    lambda value: value["steps"].append(["launch", 99, [1], {}, {}]),
    lambda value: value["steps"].append(["launch", 0, [1], "BLOCK_M", {}]),
    lambda value: value["steps"].append(["launch", 0, [1], {"x": {"tensor": [0, 0]}}, {}]),
    lambda value: value["steps"][0][3]["x"]["tensor"].__setitem__(2, 4),
    lambda value: value["steps"].append([]), lambda value: value.update(functions=None),
    lambda value: value["outputs"][0]["tensor"].__setitem__(4, "float1"),
    lambda value: value["outputs"][0]["tensor"].__setitem__(2, [10**40]),
    lambda value: value["outputs"][0]["tensor"].__setitem__(2, [1] * 65),
])
def test_what_is_no_trace_is_an_error_of_a_known_kind(spoil):
    value = json.loads(trace().text)
    spoil(value)
    with pytest.raises((ValueError, KeyError, TypeError, IndexError, AttributeError)):
        Trace(json.dumps(value))
