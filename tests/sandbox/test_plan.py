"""What a plan says of a call, and what is no plan."""

import json
from dataclasses import replace

import pytest
import torch

from grader import submission
from grader.sandbox.plan import LEAST, Plan, allowed
from tests.sessions import plan


def test_launches_operations_and_memory_are_counted_by_pass():
    seen = plan(launches=2, backward_launches=1, operations=("aten::mul.Tensor",), scratch=64)
    assert (seen.launches, seen.backward_launches) == (2, 1)
    assert seen.operations == ("aten::mul.Tensor",) and seen.backward_operations == ()
    assert seen.arithmetic == LEAST and seen.backward_arithmetic == 0
    assert seen.peak_bytes == 64 and seen.kernels == {"kernel@3"} and seen.results_written


def test_results_that_no_launch_could_write_are_known():
    assert not plan(launches=0, backward_launches=0, operations=("aten::clone",)).results_written


def test_arithmetic_broadcasts():
    def tensor(*shape):
        return {"tensor": [0, 0, list(shape), [0] * len(shape), "float32"]}

    text = json.loads(plan().text)
    text["steps"] = [["op", "aten::mul.Tensor", [tensor(64, 1, 32), tensor(48, 32)], {}, []],
                     ["op", "aten::clone", [tensor(9999)], {}, []],
                     ["op", "aten::copy_", [tensor(9999)], {}, []]]
    text["backward"] = 3
    assert Plan(json.dumps(text)).arithmetic == 64 * 48 * 32 + LEAST


@pytest.mark.parametrize("operation", [
    "aten::mul.Tensor", "aten::exp_", "aten::sum.dim_IntList", "aten::_to_copy", "aten::empty_like",
    "aten::constant_pad_nd", "aten::masked_fill_.Scalar", "aten::div.Tensor_mode",
])
def test_pytorch_may_allocate_move_compute_one_by_one_and_reduce(operation):
    assert allowed(operation)


@pytest.mark.parametrize("operation", [
    "aten::mm", "aten::bmm", "aten::_softmax", "aten::_addmm_activation", "aten::convolution",
    "aten::_scaled_dot_product_flash_attention", "aten::logsumexp", "aten::_cdist_forward",
    "aten::_embedding_bag", "mkldnn::_linear_pointwise", "higher_order::flex_attention",
    "aten::no_such_operation", "flex_attention",
])
def test_products_softmax_and_attention_pytorch_may_not(operation):
    assert not allowed(operation)


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


def test_the_text_of_a_kernel_is_found_whatever_its_indentation_and_coding():
    source = "# -*- coding: latin-1 -*-\nclass A:\n    def f(x):\n        return x  # \xe9\n"
    text = "def f(x):\n    return x  # \xe9\n"
    there = source.encode("latin-1")
    assert submission.foreign_texts(there, [("f", text)]) == []
    assert submission.foreign_texts(there, [("f", text), ("f", text + "    pass")]) == ["f"]
    assert submission.foreign_texts(there, [("f", "")]) == ["f"]


def test_other_numbers_are_other_and_a_refilled_case_takes_those_of_its_refill():
    from grader import inputs
    from grader.cases import Case

    case = Case(3, "robust", 40, refill=True)
    built, other = inputs.build(case, 0), inputs.other_numbers(case, 0)
    assert torch.equal(other.tensors["q"], built.refilled["q"])
    case = replace(case, refill=False, family="real", D=32)
    built, other = inputs.build(case, 0), inputs.other_numbers(case, 0)
    assert not torch.equal(other.tensors["q"], built.tensors["q"])
    assert other.call.refill is None and other.call.repeats == 1
