"""What PyTorch's operations in a trace do, and how many numbers they compute."""

import pytest

from grader.course.operations import LEAST, operation


def tensor(*shape, dtype="float32") -> dict:
    return {"tensor": [0, 0, list(shape), [1] * len(shape), dtype]}


@pytest.mark.parametrize("name, given, made, numbers", [
    ("mul.Tensor", [tensor(64, 1, 32), tensor(48, 32)], [tensor(64, 48, 32)], 64 * 48 * 32),
    ("mul_.Tensor", [tensor(64, 48, 32), tensor(48, 1)], [tensor(64, 48, 32)], 64 * 48 * 32),
    ("clone", [tensor(9999)], [tensor(9999)], 0),
    ("copy_", [tensor(9999), tensor(9999)], [tensor(9999)], LEAST),
    ("exp", [tensor(3)], [tensor(3)], LEAST),
    # A sum over one head of a group: B = 1 and as many heads as D has columns, and no broadcast.
    ("sum.dim_IntList", [tensor(1, 16, 1, 4096, 16), [2]], [tensor(1, 16, 4096, 16)], 2**20),
    ("_foreach_mul_.Scalar", [[tensor(999), tensor(999)], 2.0], [], 1998),
])
def test_an_operation_counts_by_the_numbers_it_computes(name, given, made, numbers):
    assert operation(["op", "aten::" + name, given, {}, made, None]).numbers == numbers


@pytest.mark.parametrize("step", [
    ["op"], ["op", "aten::mul.Tensor", [{"tensor": 3}], {}, []],
    ["op", "aten::mul.Tensor", [{"tensor": [0, 0, [-1], [1], "float32"]}], {}, []],
    ["op", "aten::mul.Tensor", [{"tensor": [0, 0, [1], [1], "load"]}], {}, []],
])
def test_what_is_no_operation_is_an_error_of_a_known_kind(step):
    with pytest.raises((ValueError, KeyError, TypeError, IndexError, AttributeError)):
        operation(step)
