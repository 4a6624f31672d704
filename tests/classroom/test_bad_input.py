"""What an instructor may get wrong, at every command: a sentence, exit code 2, nothing touched.

Here is what no other test of a command has; nothing is graded.
"""

import json
import os
import re
from pathlib import Path

import pytest

from classroom import __main__ as program
from tests.classroom.classes import make
from tests.classroom.test_gradebook import ANNA, BEN, CANVAS, MOODLE

CPU = "--device cpu --allow-root"
GRADE = "grade class --out out --device cpu --stages 2"
CANVAS_OF = "gradebook results --column FlashAttention --canvas"
ROSTER = "name,id\nanna,1\nben,2\n"
TO_OVERRIDE = "student,stage,points,reason\n"
DEEP = "optional = " + "[" * 3000
XLSX = b"PK\x03\x04\x14\0\x06\0\x08\0\0\0!\0A7\x82"
UTF_16, LATIN_1 = ROSTER.encode("utf-16"), "name,id\nJörg,1\n".encode("latin-1")


def everything(folder: Path) -> dict[str, bytes | None]:
    return {str(path): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


@pytest.fixture
def place(tmp_path, monkeypatch):
    """A folder with a class, results, two exported files, a file and a folder."""
    make(tmp_path / "class", {"anna": {2: "x = 1\n"}, "ben": {2: "x = 1\n"}})
    make(tmp_path, {"folder": {1: "x = 1\n"}})
    (tmp_path / "results/students").mkdir(parents=True)
    for each in (ANNA, BEN):
        stages = [each["stages"][0] | {"benchmark": None}]
        (tmp_path / f"results/students/{each['key']}.json").write_text(
            json.dumps(each | {"stages": stages}))
    (tmp_path / "file").write_text("hello\n")
    (tmp_path / "canvas.csv").write_text(CANVAS, "utf-8")
    (tmp_path / "moodle.csv").write_text(MOODLE, "utf-8")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("words", "given", "says"), [
    # grade
    ("grade gone --out out", "", "SUBMISSIONS: want a folder .*; got gone"),
    ("grade folder --out out", "", "want a folder per student in it; got a problem file"),
    ("grade given.csv --out out", UTF_16, "want a table in UTF-8; got"),
    ("grade given.csv --out out", "name,path,path\na,b,c\n", "want each column once; got path"),
    (f"grade class --out file/out {CPU}", "", "--out: want a folder that can be .*file/out"),
    (f"grade class --out /proc/out {CPU}", "", "--out: want a folder that can be written"),
    (f"{GRADE} --jobs many", "", "invalid int value: 'many'"),
    (f"{GRADE} --stage-timeout inf", "", "--stage-timeout: want a number above 0"),
    (f"{GRADE} --stages 7-1", "", "--stages: want stages such as 1-7 or 3,4; got 7-1"),
    (f"{GRADE} --stages 0-3", "", "--stages: want stages of 1-9; got 0-3"),
    (f"{GRADE} --jobs 0", "", "--jobs: want 1 or more; got 0"),
    (f"{GRADE} --seed -1", "", r"--seed: want 0 to 2\^48 - 1; got -1"),
    (f"{GRADE} --timeout nan", "", "--timeout: want a number above 0; got nan"),
    (f"{GRADE} --worker-user no-such-account", "", "want an account"),
    (f"grade class --out class {CPU}", "", "want a folder apart from the submissions"),
    (f"grade class --out class/out {CPU}", "", "want a folder apart from the submissions"),
    (f"grade class --out . {CPU}", "", "want a folder apart from the submissions"),
    (f"{GRADE} --slurm -1", "", "--slurm: want 1 task or more; got -1"),
    (f"{GRADE} --slurm-option mem=8G", "", "--slurm-option: want it with --slurm"),
    (f"{GRADE} --slurm 2 --slurm-option =x", "", "want one such as partition=gpu; got '=x'"),
    # tables and TOML
    (f"{GRADE} --roster folder", "", "--roster: want a table, a .csv; got folder"),
    (f"{GRADE} --roster given.csv", "", "--roster: want a column name .*; got nothing"),
    (f"{GRADE} --roster given.csv", UTF_16, "--roster: want a table in UTF-8"),
    (f"{GRADE} --roster given.csv", XLSX, "got given.csv, a workbook: open it in Excel"),
    (f"{GRADE} --roster given.csv", "name,id,id\na,1,2\n", "want each column once; got id twice"),
    (f"{GRADE} --roster given.csv", "name\n" + "a" * 200_000, "larger than field limit"),
    (f"{GRADE} --policy folder", "", "--policy: want a policy.toml; got folder"),
    (f"{GRADE} --policy given.csv", UTF_16, "--policy: want TOML; got"),
    (f"{GRADE} --policy given.csv", DEEP, "recursion"),
    (f"{GRADE} --overrides folder", "", "--overrides: want a table"),
    (f"{GRADE} --overrides given.csv", TO_OVERRIDE + "zoe,2,1,x\n", "matches no student"),
    (f"{GRADE} --overrides given.csv", TO_OVERRIDE + "ben,4,1,x\n", "want stages that are graded"),
    (f"{GRADE} --overrides given.csv", TO_OVERRIDE + "ben,2,1,x\nben,P2,2,y\n", "got two for ben"),
    (f"{GRADE} --cases folder", "", "--cases: want a file of cases, TOML; got folder"),
    (f"{GRADE} --cases given.csv", "case = []", "--cases: want .*case.* and nothing else"),
    (f"{GRADE} --cases given.csv", LATIN_1, "--cases: want TOML; got"),
    # gradebook
    ("gradebook file --check50 new", "", "RESULTS: want the folder that `grade` wrote"),
    (f"{CANVAS_OF} folder", "", "--canvas: want a table, a .csv; got folder"),
    (f"{CANVAS_OF} given.csv", CANVAS.encode("utf-16"), "--canvas: want a table in UTF-8"),
    (f"{GRADE} --moodle given.csv", XLSX, "got given.csv, a workbook"),
    (f"{GRADE} --moodle given.csv", "a,b\n1,2,3\n", "--moodle: want 2 cells a row; got 3"),
    (f"{GRADE} --roster moodle.csv --canvas given.csv", "x,y\n", "--canvas: want a column name"),
    (f"{CANVAS_OF} given.csv", XLSX, "--canvas: want a table, a .csv; got given.csv, a workbook"),
    (f"{CANVAS_OF} given.csv", CANVAS + "Coe, Cleo,1,c,A,1,2,3\n", "want 7 cells a row; got 8"),
    (f"{CANVAS_OF} given.csv", CANVAS.replace("Essay", "FlashAttention"), "--column: want one of"),
    ("gradebook results --moodle canvas.csv", "", "--moodle: want a grading worksheet"),
    ("gradebook results --moodle given.csv", "", "--moodle: want .*; got nothing in given.csv"),
    ("gradebook results --moodle moodle.csv --column Status", "", "want a grading worksheet"),
    ("gradebook results --moodle given.csv --column Status", MOODLE.replace("Identifier", "ID"),
     "--column: want a column of numbers; got Submitted in row 2"),
    ("gradebook results --check50 new --scale 10", "", "--scale: want it with --canvas or"),
    ("gradebook results --nbgrader moodle.csv", "", "want a new file, or one .*; got moodle.csv"),
    ("gradebook results --nbgrader file/x.csv", "", "want a file that can be .*; got file/x.csv"),
    ("gradebook results --nbgrader /proc/x.csv", "", "want a file that can be .*; got /proc/x.csv"),
    ("gradebook results --check50 results/students", "", "want a new file, or one .*; got results"),
    ("gradebook results --check50 file", "", "want a file that can be .*; got file/"),
    ("gradebook results --canvas gone.csv", "", "--canvas: want a table, a .csv; got gone.csv"),
    ("gradebook results --canvas results/canvas.csv", "", "want the exported file"),
    ("gradebook results --moodle moodle.csv --scale 0", "", "--scale: want a number above 0"),
    ("gradebook results --canvas canvas.csv", "", r"--column: want one of Essay \(11\); .* none"),
    # leaderboard, questions and kit
    ("leaderboard gone --out board", "", "RESULTS: want the folder that `grade` wrote"),
    ("leaderboard results --out board --verify -1", "", "--verify: want 0 or more; got -1"),
    ("leaderboard results --out board --verify 1", "", "--device cuda: want a CUDA GPU; got none"),
    ("questions gone --allow-root", "", "RESULTS: want the folder that `grade` wrote"),
    ("questions results --student zoe --allow-root", "", "--student: want the name, .*; got zoe"),
    ("kit moodle --out new.zip", "", "invalid choice: 'moodle'"),
    ("kit gradescope --out folder", "", "--out: want a new file in a folder that exists; got"),
    ("kit gradescope --out canvas.csv", "", "--out: want a new file in a folder that"),
    ("kit gradescope --out /proc/kit.zip", "", "No such file or directory: /proc/"),
    ("kit classroom50 --out folder", "", "--out: want a new folder in a folder that exists"),
    ("kit gradescope --out no/folder/kit.zip", "", "--out: want a new file in a folder"),
    ("kit gradescope --out new.zip --minutes 1", "", "--minutes: want 2 or more; got 1"),
    ("kit gradescope --out new.zip --minutes nan", "", "--minutes: want 2 or more; got nan"),
    ("kit gradescope --out new.zip --stages 12", "", "--stages: want stages of 1-9; got 12"),
    ("kit gradescope --out new.zip --policy gone", "", "--policy: want a policy.toml; got gone"),
    ("kit gradescope --out new.zip --cases gone", "", "--cases: want a file of cases"),
    ("kit classroom50 --out new --cases given.csv", "", "--cases: want it for gradescope only"),
])
def test_bad_input_is_said_and_nothing_is_touched(place, capsys, monkeypatch, words, given, says):
    monkeypatch.setattr("classroom.machine._gpus", list)
    (place / "given.csv").write_bytes(given if isinstance(given, bytes) else given.encode())
    before = everything(place)
    try:
        code = program.main(words.split())
    except SystemExit as error:  # argparse's
        code = error.code
    said = capsys.readouterr().err
    assert code == 2 and re.search(says, said), said
    assert everything(place) == before


@pytest.mark.parametrize(("name", "contents", "says"), [
    ("students/Cleo.json", '{"format": 2, "stu', "RESULTS: want .*; got results/students/Cleo"),
    ("students/Cleo.json", "[1]", "RESULTS: want .*; got results/students/Cleo.json"),
    ("verified.json", '{"a', "verified.json: want what --verify wrote"),
    ("verified.json", "[1]", "verified.json: want what --verify wrote"),
    ("aliases.csv", UTF_16, "aliases.csv: want a table in UTF-8"),
])
def test_results_that_are_damaged_are_named(place, capsys, name, contents, says):
    path = place / "results" / name
    path.write_bytes(contents if isinstance(contents, bytes) else contents.encode())
    before = everything(place)
    assert program.main(["leaderboard", "results", "--out", "board"]) == 2
    assert re.search(says, capsys.readouterr().err)
    assert everything(place) == before


def test_a_table_that_is_no_file_is_refused_at_once(place, capsys):
    os.mkfifo(place / "pipe")
    assert program.main([*GRADE.split(), "--roster", "pipe"]) == 2
    assert "--roster: want a table, a .csv; got pipe" in capsys.readouterr().err
