"""One reply judged: right, wrong, or right by forbidden means."""

from dataclasses import replace
from pathlib import Path

import pytest

from grader.assignment import submission
from grader.assignment.submission import Step
from grader.course.calls import Race, SubmissionError
from grader.course.cases import Case
from grader.course.stages import STAGES
from grader.judge import verdict
from tests.judged import PLAIN, answered, judged


@pytest.mark.parametrize("case", [
    Case(1, "robust", 40, HQ=2, HKV=2), Case(2, "robust", 40, M=9), PLAIN,
    replace(PLAIN, refill=True), replace(PLAIN, repeats=3),
    Case(9, "robust", 40, HQ=2, HKV=1, is_causal=True, window=5, sink_logits=True,
         grads=("q", "k", "v", "sink_logits")),
], ids=lambda case: case.name)
def test_a_right_reply_passes(case):
    check = judged(*answered(case))
    assert check.outcome == "pass" and check.errors


def test_a_wrong_gradient_is_wrong_though_the_output_is_right():
    built, reply = answered(Case(8, "robust", 40, HQ=2, HKV=1, is_causal=True,
                                 grads=("q", "k", "v")))
    reply.grads["v"] = reply.grads["v"] * 1.04
    check = judged(built, reply)
    assert check.outcome == "wrong" and check.lines[0].startswith("v.grad is ")
    assert check.lines[-1].startswith("look at step 8.17; more: ")


@pytest.mark.parametrize("change, id, said", [
    (lambda reply: reply.outputs[1]["o"][0, 0, 0, 0].add_(2.0**-11),
     "differs-between-runs", "differs between runs"),
    (lambda reply: reply.late["o"][0, 0, 0, 0].add_(1), "changes-after-return", "changed after"),
    (lambda reply: reply.inputs_after["k"][70].zero_(),
     "input-overwritten", "overwrote its input k"),
    (lambda reply: reply.douts_after["o"][0].add_(1),
     "input-overwritten", "The backward overwrote do"),
    (lambda reply: reply.restrided["o"].mul_(1.1), "strides-kept", "makes o wrong"),
    (lambda reply: reply.grads_again.update(q=1.1 * reply.grads["q"]),
     "gradients-change", "when the backward of the same call runs again"),
    (lambda reply: reply.grads_late.update(q=1.1 * reply.grads["q"]),
     "gradients-change", "changed after the backward had returned it")])
def test_a_right_call_that_changes_what_it_was_given_or_has_returned_is_wrong(change, id, said):
    built, reply = answered(replace(PLAIN, repeats=2, grads=("q",)))
    assert judged(built, reply).outcome == "pass"
    change(reply)
    check = judged(built, reply)
    assert (check.outcome, check.diagnosis["id"]) == ("wrong", id) and said in check.lines[0]


def test_a_wrong_repeat_is_wrong_and_its_error_is_the_one_noted():
    built, reply = answered(replace(PLAIN, repeats=3))
    reply.outputs[1]["o"].mul_(1.1)
    check = judged(built, reply)
    assert check.outcome == "wrong" and check.lines[0].startswith("o is 10 % off")
    assert check.errors["o"]["row"] > 0.09


def test_pytorch_may_order_the_sums_of_stage_1_anew_in_every_run():
    built, reply = answered(Case(1, "robust", 40, HQ=2, HKV=2, repeats=2))
    reply.outputs[1]["o"][0, 0, 0, 0].add_(2.0**-11)
    assert judged(built, reply).outcome == "pass"


def test_lines_that_the_assignment_gives_may_round_in_the_refilled_call_too(monkeypatch):
    asked, right = [], verdict.answer
    monkeypatch.setattr(verdict, "answer", lambda built, device, **how: (
        asked.append(how), right(built, device, **how))[1])
    built, reply = answered(replace(PLAIN, refill=True))
    verdict.judge(STAGES[3], built, reply, "cpu", as_given=True)
    assert asked == [{"as_given": True}, {"refilled": True, "as_given": True}]


KERNEL = "def kernel(): pass"  # the text of the kernel in the trace of a reply


@pytest.mark.parametrize("case, source, outcome", [
    (PLAIN, KERNEL, "pass"), (PLAIN, "x = 1", "rejected"),
    (replace(PLAIN, by_contract=True), "x = 1", "pass"),  # some listed cases are enough
    (replace(PLAIN, group="beyond"), "x = 1", "pass")])
def test_a_kernel_that_is_not_in_the_file_is_rejected_in_listed_cases(case, source, outcome):
    file = submission.Submission(Path("problem_3.py"), source.encode(), "")
    check, _ = verdict.judge_reply(STAGES[3], file, *answered(case), "cpu")
    assert check.outcome == outcome
    assert outcome == "pass" or "the kernel kernel is not in this file" in check.what


@pytest.mark.parametrize("off_by, said", [
    (1.0, "problem_3.py:88: Programs 0 and 1 of one launch both write o_ptr."),
    (1.1, "")])  # wrong anyway
def test_a_race_makes_a_right_answer_wrong(off_by, said):
    built, reply = answered(PLAIN)
    reply.race = Race("writes", ((0,), (1,)), "o_ptr", (), 88)
    reply.outputs[0]["o"].mul_(off_by)
    file = submission.Submission(Path("problem_3.py"), KERNEL.encode(), "")
    check, _ = verdict.judge_reply(STAGES[3], file, built, reply, "cpu")
    assert (check.outcome, check.what) == ("wrong", said)


def test_beside_a_robust_case_stands_what_is_special_about_it():
    assert verdict.case_text(PLAIN) == "(H=2, L=40, D=16) float16, NaN stored around the inputs"
    assert verdict.case_text(replace(PLAIN, group="standard")) == "(B=1, H=2, L=40, D=16)"


def test_a_timeout_for_want_of_cpu_time_is_no_verdict():
    late = SubmissionError("timeout", "late", fatal=True, waited_for_cpu=True)
    check = verdict.from_error(PLAIN, late, "problem_3.py")
    assert (check.outcome, check.not_checked, check.what) == ("skipped", True, "late")


@pytest.mark.parametrize("stage, name", [(2, "x"), (4, "k")])
def test_offsets_in_32_bits_are_suspected_where_they_are_asked_for(stage, name):
    case = Case(stage, "robust", 20, M=3, B=3, layout="far", apart=name)
    crash = verdict.from_error(case, SubmissionError("crashed", "illegal address"), "problem.py")
    assert f"Entries of {name} are 1,073,741,824 elements apart" in crash.message
    assert "tl.int64" in crash.message
    near = verdict.from_error(replace(case, layout="dense"), SubmissionError("crashed", "x"),
                              "p.py")
    assert "tl.int64" not in near.message


def test_a_crash_says_the_line_and_the_step_that_it_is_in():
    step = Step("4.5", "Copied from step 3.5.", 90, 99)
    error = SubmissionError("crashed", "ValueError: x", line=95)
    assert verdict.from_error(PLAIN, error, "p.py", step).lines == (
        "p.py:95: ValueError: x", "where: step 4.5, copied from step 3.5.")
    assert verdict.from_error(PLAIN, SubmissionError("crashed", "x", id="dot-shapes", line=95),
                            "p.py", step).diagnosis["step"] == "4.5"
    error = SubmissionError("crashed", "ValueError", line=95, column=7)
    assert verdict.from_error(PLAIN, error, "p.py", step).lines == (
        "p.py:95:7: ValueError", "where: step 4.5, copied from step 3.5.")
    assert verdict.from_error(PLAIN, error, "p.py").lines == ("p.py:95:7: ValueError",)


def test_a_crash_in_given_code_says_both_lines():
    step = Step("4.5", "", 90, 99)
    check = verdict.from_error(PLAIN, SubmissionError("crashed", "x", line=120), "p.py", step, 95)
    assert check.where == "p.py:95" and check.lines == (
        "p.py:120: x", "where: called from p.py:95, step 4.5.")


STEPS = '''\
def kernel(s):
    # BEGIN SOLUTION 1.1
    p = given(s)
    # END SOLUTION 1.1
    return o


def given(s):
    return s[0]
'''


@pytest.mark.parametrize("id, line, lines, where, said", [
    ("", 9, (9, 3, 20), "problem_1.py:3", "where: called from problem_1.py:3, step 1.1."),
    ("", 9, (9, 20), "problem_1.py:9", "problem_1.py:9: an error"),
    ("", 3, (3, 9), "problem_1.py:3", "where: step 1.1."),
    ("name-not-defined", 5, (5, 3), "problem_1.py:5", "tip: should step 1.1, above, define it?"),
])
def test_a_crash_in_given_code_is_blamed_on_the_step_that_called_it(tmp_path, id, line, lines,
                                                                    where, said):
    (tmp_path / "problem_1.py").write_text(STEPS)
    file = submission.read(tmp_path, "problem_1.py", "kernel")
    error = SubmissionError("crashed", "an error", id=id, line=line, lines=lines)
    check = verdict.crashed(PLAIN, error, file, STAGES[1])
    assert (check.where, check.lines[-1]) == (where, said)


@pytest.mark.parametrize("step, red, points_there", [
    ("3.1", [], True), ("3.1", ["3.1"], False), ("3.1", ["3.11"], True),
    ("7.77", [], False)])  # which the stage does not have
def test_an_access_outside_points_at_its_steps_unless_they_are_red(
        tmp_path, step, red, points_there):
    (tmp_path / "problem_3.py").write_text(STEPS.replace("1.1", step))
    file = submission.read(tmp_path, "problem_3.py", "kernel")
    error = SubmissionError("crashed", "an error", id="out-of-bounds-read", line=9, lines=(9, 5))
    check = verdict.note_red(verdict.crashed(PLAIN, error, file, STAGES[3]), red)
    assert any(line.startswith("look at step 3.1; more:") for line in check.lines) == points_there
    assert check.diagnosis["step"] == (step if step == "3.1" else None)


@pytest.mark.parametrize("answer, outcome", [
    (lambda reply: reply.outputs[0], "rejected"),  # kept from the first call
    (lambda reply: {"o": reply.refilled["o"] * 1.04}, "wrong")])
def test_a_refilled_call_is_judged_by_its_own_numbers(answer, outcome):
    built, reply = answered(replace(PLAIN, refill=True))
    reply.refilled = answer(reply)
    check = judged(built, reply)
    assert check.outcome == outcome
    assert ("answer of an earlier call" in check.lines[0]) == (outcome == "rejected")


@pytest.mark.parametrize(("verb", "said"), [
    ("reads", "Program (2, 1) reads dq_ptr[0, 17], which program (0, 1) of the same launch "
              "writes."),
    ("writes", "Programs (0, 1) and (2, 1) of one launch both write dq_ptr[0, 17].")])
def test_a_race_names_both_programs_and_who_writes(verb, said):
    built, reply = answered(PLAIN)
    file = submission.Submission(Path("problem_3.py"), b"", "")
    race = Race(verb, ((0, 1), (2, 1)), "dq_ptr", (0, 17), 88)
    check = verdict.raced(judged(built, reply), race, file)
    assert (check.outcome, check.what) == ("wrong", f"problem_3.py:88: {said}")
    assert check.diagnosis["id"] == "race" and check.where == "problem_3.py:88"
    assert "tl.atomic_add" in check.message


UNREACHED = STEPS + '''

def backward(s):
    # BEGIN SOLUTION 1.2
    raise NotImplementedError("step 1.2")
    # END SOLUTION 1.2
    # BEGIN SOLUTION 1.3
    s += 1
    raise NotImplementedError("step 1.3")
    # END SOLUTION 1.3
'''


def test_blank_steps_that_no_case_reaches_are_no_raises_that_are_left_behind(tmp_path):
    (tmp_path / "problem_1.py").write_text(UNREACHED)
    check = verdict.blanks_left(submission.read(tmp_path, "problem_1.py", "kernel"))
    assert (check.outcome, check.what) == ("crashed", "step 1.2 is still blank.")
    assert check.seen[0].startswith("step 1.3: your code is there; delete line ")


def test_tiles_joined_by_and_are_told_beside_a_wrong_answer_and_no_right_one(tmp_path):
    (tmp_path / "problem_1.py").write_text(
        "@triton.jit\ndef kernel(s):\n    return (s < 1) and (s > 0)\n")
    file = submission.read(tmp_path, "problem_1.py", "kernel")
    right = judged(*answered(PLAIN))
    assert verdict.note_misjoined(right, file) is right
    wrong = verdict.note_misjoined(right.fail("wrong", "o is off.", "where"), file)
    assert wrong.seen[0].startswith("problem_1.py:3: `and` does not join tiles")
    assert wrong.seen[1] == "where"
