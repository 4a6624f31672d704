"""The assignment made from the solved files: complete, blank where it must be, and careful."""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from grader.assignment import record
from grader.assignment.submission import read, steps
from grader.course import contract
from grader.course.case_table import listed
from grader.course.stages import STAGES
from grader.starter import ROOT, SITE, UNPUBLISHED, blank, build, main, problem_files

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
RAISE = 'raise NotImplementedError("step 3.{}")  # TODO: your code here\n'
BLANK = STAGE.format(n=3).replace("y = x * 2\n    z = y\n", RAISE.format(1)).replace(
    "z += y\n", RAISE.format(2))


@pytest.fixture
def repository(tmp_path) -> Path:
    """A small one: two stages and one file of everything else."""
    root = tmp_path / "repository"
    for folder in ("__pycache__", "course", "assignment"):
        (root / "grader" / folder).mkdir(parents=True)
    (root / "guide").mkdir()
    for number in (2, 10):
        (root / f"problem_{number}.py").write_text(STAGE.format(n=number))
    for name in ("README.md", "autograder.py", "autograder_optional.py", "reference.py", "Makefile",
                 ".gitignore", "LICENSE", "grader/course/stages.py", "grader/assignment/hints.toml",
                 "guide/__init__.py", "guide/exercises.py", "guide/exercises.json",
                 "grader/__pycache__/stages.pyc", "problem_notes.py"):
        (root / name).write_text(f"# {name}\n")
    (root / "pyproject.toml").write_text(
        '[project]\ndependencies = ["torch>=2.6"]\noptional-dependencies.course = ["numpy"]\n')
    (root / "grader/assignment/assignment.md").write_text(
        "all\n`problem_2.py` two\n`problem_9.py` nine\n<!-- 8-9 -->\nlate\n<!-- 1-10 -->\n"
        "python autograder.py --p1 --hint 1.1\n")
    (root / "grader/assignment/agents.md").write_text("python autograder.py --p1\n")
    return root


ASSIGNMENT = {"README.md", "AGENTS.md", "autograder.py", "reference.py", "requirements.txt",
              ".gitignore", "LICENSE", "guide/__init__.py", "guide/exercises.py",
              "guide/exercises.json", "grader/course/stages.py", "grader/assignment/hints.toml",
              "grader/assignment.json", "problem_2.py", "problem_10.py"}


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


def test_a_whole_assignment_is_written_and_nothing_of_the_repository_beside_it(
        repository, tmp_path, capsys):
    target = tmp_path / "new" / "course"
    assert main([str(target)], repository) == 0
    written = contents(target)
    assert set(written) == ASSIGNMENT
    assert b"x * 2" not in written["problem_2.py"]
    assert written["grader/assignment/hints.toml"] == b"# grader/assignment/hints.toml\n"
    assert written["requirements.txt"] == b"torch>=2.6\nnumpy\n"
    assert written["LICENSE"] == b"# LICENSE\n"
    assert b"/submission.zip\n" in written[".gitignore"]
    assert "Problems 2, 10 are in" in capsys.readouterr().out


def test_the_readme_of_an_assignment_names_only_what_is_there(repository, tmp_path):
    assert main([str(tmp_path / "course")], repository) == 0
    assert contents(tmp_path / "course")["README.md"] == \
        b"all\n`problem_2.py` two\npython autograder.py --p2 --hint 2.1\n"


def test_where_a_faster_kernel_is_described_is_not_said_where_it_is_not(repository, tmp_path):
    path = repository / "problem_2.py"
    head = '"""Two.\n\nCheck   this\nFaster  sink_attn/README.md\n"""\n'
    path.write_text(head + path.read_text())
    assert main([str(tmp_path / "course")], repository) == 0
    text = contents(tmp_path / "course")["problem_2.py"].decode()
    assert text.startswith('"""Two.\n\nCheck   this\n"""\n')


def test_stages_are_in_the_order_of_their_numbers(repository):
    assert list(problem_files(repository)) == [2, 10]


def test_an_assignment_of_some_stages_knows_which(repository, tmp_path):
    (repository / "problem_10.py").rename(repository / "problem_9.py")
    target = tmp_path / "course"
    assert main([str(target), "--stages", "9"], repository) == 0
    written = contents(target)
    assert "problem_2.py" not in written and "autograder.py" not in written
    assert "autograder_optional.py" in written
    assert written["README.md"] == b"all\n`problem_9.py` nine\nlate\n" \
        b"python autograder_optional.py --p9 --hint 10.1\n"
    assert record.read(target).stages == (9,)


# ----------------------------------------------------------------------- update, check
@pytest.fixture
def course(repository, tmp_path) -> Path:
    """An assignment that was begun, of a repository that has gone on since."""
    target = tmp_path / "course"
    assert main([str(target)], repository) == 0
    (target / "problem_2.py").write_text(STAGE.format(n=2))
    (repository / "grader/course/stages.py").write_text("# newer\n")
    (repository / "grader/assignment/hints.toml").unlink()
    (repository / "grader/new.py").write_text("# new\n")
    return target


def test_an_update_brings_the_engine_and_leaves_the_work(repository, course, capsys):
    old = record.read(course).version
    assert main([str(course), "--update"], repository) == 0
    written = contents(course)
    assert set(written) == ASSIGNMENT - {"grader/assignment/hints.toml"} | {"grader/new.py"}
    assert written["grader/course/stages.py"] == b"# newer\n"
    assert written["problem_2.py"] == STAGE.format(n=2).encode()
    said, new = capsys.readouterr().out, record.read(course).version
    assert f"{old} -> {new}\n" in said and old != new and "replaced" not in said


def test_an_update_keeps_what_was_changed_in_the_engine_and_says_so(repository, course, capsys):
    (course / "grader/course/stages.py").write_text("# mine\n")
    (course / "README.md").write_text("notes\n")
    (course / "grader/own.py").write_text("# own\n")
    assert main([str(course), "--update"], repository) == 0
    kept = contents(course / ".autograder" / "replaced")
    assert kept == {"grader/course/stages.py": b"# mine\n", "README.md": b"notes\n",
                    "grader/own.py": b"# own\n"}
    assert capsys.readouterr().out.count("was not as given") == 3
    (course / "README.md").write_text("more notes\n")
    assert main([str(course), "--update"], repository) == 0
    kept = contents(course / ".autograder" / "replaced")
    assert (kept["README.md"], kept["README.md.2"]) == (b"notes\n", b"more notes\n")


def test_an_update_replaces_a_problem_only_where_nothing_is_written(repository, course, capsys):
    for number in (2, 10):
        path = repository / f"problem_{number}.py"
        path.write_text(path.read_text().replace("Double", "Twice"))
    before = contents(course)["problem_2.py"]
    assert main([str(course), "--update"], repository) == 0
    said = capsys.readouterr().out
    assert "problem_2.py has a newer text; yours, which is begun, stays as it is.\n" in said
    assert "problem_10.py has a newer text; nothing was written in yours: replaced.\n" in said
    assert contents(course)["problem_2.py"] == before
    assert b"Twice" in contents(course)["problem_10.py"]
    (course / "problem_10.py").unlink()
    assert main([str(course), "--update"], repository) == 0
    assert b"Twice" in contents(course)["problem_10.py"]
    assert "problem_10.py was not there: written, blank." in capsys.readouterr().out


def test_an_update_may_bring_further_stages(repository, tmp_path):
    target = tmp_path / "course"
    (repository / "problem_10.py").rename(repository / "problem_3.py")
    assert main([str(target), "--stages", "2"], repository) == 0
    assert main([str(target), "--stages", "3", "--update"], repository) == 0
    assert record.read(target).stages == (2, 3) and (target / "problem_3.py").is_file()


def test_what_an_update_that_was_killed_left_is_named(repository, course, capsys):
    old = course / ".starter-abc" / "old"
    old.mkdir(parents=True)
    (course / "grader").rename(old / "grader")
    assert main([str(course), "--update"], repository) == 2
    assert f"move what lies in {old} back to {course}" in capsys.readouterr().err


def test_an_older_grader_does_not_replace_a_newer_one(repository, course, capsys, monkeypatch):
    before, newer = contents(course), record.VERSION
    monkeypatch.setattr(record, "VERSION", "0.1.9")
    assert main([str(course), "--update"], repository) == 2
    assert f"want a grader no older than the assignment's, {newer}+" in capsys.readouterr().err
    assert contents(course) == before


@pytest.fixture
def full_disk(monkeypatch):
    """full_disk(n): from now on the n-th rename fails."""
    def after(most: int) -> None:
        renames, real = [], os.rename

        def rename(*paths):
            renames.append(paths)
            if len(renames) == most:
                raise OSError("disk full")
            real(*paths)
        monkeypatch.setattr(os, "rename", rename)
    return after


def test_an_update_that_fails_half_way_changes_nothing(repository, course, full_disk):
    before = contents(course)
    full_disk(6)
    assert main([str(course), "--update"], repository) == 2
    assert contents(course) == before and not list(course.glob(".starter-*"))


@pytest.mark.parametrize("option", ["--update", "--check"])
def test_only_an_assignment_is_updated_or_checked(option, repository, tmp_path, capsys):
    assert main([str(tmp_path), option], repository) == 2
    assert "want an assignment that this command has made" in capsys.readouterr().err


def test_a_damaged_record_is_refused(repository, course, capsys):
    (course / record.RECORD).write_text("{")
    assert main([str(course), "--check"], repository) == 2
    assert "want a record such as grader/assignment.json" in capsys.readouterr().err


def test_a_check_says_which_files_are_not_as_they_were_given(repository, course, capsys):
    assert main([str(course), "--check"], repository) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].endswith(", problems 2, 10.") and "--update brings it" in lines[1]
    assert lines[2:] == [
        "problem_10.py    as it was given", "problem_2.py     yours: 2 of 2 steps filled"]
    (course / "problem_2.py").write_text(STAGE.format(n=2).replace("return z", "return z + 0"))
    (course / "problem_10.py").unlink()
    (course / "grader/course/stages.py").write_text("# mine\n")
    (course / "grader/own.py").write_text("# own\n")
    (course / "reference.py").unlink()
    (course / "grader/__pycache__").mkdir()
    (course / "grader/__pycache__/own.pyc").write_text("")
    assert main([str(course), "--check"], course) == 1  # from the assignment itself, too
    assert capsys.readouterr().out.splitlines()[1:] == [
        "problem_10.py    missing",
        "problem_2.py     yours: 2 of 2 steps filled, and changed outside its steps",
        "grader/course/stages.py changed", "reference.py     missing", "grader/own.py    added"]


def test_a_check_from_the_repository_does_not_take_the_assignments_word(
        repository, tmp_path, capsys):
    target = tmp_path / "course"
    assert main([str(target)], repository) == 0
    (target / "grader/course/stages.py").write_text("# mine\n")
    given = (target / record.RECORD).read_text()
    was = record.sha256(b"# grader/course/stages.py\n")
    assert was in given
    (target / record.RECORD).write_text(given.replace(was, record.sha256(b"# mine\n")))
    assert main([str(target), "--check"], repository) == 1
    assert "grader/course/stages.py changed" in capsys.readouterr().out


def test_a_solved_file_of_the_repository_is_changed_in_its_steps_alone(tmp_path, capsys):
    target = tmp_path / "course"
    assert main([str(target), "--stages", "3"]) == 0
    (target / "problem_3.py").write_bytes((ROOT / "problem_3.py").read_bytes())
    assert main([str(target), "--check"]) == 0
    assert capsys.readouterr().out.endswith("problem_3.py     yours: 8 of 8 steps filled\n")


def test_what_an_editor_leaves_in_the_engine_is_not_handed_out(repository, tmp_path):
    before = record.version(repository)
    (repository / "grader/.stages.py.swp").write_text("x")
    (repository / "grader/notes.txt").write_text("x")
    assert record.version(repository) == before
    assert main([str(tmp_path / "course")], repository) == 0
    assert set(contents(tmp_path / "course")) == ASSIGNMENT


@pytest.mark.parametrize("options", [[], ["--update"], ["--check"]])
def test_a_file_in_the_place_of_the_folder_is_refused(options, repository, tmp_path, capsys):
    (tmp_path / "course").write_text("mine\n")
    assert main([str(tmp_path / "course"), *options], repository) == 2
    assert capsys.readouterr().err.startswith("error: ")
    assert (tmp_path / "course").read_text() == "mine\n"


def test_an_assignment_makes_no_other(course, tmp_path, capsys):
    assert main([str(tmp_path / "another")], course) == 2
    assert "want the course's repository to write from" in capsys.readouterr().err


@pytest.mark.parametrize(("arguments", "present"), [
    ([], "problem_2.py"), ([], "grader/mine.py"), ([], ".gitignore"),
    (["--stages", "2"], "problem_2.py"),
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


def test_a_failure_half_way_leaves_nothing(repository, tmp_path, full_disk):
    target = tmp_path / "course"
    target.mkdir()
    (target / "notes.txt").write_text("mine\n")
    full_disk(4)
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
    assert main([str(tmp_path / "course"), "--stages", "2-3"], repository) == 2
    assert "want stages of [2, 10]; got [2, 3]" in capsys.readouterr().err
    for text in ("two", "7-1", "", "1-999"):
        with pytest.raises(SystemExit):
            main([str(tmp_path / "course"), "--stages", text], repository)
        assert f"want stages such as 1-7 or 3,4; got {text}" in capsys.readouterr().err


# ------------------------------------------------------------ the real problem files
REAL = problem_files(ROOT)


@pytest.mark.parametrize("stage", REAL)
def test_every_stage_has_titled_steps_and_a_starter_that_is_not_started(stage, tmp_path):
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


# ------------------------------------------------------------------ the real assignment
@pytest.fixture(scope="module")
def real(tmp_path_factory) -> Path:
    target = tmp_path_factory.mktemp("real") / "course"
    assert main([str(target)]) == 0
    return target


def test_what_the_readme_names_is_there(real):
    text = (real / "README.md").read_text()
    for name in re.findall(r"[\w./-]+\.(?:py|txt|md|toml)\b|[\w-]+/(?=`)", text):
        assert (real / name).exists(), name
    here = text.replace(UNPUBLISHED, "")  # which is about the course's checkout
    assert here != text and not re.search(
        r"docs/|make |tests|sink_attn/|benchmarks|examples", here)


@pytest.mark.parametrize("stages", ["1-3", "1-7", "4", "8-9"])
def test_the_readme_of_a_part_speaks_of_no_other_stage(stages, tmp_path):
    assert main([str(tmp_path / "course"), "--stages", stages]) == 0
    text = (tmp_path / "course/README.md").read_text()
    numbers = record.read(tmp_path / "course").stages
    absent = set("123456789") - {str(n) for n in numbers}
    for words in (r"--p(\d)", r"problem_(\d)", r"--hint (\d)", r"SOLUTION (\d)",
                  r"grader\.carry (\d)"):
        assert not set(re.findall(words, text)) & absent, words
    assert "<!--" not in text and not re.search(r"```\n```", text)
    assert ("autograder_optional.py" in text) == (max(numbers) >= 8)
    assert ("python autograder.py" in text) == (min(numbers) <= 7)


@pytest.mark.parametrize("stages, absent", [("2,4", "3"), ("1-3,5", "4"), ("3-4", "")])
def test_the_readme_says_which_carried_steps_must_be_written_anew(stages, absent, tmp_path):
    assert main([str(tmp_path / "course"), "--stages", stages]) == 0
    text = (tmp_path / "course/README.md").read_text()
    said = re.findall("# steps from problem (.*), which you were not given: write them anew", text)
    assert said == [absent] * bool(absent)


def test_the_readme_is_one_page_and_its_table_says_what_the_files_hold(real):
    text = (real / "README.md").read_text()
    assert len(text.splitlines()) <= 120 and max(map(len, text.splitlines())) <= 120
    for number in STAGES:
        regions = steps((real / f"problem_{number}.py").read_text())
        carried = sum(bool(step.origin) for step in regions)
        count = f"{len(regions) - carried}" + f", {carried} copied" * (carried > 0)
        row = next(row for row in text.splitlines() if f"`problem_{number}.py`" in row)
        assert f"| {count} |" in row


def test_the_readme_explains_what_the_robust_cases_are_called(real):
    text = (real / "README.md").read_text()
    notes = {word for stage in STAGES.values()
             for case in (*listed(stage.number, "cuda", True),
                          *contract.cases(stage, {64}, None, seed=1))
             if case.group == "robust" for word in case.note.split(", ")}
    explained = re.findall(r"(?m)^\| ([^`|]*) \|", text)
    known = {word for row in explained for word in row.split(", ")}
    for note in notes - {"float16", "bfloat16", "float32"}:
        assert {note, re.sub("^([qkvxw]|d[oy]) ", "", note), note.replace("dy", "do"),
                re.sub(r"near .*", "near -20,000", note),
                re.sub(r"of .* alone", "of k alone", note),
                } & known, note


def test_the_commands_of_the_readme_are_commands_of_the_assignment(real):
    text = (real / "README.md").read_text()
    commands = {row.partition("#")[0].strip() for block in re.findall(r"```\n(.*?)```", text, re.S)
                for row in block.splitlines() if row.startswith("python ")}
    assert len(commands) >= 8
    for command in commands:
        words = shlex.split(command)[1:]
        words = words[:2] if words[0] == "-m" else words[:1]
        options = [word for word in shlex.split(command) if word.startswith("--")]
        if words[-1].startswith("problem"):
            continue
        done = subprocess.run([sys.executable, *words, "--help"], cwd=real, capture_output=True,
                              text=True, check=True)
        assert all(option in done.stdout for option in options), command


@pytest.mark.interpreter
def test_the_failing_run_of_the_readme_is_what_is_printed(real):
    text = (real / "README.md").read_text()
    shown = re.search(r"```\n(steps .*?❌.*?)```", text, re.S)[1]
    source = (ROOT / "problem_1.py").read_text()
    mistaken = source.replace("acc = alpha[..., None] * acc + p", "acc = acc + p")
    assert mistaken != source
    (real / "problem_1.py").write_text(mistaken)
    done = subprocess.run([sys.executable, "autograder.py", "--p1", "--quick", "--seed", "1",
                           "--device", "cpu"], cwd=real, capture_output=True, text=True)

    def without_numbers(text: str) -> str:  # some are another machine's
        return re.sub(r"\d+(\.\d+)?", "0", text)
    assert without_numbers(shown) in without_numbers(done.stdout)


def test_the_exercises_of_the_guide_run_there_and_hold_no_answer(real):
    ran = subprocess.run([sys.executable, "-m", "guide.exercises", "4.1", "36", "8"], cwd=real,
                         capture_output=True, text=True)
    assert (ran.returncode, ran.stdout) == (0, "4.1: right.\n")
    assert {path.name for path in (real / "guide").iterdir() if path.is_file()} == {
        "__init__.py", "exercises.py", "exercises.json"}


def test_the_built_guide_is_copied_into_a_new_assignment_or_one_that_is_there(
        repository, tmp_path, capsys):
    course = tmp_path / "course"
    assert main([str(course), "--guide"], repository) == 2 and not course.exists()
    assert "want the guide, which `make guide` builds" in capsys.readouterr().err
    site = repository / SITE
    (site / "static").mkdir(parents=True)
    (site / "index.html").write_text("first")
    (site / "static" / "one.css").write_text("css")
    assert main([str(course), "--guide"], repository) == 0
    assert f"The guide is in {course}/site/index.html." in capsys.readouterr().out
    (course / "problem_2.py").write_text("mine")
    before = contents(course)
    assert before["site/static/one.css"] == b"css" and b"site/" in before[".gitignore"]
    (site / "index.html").write_text("second")
    (site / "static" / "one.css").unlink()
    assert main([str(course), "--guide"], repository) == 0
    del before["site/static/one.css"]
    assert contents(course) == before | {"site/index.html": b"second"}
    assert main([str(course), "--update"], repository) == 0  # which leaves it there
    assert main([str(course), "--check"], repository) == 0
    assert contents(course)["site/index.html"] == b"second"
    assert main([str(course), "--check", "--guide"], repository) == 2
    (course / "site" / "index.html").unlink()
    assert main([str(course), "--guide"], repository) == 2  # it may be somebody's own
    assert "got something else there" in capsys.readouterr().err


def test_the_readme_gives_the_address_of_the_guide_once_there_is_one(repository):
    assert UNPUBLISHED in (ROOT / "grader/assignment/assignment.md").read_text("utf-8")
    (repository / "grader/assignment/assignment.md").write_text(f"The guide. {UNPUBLISHED}\n")
    assert UNPUBLISHED.encode() in build(repository)["README.md"]
    with (repository / "pyproject.toml").open("a") as file:
        file.write('[project.urls]\nGuide = "https://guide.example/"\n')
    assert build(repository)["README.md"] == b"The guide. It is at https://guide.example/.\n"
