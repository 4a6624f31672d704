"""The first screen, and what to do next."""

import shlex
from pathlib import Path

import pytest

from grader.report import overview
from grader.report.results import Check, StageResult
from grader.starter import ROOT, blank


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """An assignment of problems 3, 4 and 8, and in it."""
    for n in (3, 4, 8):
        (tmp_path / f"problem_{n}.py").write_text(blank((ROOT / f"problem_{n}.py").read_text()))
    monkeypatch.chdir(tmp_path)
    return overview.Path(".")


def solve(folder, *numbers):
    for n in numbers:
        (folder / f"problem_{n}.py").write_text((ROOT / f"problem_{n}.py").read_text())


def test_who_has_begun_nothing_sees_what_there_is_and_where_to_begin(folder):
    lines = overview.first_screen([3, 4, 5], folder)
    assert [line.split() for line in lines if "P3" in line][0][-2:] == ["8", "steps"]
    assert any(line.endswith("3 steps, 5 to copy") for line in lines)
    assert any("P5  Grouped-query" in line and line.endswith(" missing") for line in lines)
    assert lines[-1] == ("Next: read problem_3.py, write step 3.1, then run "
                         "python autograder.py --p3 --watch")


def test_the_warm_ups_are_named_where_they_are_given_and_blanks_are_left(folder):
    assert not any("--warmup" in line for line in overview.first_screen([3, 4], folder))
    source = (ROOT / "problem_1.py").read_text()
    (folder / "problem_1.py").write_text(blank(source))
    assert not any("--warmup" in line for line in overview.first_screen([1, 3], folder))
    path = folder / overview.WARM_UPS
    path.parent.mkdir()
    solved = (ROOT / overview.WARM_UPS).read_text()
    path.write_text(blank(solved))
    said = "      or first: python autograder.py --warmup   (8 short exercises, no points)"
    assert overview.first_screen([1, 3], folder)[-1] == said
    elsewhere = overview.first_screen([1, 3], folder.resolve())[-1]
    assert f"--warmup --submission {folder.resolve()}   (8 short" in elsewhere
    path.write_text(solved)
    assert not any("--warmup" in line for line in overview.first_screen([1, 3], folder))


@pytest.mark.parametrize("name", ["My Drive", "ü b's $x", "a;b", "plain"])
def test_a_command_can_be_copied_whatever_the_folder_is_called(name):
    command = overview.command(4, Path(name), " --seed 1")
    assert shlex.split(command) == ["python", "autograder.py", "--p4", "--submission", name,
                                    "--seed", "1"]


def test_once_something_is_written_there_is_no_first_screen(folder):
    (folder / "problem_4.py").write_text("print(1)\n")
    assert overview.first_screen([3, 4], folder) == []


def test_without_triton_what_cannot_run_sends_to_the_doctor(folder, monkeypatch):
    monkeypatch.setattr(overview, "no_triton", lambda: "no Triton")
    lines = overview.first_screen([3, 4], folder)
    assert lines[-1] == ("Triton is not installed or too old, and problems 3-4 need it: "
                         "python autograder.py --doctor")
    solve(folder, 8)
    assert overview.begin(8, folder) == \
        "python autograder_optional.py --doctor   (problem 8 needs Triton)"
    solve(folder, 1)
    assert overview.begin(1, folder) == "python autograder.py --p1"


def test_an_empty_folder_is_told_how_to_name_another(tmp_path):
    lines = overview.first_screen([1, 2], tmp_path)
    assert lines == [f"There is no problem_1.py ... problem_2.py in {tmp_path}.",
                     "Next: python autograder.py --p1 --submission FOLDER"]


def test_above_the_folder_of_the_course_one_is_sent_into_it(monkeypatch):
    monkeypatch.chdir(ROOT.parent)
    into = f"cd {ROOT.name}, then run python autograder.py --p2"
    assert overview.first_screen([2, 3], Path(".")) == [
        "There is no problem_2.py ... problem_3.py in this folder.", f"Next: {into}"]
    missing = [StageResult(2, "", 100, "missing")]
    assert overview.after_run(missing, [2, 3], Path("."), False, False) == into
    assert overview.after_run(missing, [2, 3], ROOT / "nowhere", False, False).startswith("python ")


def test_what_has_not_passed_gets_its_own_command_again_unless_steps_are_blank(folder):
    assert overview.begin(3, folder, " --quick").startswith("read problem_3.py, write step 3.1")
    solve(folder, 3)
    assert overview.begin(3, folder, " --quick") == "python autograder.py --p3 --quick"
    assert overview.begin(4, folder, " --quick") == \
        "python -m grader.carry 4   (copies your earlier steps into it)"


def test_steps_that_cannot_be_copied_yet_are_to_be_written_first(folder):
    assert overview.begin(4, folder).startswith("read problem_3.py, write step 3.1")
    assert overview.begin(8, folder).startswith("python -m grader.carry 8 --from FOLDER")


def test_after_a_stage_comes_the_next_one_that_was_given(folder):
    solve(folder, 3)
    assert overview.after(3, [3, 4, 8], folder).startswith("python -m grader.carry 4 ")
    assert overview.after(4, [3, 4, 8], folder).startswith("python -m grader.carry 8 ")
    assert overview.after(8, [3, 4, 8], folder) == "nothing: that was the last problem."


def test_a_stage_that_is_written_is_graded_by_its_own_program(folder):
    (folder / "problem_8.py").write_text((ROOT / "problem_8.py").read_text())
    assert overview.after(4, [4, 8], folder) == "python autograder_optional.py --p8"
    other = folder.resolve()
    assert overview.after(4, [4, 8], other).endswith(f"--p8 --submission {other}")


@pytest.mark.parametrize("points, said", [
    (100.0, "python autograder.py --p5"),
    (90.0, "python autograder.py --p4   (10 of 100 points are missing)\n"
           "      or go on: python autograder.py --p5")])
def test_what_is_next_while_points_are_missing(points, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = [StageResult(4, "", 100, "pass", points)]
    assert overview.after_run(results, [4, 5], Path("."), False, False) == said
    assert "go on" not in overview.after_run(results, [3, 4], Path("."), False, False)


def test_where_no_step_is_known_the_first_wrong_case_is_run_again(
        tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    checks = [Check(name, "robust", "wrong", again=f"... --case {name}")
              for name in ("robust/short", "robust/long")]
    wrong = StageResult(4, "", 100, "wrong", 70, checks=checks)
    one = "python autograder.py --p4 --case robust/short"
    for one_case in (False, True):
        said = overview.after_run([wrong], [4, 5], Path("."), False, one_case)
        assert said == f"fix the file, then run {one}"
    right = StageResult(4, "", 100, "pass", 0)
    said = overview.after_run([right], [4, 5], Path("."), False, True)
    assert said == "python autograder.py --p4   (all cases)"


def test_beside_a_red_step_to_fix_there_are_the_commands_that_say_more(tmp_path):
    steps = [{"id": "8.14", "light": "wrong"}]
    said = overview.after_run([StageResult(8, "", 100, "wrong", steps=steps)], [8, 9], tmp_path,
                              False, False)
    assert said == (f"fix step 8.14, then run python autograder_optional.py --p8 --submission "
                    f"{tmp_path} --watch\n      more: python autograder_optional.py --step 8.14 "
                    f"--submission {tmp_path}, or --hint 8.14")


def test_the_next_command_of_a_stage_that_passes_with_a_red_step_asks_that_step():
    steps = [{"id": "4.2", "light": "right"}, {"id": "4.8", "light": "wrong"}]
    results = [StageResult(4, "", 100, "pass", 100, steps=steps)]
    said = overview.after_run(results, [4, 5], Path("."), True, False)
    assert said == "python autograder.py --step 4.8   (it is red)"


@pytest.mark.parametrize("quick, points", [(True, 70), (False, 90)])
def test_a_stage_with_a_red_step_and_points_missing_comes_before_later_ones(
        tmp_path, monkeypatch, quick, points):
    monkeypatch.chdir(tmp_path)
    red = [{"id": "4.2", "light": "wrong"}, {"id": "4.8", "light": "wrong"}]
    results = [StageResult(3, "", 200, "pass", 140),
               StageResult(4, "", 100, "pass", points, steps=red),
               StageResult(5, "", 100, "wrong", steps=[{"id": "5.1", "light": "wrong"}])]
    said = overview.after_run(results, [3, 4, 5], Path("."), quick, False)
    assert said.startswith("fix step 4.2, then run python autograder.py --p4 --")
    said = overview.after_run(results[:2], [3, 4, 5], Path("."), quick, False)
    assert said.startswith("fix step 4.2, then run python autograder.py --p4 --")


def test_where_tiles_are_wasted_the_step_to_look_at_is_named(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    wasted = Check("needless-work", "walk", "needless work", steps=("4.2",))
    results = [StageResult(4, "", 100, "pass", 90, checks=[wasted])]
    assert overview.after_run(results, [4, 5], Path("."), False, False).startswith(
        "look at step 4.2, then run python autograder.py --p4   (10 of 100 points are missing)\n")


def test_the_name_of_a_folder_does_not_command_the_terminal():
    shown = overview.command(2, Path("eve\x1b[2J"))
    assert shown == "python autograder.py --p2 --submission 'eve\\x1b[2J'"


def test_a_stage_that_is_begun_comes_before_one_that_is_not(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    results = [StageResult(3, "", 200, "not_started"), StageResult(4, "", 100, "wrong")]
    said = overview.after_run(results, [3, 4], Path("."), False, False)
    assert said == "fix the file, then run python autograder.py --p4"
    said = overview.after_run(results[:1], [3, 4], Path("."), False, False)
    assert said == "python autograder.py --p3"
    results = [StageResult(3, "", 200, "grader_fault")]
    said = overview.after_run(results, [3, 4], Path("."), False, False)
    assert said == "python autograder.py --p3"


@pytest.mark.parametrize("quick, one_case, said", [
    (True, False, "python autograder.py --p3   (all cases)"),
    (False, True, "python autograder.py --p3   (all cases)"),
    (False, False, "python autograder.py --p3   (60 of 200 points are missing)\n"
                   "      or go on: python autograder.py --p5")])
def test_after_a_part_of_the_cases_all_are_asked_and_then_missing_points(
        tmp_path, monkeypatch, quick, one_case, said):
    monkeypatch.chdir(tmp_path)
    results = [StageResult(3, "", 200, "pass", 140), StageResult(4, "", 100, "pass", 100)]
    assert overview.after_run(results, [3, 4, 5], Path("."), quick, one_case) == said


def test_a_bar_shows_how_many_steps_of_the_folder_are_written(folder):
    done, steps = overview.steps_written(folder)
    assert done == 0 and steps > 30
    assert overview.written(folder) == f"course [{'-' * 30}] 0 of {steps} steps written"
    solve(folder, 3, 4, 8)
    assert overview.written(folder) == f"course [{'#' * 30}] {steps} of {steps} steps written"
    text = (folder / "problem_3.py").read_text()
    (folder / "problem_3.py").write_text(blank(text))
    done, _ = overview.steps_written(folder)
    assert 0 < done < steps
    bar = "#" * (30 * done // steps)
    assert overview.written(folder) == f"course [{bar:-<30}] {done} of {steps} steps written"


def test_a_file_whose_markers_are_gone_has_no_steps_to_count(folder):
    (folder / "problem_4.py").unlink()
    without = overview.steps_written(folder)
    (folder / "problem_4.py").write_text('def f():\n    raise NotImplementedError("step 4.1")\n')
    assert overview.steps_written(folder) == without


def test_steps_are_copied_in_this_folder_alone(folder):
    solve(folder, 3)
    assert overview.begin(4, folder.resolve()).startswith("read problem_4.py, write step 4.")


def test_there_is_nothing_to_copy_while_every_earlier_step_is_blank(folder):
    assert overview.copying(4, folder) == ""
    solve(folder, 3)
    assert overview.copying(4, folder).startswith("python -m grader.carry 4 ")

