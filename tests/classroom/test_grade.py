"""The program as an instructor runs it, with the autograder that students run."""

import contextlib
import csv
import html
import io
import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from classroom import batch
from classroom.__main__ import main
from classroom.child import Child
from grader.assignment.record import ROOT
from tests.classroom.classes import AS, make, program
from tests.commands import grader

LINUX = pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="needs Linux's /proc")
RIGHT = (ROOT / "problem_2.py").read_text("utf-8")
WRONG = RIGHT.replace("acc += tl.sum(", "acc -= tl.sum(", 1)
LOOKS = '''
import os
def weighted_row_sum_forward(x, w):
    seen = []
    for folder in {folders!r}:
        try:
            seen += os.listdir(folder) if os.path.isdir(folder) else open(folder)
        except OSError:
            pass
    raise RuntimeError(f"sees {{seen}}")
'''


def start(submissions, out, *options, **settings) -> subprocess.Popen:
    command = [sys.executable, "-m", "classroom", "grade", str(submissions), "--out", str(out),
               "--device", "cpu", "--stages", "2", *AS, *options]
    return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
                            text=True, **settings)


def run(submissions, out, *options) -> tuple[int, str]:
    """In this process, which has torch; each file has an autograder of its own all the same."""
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        code = main(["grade", str(submissions), "--out", str(out), "--device", "cpu", "--stages",
                     "2", *map(str, (*AS, *options))])
    return code, said.getvalue()


def table(out) -> dict[str, tuple[str, str]]:
    with open(out / "grades.csv", newline="", encoding="utf-8") as file:
        return {row["student"]: (row["p2_outcome"], row["p2"]) for row in csv.DictReader(file)}


def descendants(pid: int) -> set[int]:
    parents = {}
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_bytes().rpartition(b")")[2].split()
            parents[int(entry.name)] = int(fields[1])
        except OSError:
            continue
    found, size = {pid}, 0
    while size != len(found):
        size = len(found)
        found |= {child for child, parent in parents.items() if parent in found}
    return found - {pid}


def lives(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[0] != b"Z"
    except OSError:
        return False


@pytest.fixture(scope="module")
def alone(tmp_path_factory) -> dict[str, tuple[str, float]]:
    """What the autograder says of each file by itself: outcome, points."""
    folder = tmp_path_factory.mktemp("alone")
    found = {}
    for name, text in (("right", RIGHT), ("wrong", WRONG)):
        make(folder, {name: {2: text}})
        grader("--p2", "--device", "cpu", "--submission", folder / name, "--json",
               folder / f"{name}.json")
        (stage,) = json.loads((folder / f"{name}.json").read_text())["stages"]
        found[name] = stage["outcome"], str(stage["points"])
    assert found["right"] == ("pass", "100.0") and found["wrong"][0] == "wrong"
    return found


@pytest.fixture(scope="module")
def graded(tmp_path_factory):
    """A folder with a class and out/, its results: folder, exit code, output."""
    folder = tmp_path_factory.mktemp("graded")
    overrides = folder / "overrides.csv"
    overrides.write_text("student,stage,points,reason,note\nanna,2,9,see my mail,copied from ben\n")
    looks = LOOKS.format(folders=[*map(str, (folder / "class", folder / "out", ROOT, overrides))])
    make(folder / "class", {"right": {2: RIGHT}, "same": {2: RIGHT}, "other": {1: "x = 1"},
                            "Otto Aber": {2: WRONG}, "zoe's": {2: WRONG}, "anna": {2: looks}})
    return folder, *run(folder / "class", folder / "out", "--overrides", overrides)


@pytest.mark.interpreter
def test_a_class_gets_the_verdicts_that_each_file_gets_alone(graded, alone):
    folder, code, output = graded
    assert code == 3 and "No grade yet for 1 of 6 students: 1 refused" in output, output
    assert table(folder / "out") == {
        "right": alone["right"], "same": alone["right"], "Otto Aber": alone["wrong"],
        "zoe's": alone["wrong"], "other": ("refused", ""), "anna": ("crashed", "9.0")}
    assert {path.name for path in (folder / "out").iterdir()} == {
        "grades.csv", "junit.xml", "summary.html", "students", "submissions", "graded", "feedback",
        "feedback.zip", ".lock", "class.toml", "audit", ".written"}
    report = json.loads((folder / "out/students/zoe%27s.json").read_text())
    assert report["stages"][0]["checks"] and report["device"] == "cpu"


@pytest.mark.interpreter
def test_of_two_equal_files_neither_record_names_the_other_student_or_a_folder(graded):
    folder, *_ = graded
    for key, other in (("Otto Aber", "zoe"), ("zoe%27s", "Otto")):
        record = (folder / f"out/students/{key}.json").read_text("utf-8")
        assert "again: python autograder.py --p2 --seed" in record
        assert other not in record and str(folder) not in record and str(ROOT) not in record
    assert str(folder) not in (folder / "out/junit.xml").read_text("utf-8")
    page = html.unescape((folder / "out/summary.html").read_text("utf-8"))
    commands = [shlex.split(line.partition("again: ")[2].partition("<")[0])
                for line in page.splitlines() if "again: " in line]
    assert {command[3] for command in commands} == {"--submission"}
    assert [command[4] for command in commands] == [
        str(folder / "out/submissions" / key) for key in ("Otto Aber", "zoe%27s")]


@pytest.mark.parametrize(("options", "says"), [
    ((), "want the files to run as another account than root"), (AS, "files? ran as root, writing"),
    (("--worker-user", "none"), "want the files to run as another account than root")])
def test_a_class_is_not_graded_as_root_unless_that_is_allowed(tmp_path, monkeypatch, capsys,
                                                              options, says):
    grade = program(monkeypatch, tmp_path)
    monkeypatch.setattr("tests.classroom.classes.AS", ())
    monkeypatch.setattr("classroom.machine.os.geteuid", lambda: 0)
    monkeypatch.setattr("classroom.machine.find_user", lambda name: None)
    make(tmp_path / "in", {"anna": {2: "pass"}})
    code = grade(*options)
    assert code == (0 if options == AS else 2)
    page = tmp_path / "out/summary.html"
    assert re.search(says, page.read_text("utf-8") if code == 0 else capsys.readouterr().err)
    assert page.exists() == (code == 0)


def test_a_python_below_root_is_named_with_its_target_before_torch_is_imported(
        tmp_path, monkeypatch, capsys):
    grade = program(monkeypatch, tmp_path)
    monkeypatch.setattr("tests.classroom.classes.AS", ())
    monkeypatch.setattr("classroom.machine.os.geteuid", lambda: 0)
    monkeypatch.setattr("classroom.machine.find_user", lambda name: None)
    (tmp_path / "hidden").mkdir(mode=0o700)
    (tmp_path / "hidden/python3").touch()
    (tmp_path / "python").symlink_to("hidden/python3")
    monkeypatch.setattr("classroom.machine.closed_to_others", lambda: [str(tmp_path / "python")])
    make(tmp_path / "in", {"anna": {2: "pass"}})
    assert grade() == 2 and not (tmp_path / "out").exists()
    said = capsys.readouterr().err
    assert f"{tmp_path}/python, a link to {tmp_path}/hidden/python3" in said
    assert "make grade PYTHON=" in said
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "classroom", "grade", str(tmp_path / "in"),
         "--out", str(tmp_path / "out"), "--device", "cpu", "--worker-user", "no such account"],
        cwd=ROOT, capture_output=True, text=True)
    assert "no such account" in done.stderr
    assert not re.search(r"\| +torch$", done.stderr, re.MULTILINE)
    assert done.returncode == 2 and "classroom.standing" in done.stderr


def test_nobody_is_lost_and_what_a_person_must_see_is_exit_code_3(tmp_path, monkeypatch, capsys):
    grade = program(monkeypatch, tmp_path)
    make(tmp_path / "in", {"anna": {2: "wrong"}, "ben": {}})
    (tmp_path / "in/ben/problem2.py").write_text(RIGHT)
    (tmp_path / "in/ben/problem2 final.py").write_text(WRONG)
    (tmp_path / "in/dora.rar").write_text("Rar!")
    (tmp_path / "roster.csv").write_text("Name;Login\nAnna;a1\nBen;b1\nCleo;c1\nDora;d1\n")
    assert grade("--roster", tmp_path / "roster.csv") == 3
    output = "".join(capsys.readouterr())
    assert "Ben: problem_2.py refused, it is there twice or more" in output
    assert "2 could not be read, 1 graded, 1 handed in nothing" in output
    with open(tmp_path / "out/grades.csv", newline="", encoding="utf-8") as file:
        assert [(row["student"], row["login"], row["state"], row["p2"])
                for row in csv.DictReader(file)] == [
            ("Anna", "a1", "graded", "0.0"), ("Ben", "b1", "could not be read", ""),
            ("Cleo", "c1", "handed in nothing", ""), ("Dora", "d1", "could not be read", "")]


@LINUX
@pytest.mark.interpreter
def test_killed_and_started_again_it_goes_on_and_leaves_nothing(tmp_path, alone):
    make(tmp_path / "class", {"right": {2: RIGHT}, "wrong": {2: WRONG}, "cleo": {2: "1 / 0"}})
    seen: set[int] = set()
    # It begins, a file's worker is there, a grade is.
    for moment in ("out/.lock", "grader-*", "out/graded/*"):
        process = start(tmp_path / "class", tmp_path / "out", "--jobs", "2",
                        env={**os.environ, "TMPDIR": str(tmp_path)})
        while not list(tmp_path.glob(moment)) and process.poll() is None:
            seen |= descendants(process.pid)
            time.sleep(0.05)
        assert process.poll() is None, process.communicate()[0]
        process.kill()
        process.communicate()
    code, output = run(tmp_path / "class", tmp_path / "out")
    assert code == 0, output
    assert table(tmp_path / "out") == {**alone, "cleo": ("crashed", "0.0")}
    assert not (tmp_path / "out" / ".working").exists()
    end = time.monotonic() + 20
    while (left := [pid for pid in seen if lives(pid)]) and time.monotonic() < end:
        time.sleep(0.1)
    assert left == [] and list(tmp_path.glob("grader-*")) == []


@LINUX
def test_interrupted_it_says_what_is_left_and_writes_every_table(tmp_path):
    make(tmp_path / "class", {"slow": {2: "import time\ntime.sleep(500)\n"
                                          "def weighted_row_sum_forward(x, w): return x\n"}})
    process = start(tmp_path / "class", tmp_path / "out")
    while not list(tmp_path.glob("out/.working/*/1.json")) and process.poll() is None:
        time.sleep(0.05)
    process.send_signal(signal.SIGINT)
    output = process.communicate(timeout=60)[0]
    assert process.returncode == 130, output
    assert "not graded yet: 1 of 1" in output and "Traceback" not in output
    assert table(tmp_path / "out")["slow"] == ("pending", "")


@pytest.mark.interpreter
def test_a_file_sees_neither_the_other_submissions_nor_the_results(graded):
    folder, *_ = graded
    (stage,) = json.loads((folder / "out/students/anna.json").read_text())["stages"]
    if "files" not in stage["confined"]:
        pytest.skip("no Landlock here")
    assert "sees []" in stage["checks"][0]["message"]


def test_every_table_that_the_settings_name_is_hidden_from_the_files(tmp_path, monkeypatch):
    make(tmp_path / "in", {"anna": {2: "pass"}})
    tables = {"roster": "name\nanna\n", "policy": "optional = [9]\n",
              "overrides": "student,stage,points,reason\n"}
    for name, text in tables.items():
        (tmp_path / name).write_text(text)
    hidden = set()

    def child(stages, folder, working, options, *more):
        hidden.update(word for option, word in zip(options, options[1:], strict=False)
                      if option == "--hide")
        return Child(stages, folder, working, options, *more)

    grade = program(monkeypatch, tmp_path)
    monkeypatch.setattr(batch, "Child", child)
    assert grade(*(word for name in tables for word in (f"--{name}", tmp_path / name))) == 0
    assert hidden == {str(tmp_path / name) for name in ("in", "out", *tables)}


@pytest.mark.interpreter
def test_a_change_of_policy_grades_nothing_again(tmp_path):
    make(tmp_path / "class", {"anna": {2: WRONG}, "ben": {}})
    for name in ("problem2.py", "problem2 again.py"):
        (tmp_path / "class/ben" / name).write_text(f"x = '{name}'\n")
    seeded = (tmp_path / "class", tmp_path / "out", "--seed", "7")
    assert run(*seeded)[0] == 3
    (record,) = (tmp_path / "out/graded").iterdir()
    before = record.stat().st_mtime_ns
    assert json.loads(record.read_bytes())["seed"] == 7
    (tmp_path / "policy.toml").write_text("steps = 0.6\n[points]\n2 = 60\n")
    overrides = tmp_path / "overrides.csv"
    overrides.write_text("student,stage,points,reason\nben,2,50,renamed it in class\n")
    rules = ("--policy", tmp_path / "policy.toml", "--overrides", overrides, "--yes")
    code, output = run(*seeded, *rules)
    assert code == 0, output
    assert [each.stat().st_mtime_ns for each in (tmp_path / "out/graded").iterdir()] == [before]
    with open(tmp_path / "out/grades.csv", newline="", encoding="utf-8") as file:
        anna, ben = csv.DictReader(file)
    assert (anna["points"], anna["max_points"], anna["step_credit"]) == ("0.0", "60", "30.0")
    assert (ben["points"], ben["p2"], ben["p2_outcome"]) == ("50.0", "50.0", "refused")
    assert "renamed it in class" in (tmp_path / "out/summary.html").read_text("utf-8")
    overrides.write_text("student,stage,points,reason\ndora,2,50,x\n")
    grades = (tmp_path / "out/grades.csv").read_bytes()
    code, output = run(*seeded, *rules)
    assert code == 2 and "got dora, which matches no student" in output
    assert (tmp_path / "out/grades.csv").read_bytes() == grades


def test_a_full_disk_is_named_and_nothing_is_half_written(tmp_path):
    make(tmp_path / "class", {"anna": {2: "x = 1\n" * 20_000}})
    (tmp_path / "out").mkdir()
    script = f'mount -t tmpfs -o size=64k none "{tmp_path}/out" && "$@"; code=$?; ' \
             f'find "{tmp_path}/out" -type f -size +0; exit $code'
    enter = ["unshare", "-m"] if os.getuid() == 0 else ["unshare", "-Urm"]
    if subprocess.run([*enter, "mount", "-t", "tmpfs", "none", str(tmp_path / "out")],
                      capture_output=True).returncode:
        pytest.skip("no file system can be mounted here")
    done = subprocess.run(
        [*enter, "sh", "-c", script, "sh", sys.executable, "-m", "classroom", "grade",
         str(tmp_path / "class"), "--out", str(tmp_path / "out"), "--device", "cpu", *AS],
        cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 2 and "No space left" in done.stderr, done
    assert "Traceback" not in done.stderr and "problem_2" not in done.stdout


def test_own_cases_are_asked_and_are_part_of_what_a_grade_is_kept_under(tmp_path, monkeypatch,
                                                                        capsys):
    make(tmp_path / "in", {"anna": {2: "pass wrong"}})  # when it is graded again
    cases, asked = tmp_path / "cases.toml", []
    cases.write_text("[[case]]\nstage = 2\nM = 37\nN = 333\n")

    def child(stages, folder, working, options, *more):
        asked.append(str(cases) in options)
        return Child(stages, folder, working, options, *more)

    grade = program(monkeypatch, tmp_path)
    monkeypatch.setattr(batch, "Child", child)
    assert grade() == 0 and asked == [False]
    assert grade("--cases", cases) == 2 and asked[-1]
    assert "anna: P2 100 of 100 -> 0 of 100, all" in "".join(capsys.readouterr())
    assert table(tmp_path / "out")["anna"][0] == "pass"
    assert grade("--cases", cases, "--yes") == 0
    assert table(tmp_path / "out")["anna"][0] == "wrong"
    cases.write_text("[[case]]\nstage = 2\nM = 0\nN = 333\n")
    assert grade("--cases", cases, "--out", tmp_path / "elsewhere") == 2
    assert "--cases: want M of 1 to 8192; got 0, in case 1" in capsys.readouterr().err
    assert not (tmp_path / "elsewhere").exists()
