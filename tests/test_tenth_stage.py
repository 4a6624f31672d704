"""Two stages more, copies of stages 7 and 8, are graded wherever the nine are.

The edits below are all that docs/architecture.md asks for, but for texts.
"""

import csv
import json
import shutil
import subprocess
import sys

import pytest

from grader.assignment.record import ROOT

COPIES = {10: 7, 11: 8}
STAGES = """
def copied(number, of):
    here = lambda step: f"{number}.{step.partition('.')[2]}"
    return Stage(**{**vars(STAGES[of]), "number": number,
                    "steps": {here(step): place for step, place in STAGES[of].steps.items()},
                    "loop_steps": tuple(map(here, STAGES[of].loop_steps))})


STAGES |= {10: copied(10, 7), 11: copied(11, 8)}
"""
CASES = """
TABLE |= {10: TABLE[7], 11: TABLE[8]}
"""
STEPS = """
for number, of in ((10, 7), (11, 8)):
    for step in STAGES[of].steps:
        ORIGINS[f"{number}.{step.partition('.')[2]}"] = ORIGINS.get(step, step)
KEYS[11], QUERIES[11] = KEYS[8], QUERIES[8]
MOVES[10] = moves(10, 7, "10.6", "10.7", "10.5")
MOVES[11] = moves(11, 8, "11.5", "11.6", "11.4") + natural_gradients(11)
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
    for number, of in COPIES.items():
        solved = (root / f"problem_{of}.py").read_text("utf-8")
        for words in ("Step", "SOLUTION"):
            solved = solved.replace(f"{words} {of}.", f"{words} {number}.")
        (root / f"problem_{number}.py").write_text(solved, "utf-8")
    for name, added in (("grader/course/stages.py", STAGES), ("grader/course/case_table.py", CASES),
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


@pytest.mark.slow
@pytest.mark.parametrize(("number", "points"), [(10, 50), (11, 200)])
def test_its_solved_file_passes_with_every_step_right(repository, number, points):
    program = "autograder.py" if number == 10 else "autograder_optional.py"
    _run(repository, program, f"--p{number}", "--device", "cpu", "--json", f"{number}.json")
    stage = json.loads((repository / f"{number}.json").read_text("utf-8"))["stages"][0]
    assert (stage["outcome"], stage["points"]) == ("pass", points)
    assert {step["light"] for step in stage["steps"]} == {"right"}
    assert len(stage["steps"]) == points // 10 * (2 if number == 10 else 1)


@pytest.mark.slow
@pytest.mark.parametrize(("number", "right", "wrong", "step", "mistake"), [
    (10, "(key < sink_size)", "(key <= sink_size)", "10.8", "sinks-plus-one"),
    (11, "# BEGIN SOLUTION 11.8\n    kv_head = h // (HQ // HKV)",
     "# BEGIN SOLUTION 11.8\n    kv_head = h % HKV", "11.8", "dq-heads-interleaved")])
def test_the_step_with_a_mistake_is_named(
        repository, tmp_path, number, right, wrong, step, mistake):
    solved = (repository / f"problem_{number}.py").read_text("utf-8")
    assert solved.count(right) == 1
    (tmp_path / f"problem_{number}.py").write_text(solved.replace(right, wrong), "utf-8")
    program = "autograder.py" if number == 10 else "autograder_optional.py"
    _run(repository, program, f"--p{number}", "--device", "cpu", "--submission", str(tmp_path),
         "--json", str(tmp_path / "wrong.json"), expected=1)
    steps = json.loads((tmp_path / "wrong.json").read_text("utf-8"))["stages"][0]["steps"]
    assert [(one["id"], one["mistake"]) for one in steps if one["light"] == "wrong"] == [
        (step, mistake)]


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
