"""Right numbers by forbidden means: no kernel, products of PyTorch, memory of N x N."""

import json
from dataclasses import replace

import pytest

from grader.course.cases import Case
from grader.course.operations import operation
from grader.course.stages import STAGES
from grader.course.trace import Trace
from grader.judge.provenance import forbidden, judge_growth, scores_bytes
from tests.judged import PLAIN, answered, judged
from tests.sessions import trace


def test_right_numbers_without_a_kernel_are_rejected():
    assert judged(*answered(PLAIN, launches=0)).outcome == "rejected"
    assert judged(*answered(PLAIN, operations=("aten::bmm",))).outcome == "rejected"


def test_wrong_numbers_without_a_kernel_are_wrong():
    built, reply = answered(PLAIN, launches=0)
    reply.outputs[0]["o"] *= 2
    assert judged(built, reply).outcome == "wrong"


@pytest.mark.parametrize("stage, n, outcome", [(1, 512, "pass"), (1, 100, "rejected"),
                                               (3, 512, "rejected")])
def test_a_plan_too_long_to_repeat_is_for_stage_one_and_many_scores(stage, n, outcome):
    built, reply = answered(Case(stage, "robust", n, HQ=4, HKV=4), cut=0)
    check = judged(built, reply)
    assert check.outcome == outcome
    assert outcome == "pass" or "more than 100,000 operations" in check.message


def test_gradients_need_a_kernel_in_the_backward():
    case = Case(8, "robust", 40, is_causal=True, grads=("q", "k", "v"))
    assert judged(*answered(case, backward_launches=0)).outcome == "rejected"
    assert judged(*answered(case, backward_operations=("aten::bmm",))).outcome == "rejected"


@pytest.mark.parametrize("peaks, outcome", [
    ((0, 0), "pass"), ((100_000, 200_000, 400_000), "pass"),  # linear
    ((500, 2000, 8000), "pass"),  # too little to be N x N
    ((100_000, 400_000, 1_600_000), "rejected"),
    ((9_100_000, 9_400_000, 10_600_000), "rejected"),  # beside what is always there
    ((9_100_000, 9_200_000, 9_400_000), "pass"),
])
def test_memory_that_grows_with_n_squared_is_rejected(peaks, outcome):
    built, reply = answered(Case(3, "robust", 128, growth=True))
    replies = [replace(reply, trace=trace(scratch=peak)) for peak in peaks]
    assert judge_growth(judged(built, reply), built, *replies).outcome == outcome


def test_what_grows_is_said_in_mib_at_two_and_four_times_the_length():
    built, reply = answered(Case(3, "robust", 1024, growth=True))
    replies = [replace(reply, trace=trace(scratch=mib << 20)) for mib in (3, 12, 48)]
    said = judge_growth(judged(built, reply), built, *replies).message
    assert "12.00 MiB at N=2048, 48.00 MiB at N=4096" in said


def test_scores_are_counted_for_one_head_and_half_of_16_bits():
    built, _ = answered(Case(3, "robust", 100, growth=True))
    assert scores_bytes(built, 1) == 10_000 and scores_bytes(built, 4) == 160_000
    built, _ = answered(Case(1, "robust", 100, NK=1000, growth=True))
    assert scores_bytes(built, 2) == 200 * 2000


def with_product(reply, side: int):
    """The reply to a call with a product that has an operand of this side."""
    operand, made = ({"tensor": [0, 0, [16, length], [length, 1], "float32"]}
                     for length in (side, 16))
    value = json.loads(trace(launches=0).text)
    value["steps"].append(["op", "aten::mm", [operand, made], {"dict": []}, [made]])
    value["backward"] = len(value["steps"])
    return replace(reply, trace=Trace(json.dumps(value)))


@pytest.mark.parametrize("at_n, at_2n, outcome", [
    (64, 64, "pass"), (1000, 1024, "pass"),  # a tile of 64, and one of 1024
    (100, 200, "pass"),  # all queries at once
    (1000, 2000, "rejected"), (1001, 2001, "rejected"), (500, 1000, "rejected")])
def test_in_stage_one_no_side_of_a_product_grows_with_the_keys(at_n, at_2n, outcome):
    built, reply = answered(Case(1, "robust", 100, NK=1000, growth=True))
    check = judge_growth(judged(built, reply), built, with_product(reply, at_n),
                         with_product(reply, at_2n))
    assert check.outcome == outcome


def test_memory_kept_from_earlier_calls_is_rejected():
    built, reply = answered(Case(3, "robust", 128, growth=True))
    bigger = replace(reply, trace=trace(kept=1 << 20))
    check = judge_growth(judged(built, reply), built, reply, bigger)
    assert check.outcome == "rejected" and "kept from earlier calls" in check.lines[0]


def test_allocating_casting_and_a_little_arithmetic_are_pytorchs():
    operations = ("aten::empty.memory_format", "aten::_to_copy", "aten::mul.Tensor",
                  "aten::sum.dim_IntList", "aten::copy_")
    assert judged(*answered(PLAIN, operations=operations)).outcome == "pass"
    check = judged(*answered(PLAIN, operations=("aten::mul.Tensor",) * 1000))
    assert check.outcome == "rejected" and "PyTorch computed" in check.lines[0]


@pytest.mark.parametrize("stage, outcome", [(3, "pass"), (8, "rejected")])
def test_arithmetic_of_a_backward_counts_where_the_student_writes_it(stage, outcome):
    case = Case(stage, "robust", 40, is_causal=stage == 8, grads=("q", "k", "v"))
    check = judged(*answered(case, backward_operations=("aten::mul.Tensor",) * 1000))
    assert check.outcome == outcome
    assert outcome == "pass" or "numbers in the backward" in check.lines[0]


@pytest.mark.parametrize(("counted", "outcome"), [(0, "pass"), (1, "rejected")])
def test_arithmetic_is_limited_by_the_numbers_of_inputs_and_output(counted, outcome):
    case = Case(3, "robust", 64, B=2, HQ=4, HKV=4)
    most = 16 * 4 * 2 * 4 * 64 * case.D  # 16 times those of q, k, v and o
    each = ["op", "aten::mul.Tensor", [], {}, [{"tensor": [0, 0, [most], [1], "float32"]}]]
    built, reply = answered(case)
    value = json.loads(reply.trace.text)
    value["steps"] += [each] + [["op", "aten::mul.Tensor", [], {}, [
        {"tensor": [0, 0, [counted], [1], "float32"]}]]] * counted
    value["backward"] = len(value["steps"])
    check = judged(built, replace(reply, trace=Trace(json.dumps(value))))
    assert check.outcome == outcome, check.message


def test_a_call_that_launches_nothing_when_repeated_kept_its_answer():
    check = judged(*answered(PLAIN, again=(0,)))
    assert check.outcome == "rejected" and "an answer was kept" in check.lines[0]


def refused(stage: int, *names: str) -> list[str]:
    """Which of these operations a stage may not be made of, as a call without tensors has them."""
    built, _ = answered(Case(stage, "robust", 40, HQ=2, HKV=2))
    operations = tuple(operation(["op", name, [], {}, []]) for name in names)
    return [found.packet for found in forbidden(STAGES[stage], built, operations)]


def test_stage_one_may_multiply_matrices_but_not_call_attention():
    products = ("aten::bmm", "aten::_softmax")
    case = Case(1, "robust", 40)
    assert judged(*answered(case, launches=0, operations=products)).outcome == "pass"
    assert refused(1, *products) == []
    assert refused(1, "aten::_scaled_dot_product_flash_attention_for_cpu")
    assert refused(1, "mkldnn::_linear_pointwise")
    assert refused(3, "aten::bmm", "aten::mul.Tensor") == ["bmm"]


@pytest.mark.parametrize("name", [
    "aten::mul.Tensor", "aten::exp_", "aten::sum.dim_IntList", "aten::_to_copy",
    "aten::empty_like", "aten::zeros_like", "aten::constant_pad_nd",
    "aten::masked_fill_.Scalar", "aten::div.Tensor_mode",
    "aten::_unsafe_view", "aten::slice_backward", "aten::select_scatter", "aten::index.Tensor",
    "aten::im2col", "aten::rot90", "aten::cat.out", "aten::unbind_copy.int", "aten::scatter.src",
])
def test_pytorch_may_allocate_move_compute_one_by_one_and_reduce(name):
    assert refused(3, name) == []


@pytest.mark.parametrize("name", [
    "aten::mm", "aten::bmm", "aten::_softmax", "aten::_addmm_activation", "aten::convolution",
    "aten::_scaled_dot_product_flash_attention", "aten::logsumexp", "aten::_cdist_forward",
    "aten::_embedding_bag", "mkldnn::_linear_pointwise", "higher_order::flex_attention",
    "aten::no_such_operation", "flex_attention", "aten::scatter_.value_reduce",
    "aten::_trilinear", "aten::avg_pool2d", "aten::rand",
])
def test_products_softmax_and_attention_pytorch_may_not(name):
    assert refused(3, name)


GROUPED = Case(8, "robust", 40, D=16, B=2, HQ=6, HKV=2, is_causal=True, grads=("q", "k", "v"))


def tensor(*shape, dtype="float32") -> dict:
    return {"tensor": [0, 0, list(shape), [1] * len(shape), dtype]}


@pytest.mark.parametrize("name, given, right", [
    ("index_put_", [tensor(2, 2, 40, 16), [None, tensor(6, dtype="int64")], tensor(2, 6, 40, 16),
                    True], True),  # k[:, heads]
    ("index_put_", [tensor(4, 40, 16), [tensor(12, dtype="int64")], tensor(12, 40, 16), True],
     True),
    ("index_put_", [tensor(2, 6, 40), [tensor(2, 6, 40, 16, dtype="int64")] * 3,
                    tensor(2, 6, 40, 16), True], False),  # a sum over D
    ("index_put_", [tensor(2, 6, 40), [tensor(2, 6, 40, 16, dtype="int64")] * 3,
                    tensor(2, 6, 40, 16), False], True),  # which only puts them there
    ("index_add_", [tensor(2, 40, 2, 16), 2, tensor(6, dtype="int64"), tensor(2, 40, 6, 16)], True),
    ("index_add_", [tensor(2, 6, 1, 16), 2, tensor(40, dtype="int64"), tensor(2, 6, 40, 16)],
     False),  # over N
    ("index_add_", [tensor(2, 6, 40, 1), -1, tensor(16, dtype="int64"), tensor(2, 6, 40, 16)],
     False),
    ("scatter_add", [tensor(2, 2, 40, 16), 1, tensor(2, 6, 40, 16, dtype="int64"),
                     tensor(2, 6, 40, 16)], True),  # the backward of gather
    ("scatter_add", [tensor(2, 6, 40, 1), 3, tensor(2, 6, 40, 16, dtype="int64"),
                     tensor(2, 6, 40, 16)], False),
    ("embedding_dense_backward", [tensor(6, 1280), tensor(6, dtype="int64"), 2, -1, False], True),
])
def test_what_pytorch_adds_up_at_indices_are_whole_rows_of_a_groups_heads(name, given, right):
    built, _ = answered(GROUPED)
    made = [tensor(2, 1280)] if name.startswith("embedding") else given[:1]
    step = ["op", "aten::" + name, given, {}, made]
    assert (not forbidden(STAGES[8], built, (operation(step),))) == right
    assert forbidden(STAGES[2], answered(Case(2, "robust", 40, M=6))[0], (operation(step),)) or (
        operation(step).kind == "moves")


def test_whole_numbers_without_a_part_in_the_inputs_may_be_computed_in_any_way():
    built, _ = answered(PLAIN)
    whole = operation(["op", "aten::sort", [tensor(9, dtype="int64")], {},
                       [tensor(9, dtype="int64")] * 2], of_inputs=False)
    assert not forbidden(STAGES[3], built, (whole,))
    assert forbidden(STAGES[3], built, (operation(["op", "aten::sort", [tensor(9)], {},
                                                   [tensor(9), tensor(9, dtype="int64")]]),))


@pytest.mark.parametrize("more, said", [
    ([["op", "aten::bmm", [], {}, [], 41]], "bmm (problem_3.py:41) ran in the forward"),
    ([["op", "aten::bmm", [], {}, [], 41], ["op", "aten::_softmax", [], {}, [], 40]],
     "_softmax (problem_3.py:40) and bmm (problem_3.py:41) ran in the forward"),
    ([["op", "aten::mul.Tensor", [tensor(9999)], {}, [tensor(999999)], 42]],
     "most of them in mul (problem_3.py:42)")])
def test_an_accusation_names_the_line(more, said):
    built, reply = answered(PLAIN)
    steps = [*reply.trace.value["steps"], *more]
    text = json.dumps(reply.trace.value | {"steps": steps, "backward": len(steps)})
    assert said in judged(built, replace(reply, trace=Trace(text))).lines[0]
