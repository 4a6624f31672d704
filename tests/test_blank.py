"""python -m grader.blank: one step back to its blank, and nothing lost."""

import shutil

import pytest

from grader import blank
from grader.assignment.record import ROOT


@pytest.fixture
def folder(tmp_path, monkeypatch):
    shutil.copy(ROOT / "problem_3.py", tmp_path)
    (tmp_path / "warmups").mkdir()
    shutil.copy(ROOT / "warmups/warmups.py", tmp_path / "warmups")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("step, name", [("3.5", "problem_3.py"), ("W.2", "warmups/warmups.py")])
def test_one_step_alone_is_blank_afterwards_and_the_file_as_it_was_is_kept(folder, step, name):
    before = (folder / name).read_text()
    assert blank.main([step]) == 0
    after = (folder / name).read_text()
    assert set(blank.blank_steps(after)) == {step}
    assert blank.blank(after) == blank.blank(before)
    assert (folder / ".autograder" / (folder / name).name).read_text() == before
    assert blank.main([step]) == 0 and (folder / name).read_text() == after


def test_line_ends_stay_as_they_are(folder):
    path = folder / "problem_3.py"
    path.write_bytes(path.read_bytes().replace(b"\n", b"\r\n"))
    assert blank.main(["3.5"]) == 0
    assert path.read_bytes().count(b"\n") == path.read_bytes().count(b"\r\n")


@pytest.mark.parametrize("step, said", [
    ("3.99", "want a step of problem_3.py, 3.1 to 3.8; got 3.99"),
    ("x", "want a step such as 3.5; got x"),
    ("../3.1", "want a step such as 3.5; got ../3.1"),
    ("5.1", "problem_5.py is missing"),
])
def test_what_cannot_be_done_is_said_and_nothing_is_written(folder, capsys, step, said):
    before = (folder / "problem_3.py").read_bytes()
    assert blank.main([step]) == 2
    assert capsys.readouterr().err == f"error: {said}\n"
    assert (folder / "problem_3.py").read_bytes() == before
    assert not (folder / ".autograder").exists()


def test_damaged_markers_leave_the_file_alone(folder, capsys):
    path = folder / "problem_3.py"
    path.write_text(path.read_text().replace("    # END SOLUTION 3.4\n", ""))
    before = path.read_bytes()
    assert blank.main(["3.5"]) == 2 and "step 3.5 begins inside step 3.4" in capsys.readouterr().err
    assert path.read_bytes() == before
