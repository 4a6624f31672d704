"""The table of stages: complete, consistent with the problem files, and within its budgets."""

from pathlib import Path

import pytest

from grader import submission
from grader.naming.words import TRY
from grader.stages import STAGES

ROOT = Path(__file__).parent.parent


def test_there_are_nine_stages_with_the_points_of_the_course():
    points = {number: stage.points for number, stage in STAGES.items()}
    assert points == {1: 200, 2: 100, 3: 200, 4: 100, 5: 50, 6: 50, 7: 50, 8: 200, 9: 200}


def test_every_stage_is_asked_for_gradients_and_only_the_optional_ones_by_the_assignment():
    assert [n for n, stage in STAGES.items() if stage.optional] == [8, 9]
    for number, stage in STAGES.items():
        asked = [case for case in stage.cases("cpu", False) if case.grads]
        assert asked and all(case.course or number >= 8 for case in asked)


@pytest.mark.parametrize("number", STAGES)
def test_every_symptom_points_at_a_step_of_the_problem_file(number):
    stage = STAGES[number]
    source = (ROOT / stage.filename).read_text("utf-8")
    known = {step.id for step in submission.steps(source)}
    assert set(stage.steps.values()) <= known
    assert set(stage.steps) <= set(TRY) and "numbers" in stage.steps

