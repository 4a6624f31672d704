"""What a trace says of a call, and what is no trace."""

import json
from types import SimpleNamespace

import pytest

from grader.course.cases import Case
from grader.course.operations import LEAST
from grader.course.trace import Trace, arithmetic, kept_in_16_bits
from tests.sessions import names, trace

CASE = Case(7, "robust", 100, D=8, B=2, HQ=4, HKV=2, is_causal=True, window=20, sinks=4)


def test_launches_operations_and_memory_are_counted_by_pass():
    seen = trace(launches=2, backward_launches=1, operations=("aten::mul.Tensor",), scratch=64)
    assert (seen.launches, seen.backward_launches) == (2, 1)
    assert names(seen.operations) == ["aten::mul.Tensor"]
    assert arithmetic(seen.operations) == LEAST and seen.backward_operations == ()
    assert seen.peak_bytes == 64 and seen.kernels == {"kernel@3"} and seen.results_written


def test_results_that_no_launch_could_write_are_known():
    assert not trace(launches=0, backward_launches=0, operations=("aten::clone",)).results_written


def test_only_whole_numbers_made_of_the_inputs_are_computed_with():
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


MADE, INPUT, RESULT = range(3)  # storages


def narrow(case, shape, dtype="float16", storage=MADE) -> str:
    launch = ["launch", 0, [1], {"N": 100, "lse_ptr": {
        "tensor": [storage, 0, shape, [1], dtype]}}, {}]
    return kept_in_16_bits(case, SimpleNamespace(
        steps=[["op", "aten::empty", [], {}, []], launch],
        value={"storages": [{}, {"input": "w"}, {}], "gradients": [],
               "outputs": [{"tensor": [RESULT, 0, [1], [1], "float16"]}]}))


@pytest.mark.parametrize("shape, dtype, said", [
    ([2, 4, 100], "float16", "lse_ptr holds one number per row, in float16: "),
    ([8, 100, 1], "bfloat16", "lse_ptr holds one number per row, in bfloat16: "),
    ([2, 4, 100], "float32", ""), ([2, 4, 100, 8], "float16", ""), ([2, 2, 50, 4], "float16", "")])
def test_a_statistic_that_a_kernel_was_given_in_16_bits_is_seen(shape, dtype, said):
    found = narrow(CASE, shape, dtype)
    assert found.startswith(said) and bool(found) == bool(said)


@pytest.mark.parametrize("case, shape, storage", [
    (Case(2, "robust", 100, M=9), [100], MADE),  # a copy of stage 2's w
    (CASE, [2, 4, 100], INPUT), (CASE, [2, 4, 100], RESULT),
    (Case(5, "robust", 100, D=16, HQ=16, HKV=1), [1, 16, 100], MADE),  # k, transposed
])
def test_what_only_has_as_many_numbers_is_no_statistic(case, shape, storage):
    assert narrow(case, shape, storage=storage) == ""
