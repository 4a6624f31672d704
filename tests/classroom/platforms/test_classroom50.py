"""The folder for Classroom 50, run as its runner runs it; the workflows, step by step."""

import json
import os
import shutil
import subprocess
import sys
from datetime import datetime

import pytest
import yaml

from classroom import __main__ as program
from grader import starter
from grader.assignment.record import ROOT
from tests.classroom.platforms.places import (
    HANGING,
    RIGHT,
    WRONG,
    hand_in,
    killed_once,
    packages,
    place,
)

GIVEN = {"CLASSROOM": "gpu-26", "ASSIGNMENT": "flash", "SUBMISSION_TAG": "submit/2026-11-26-a1b2",
         "COMMIT_URL": "https://g/commit/a1", "RELEASE_URL": "https://g/releases/a1",
         "REVIEW_URL": "", "USERNAME": "anna", "ASSIGNMENT_TYPE": "individual"}


def as_its_runner_reads(text: str) -> dict:
    """By the rules of validate_result() in its runner.py, which stamps owner and type itself."""
    found = json.loads(text)
    assert found["schema"] == "classroom50/result/v1"
    assert (found["classroom"], found["assignment"]) == ("gpu-26", "flash")
    assert found["submission"].startswith("submit/")
    for name in ("commit", "release", "review", "datetime"):
        assert isinstance(found[name], str) and found[name]
    datetime.strptime(found["datetime"], "%Y-%m-%dT%H:%M:%SZ")
    for scored in (found, *found["tests"]):
        assert type(scored["score"]) is int and type(scored["max-score"]) is int
        assert 0 <= scored["score"] <= scored["max-score"]
    for test in found["tests"]:
        assert test["test-name"] and type(test["passed"]) is bool
    assert len(text.encode()) < 10 << 20
    return found


@pytest.fixture(scope="module")
def installed():
    """A folder with a Python as a runner has it, the kit, and a checkout."""
    with place() as made:
        subprocess.run([sys.executable, "-m", "venv", made / "python"], check=True)
        assert program.main(["kit", "classroom50", "--out", str(made / "kit"),
                             "--stages", "1,2"]) == 0
        (made / "checkout").mkdir()
        (made / "environment.json").write_text(json.dumps(packages(made / "packages")))
        yield made


@pytest.fixture
def run(installed):
    """run(files) -> exit code, result.json, release-body.md."""
    checkout = installed / "checkout"
    environment = json.loads((installed / "environment.json").read_text()) | GIVEN

    def start(files: dict[str, str]) -> tuple[int, dict, str]:
        hand_in(checkout, files)
        done = subprocess.run([installed / "python/bin/python",
                               installed / "kit/autograder/autograder.py"],
                              cwd=checkout, env=environment)
        return done.returncode, as_its_runner_reads((checkout / "result.json").read_text()), \
            (checkout / "release-body.md").read_text()

    yield start
    for name in ("result.json", "release-body.md"):
        (checkout / name).unlink(missing_ok=True)


@pytest.mark.interpreter
def test_a_right_stage_has_all_its_points(run):
    code, found, body = run({"problem_2.py": RIGHT["problem_2.py"]})
    assert (code, found["score"], found["max-score"]) == (0, 100, 300)
    assert [(test["passed"], test["score"]) for test in found["tests"]] == [(False, 0), (True, 100)]
    assert "100 of 300 points" in body


@pytest.mark.interpreter
def test_a_wrong_one_fails_with_exit_code_0_and_its_mistake(run):
    code, found, body = run(WRONG)
    two = found["tests"][1]
    assert code == 0 and two["passed"] is False and two["score"] == 0
    assert two["mistake"].startswith("step 2.") and f"    {two['mistake']}" in body


def test_an_empty_one_is_the_students_failure(run):
    code, found, body = run({})
    assert (code, found["score"]) == (0, 0) and "no problem_2.py was handed in" in body


def test_a_grading_that_was_cut_off_is_no_students_failure(run, decided):
    decided(0.5)
    code, _, body = run(RIGHT)
    assert code == 1 and "| not settled |" in body and "Not graded: " in body


@pytest.mark.interpreter
def test_killed_in_a_stage_it_leaves_a_whole_result(installed):
    checkout = installed / "checkout"
    hand_in(checkout, HANGING)
    written = checkout / "result.json"

    def reached() -> bool:
        return written.exists() and "still to write" in json.loads(
            written.read_text())["tests"][0]["mistake"]

    killed_once([str(installed / "python/bin/python"),
                 str(installed / "kit/autograder/autograder.py")], checkout, reached, **GIVEN)
    assert len(as_its_runner_reads(written.read_text())["tests"]) == 2


def test_a_runtime_names_a_runner():
    folder = ROOT / "classroom/platforms/classroom50"
    cpu, gpu = (json.loads((folder / f"runtime-{name}.json").read_text())
                for name in ("cpu", "gpu"))
    assert cpu["runs-on"] == "ubuntu-latest" and gpu == {"runs-on": ["self-hosted", "gpu"]}


@pytest.mark.interpreter
@pytest.mark.parametrize("name, text, code", [("grade.yml", "1 / 0", 1),
                                              ("grade-gpu.yml", RIGHT["problem_2.py"], 0)])
def test_the_steps_of_a_workflow_pass_what_is_right_only(installed, tmp_path, name, text, code):
    """Each command as GitHub runs it, by bash -e, in a student's folder; on the CPU."""
    workflow = yaml.safe_load((installed / "kit/workflows" / name).read_text())
    assert workflow["permissions"] == {"contents": "read"}
    (job,) = workflow["jobs"].values()
    assert job["timeout-minutes"] <= 360
    student = tmp_path / "flash"
    starter.write(starter.build(ROOT, [2]), student)
    hand_in(student, {"problem_2.py": text})
    environment = json.loads((installed / "environment.json").read_text())
    environment["PATH"] = f"{installed / 'python/bin'}{os.pathsep}{environment['PATH']}"
    if name == "grade-gpu.yml":
        subprocess.run([installed / "python/bin/pip", "install", "-q", "torch", "triton", "numpy"],
                       env=environment, check=True)
    codes = [subprocess.run([shutil.which("bash"), "-eo", "pipefail", "-c",
                             step["run"].replace("--device cuda", "--device cpu")],
                            cwd=student, env=environment, stdout=subprocess.DEVNULL).returncode
             for step in job["steps"] if "run" in step]
    assert codes[-1] == code and not any(codes[:-1])
    assert json.loads((student / "results-autograder.py.json").read_text())["stages"]
