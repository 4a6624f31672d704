"""What grader/__init__.py says before anything else is imported."""

import ast
import os
import shlex
import shutil
import subprocess
import sys

import pytest

from grader import starter
from grader.assignment.record import ROOT

OLD = "import sys; sys.version_info = (3, 10, 13)"


@pytest.mark.parametrize("program", [
    "autograder.py", "autograder_optional.py", "grader.starter", "grader.carry", "classroom"])
def test_a_python_that_is_too_old_is_told_in_one_line(program):
    run = "run_path" if program.endswith(".py") else "run_module"
    code = f"import runpy; {OLD}; runpy.{run}({program!r}, run_name='__main__')"
    done = subprocess.run([sys.executable, "-c", code, "--doctor"], cwd=ROOT, text=True,
                          capture_output=True)
    assert (done.returncode, done.stdout) == (2, "")
    line, = done.stderr.splitlines()
    assert line.startswith("error: want Python 3.11 or newer; got 3.10.13 (")
    assert "python3.12" in line


@pytest.mark.parametrize("name", [
    "autograder.py", "autograder_optional.py", "grader/__init__.py", "classroom/__init__.py"])
def test_an_old_python_can_read_what_tells_it_so(name):
    tree = ast.parse((ROOT / name).read_text("ascii"), feature_version=(3, 4))
    assert not any(isinstance(node, ast.JoinedStr) for node in ast.walk(tree))


def test_a_grading_without_pictures_does_not_load_what_draws_them():
    code = "import sys, grader.cli, grader.judge.grade; sys.exit('jinja2' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_make_asks_before_it_makes_an_environment(tmp_path):
    for name in ("Makefile", "pyproject.toml", "constraints.txt", "grader/__init__.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copy(ROOT / name, tmp_path / name)
    old = tmp_path / "python3"
    old.write_text(f"#!/bin/sh\nexec {shlex.quote(sys.executable)} -c '{OLD}; exec(sys.argv[2])' "
                   '"$@"\n')
    old.chmod(0o755)
    done = subprocess.run(["make", "grade", f"PYTHON={old}"], cwd=tmp_path, text=True,
                          capture_output=True)
    assert done.returncode == 2 and "got 3.10.13" in done.stderr
    assert not (tmp_path / ".venv").exists()


def test_files_with_the_names_of_pythons_modules_are_named_and_looked_past(tmp_path):
    starter.write(starter.build(ROOT, [1]), tmp_path)
    shutil.copy(ROOT / "problem_1.py", tmp_path)
    for name in ("queue.py", "copy.py", "torch.py", "numpy.py", "random.py", "typing.py",
                 "utils.py", "inspect/__init__.py", "statistics/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("raise SystemExit('mine')\n")
    done = subprocess.run(
        [sys.executable, "autograder.py", "--step", "1.3", "--device", "cpu"],
        cwd=tmp_path, text=True, capture_output=True,
        env={**os.environ, "CUDA_VISIBLE_DEVICES": ""})
    assert done.returncode == 0, done.stdout + done.stderr
    line, = [row for row in done.stderr.splitlines() if row.startswith("note: ")]
    assert line.startswith("note: copy.py, inspect, numpy.py, queue.py, random.py, torch.py, "
                           f"typing.py in {tmp_path}: rename it.")
