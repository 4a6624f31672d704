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
    step = Step("4.5", "Carried over: step 3.5.", 90, 99)
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
    ("name-not-defined", 5, (5, 3), "problem_1.py:5", "try: should step 1.1, above, define it?"),
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
