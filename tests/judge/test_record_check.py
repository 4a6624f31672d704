"""A check goes into the result with the command that runs its case again."""

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest

from grader.course.stages import STAGES
from grader.judge import record_check
from grader.report.results import Check, StageResult


def grading(shown=None, device="cuda", own=(), case=None, verbose=False, **more) -> SimpleNamespace:
    """A context of stage 4.  shown: gets the checks that are shown."""
    shown = [] if shown is None else shown
    reporter = SimpleNamespace(verbose=verbose, check_done=lambda stage, check: shown.append(check))
    return SimpleNamespace(
        options=SimpleNamespace(device=device, own=own, case=case, seed=7, directory=None),
        result=StageResult(4, "x", 100), stage=STAGES[4], reporter=reporter,
        show_steps=lambda: None, **{"file": None, **more})


def recorded(*checks: Check, **settings):
    """-> the checks of the result, and those that were shown."""
    shown = []
    context = grading(shown, **settings)
    for check in checks:
        record_check.record(context, check)
    return context.result.checks, shown


@pytest.mark.parametrize(("seed", "said"), [(None, "--seed 7 "), (11, "--seed 11 ")])
def test_a_wrong_case_says_the_seed_that_gave_its_numbers(seed, said):
    (check,), _ = recorded(Check("robust/a", "robust", "wrong", seed=seed))
    assert check.again.endswith(f" {said}--case robust/a")


def test_a_case_that_students_do_not_have_says_no_command():
    (check,), _ = recorded(Check("own/a", "robust", "wrong"), own=[SimpleNamespace(name="own/a")])
    assert check.again == ""


def test_a_later_check_of_a_case_takes_the_place_of_the_first():
    checks, _ = recorded(Check("a", "robust", "wrong"), Check("b", "robust", "pass"),
                         Check("a", "robust", "pass"))
    assert [(check.name, check.outcome) for check in checks] == [("a", "pass"), ("b", "pass")]


def test_a_rejection_is_not_shown_before_it_is_proven():
    checks, shown = recorded(Check("a", "robust", "rejected"), Check("b", "robust", "pass"))
    assert len(checks) == 2 and [check.name for check in shown] == ["b"]


@pytest.mark.parametrize("settings, shown", [
    ({}, ["robust/a"]), ({"verbose": True}, ["robust/a", "beyond/b", "robust/c"]),
    ({"case": "beyond/b"}, ["robust/a", "beyond/b", "robust/c"])])
def test_what_decides_nothing_is_shown_only_where_all_is_asked_for(settings, shown):
    checks = (Check("robust/a", "robust", "pass"), Check("beyond/b", "beyond", "pass"),
              Check("robust/c", "robust", "skipped"))
    assert [check.name for check in recorded(*checks, **settings)[1]] == shown


JOINED = SimpleNamespace(path=Path("problem_4.py"), tree=ast.parse(
    "@triton.jit\ndef kernel(s):\n    return (s < 1) and (s > 0)\n"))


@pytest.mark.parametrize("device, told", [("cpu", True), ("cuda", False)])
def test_tiles_joined_by_and_are_told_where_the_interpreter_ran(device, told):
    (check,), _ = recorded(Check("a", "robust", "wrong", what="no."), device=device, file=JOINED)
    assert any("`and` does not join tiles" in line for line in check.lines) == told


def test_a_crash_in_a_step_that_is_red_points_to_no_other():
    context = grading()
    context.result.steps = [{"id": "4.2", "light": "wrong"}]
    record_check.record(context, Check(
        "a", "robust", "crashed", steps=("4.2", "4.6"), look_at="look at step 4.6",
        diagnosis={"id": "x", "step": "4.2 or 4.6"}))
    (check,) = context.result.checks
    assert check.look_at == "" and check.diagnosis["step"] == "4.2"


@pytest.mark.parametrize("others, end", [("pass", "crashed"), ("wrong", "")])
def test_blanks_that_no_case_reached_fail_a_file_that_is_right_otherwise(others, end):
    shown = []
    context = grading(shown, file=SimpleNamespace(
        unreached=("4.9",), left_raises={}, blanks=lambda: ()), all_right=lambda: others == "pass")
    record_check.record_blanks(context)
    assert [check.outcome for check in shown] == [end] * bool(end)
    assert context.result.sentence == ("step 4.9 is still blank." if end else "")


@pytest.mark.parametrize("other, kernels, outcome", [
    (Check("a", "standard", "pass"), {"k@1"}, "rejected"),
    (Check("a", "robust", "wrong"), {"k@1"}, "rejected"),
    (Check("a", "standard", "skipped", not_checked=True), {"k@1"}, "rejected"),
    (Check("a", "standard", "wrong"), {"k@1"}, "wrong"),
    (Check("a", "standard", "crashed"), {"k@1"}, "wrong"),
    (Check("a", "standard", "pass"), set(), "not_started")])
def test_a_rejection_stands_unless_the_file_is_wrong_or_launches_nothing(other, kernels, outcome):
    shown = []
    context = grading(shown)
    context.result.kernels = kernels
    context.result.checks = [other, Check("b", "robust", "rejected", what="PyTorch computed it.")]
    record_check.report_rejections(context)
    assert [check.outcome for check in context.result.checks] == [other.outcome, outcome]
    assert shown == context.result.checks[1:]
