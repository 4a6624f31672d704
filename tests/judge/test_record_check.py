"""A check goes into the result with the command that runs its case again."""

from types import SimpleNamespace

import pytest

from grader.course.stages import STAGES
from grader.judge import record_check
from grader.report.results import Check, StageResult


def recorded(*checks: Check, own=(), case=None):
    """-> the checks of the result, and those that were shown."""
    shown = []
    reporter = SimpleNamespace(verbose=False, check_done=lambda stage, check: shown.append(check))
    context = SimpleNamespace(
        options=SimpleNamespace(device="cuda", own=own, case=case, seed=7, directory=None),
        result=StageResult(4, "x", 100), stage=STAGES[4], reporter=reporter, file=None,
        show_steps=lambda: None)
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
