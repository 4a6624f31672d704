"""--submit: one zip of the files and of what was said of them."""

import json
import zipfile

import pytest

from grader.assignment.record import sha256
from grader.report import submit
from grader.report.results import Run, StageResult
from tests.commands import grader

FILES = {1: b"one\n", 2: b"two\n", 8: b"eight\n"}


@pytest.fixture
def work(tmp_path):
    for number, data in FILES.items():
        (tmp_path / f"problem_{number}.py").write_bytes(data)
    return tmp_path


def run(*numbers: int, **hashes) -> Run:
    stages = [StageResult(n, f"Stage {n}", 100, "pass", 100.0, sha256(FILES[n])) for n in numbers]
    return Run("cpu", "2.13", "3.7", 5, "0.3.0+aa", stages)


def record(folder) -> dict:
    with zipfile.ZipFile(folder / "submission.zip") as archive:
        assert archive.testzip() is None
        return json.loads(archive.read("submission.json"))


def test_the_zip_holds_the_files_their_hashes_and_the_report(work):
    lines = submit.write(run(1, 2), "autograder.py", work)
    with zipfile.ZipFile(work / "submission.zip") as archive:
        assert {name: archive.read(name) for name in archive.namelist()[:-1]} == {
            f"problem_{n}.py": data for n, data in FILES.items()}
    found = record(work)
    assert found["files"]["problem_2.py"] == sha256(b"two\n") and found["torch"] == "2.13"
    assert (work / "submission.zip").stat().st_mode & 0o777 == 0o644  # a gradebook may read it
    assert [s["stage"] for s in found["reports"]["autograder.py"]["stages"]] == [1, 2]
    assert ": 3 problem files and their report. Hand in this." in lines[0]
    assert "autograder_optional.py" in lines[1]


def test_both_programs_add_to_one_zip(work):
    submit.write(run(1, 2), "autograder.py", work)
    assert len(submit.write(run(8), "autograder_optional.py", work)) == 1
    assert set(record(work)["reports"]) == {"autograder.py", "autograder_optional.py"}


def test_a_later_report_of_a_program_takes_the_place_of_its_earlier_one(work):
    submit.write(run(1, 2), "autograder.py", work)
    submit.write(run(2), "autograder.py", work)
    report, = record(work)["reports"].values()
    assert [stage["stage"] for stage in report["stages"]] == [2]


def test_a_report_of_no_program_of_the_course_is_not_kept(work):
    submit.write(run(1), "autograder.py", work)
    found = record(work)
    found["reports"]["another.py"] = found["reports"]["autograder.py"]
    with zipfile.ZipFile(work / "submission.zip", "w") as archive:
        archive.writestr("submission.json", json.dumps(found))
    submit.write(run(8), "autograder_optional.py", work)
    assert set(record(work)["reports"]) == {"autograder.py", "autograder_optional.py"}


def test_a_report_on_files_that_changed_since_is_not_kept(work):
    submit.write(run(1, 2), "autograder.py", work)
    (work / "problem_2.py").write_bytes(b"other\n")
    submit.write(run(8), "autograder_optional.py", work)
    assert set(record(work)["reports"]) == {"autograder_optional.py"}


@pytest.mark.parametrize("old", [b"", b"no zip", b"PK\x05\x06" + bytes(18)])
def test_what_stood_in_its_place_does_not_matter(work, old):
    (work / "submission.zip").write_bytes(old)
    submit.write(run(1), "autograder.py", work)
    assert set(record(work)["reports"]) == {"autograder.py"}


def test_a_file_that_changed_during_grading_is_refused_and_the_zip_stays(work):
    submit.write(run(1), "autograder.py", work)
    before = (work / "submission.zip").read_bytes()
    (work / "problem_1.py").write_bytes(b"late\n")
    with pytest.raises(ValueError, match="problem_1.py changed while it was graded"):
        submit.write(run(1), "autograder.py", work)
    assert (work / "submission.zip").read_bytes() == before


def graded(folder, *options):
    return grader("--p2", "--device", "cpu", "--submit", "--submission", folder, *options)


def test_the_program_writes_it_whatever_the_outcome(tmp_path):
    (tmp_path / "problem_2.py").write_text("def weighted_row_sum_forward(x, w) return\n")
    done = graded(tmp_path)
    assert done.returncode == 1 and "Hand in this." in done.stdout, done
    (stage,) = record(tmp_path)["reports"]["autograder.py"]["stages"]
    assert stage["outcome"] == "crashed"


@pytest.mark.parametrize("option", [["--quick"], ["--case", "x"], ["--step", "2.1"]])
def test_a_part_of_the_cases_is_not_handed_in(tmp_path, option):
    done = graded(tmp_path, *option)
    assert done.returncode == 2 and "--submit: want every case" in done.stderr
