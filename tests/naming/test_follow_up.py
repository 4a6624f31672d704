"""After a wrong answer: the mistake is named, with the step that it stands in."""

import io
from dataclasses import replace
from pathlib import Path

import pytest

from attacks.catalogue import mutants
from grader.grade import grade_stage
from grader.options import Options, confinement
from grader.report import Reporter
from grader.stages import STAGES

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize("wrong, told", [
    ("acc)", "look at step 5.6, carried from 3.5; more: python autograder.py "
     "--hint 3.5"),
    ("acc * alpha[:, None, None, None])", "where: step 5.6, carried from 3.5."),
])
def test_a_mistake_in_a_copied_step_is_told_with_its_origin(wrong, told, tmp_path):
    result, _ = graded(tmp_path, 5, "acc * alpha[:, None])", wrong)
    lines = next(check.lines for check in result.checks if check.outcome != "pass")
    assert told in lines, lines


def graded(folder, number: int, old: str, new: str):
    """-> the result of a stage whose solved file has new in the place of old, and the report."""
    source = (ROOT / f"problem_{number}.py").read_text("utf-8")
    assert old in source
    (folder / f"problem_{number}.py").write_text(source.replace(old, new), "utf-8")
    report = io.StringIO()
    options = Options(folder, "cpu", 1, 60.0, benchmark=False, quick=True, stop_early=True)
    return grade_stage(STAGES[number], options, Reporter(report)), report.getvalue()


def test_a_blank_step_ends_its_stage_without_a_traceback(tmp_path):
    result, said = graded(tmp_path, 4, "    keep = key <= query\n",
                          '    raise NotImplementedError("step 4.6")\n')
    assert (result.outcome, result.points, len(result.checks)) == ("crashed", 0, 1)
    assert "yours to write: 4.6." in said and "cases wait for what is blank" in said
    assert "   | " not in said


def test_a_name_that_a_step_should_have_made_is_told_with_the_step(tmp_path):
    result, said = graded(tmp_path, 4, "    keep = key <= query\n", "    mask = key <= query\n")
    assert "name 'keep' is not defined" in said
    assert "try: is it step 4.6, above, that makes it?" in said


def test_warnings_of_triton_itself_are_not_shown(tmp_path):
    result, said = graded(tmp_path, 3, "m_new = tl.maximum(",
                          "m_new = float('-inf') + 0 * tl.maximum(")
    assert result.outcome == "wrong" and "Warning" not in said


def test_a_wrong_file_is_told_its_mistake_and_the_command(tmp_path):
    mutant = next(m for m in mutants(6) if m.id == "window_plus_one")
    (tmp_path / "problem_6.py").write_bytes(mutant.source)
    options = Options(tmp_path, "cpu", 1, 60.0, quick=True, benchmark=False, show=True,
                            stop_early=True, confinement=confinement(tmp_path))
    report = io.StringIO()
    result = grade_stage(STAGES[6], options, Reporter(report))
    check = result.checks[0]
    assert check.diagnosis["id"] == "window-plus-one" and check.diagnosis["kind"] == "named"
    assert len(check.lines) <= 12 and check.lines[-1].endswith("--case " + check.name)
    said = report.getvalue()
    assert "the mistake: the window is one key too wide" in said
    assert "Attention matrix of head" in said and "\x1b" not in said
    again = grade_stage(STAGES[6], replace(options, case=check.name, show=False),
                              Reporter(io.StringIO()))
    assert [one.name for one in again.checks] == [check.name] and again.points == 0
