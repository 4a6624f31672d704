"""The assignment made from the solved files: complete, blank where it must be, and careful."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from grader.starter import ROOT, blank, build, main, problem_files
from grader.submission import read, steps

STAGE = '''\
import torch


def entry(x):
    """Double."""
    # Step {n}.1 -- How?
    # BEGIN SOLUTION {n}.1
    y = x * 2
    z = y
    # END SOLUTION {n}.1
    for _ in range(2):
        # Step {n}.2 -- Again?
        # BEGIN SOLUTION {n}.2
        z += y
        # END SOLUTION {n}.2
    return z
'''
BLANK = '''\
import torch


def entry(x):
    """Double."""
    # Step 3.1 -- How?
    # BEGIN SOLUTION 3.1
    raise NotImplementedError("step 3.1")  # TODO: your code here
    # END SOLUTION 3.1
    for _ in range(2):
        # Step 3.2 -- Again?
        # BEGIN SOLUTION 3.2
        raise NotImplementedError("step 3.2")  # TODO: your code here
        # END SOLUTION 3.2
    return z
'''


@pytest.fixture
def repository(tmp_path) -> Path:
    """A small one: two stages and one file of everything else."""
    root = tmp_path / "repository"
    (root / "grader" / "__pycache__").mkdir(parents=True)
    for number in (2, 10):
        (root / f"problem_{number}.py").write_text(STAGE.format(n=number))
    for name in ("README.md", "autograder.py", "autograder_optional.py", "reference.py",
                 "pyproject.toml", ".gitignore", "grader/stages.py", "grader/hints.toml",
                 "grader/__pycache__/stages.pyc", "problem_notes.py"):
        (root / name).write_text(f"# {name}\n")
    return root


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes()
            for path in folder.rglob("*") if path.is_file()}


def test_the_inside_of_every_region_becomes_one_raise_at_the_same_indent():
    assert blank(STAGE.format(n=3)) == BLANK


def test_blanking_twice_changes_nothing_more():
    assert blank(BLANK) == BLANK


def test_an_empty_region_gets_its_raise_too():
    text = "def f():\n    # BEGIN SOLUTION 1.1\n    # END SOLUTION 1.1\n    return 1\n"
    assert 'raise NotImplementedError("step 1.1")' in blank(text)


def test_a_region_whose_removal_breaks_the_file_is_refused():
    text = "if True:\n# BEGIN SOLUTION 1.1\n    pass\n# END SOLUTION 1.1\n"
    with pytest.raises(ValueError, match="not Python"):
        blank(text)


def test_a_whole_assignment_is_written_without_caches(repository, tmp_path):
    target = tmp_path / "new" / "course"
    assert main([str(target)], repository) == 0
    written = contents(target)
    assert set(written) == {
        "README.md", "autograder.py", "autograder_optional.py", "reference.py", "pyproject.toml",
        ".gitignore", "grader/stages.py", "grader/hints.toml", "problem_2.py", "problem_10.py",
    }
    assert b"x * 2" not in written["problem_2.py"]
    assert written["grader/hints.toml"] == b"# grader/hints.toml\n"
    (repository / "Makefile").write_text("all:\n")
    assert "Makefile" in build(repository)


def test_stages_are_in_the_order_of_their_numbers(repository):
    assert list(problem_files(repository)) == [2, 10]


def test_one_stage_can_be_written_alone_beside_other_work(repository, tmp_path):
    target = tmp_path / "course"
    assert main([str(target)], repository) == 0
    (target / "problem_10.py").write_text("my work\n")
    (target / "problem_2.py").unlink()
    assert main([str(target), "--stage", "2"], repository) == 0
    assert contents(target)["problem_10.py"] == b"my work\n"
    assert b"step 2.1" in contents(target)["problem_2.py"]


@pytest.mark.parametrize(("arguments", "present"), [
    ([], "problem_2.py"), ([], "grader/mine.py"), ([], ".gitignore"),
    (["--stage", "2"], "problem_2.py"),
])
def test_work_in_the_way_is_listed_and_nothing_is_written(
        repository, tmp_path, capsys, arguments, present):
    target = tmp_path / "course"
    (target / present).parent.mkdir(parents=True)
    (target / present).write_text("my work\n")
    assert main([str(target), *arguments], repository) == 2
    assert contents(target) == {present: b"my work\n"}
    assert str(target / present.split("/")[0]) in capsys.readouterr().err


def test_even_a_broken_link_is_in_the_way(repository, tmp_path):
    target = tmp_path / "course"
    target.mkdir()
    (target / "problem_2.py").symlink_to("nowhere")
    assert main([str(target)], repository) == 2


def test_a_failure_half_way_leaves_nothing(repository, tmp_path, monkeypatch):
    target = tmp_path / "course"
    target.mkdir()
    (target / "notes.txt").write_text("mine\n")
    renames = []
    real = os.rename

    def rename(*paths):
        renames.append(paths)
        if len(renames) == 4:
            raise OSError("disk full")
        real(*paths)

    monkeypatch.setattr(os, "rename", rename)
    assert main([str(target)], repository) == 2
    assert contents(target) == {"notes.txt": b"mine\n"} and len(list(target.iterdir())) == 1


@pytest.mark.parametrize("damage", ["unclosed", "no reference"])
def test_a_damaged_repository_writes_nothing_and_says_why(repository, tmp_path, capsys, damage):
    if damage == "unclosed":
        path = repository / "problem_10.py"
        path.write_text(path.read_text().replace("# END SOLUTION 10.2", "#"))
    else:
        (repository / "reference.py").unlink()
    assert main([str(tmp_path / "course")], repository) == 2
    assert not (tmp_path / "course").exists()
    said = capsys.readouterr().err
    assert ("problem_10.py: line" in said) if damage == "unclosed" else ("reference.py" in said)


def test_an_unknown_stage_is_refused(repository, tmp_path, capsys):
    assert main([str(tmp_path / "course"), "--stage", "3"], repository) == 2
    assert "want a stage of [2, 10]; got 3" in capsys.readouterr().err


def test_the_command_runs_as_a_module(tmp_path):
    done = subprocess.run([sys.executable, "-m", "grader.starter", "--help"], cwd=ROOT,
                          capture_output=True, text=True, check=True)
    assert "--stage" in done.stdout


# ------------------------------------------------------------ the real problem files
REAL = problem_files(ROOT)


@pytest.mark.parametrize("stage", REAL)
def test_every_real_stage_has_steps_with_titles_and_a_starter_that_is_not_started(stage, tmp_path):
    source = REAL[stage].read_text()
    regions = steps(source)
    assert regions and all(step.title for step in regions)
    assert {step.id for step in regions} == {f"{stage}.{i + 1}" for i in range(len(regions))}
    starter = blank(source)
    (tmp_path / REAL[stage].name).write_text(starter)
    found = read(tmp_path, REAL[stage].name, "any")
    assert found.state == "not_started"
    assert found.blank_steps == tuple(step.id for step in regions)
    assert read(ROOT, REAL[stage].name, "any").state == "ready"
