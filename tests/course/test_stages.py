"""The table of stages: complete, consistent with the problem files, and within its budgets."""

import ast
import re

import pytest

from grader.assignment.record import ROOT
from grader.course.case_table import listed
from grader.course.stages import STAGES


def test_there_are_nine_stages_with_the_points_of_the_course():
    points = {number: stage.points for number, stage in STAGES.items()}
    assert points == {1: 200, 2: 100, 3: 200, 4: 100, 5: 50, 6: 50, 7: 50, 8: 200, 9: 200}


def test_all_stages_are_asked_for_gradients_the_optional_ones_for_points():
    assert [n for n, stage in STAGES.items() if stage.optional] == [8, 9]
    for number, stage in STAGES.items():
        asked = [case for case in listed(stage.number, "cpu", False) if case.grads]
        assert asked and all(case.course or number >= 8 for case in asked)


def test_no_other_file_of_the_engine_compares_a_stage_s_number():
    """What a stage is stands in its row, in words; so another stage needs no other file's `if`."""
    found = []
    for path in sorted((ROOT / "grader").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Compare) and _compares_a_stage(node):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}: {ast.unparse(node)}")
    assert found == []


def _compares_a_stage(node: ast.Compare) -> bool:
    sides = [node.left, *node.comparators]
    return any(map(_is_number_of_a_stage, sides)) and any(map(_holds_a_number, sides))


def _is_number_of_a_stage(node: ast.expr) -> bool:
    return re.search(r"(^|\.)stage(\.number)?$", ast.unparse(node)) is not None


def _holds_a_number(node: ast.expr) -> bool:
    return any(isinstance(part, ast.Constant) and type(part.value) is int
               for part in ast.walk(node))


@pytest.mark.parametrize("text", [
    "stage == 3", "case.stage > 2", "self.stage.number in (8, 9)", "2 < stage"])
def test_such_a_comparison_would_be_found(text):
    assert _compares_a_stage(ast.parse(text, mode="eval").body)
