"""The zip for Gradescope, unpacked, set up and run in a folder that is laid out as /autograder."""

import json
import shutil
import subprocess
import zipfile

import pytest

from classroom import __main__ as program
from tests.classroom.platforms.places import (
    HANGING,
    RIGHT,
    WRONG,
    hand_in,
    killed_once,
    outside,
    packages,
    place,
)

# "Autograder Specifications" of Gradescope's documentation, as of January 2025: every field may be
# left out, except that points are wanted above or at each test.
NUMBER, TEXT = (int, float), (str,)
FORMATS = {"text", "html", "simple_format", "md", "ansi"}
VISIBLE = {"hidden", "after_due_date", "after_published", "visible"}
TOP = {"score": NUMBER, "execution_time": NUMBER, "output": TEXT, "output_format": FORMATS,
       "test_output_format": FORMATS, "test_name_format": FORMATS, "visibility": VISIBLE,
       "stdout_visibility": VISIBLE, "extra_data": (dict,), "tests": (list,),
       "leaderboard": (list,)}
TEST = {"score": NUMBER, "max_score": NUMBER, "status": {"passed", "failed"}, "name": TEXT,
        "name_format": FORMATS, "number": TEXT, "output": TEXT, "output_format": FORMATS,
        "tags": (list,), "visibility": VISIBLE, "extra_data": (dict,)}


def as_documented(text: str) -> dict[str, dict]:
    """-> number -> test; every field is a documented one and holds what it may."""
    def check(found: dict, fields: dict) -> None:
        for name, value in found.items():
            allowed = fields[name]
            assert value in allowed if isinstance(allowed, set) else \
                type(value) in allowed, (name, value)

    results = json.loads(text, parse_constant=pytest.fail)  # no NaN, which is no JSON
    check(results, TOP)
    for test in results["tests"]:
        check(test, TEST)
        assert "score" in results or "score" in test
        assert 0 <= test["score"] <= test["max_score"]
        assert "\r" not in test["output"]
    return {test["number"]: test for test in results["tests"]}


@pytest.fixture(scope="module")
def installed():
    """The folder, set up."""
    with place() as made:
        root, environment = made / "autograder", packages(made / "packages")
        for folder in ("source", "submission", "results"):
            (root / folder).mkdir(parents=True)
        (root / "submission_metadata.json").write_text('{"id": 1, "users": []}')
        assert program.main(["kit", "gradescope", "--out", str(made / "kit.zip"),
                             "--stages", "1,2"]) == 0
        subprocess.run([shutil.which("unzip") or "unzip", "-q", made / "kit.zip", "-d",
                        root / "source"], check=True)
        shutil.copy2(root / "source/run_autograder", root)
        subprocess.run([root / "source/setup.sh"], env=environment, check=True,
                       capture_output=True)
        yield root


@pytest.fixture
def run(installed):
    """run(files) -> number -> test."""
    def start(files: dict[str, str]) -> dict[str, dict]:
        hand_in(installed / "submission", files)
        subprocess.run([installed / "run_autograder"], cwd=installed, env=outside(), check=True)
        return as_documented((installed / "results/results.json").read_text())

    yield start
    (installed / "results/results.json").unlink(missing_ok=True)


@pytest.mark.interpreter
def test_a_right_submission_has_all_points(run):
    tests = run(RIGHT)
    assert [(test["output"], test["status"], test["score"]) for test in tests.values()] == [
        ("passed", "passed", 200.0), ("passed", "passed", 100.0)]


@pytest.mark.interpreter
def test_a_wrong_one_is_told_its_mistake_first(run):
    test = run(WRONG)["2"]
    assert (test["status"], test["score"]) == ("failed", 0.0)
    assert test["output"].splitlines()[0].startswith("step 2.")
    assert "python autograder.py --hint 2." in test["output"].splitlines()[-1]


@pytest.mark.interpreter
def test_one_that_hangs_costs_its_own_stage(run, decided):
    decided(40.0)
    tests = run(HANGING)
    assert (tests["2"]["status"], tests["2"]["score"]) == ("failed", 0.0)
    first, *_ = tests["2"]["output"].splitlines()
    # The call, or where others kept it waiting and it was made again, the stage's own time.
    assert first == "no answer within 10 s in a call of the entry point" or (
        "no more cases were run" in first)
    assert "no more cases were run" in tests["2"]["output"]
    assert "still to write: 1.1" in tests["1"]["output"]


def test_an_empty_one_has_no_file(run):
    tests = run({})
    assert [test["output"].splitlines()[0] for test in tests.values()] == [
        "no problem_1.py was handed in", "no problem_2.py was handed in"]
    assert not any(test["score"] for test in tests.values())


def test_two_names_that_are_nearly_right_are_no_failed_test(run):
    test = run({"problem_2 (1).py": "pass\n", "problem2.py": "other"})["2"]
    assert "status" not in test and "not the same: problem2.py, problem_2 (1).py" in test["output"]


def test_what_its_own_deadline_cuts_off_is_not_judged(run, decided):
    decided(0.5)
    tests = run(RIGHT)
    assert "status" not in tests["2"] and tests["2"]["score"] == 0.0
    assert tests["2"]["output"].startswith("Not graded: ")


@pytest.mark.interpreter
def test_killed_in_a_stage_it_leaves_what_was_known_before(installed):
    hand_in(installed / "submission", HANGING)
    written = installed / "results/results.json"
    killed_once([str(installed / "run_autograder")], installed, lambda: written.exists()
                and "status" in as_documented(written.read_text())["1"])
    tests = as_documented(written.read_text())
    assert tests["1"]["status"] == "failed" and "status" not in tests["2"]


def test_own_cases_are_packed_where_nobody_publishes_them(tmp_path, capsys):
    (tmp_path / "cases.toml").write_text("[[case]]\nstage = 4\nN = 333\n")
    given = ["--cases", str(tmp_path / "cases.toml")]
    assert program.main(["kit", "gradescope", "--out", str(tmp_path / "kit.zip"), *given]) == 0
    with zipfile.ZipFile(tmp_path / "kit.zip") as archive:
        assert b"N = 333" in archive.read("course/cases.toml")
    assert program.main(["kit", "classroom50", "--out", str(tmp_path / "kit"), *given]) == 2
    assert "--cases: want " in capsys.readouterr().err and not (tmp_path / "kit").exists()


def test_the_zip_has_what_the_platform_looks_for_at_its_root(tmp_path):
    assert program.main(["kit", "gradescope", "--out", str(tmp_path / "kit.zip")]) == 0
    with zipfile.ZipFile(tmp_path / "kit.zip") as archive:
        modes = {name: archive.getinfo(name).external_attr >> 16 for name in archive.namelist()}
    assert modes["setup.sh"] & 0o111 and modes["run_autograder"] & 0o111
    assert not any(name.startswith("course/problem_") for name in modes), "no solutions"
