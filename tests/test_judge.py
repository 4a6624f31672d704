"""One reply judged: right, wrong, or right by forbidden means."""

from dataclasses import replace

import pytest
import torch

from grader import correctness, inputs, judge
from grader.cases import Case
from grader.sandbox.calls import Reply, SubmissionError
from grader.stages import STAGES
from grader.submission import Step
from tests.sessions import plan

torch.set_num_threads(1)  # tests run side by side; a second thread would only wait for the others

def answered(case: Case, **seen):
    """A case and the reply of a right submission."""
    built = inputs.build(case, 0)
    exact = correctness.answer(built, "cpu").tiled
    names = [spec.name for spec in built.call.outputs]
    outputs = {name: exact[name] for name in names}
    refilled = None
    if case.refill:
        fresh = correctness.answer(built, "cpu", refilled=True).tiled
        refilled = {name: fresh[name] for name in names}
    reply = Reply(
        [{name: x.clone() for name, x in outputs.items()} for _ in range(case.repeats)],
        {name: exact["d_" + name] for name in case.grads}, refilled,
        {name: x.clone() for name, x in outputs.items()},
        {name: t.storage.clone() for name, t in built.call.inputs.items()},
        plan(**seen), "", 0.1)
    return built, reply


def verdict(built, reply):
    stage = STAGES[built.case.stage]
    return judge.judge(stage, built, reply, "cpu", "python autograder.py")


PLAIN = Case(3, "robust", 40, HQ=2, HKV=2, layout="guarded")


@pytest.mark.parametrize("case", [
    Case(1, "robust", 40, HQ=2, HKV=2), Case(2, "robust", 40, M=9), PLAIN,
    replace(PLAIN, refill=True), replace(PLAIN, repeats=3),
    Case(9, "robust", 40, HQ=2, HKV=1, is_causal=True, window=5, sink_logits=True,
         grads=("q", "k", "v", "sink_logits")),
], ids=lambda case: case.name)
def test_a_right_reply_passes(case):
    check = verdict(*answered(case))
    assert check.outcome == "pass" and check.errors


def test_a_wrong_gradient_is_wrong_though_the_output_is_right():
    built, reply = answered(Case(8, "robust", 40, HQ=2, HKV=1, is_causal=True,
                                 grads=("q", "k", "v")))
    reply.grads["v"] = reply.grads["v"] * 1.04
    check = verdict(built, reply)
    assert check.outcome == "wrong" and "the gradient of v" in check.lines[0]


def test_outputs_that_differ_between_runs_are_wrong():
    built, reply = answered(replace(PLAIN, repeats=2))
    reply.outputs[1]["o"][0, 0, 0, 0] += 2.0**-11
    check = verdict(built, reply)
    assert check.outcome == "wrong" and "differs between runs" in check.lines[0]


@pytest.mark.parametrize("stage, name", [(2, "x"), (4, "k")])
def test_offsets_in_32_bits_are_suspected_where_they_are_asked_for(stage, name):
    case = Case(stage, "robust", 20, M=3, B=3, layout="far")
    crash = judge.from_error(case, SubmissionError("crashed", "illegal address"), "problem.py")
    assert f"Entries of {name} lie 1,073,741,824 elements apart" in crash.message
    assert "tl.int64" in crash.message
    near = judge.from_error(replace(case, layout="dense"), SubmissionError("crashed", "x"), "p.py")
    assert "tl.int64" not in near.message


def test_a_crash_says_the_line_and_the_step_that_it_is_in():
    step = Step("4.5", "Carried over: step 3.5.", 90, 99)
    error = SubmissionError("crashed", "ValueError: x", line=95)
    assert judge.from_error(PLAIN, error, "p.py", step).lines[1] == \
        "where: p.py, line 95, step 4.5, carried from 3.5."
    error = SubmissionError("crashed", "line 95: ValueError", line=95)
    assert judge.from_error(PLAIN, error, "p.py", step).lines[1] == \
        "where: step 4.5, carried from 3.5."
    assert len(judge.from_error(PLAIN, error, "p.py").lines) == 1


def test_an_output_that_changes_after_the_return_is_wrong():
    built, reply = answered(PLAIN)
    reply.late["o"][0, 0, 0, 0] += 1
    assert "changed after" in verdict(built, reply).lines[0]


def test_an_overwritten_input_is_named():
    built, reply = answered(PLAIN)
    reply.inputs_after["k"][70] = 0
    assert "overwrote its input k" in verdict(built, reply).lines[0]


def test_an_answer_kept_from_an_earlier_call_is_rejected():
    built, reply = answered(replace(PLAIN, refill=True))
    reply.refilled = reply.outputs[0]
    check = verdict(built, reply)
    assert check.outcome == "rejected" and "earlier call" in check.lines[0]


def test_a_refilled_call_that_is_merely_wrong_is_wrong():
    built, reply = answered(replace(PLAIN, refill=True))
    reply.refilled["o"] = reply.refilled["o"] * 1.04
    assert verdict(built, reply).outcome == "wrong"


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
    check = judge.judge_growth(verdict(built, reply), built, reply, bigger)
    assert check.outcome == outcome


def test_memory_kept_from_earlier_calls_is_rejected():
    built, reply = answered(Case(3, "robust", 128, growth=True))
    bigger = replace(reply, plan=plan(kept=1 << 20))
    check = judge.judge_growth(verdict(built, reply), built, reply, bigger)
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


# ------------------------------------------------- carried out again, on other numbers
def repeated(off_by=0.0):
    """off_by: the error of what came out, as a multiple of the limit of all numbers together."""
    built, reply = answered(PLAIN)
    other = inputs.other_numbers(PLAIN, 0)
    exact = correctness.answer(other, "cpu")
    limit = exact.judge("o", exact.tiled["o"]).fro_limit
    got = {"o": exact.tiled["o"] if not off_by else exact.truth["o"] * (1 + off_by * limit)}
    return judge.judge_repeated(verdict(built, reply), other, got, "cpu")


def test_a_plan_that_is_right_on_other_numbers_changes_nothing():
    assert repeated().outcome == "pass"


def test_a_plan_that_is_wrong_on_other_numbers_was_not_how_it_was_made():
    check = repeated(off_by=20.0)
    assert check.outcome == "rejected" and "not by the kernels" in check.lines[0]


def test_a_plan_barely_right_on_its_own_numbers_and_not_on_others_is_wrong():
    check = repeated(off_by=2.0)
    assert check.outcome == "wrong" and "Barely right" in check.lines[0]
    assert "2 times what a right kernel may make" in check.lines[0]
    assert repeated(off_by=0.9).outcome == "pass"


@pytest.mark.parametrize("said, outcome", [("wrong", "rejected"), ("crashed", "crashed"),
                                           ("timeout", "timeout"),
                                           ("grader_fault", "grader_fault")])
def test_a_plan_that_cannot_be_carried_out_says_why(said, outcome):
    built, reply = answered(PLAIN)
    check = judge.not_repeated(verdict(built, reply), SubmissionError(said, "it uses numpy"))
    assert check.outcome == outcome and "it uses numpy" in check.lines[0]
