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


def test_only_eight_and_nine_are_optional_and_grade_gradients():
    assert [n for n, stage in STAGES.items() if stage.optional] == [8, 9]
    for number, stage in STAGES.items():
        for case in stage.cases("cpu", False):
            assert not case.grads or number >= 8


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("number", STAGES)
def test_case_names_are_unique_and_standard_ones_come_first(number, device):
    listed = STAGES[number].cases(device, device == "cuda")
    assert len({case.name for case in listed}) == len(listed)
    groups = [case.group for case in listed]
    assert groups == sorted(groups, key=["standard", "robust"].index)
    assert "standard" in groups and "robust" in groups


def test_standard_cases_on_a_gpu_are_the_assignments_own():
    def shapes(number):
        return [(c.HQ, c.HKV, c.N, c.D, c.window, c.sinks)
                for c in STAGES[number].cases("cuda", True) if c.group == "standard"]

    assert shapes(3) == [(8, 8, 512, 16, None, None), (8, 8, 1024, 16, None, None),
                         (16, 16, 2048, 16, None, None), (16, 16, 4096, 16, None, None)]
    assert shapes(6)[0] == (8, 2, 512, 16, 128, None)
    assert shapes(7)[0] == (8, 2, 512, 32, 128, 8)
    assert shapes(8) == [(16, h, 4096, 16, None, None) for h in (16, 8, 1)]
    assert shapes(9) == [(16, h, 4096, 16, 256, 4) for h in (16, 8, 1)]


@pytest.mark.parametrize("number", [6, 7, 9])
def test_windows_and_sinks_go_beyond_their_defaults(number):
    listed = STAGES[number].cases("cpu", False)
    windows = {case.window for case in listed}
    assert {1, 17} <= windows and any((w or 0) > 257 for w in windows)
    if number > 6:
        sinks = {case.sinks for case in listed}
        assert {0, 1, 4, 70, 1000} <= sinks


@pytest.mark.parametrize("number", STAGES)
def test_every_symptom_points_at_a_step_of_the_problem_file(number):
    stage = STAGES[number]
    source = (ROOT / stage.filename).read_text("utf-8")
    known = {step.id for step in submission.steps(source)}
    assert set(stage.steps.values()) <= known
    assert set(stage.steps) <= set(TRY) and "numbers" in stage.steps


def test_stage_one_may_multiply_matrices_but_not_call_attention():
    assert STAGES[1].forbidden(("aten::bmm", "aten::_softmax")) == []
    assert STAGES[1].forbidden(("aten::_scaled_dot_product_flash_attention_for_cpu",))
    assert STAGES[1].forbidden(("mkldnn::_linear_pointwise",))
    assert STAGES[3].forbidden(("aten::bmm", "aten::mul.Tensor")) == ["bmm"]
