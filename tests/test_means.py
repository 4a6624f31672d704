"""Right numbers by forbidden means: no kernel, products of PyTorch, memory of N x N."""

from dataclasses import replace

import pytest

from grader.cases import Case
from grader.means import forbidden, judge_growth
from grader.stages import STAGES
from tests.judged import PLAIN, answered, verdict
from tests.sessions import plan


def test_right_numbers_without_a_kernel_are_rejected():
    assert verdict(*answered(PLAIN, launches=0)).outcome == "rejected"
    assert verdict(*answered(PLAIN, operations=("aten::bmm",))).outcome == "rejected"
    assert verdict(*answered(PLAIN, operations=("mkldnn::_linear_pointwise",))).outcome == \
        "rejected"


def test_wrong_numbers_without_a_kernel_are_wrong():
    built, reply = answered(PLAIN, launches=0)
    reply.outputs[0]["o"] *= 2
    assert verdict(built, reply).outcome == "wrong"


def test_stage_one_may_multiply_but_not_call_pytorchs_attention():
    case = Case(1, "robust", 40)
    products = ("aten::bmm", "aten::_softmax")
    assert verdict(*answered(case, launches=0, operations=products)).outcome == "pass"
    whole = ("aten::_scaled_dot_product_flash_attention_for_cpu",)
    check = verdict(*answered(case, operations=whole))
    assert check.outcome == "rejected"


@pytest.mark.parametrize("stage, n, outcome", [(1, 512, "pass"), (1, 100, "rejected"),
                                               (3, 512, "rejected")])
def test_a_plan_too_long_to_repeat_is_for_stage_one_and_many_scores(stage, n, outcome):
    built, reply = answered(Case(stage, "robust", n, HQ=4, HKV=4), cut=0)
    check = verdict(built, reply)
    assert check.outcome == outcome
    assert outcome == "pass" or "more than 100,000 operations" in check.message


def test_gradients_need_a_kernel_in_the_backward():
    case = Case(8, "robust", 40, is_causal=True, grads=("q", "k", "v"))
    assert verdict(*answered(case, backward_launches=0)).outcome == "rejected"
    assert verdict(*answered(case, backward_operations=("aten::bmm",))).outcome == "rejected"


@pytest.mark.parametrize("small, large, outcome", [
    (0, 0, "pass"), (100_000, 200_000, "pass"),  # linear
    (500, 4000, "pass"),  # too little to be N x N
    (100_000, 400_000, "rejected"),
])
def test_memory_that_grows_with_n_squared_is_rejected(small, large, outcome):
    case = Case(3, "robust", 128, growth=True)
    built, reply = answered(case, scratch=small)
    bigger = replace(reply, plan=plan(scratch=large))
    check = judge_growth(verdict(built, reply), built, reply, bigger)
    assert check.outcome == outcome


def test_memory_kept_from_earlier_calls_is_rejected():
    built, reply = answered(Case(3, "robust", 128, growth=True))
    bigger = replace(reply, plan=plan(kept=1 << 20))
    check = judge_growth(verdict(built, reply), built, reply, bigger)
    assert check.outcome == "rejected" and "kept from earlier calls" in check.lines[0]


def test_allocating_casting_and_a_little_arithmetic_are_pytorchs():
    operations = ("aten::empty.memory_format", "aten::_to_copy", "aten::mul.Tensor",
                  "aten::sum.dim_IntList", "aten::copy_")
    assert verdict(*answered(PLAIN, operations=operations)).outcome == "pass"
    check = verdict(*answered(PLAIN, operations=("aten::mul.Tensor",) * 1000))
    assert check.outcome == "rejected" and "PyTorch computed" in check.lines[0]


def test_a_call_that_launches_nothing_when_repeated_kept_its_answer():
    check = verdict(*answered(PLAIN, again=(0,)))
    assert check.outcome == "rejected" and "an answer was kept" in check.lines[0]


def test_stage_one_may_multiply_matrices_but_not_call_attention():
    assert forbidden(STAGES[1], ("aten::bmm", "aten::_softmax")) == []
    assert forbidden(STAGES[1], ("aten::_scaled_dot_product_flash_attention_for_cpu",))
    assert forbidden(STAGES[1], ("mkldnn::_linear_pointwise",))
    assert forbidden(STAGES[3], ("aten::bmm", "aten::mul.Tensor")) == ["bmm"]


@pytest.mark.parametrize("operation", [
    "aten::mul.Tensor", "aten::exp_", "aten::sum.dim_IntList", "aten::_to_copy", "aten::empty_like",
    "aten::constant_pad_nd", "aten::masked_fill_.Scalar", "aten::div.Tensor_mode",
])
def test_pytorch_may_allocate_move_compute_one_by_one_and_reduce(operation):
    assert forbidden(STAGES[3], (operation,)) == []


@pytest.mark.parametrize("operation", [
    "aten::mm", "aten::bmm", "aten::_softmax", "aten::_addmm_activation", "aten::convolution",
    "aten::_scaled_dot_product_flash_attention", "aten::logsumexp", "aten::_cdist_forward",
    "aten::_embedding_bag", "mkldnn::_linear_pointwise", "higher_order::flex_attention",
    "aten::no_such_operation", "flex_attention",
])
def test_products_softmax_and_attention_pytorch_may_not(operation):
    assert forbidden(STAGES[3], (operation,))
