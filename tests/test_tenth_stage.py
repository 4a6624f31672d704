"""A stage more, a copy of stage 7, is graded wherever the nine are.

The edits below are all that docs/architecture.md asks for, but for texts.
"""

import csv
import json
import shutil
import subprocess
import sys

import pytest

from grader.assignment.record import ROOT

STAGE = """
STAGES[10] = Stage(
    **{**vars(STAGES[7]), "number": 10, "title": "Sinks Again", "loop_steps": ("10.4",),
       "steps": {step.replace("7.", "10."): place for step, place in STAGES[7].steps.items()}})
"""
CASES = """
TABLE[10] = TABLE[7]
"""
STEPS = """
ORIGINS |= {step.replace("7.", "10."): ORIGINS.get(step, step) for step in STAGES[7].steps}
MOVES[10] = moves(10, 7, "10.6", "10.7", "10.5")
"""
MUTANT = """
[[mutant]]
id = "sinks_plus_one"
breaks = "key S is a sink, too"
old = '(key < sink_size)'
new = '(key <= sink_size)'
"""


@pytest.fixture(scope="module")
def repository(tmp_path_factory):
    root = tmp_path_factory.mktemp("course")
    for name in ("grader", "classroom", "attacks", "warmups"):
        shutil.copytree(ROOT / name, root / name, ignore=shutil.ignore_patterns("__pycache__"))
    for path in [*ROOT.glob("problem_*.py"), *ROOT.glob("autograder*.py"), ROOT / "reference.py"]:
        shutil.copy(path, root)
    solved = (root / "problem_7.py").read_text("utf-8")
    for words in ("Step", "SOLUTION"):
        solved = solved.replace(f"{words} 7.", f"{words} 10.")
    (root / "problem_10.py").write_text(solved, "utf-8")
    for name, added in (("grader/course/stages.py", STAGE), ("grader/course/case_table.py", CASES),
                        ("grader/step_checks/table.py", STEPS),
                        ("attacks/mutants/stage_10.toml", MUTANT)):
        with (root / name).open("a", encoding="utf-8") as file:
            file.write(added)
    _run(root, "-m", "grader.step_checks.blanks")
    return root


def _run(root, *arguments, expected=0) -> str:
    ended = subprocess.run([sys.executable, *arguments], cwd=root, capture_output=True, text=True)
    assert ended.returncode == expected, ended.stdout + ended.stderr
    return ended.stdout


def test_its_solved_file_passes_with_every_step_right(repository):
    _run(repository, "autograder.py", "--p10", "--device", "cpu", "--json", "right.json")
    stage = json.loads((repository / "right.json").read_text("utf-8"))["stages"][0]
    assert (stage["outcome"], stage["points"]) == ("pass", 50)
    assert {step["light"] for step in stage["steps"]} == {"right"} and len(stage["steps"]) == 10


@pytest.mark.slow
def test_the_step_with_a_mistake_is_named(repository, tmp_path):
    solved = (repository / "problem_10.py").read_text("utf-8")
    (tmp_path / "problem_10.py").write_text(
        solved.replace("(key < sink_size)", "(key <= sink_size)"), "utf-8")
    said = _run(repository, "autograder.py", "--p10", "--device", "cpu",
                "--submission", str(tmp_path), expected=1)
    assert "step 10.8" in said


@pytest.mark.slow
def test_a_class_is_graded_in_it(repository, tmp_path):
    (tmp_path / "in" / "Ada").mkdir(parents=True)
    shutil.copy(repository / "problem_10.py", tmp_path / "in" / "Ada")
    _run(repository, "-m", "classroom", "grade", str(tmp_path / "in"), "--device", "cpu",
         "--stages", "10", "--jobs", "1", "--allow-root", "--out", str(tmp_path / "out"))
    with (tmp_path / "out" / "grades.csv").open(encoding="utf-8") as file:
        row, = csv.DictReader(file)
    assert "50" in row.values(), row


@pytest.mark.slow
def test_the_catalogue_counts_its_mutants(repository):
    said = _run(repository, "-m", "attacks", "--kind", "mutants", "--stage", "10", "--jobs", "1",
                "--device", "cpu")
    assert "1 of 1" in said
