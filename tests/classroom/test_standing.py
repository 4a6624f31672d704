"""Grades that stand are not changed, and nobody is removed, unasked."""

import csv
import errno
import io
import json
import os
import re
import shutil
import signal
import subprocess
import tomllib
import zipfile
from functools import partial

import pytest

from classroom import __main__ as main
from classroom import audit, batch, settings
from classroom.store import Store
from tests.classroom.classes import make, program

POLICY = """[late]
deadline = 2026-11-30T12:00:00Z
days = 3
per_day = 0.1
"""


@pytest.fixture
def grade(monkeypatch, tmp_path):
    """A class of three, of whom ben was a day late.  -> grade(*options): its exit code."""
    make(tmp_path / "in", {"anna": {2: "pass"}, "ben": {2: "pass # b"}, "cleo": {2: "wrong"}})
    for name, day in (("anna", "11-29"), ("ben", "12-01"), ("cleo", "11-30")):
        (tmp_path / "in" / name / "timestamp.txt").write_text(f"2026-{day} 10:00:00 UTC\n")
    (tmp_path / "policy.toml").write_text(POLICY)
    (tmp_path / "class.csv").write_text("name,id\nanna,1\nben,2\ncleo,3\ndora,4\n")
    (tmp_path / "overrides.csv").write_text("student,stage,points,reason\ncleo,2,50,showed me\n")
    return program(monkeypatch, tmp_path)


@pytest.fixture
def options(tmp_path):
    return ("--policy", tmp_path / "policy.toml", "--roster", tmp_path / "class.csv",
            "--overrides", tmp_path / "overrides.csv")


def points(tmp_path) -> dict[str, str]:
    with open(tmp_path / "out/grades.csv", newline="", encoding="utf-8") as file:
        return {row["student"]: row["points"] for row in csv.DictReader(file)}


def everything(folder) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*")
            if path.is_file()}


WANTED = {"anna": "100.0", "ben": "90.0", "cleo": "50.0", "dora": ""}


def test_an_option_that_was_given_once_need_not_be_given_again(grade, options, tmp_path, capsys):
    assert grade(*options) == 0 and points(tmp_path) == WANTED
    before = everything(tmp_path / "out")
    assert grade() == 0 and points(tmp_path) == WANTED
    after = everything(tmp_path / "out")
    for name in ("summary.html", "audit/runs.csv", ".written"):  # they say when
        assert before.pop(name) and after.pop(name)
    assert after == before
    kept = tomllib.loads((tmp_path / "out/class.toml").read_text("utf-8"))
    assert (kept["policy"], kept["stages"], kept["device"]) == ("../policy.toml", "2", "cpu")


@pytest.mark.parametrize("line", ["policy", "overrides"])
def test_a_setting_that_goes_asks_before_it_changes_a_grade(grade, options, tmp_path, capsys,
                                                            monkeypatch, line):
    assert grade(*options) == 0
    path = tmp_path / "out/class.toml"
    path.write_text(path.read_text().replace(f"{line} =", f"# {line} ="))
    before = everything(tmp_path / "out")
    assert grade() == 2
    said = capsys.readouterr()
    assert {"policy": "ben: P2 90 of 100 -> 100 of 100, all 90 of 100 -> 100 of 100",
            "overrides": "cleo: P2 50 of 100 -> 0 of 100"}[line] in said.out
    assert "--yes" in said.err and {
        name for name, contents in everything(tmp_path / "out").items()
        if contents != before[name]} == {"audit/runs.csv", ".written"}
    for answer, code in (("n", 2), ("", 2), ("y", 0)):
        monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
        monkeypatch.setattr("builtins.input", lambda _, answer=answer: answer)
        assert grade() == code and (points(tmp_path) == WANTED) == (code == 2)
    assert grade("--policy", tmp_path / "policy.toml", "--overrides", tmp_path / "overrides.csv",
                 "--yes") == 0
    assert points(tmp_path) == WANTED


def test_the_options_of_a_first_run_that_was_refused_count(grade, options, tmp_path, capsys):
    assert grade() == 0
    (tmp_path / "out").rename(tmp_path / "half")
    assert grade(*options, "--join", tmp_path / "half") == 2 and "ben: P2 100 of 100 -> 90 of 100" \
        in (said := capsys.readouterr()).out and said.err.endswith("; none was changed\n")
    assert grade("--yes") == 0 and points(tmp_path) == WANTED


def test_an_option_of_a_later_run_that_was_refused_is_missed(grade, options, tmp_path, capsys):
    assert grade() == 0
    assert grade(*options[:2]) == 2
    assert "nor was class.toml: give the same options again" in capsys.readouterr().err
    assert grade("--yes") == 3 and points(tmp_path)["ben"] == "100.0"
    assert "not applied: policy = ../policy.toml, because" in capsys.readouterr().out
    assert grade("--yes") == 0 and grade(*options[:2]) == 2
    assert grade(*options[:2], "--yes") == 0 and points(tmp_path)["ben"] == "90.0"
    assert "not applied" not in capsys.readouterr().out


def test_nobody_is_removed_but_by_forget(grade, options, tmp_path, capsys):
    assert grade(*options) == 0
    shutil.rmtree(tmp_path / "in/anna")
    assert grade() == 0 and points(tmp_path) == WANTED
    assert "anna: nothing in SUBMISSIONS now" in capsys.readouterr().out
    (tmp_path / "class.csv").write_text("name,id\nben,2\ncleo,3\ndora,4\n")
    assert grade() == 0 and points(tmp_path) == WANTED
    assert grade("--forget", "ben") == 2 and points(tmp_path) == WANTED
    assert "want somebody who is neither in SUBMISSIONS" in capsys.readouterr().err
    assert grade("--forget", "nobody") == 2
    assert "got nobody, which matches no student" in capsys.readouterr().err
    overrides = (tmp_path / "overrides.csv").read_text()
    (tmp_path / "overrides.csv").write_text(overrides + "anna,2,100,fine\n")
    assert grade("--forget", "1") == 2 and points(tmp_path) == WANTED
    assert "overrides.csv does not name; got 1: first delete the row of anna" \
        in capsys.readouterr().err
    (tmp_path / "overrides.csv").write_text(overrides)
    assert grade("--forget", "1") == 0
    assert sorted(points(tmp_path)) == ["ben", "cleo", "dora"]
    assert not [name for name in everything(tmp_path / "out") if "anna" in name]


def test_no_file_has_the_name_of_somebody_who_was_forgotten(grade, options, tmp_path):
    roster, overrides = tmp_path / "class.csv", tmp_path / "overrides.csv"
    overrides.write_text("student,stage,points,reason\ncleo,2,50,showed me\n")
    assert grade(*options) == 0 and grade("--again=cleo", "--again", "cleo:2") == 0
    roster.write_text("name,login\nanna,a1\nben,b2\nCleo C,cleo\n")
    (tmp_path / "none.csv").write_text("student,stage,points,reason\n")
    assert grade("--overrides", tmp_path / "none.csv", "--yes") == 0
    assert [row[:4] for row in history(tmp_path)][-2:] == [
        ("Cleo C", what, "50 of 100", "0 of 100") for what in ("P2", "all")]
    words = ["gradebook", str(tmp_path / "out"), "--check50", str(tmp_path / "checks")]
    assert main.main(words) == 0
    (tmp_path / "out/aliases.csv").write_text("student,alias\nanna,calm crane\nCleo C,wise owl\n")
    for name in ("answers.html", "answers-Cleo C.html"):
        (tmp_path / "out" / name).write_text("Cleo C")
    shutil.rmtree(tmp_path / "in/cleo")
    roster.write_text("name,id\nanna,1\nben,2\n")
    assert grade("--forget", "Cleo C") == 0
    left = everything(tmp_path / "out")
    assert b"calm crane" in left["aliases.csv"] and b"wise owl" not in left["aliases.csv"]
    left["graded"] = left[".written"] + b" ".join(map(os.fsencode, left))
    assert not [name for name, contents in left.items() if b"cleo" in contents.lower()]


def test_again_grades_the_files_of_one_student_and_stage_anew(grade, tmp_path, capsys):
    make(tmp_path / "in", {"anna": {2: "timeout timeout pass"}})
    assert grade() == 0 and points(tmp_path)["anna"] == "0.0"
    asked = (tmp_path / "asked").read_text().count("\n")
    assert grade("--again", "anna:3") == 0 and grade("--again", "Anna:2") == 2
    assert "anna: P2 0 of 100 -> 100 of 100" in capsys.readouterr().out
    assert grade("--yes") == 0 and points(tmp_path)["anna"] == "100.0"
    assert (tmp_path / "asked").read_text().count("\n") == asked + 1
    (old,) = (tmp_path / "out/graded").glob("*.json.1")
    assert json.loads(old.read_bytes())["stage"]["outcome"] == "timeout", "the old record is kept"
    assert grade("--again", "zoe") == 2
    assert "--again: want the name, id" in capsys.readouterr().err


MOODLE = """Identifier,Full name,Email address,Status,Grade,Maximum grade,Last modified (grade)
Participant 11,Anna Ärger,a@x.org,Submitted,,100.00,-
Participant 12,Ben Braun,b@x.org,Submitted,,100.00,-
Participant 13,Cleo Coe,c@x.org,No submission,,100.00,-
"""


def test_one_command_makes_grades_feedback_and_the_gradebook_of_a_zip(grade, tmp_path, capsys):
    with zipfile.ZipFile(tmp_path / "all.zip", "w") as packed:
        packed.writestr("Anna Ärger_11_assignsubmission_file/problem_2.py", "pass")
        inner = io.BytesIO()
        with zipfile.ZipFile(inner, "w") as own:
            own.writestr("work/problem_2.py", "wrong")
        packed.writestr("Ben Braun_12_assignsubmission_file_work.zip", inner.getvalue())
    (tmp_path / "worksheet.csv").write_text(MOODLE, "utf-8")
    shutil.rmtree(tmp_path / "in")
    grade = partial(grade, submissions=tmp_path / "all.zip")
    assert grade("--moodle", tmp_path / "worksheet.csv", "--column", "Grade") == 0
    assert points(tmp_path) == {"Anna Ärger": "100.0", "Ben Braun": "0.0", "Cleo Coe": ""}
    with open(tmp_path / "out/moodle.csv", newline="", encoding="utf-8") as file:
        assert [row["Grade"] for row in csv.DictReader(file)] == ["100.00", "0.00", ""]
    with zipfile.ZipFile(tmp_path / "out/feedback.zip") as packed:
        assert len(packed.namelist()) == 2
    assert "to upload: " in capsys.readouterr().out
    (tmp_path / "out/moodle.csv").unlink()
    assert grade() == 0 and (tmp_path / "out/moodle.csv").exists(), "class.toml has the worksheet"
    (tmp_path / "policy.toml").write_text("[points]\n2 = 300\n")
    before, asked = everything(tmp_path / "out"), (tmp_path / "asked").read_text()
    with zipfile.ZipFile(tmp_path / "all.zip", "a") as packed:
        packed.writestr("Cleo Coe_13_assignsubmission_file/problem_2.py", "pass # c")
    assert grade("--policy", tmp_path / "policy.toml", "--yes") == 2
    assert "--moodle: want a column of 300 points; got 100.00" in capsys.readouterr().err
    assert everything(tmp_path / "out") == before and (tmp_path / "asked").read_text() == asked
    (tmp_path / "all.zip").write_bytes(b"no zip")
    assert grade() == 2 and "want a .zip that can be unpacked" in capsys.readouterr().err


def worksheet(folder, *rows: tuple[str, str, str, str], day: int | None = None) -> None:
    """folder/worksheet.csv with these rows: number, name, status, grade.  day: of December, on
    which all handed in."""
    text = "Identifier,Full name,Email address,Status,Grade,Maximum grade,Last modified (grade)\n"
    for number, name, status, grade in rows:
        text += f'Participant {number},{name},{name[0]}@x.org,"{status}",{grade},100.00,-\n'
    if day:
        text = re.sub(",-$", f',"Monday, {day} December 2026, 10:00",-', text, flags=re.MULTILINE)
        text = text.replace(",Last", ",Last modified (submission),Last")
    (folder / "worksheet.csv").write_text(text, "utf-8")


def of_worksheet(folder) -> dict[str, str]:
    with open(folder / "out/moodle.csv", newline="", encoding="utf-8") as file:
        return {row["Full name"]: row["Grade"] for row in csv.DictReader(file)}


CLASS = [("11", "Anna", "Submitted for grading", ""), ("12", "Ben", "Submitted for grading", ""),
         ("13", "Cleo", "No submission", "55.00"), ("14", "Dora", "No submission", ""),
         ("16", "Finn", "Submitted for grading", "")]


@pytest.fixture
def moodle(grade, tmp_path):
    """Anna and Ben handed in, Cleo and Dora did not.  -> grade() with their worksheet."""
    shutil.rmtree(tmp_path / "in")
    make(tmp_path / "in", {"Anna_11_assignsubmission_file": {2: "pass"},
                           "Ben_12_assignsubmission_file": {2: "wrong"},
                           "Finn_16_assignsubmission_file": {2: "pass # f"},
                           "Eve_15_assignsubmission_file": {2: "pass # e"}})
    worksheet(tmp_path, *CLASS)
    return partial(grade, "--moodle", tmp_path / "worksheet.csv")


def test_who_handed_in_nothing_keeps_what_the_worksheet_holds(moodle, tmp_path, capsys):
    assert moodle() == 3, "Eve is not in the worksheet"
    assert of_worksheet(tmp_path) == {
        "Anna": "100.00", "Ben": "0.00", "Cleo": "55.00", "Dora": "", "Finn": "100.00"}
    assert "2 handed in nothing" in capsys.readouterr().out


def test_a_picture_beside_a_blank_file_is_no_zero_until_it_is_ignored(moodle, tmp_path, capsys):
    shutil.rmtree(tmp_path / "in/Eve_15_assignsubmission_file")
    anna = tmp_path / "in/Anna_11_assignsubmission_file"
    (anna / "problem_2.py").write_text("raise NotImplementedError\n")
    (anna / "problem_1.py").write_text("pass")
    (anna / "IMG_2.JPG").write_bytes(b"\xff\xd8")
    assert moodle() == 3 and of_worksheet(tmp_path)["Anna"] == ""
    assert "its code may be in IMG_2.JPG" in capsys.readouterr().out
    (tmp_path / "policy.toml").write_text("ignore = ['img*']\n")
    assert moodle("--policy", tmp_path / "policy.toml") == 0
    assert of_worksheet(tmp_path)["Anna"] == "0.00"
    (tmp_path / "policy.toml").write_text("ignore = 'img*'\n")
    assert moodle() == 2 and 'want ignore = ["report.pdf", "*.png"] or the like; got' in (
        capsys.readouterr().err)


def test_a_file_that_is_refused_only_now_is_not_newer(moodle, tmp_path):
    shutil.rmtree(tmp_path / "in/Eve_15_assignsubmission_file")
    anna = tmp_path / "in/Anna_11_assignsubmission_file"
    (anna / "problem_2.py").write_text("raise NotImplementedError\n")
    (anna / "report.pdf").write_text("%PDF")
    worksheet(tmp_path, *CLASS, day=1)
    for ignored in ("'*.pdf'", "", "'*.pdf'"):
        (tmp_path / "policy.toml").write_text(
            f"ignore = [{ignored}]\n[late]\ndeadline = 2026-12-09T12:00:00\n")
        assert moodle("--yes", "--policy", tmp_path / "policy.toml") == (0 if ignored else 3)
        report = json.loads((tmp_path / "out/students/Anna.json").read_bytes())
        assert not report["held"] and (report["points"] is None) == (not ignored)


@pytest.mark.parametrize("word", ["12", "S9", "b7", "B@x.org"])
def test_who_left_is_found_by_every_number_of_before(moodle, tmp_path, word):
    roster = "id,student id,login\n11,S8,a7\n13,S7,c7\n14,S6,d7\n16,S5,f7\n15,S4,e7\n"
    (tmp_path / "class.csv").write_text(roster + "12,S9,b7\n")
    given = ("--roster", tmp_path / "class.csv")
    moodle(*given)
    shutil.rmtree(tmp_path / "in/Ben_12_assignsubmission_file")
    (tmp_path / "class.csv").write_text(roster)
    worksheet(tmp_path, *(row for row in CLASS if row[1] != "Ben"))
    (tmp_path / "overrides.csv").write_text(
        f"student,stage,points,reason\n{word},2,42,showed me\n")
    for _ in range(2):
        moodle("--overrides", tmp_path / "overrides.csv", "--yes", *given)
        assert points(tmp_path)["Ben"] == "42.0"


def test_a_team_hands_in_once(moodle, tmp_path, capsys):
    make(tmp_path / "in", {"Anna_11_assignsubmission_file": {2: PASS}})
    shutil.rmtree(tmp_path / "in/Eve_15_assignsubmission_file")
    (tmp_path / "class.csv").write_text(
        "id,team,handed_in\n11,A,2020-12-01T10:00Z\n13,A,\n12,B,\n14,B,\n16,,\n")
    (tmp_path / "policy.toml").write_text(
        "[late]\ndeadline = 2020-12-01T09:00:00Z\ndays = 1\nper_day = 0.1\n")
    given = ("--roster", tmp_path / "class.csv", "--policy", tmp_path / "policy.toml")
    assert moodle(*given) == 0
    assert of_worksheet(tmp_path) == {
        "Anna": "90.00", "Ben": "0.00", "Cleo": "90.00", "Dora": "0.00", "Finn": "100.00"}
    assert "Cleo: graded by what Anna of the same team handed in" in capsys.readouterr().out
    with zipfile.ZipFile(tmp_path / "out/feedback.zip") as packed:
        assert "Cleo_13_assignsubmission_file/feedback.html" in packed.namelist()
        assert "Anna" not in packed.read("Cleo_13_assignsubmission_file/feedback.html").decode()
    assert "equal files</td>" not in (tmp_path / "out/summary.html").read_text("utf-8")
    assert moodle(*given) == 0, "no grade changes"
    make(tmp_path / "in", {"Cleo_13_assignsubmission_file": {2: f"{PASS} + 1"}})
    (tmp_path / "class.csv").write_text("id,team\n11,A\n12,A\n13,A\n14,A\n16,\n")
    assert moodle("--yes", *given) == 3
    said = capsys.readouterr().out
    assert "Dora: refused, team A: Anna, Ben, Cleo handed in files that differ" in said
    assert "Cleo: team A: Anna, Ben handed in other files" in said


PASS = "pass #\nx = 1"  # which is no blank file
EVERYONE = ("Anna_11", "Ben_12", "Cleo_13", "Finn_16", "Eve_15")


def pair(tmp_path, status: str = "Submitted for grading", day: int | None = None, **files: str):
    """Anna, with this status in the worksheet, and Cleo are a team that handed in these files.  ->
    options"""
    shutil.rmtree(tmp_path / "in")
    made = {"Finn_16": "pass # f", "Eve_15": "pass # e", "Ben_12": "pass # b"} | files
    make(tmp_path / "in", {f"{name}_assignsubmission_file": {2: text}
                           for name, text in made.items() if text is not None})
    rows = [(name[-2:], name[:-3], "Submitted for grading" if name in made else "No submission", "")
            for name in EVERYONE]
    worksheet(tmp_path, (*rows[0][:2], status, ""), *rows[1:], day=day)
    (tmp_path / "pairs.csv").write_text("id,team\n11,A\n13,A\n")
    (tmp_path / "policy.toml").write_text("missing = 'zero'\n")
    return "--policy", tmp_path / "policy.toml", "--roster", tmp_path / "pairs.csv"


@pytest.mark.parametrize(("status", "files", "why"), [
    ("Submitted for grading", {}, "has a hand-in of theirs or of their team, and in does not"),
    ("Draft (not submitted)", {"Anna_11": "pass"}, "a draft, which was not submitted"),
    ("Reopened", {"Anna_11": "pass"}, "a draft, which was not submitted"),
    ("Draft (not submitted)", {"Anna_11": "pass", "Ben_12": "pass"}, "")])
def test_a_team_has_no_grade_before_what_it_handed_in_is_decided(moodle, tmp_path, capsys, status,
                                                                 files, why):
    given = pair(tmp_path, status, **files)
    with open(tmp_path / "pairs.csv", "a") as pairs:
        pairs.write("12,A\n" * ("Ben_12" in files))
    for _ in range(2):
        assert moodle(*given) == 3
        found = of_worksheet(tmp_path)
        assert (found["Anna"], found["Cleo"]) == ("", "" if why else "100.00")
        cleo = json.loads((tmp_path / "out/students/Cleo.json").read_bytes())
        assert why in f"{cleo['refused']} {cleo['notes']}"
        assert ("Cleo: graded by what" in capsys.readouterr().out) == bool(files)


@pytest.mark.parametrize(("text", "late", "shown"), [
    ("", "", "100.00"), ("raise NotImplementedError\n", "", "100.00"),
    ("wrong # c", "12-09T10:00", "100.00"), ("wrong # c", "", "0.00")])
def test_only_what_counts_displaces_what_the_team_handed_in(moodle, tmp_path, capsys, text, late,
                                                            shown):
    for first in (False, True):
        given = pair(tmp_path, Anna_11=PASS)
        (tmp_path / "policy.toml").write_text(POLICY)
        assert not first or moodle(*given) == 0
        make(tmp_path / "in", {"Cleo_13_assignsubmission_file": {2: text}})
        (tmp_path / "pairs.csv").write_text(
            f"id,team,handed_in\n11,A,2026-11-29T10:00\n13,A,2026-{late or '11-29T11:00'}\n")
        assert moodle(*given, "--yes") == 3
        assert capsys.readouterr().out.endswith(
            "but the exit code is 3: see the notes on Anna, Cleo in summary.html\n")
        found = of_worksheet(tmp_path)
        assert (found["Anna"], found["Cleo"]) == ("100.00", shown)
        shutil.rmtree(tmp_path / "out")


def test_what_a_former_mate_handed_in_waits_for_a_person(moodle, tmp_path, capsys):
    given = pair(tmp_path, Anna_11=PASS)
    assert moodle(*given) == 0 and of_worksheet(tmp_path)["Cleo"] == "100.00"
    (tmp_path / "pairs.csv").write_text("id,team\n11,A\n13,\n")
    assert moodle() == 2
    assert "Cleo: P2 100 of 100 -> not settled, all" in (said := capsys.readouterr().out)
    assert "Cleo: by now another student's hand-in" in said and "counts" not in said
    for _ in range(2):
        assert moodle("--yes") == 3
        assert (found := of_worksheet(tmp_path))["Cleo"] == "" and found["Anna"] == "100.00"
    (tmp_path / "overrides.csv").write_text("student,stage,points,reason\nCleo,2,0,none\n")
    moodle("--overrides", tmp_path / "overrides.csv")
    assert of_worksheet(tmp_path)["Cleo"] == "0.00"
    (tmp_path / "pairs.csv").write_text("id,team\n11,A\n13,A\n")
    (tmp_path / "overrides.csv").write_text("student,stage,points,reason\n")
    assert moodle("--yes") == 0 and of_worksheet(tmp_path)["Cleo"] == "100.00"


def test_a_mate_who_leaves_takes_no_grade_along(moodle, tmp_path, capsys):
    given = pair(tmp_path, Anna_11=PASS)
    assert moodle(*given) == 0
    shutil.rmtree(tmp_path / "in/Anna_11_assignsubmission_file")
    worksheet(tmp_path, *CLASS[1:3], CLASS[4], ("15", "Eve", "Submitted for grading", ""))
    (tmp_path / "pairs.csv").write_text("id,team\n13,A\n")
    for _ in range(2):
        assert moodle() == 3 and points(tmp_path)["Cleo"] == "100.0", "Anna has no row"
    assert "Anna: nothing in SUBMISSIONS now, so" in capsys.readouterr().out


@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("keep", ["last", "best"])
def test_what_an_index_gave_to_the_wrong_student_is_not_theirs(grade, tmp_path, capsys, waits,
                                                               keep):
    make(tmp_path, {"b1": {2: "wrong"}, "b2": {2: PASS}, "e": {2: "wrong # e"}})
    index, roster = tmp_path / "index.csv", tmp_path / "class.csv"
    roster.write_text("name,id\nben,2\nemil,3\nfinn,4\n")
    (tmp_path / "policy.toml").write_text(f"{POLICY}keep = '{keep}'\n")
    rows = ("name,path,time\nben,b1,2026-11-29T10:00\n{},b2,2026-11-29T11:00\n"
            "finn,e,2026-11-29T12:00\n{},e,2026-11-29T12:00\n")
    has_both = keep == "last" and not waits  # of which the other one counted
    index.write_text(rows.format("emil", "emil" * has_both))
    given = ("--policy", tmp_path / "policy.toml", "--roster", roster)
    assert grade(*given, submissions=index) == 0
    assert points(tmp_path) == {
        "ben": "0.0", "emil": "0.0" if has_both else "100.0", "finn": "0.0"}
    (tmp_path / "policy.toml").write_text(f"{POLICY}keep = 'best'\n")
    index.write_text(rows.format("ben", ""))
    for _ in range(2 * waits):
        assert grade("--yes", submissions=index) == 3
        assert points(tmp_path) == {"ben": "100.0", "emil": "", "finn": "0.0"}
        assert "emil: by now another student's hand-in" in capsys.readouterr().out
    index.write_text(rows.format("ben", "emil"))
    assert grade("--yes", submissions=index) == 0
    assert points(tmp_path) == {"ben": "100.0", "emil": "0.0", "finn": "0.0"}


@pytest.mark.parametrize(("deadline", "status", "state", "shown"), [
    ("2020-01-01T00:00:00Z", "No submission", "handed in nothing", "0.00"),
    ("2990-01-01T00:00:00Z", "No submission", "open", ""),
    ("2020-01-01T00:00:00Z",
     "No submission - Extension granted until: Monday, 1 January 2990, 11:59 PM", "open", "")])
def test_where_missing_is_zero_only_those_have_it_whose_time_is_over(
        moodle, tmp_path, deadline, status, state, shown):
    shutil.rmtree(tmp_path / "in/Eve_15_assignsubmission_file")
    (tmp_path / "policy.toml").write_text(
        f"missing = 'zero'\n[late]\ndeadline = {deadline}\n")
    worksheet(tmp_path, *CLASS[:3], ("14", "Dora", status, ""), CLASS[4])
    assert moodle("--policy", tmp_path / "policy.toml") == 0
    dora = json.loads((tmp_path / "out/students/Dora.json").read_bytes())
    assert dora["state"] == state and of_worksheet(tmp_path)["Dora"] == shown
    assert moodle("--partial") == (2 if deadline < "2021" else 0), "Cleo's 0 is a grade"
    assert moodle("--partial", "--yes") == 0
    assert of_worksheet(tmp_path)["Dora"] == "", "nobody knows of the other part"


def test_a_file_that_the_worksheet_knows_of_and_the_download_has_not_is_no_zero(
        moodle, tmp_path, capsys):
    worksheet(tmp_path, *CLASS[:3], ("14", "Dora", "Submitted for grading - 3 hours late", "7.00"),
              CLASS[4])
    shutil.rmtree(tmp_path / "in/Eve_15_assignsubmission_file")
    (tmp_path / "policy.toml").write_text("missing = 'zero'\n")
    assert moodle("--policy", tmp_path / "policy.toml") == 3
    assert "Dora: refused, worksheet.csv has a hand-in of theirs" in capsys.readouterr().out
    assert of_worksheet(tmp_path)["Dora"] == "7.00"
    assert moodle() == 3 and "Dora: nothing in SUBMISSIONS now" not in capsys.readouterr().out
    worksheet(tmp_path, *CLASS)
    assert moodle("--yes") == 0 and of_worksheet(tmp_path)["Dora"] == "0.00", "it was withdrawn"


@pytest.mark.parametrize(("other", "blocked"), [
    ("Eva Fuchs", "Cleo Dora Gil"), ("anon_lmzFN_9_problem_2.py", "Cleo Dora Gil"),
    ("Eva_99_assignsubmission_file", "Gil"),  # all but Gil have another number
    ("C D_99_assignsubmission_file", "Gil"), ("Dora Gil_14_assignsubmission_file", "")])
def test_only_whose_a_hand_in_without_an_owner_may_be_gets_no_zero(moodle, tmp_path, capsys, other,
                                                                   blocked):
    shutil.rmtree(tmp_path / "in/Eve_15_assignsubmission_file")
    (tmp_path / "policy.toml").write_text("missing = 'zero'\n")
    (tmp_path / "class.csv").write_text("name\nAnna\nGil\n")
    worksheet(tmp_path, *CLASS, ("17", "Hugo", "Submitted for grading", ""))
    make(tmp_path / "in", {"Hugo_17_assignsubmission_file": {2: "pass # h"}})
    moodle = partial(moodle, "--policy", tmp_path / "policy.toml", "--roster",
                     tmp_path / "class.csv", "--yes")
    assert moodle() == 3 and points(tmp_path)["Gil"] == "0.0", "Gil is not in the worksheet"
    assert {of_worksheet(tmp_path)[name] for name in ("Cleo", "Dora")} == {"0.00"}
    place = tmp_path / "in" / other
    if other.endswith(".py"):
        place.write_text("pass # f")
    else:
        make(tmp_path / "in", {other: {2: "pass # f"}})
    assert moodle() == 3
    everyone = {"Cleo", "Dora", "Gil"}
    zeros = {name for name in everyone if points(tmp_path)[name] == "0.0"}
    assert zeros == everyone - {*(blocked or "Dora").split()}
    said = f"missing: {len(blocked.split())} of the 3 who handed in nothing get no 0 points"
    assert (said in capsys.readouterr().out) == bool(blocked)


def test_beside_a_roster_the_worksheets_status_extensions_and_times_count(moodle, tmp_path, capsys):
    shutil.rmtree(tmp_path / "in/Eve_15_assignsubmission_file")
    for known in ("name,id\nAnna,s1\nBen,s2\nCleo,s3\nDora,s4\nFinn,s6\n",
                  "id,e-mail\n11,A@x.org\n12,B@x.org\n13,C@x.org\n14,D@x.org\n16,F@x.org\n"):
        (tmp_path / "class.csv").write_text(known)
        (tmp_path / "policy.toml").write_text(
            "missing = 'zero'\n[late]\ndeadline = 2020-01-01T00:00:00\ndays = 9\nper_day = 0.1\n")
        extended = "No submission - Extension granted until Monday, 1 January 2990, 23:59"
        worksheet(tmp_path, ("11", "Anna", "Submitted for grading", ""),
                  ("12", "Ben", "Draft (not submitted)", ""), ("13", "Cleo", extended, ""),
                  ("14", "Dora", "Submitted for grading", ""),
                  ("16", "Finn", "Submitted for grading", ""), ("17", "Gil", "No submission", ""))
        text = (tmp_path / "worksheet.csv").read_text("utf-8").replace(
            "Last modified (grade)", "Last modified (submission),Last modified (grade)")
        for name in ("Anna", "Finn"):
            text = re.sub(rf"({name}.*),-$", r'\1,"Wednesday, 1 January 2020, 10:00 PM",-', text,
                          flags=re.MULTILINE)
        (tmp_path / "worksheet.csv").write_text(text, "utf-8")
        assert moodle("--roster", tmp_path / "class.csv", "--policy", tmp_path / "policy.toml") == 3
        assert of_worksheet(tmp_path) == {"Anna": "90.00", "Ben": "", "Cleo": "", "Dora": "",
                                          "Finn": "90.00", "Gil": "0.00"}
        assert "1 a draft" in (said := capsys.readouterr().out) and "1 open" in said
        shutil.rmtree(tmp_path / "out")


@pytest.mark.parametrize("files", ["gone", "here", "listed"])
@pytest.mark.parametrize(("status", "day", "code", "shown"), [
    ("Submitted for grading - Extension granted until: Friday, 18 December 2026, 11:59 PM", 18, 0,
     "100.0"), ("Submitted for grading", 2, 0, "80.0"), ("Draft (not submitted)", 2, 3, "")])
def test_who_leaves_keeps_the_time_and_the_extension_of_their_hand_in(
        moodle, tmp_path, files, status, day, code, shown):
    shutil.rmtree(tmp_path / "in/Eve_15_assignsubmission_file")
    (tmp_path / "policy.toml").write_text(POLICY.replace("Z", ""))
    worksheet(tmp_path, ("11", "Anna", status, ""), *CLASS[1:], day=day)
    options = ("--policy", tmp_path / "policy.toml", "--partial")
    assert moodle(*options) == code and points(tmp_path)["Anna"] == shown
    (tmp_path / "class.csv").write_text("name\nAnna\n")
    options += ("--roster", tmp_path / "class.csv") * (files == "listed")
    if files != "here":
        shutil.rmtree(tmp_path / "in/Anna_11_assignsubmission_file")
    worksheet(tmp_path, *CLASS[1:], day=day)
    for _ in range(2):
        assert moodle(*options) == 3 and points(tmp_path)["Anna"] == shown


def test_a_new_file_with_its_old_time_waits_for_a_newer_worksheet(moodle, tmp_path, capsys):
    shutil.rmtree(tmp_path / "in/Eve_15_assignsubmission_file")
    (tmp_path / "policy.toml").write_text(POLICY.replace("Z", "").replace("days = 3", "days = 1"))

    def grade(day: int, *options: str) -> tuple[int, str, str]:
        worksheet(tmp_path, *CLASS, day=day)
        code = moodle("--policy", tmp_path / "policy.toml", *options)
        return code, of_worksheet(tmp_path)["Anna"], capsys.readouterr().out

    assert grade(1)[:2] == (0, "90.00")
    anna = tmp_path / "in/Anna_11_assignsubmission_file"
    (anna / "problem_2.py").write_text("pass # again")
    line = "Anna: newer than its time in the worksheet: download worksheet and submissions again"
    for options in ((), ("--yes",), ()):
        code, shown, said = grade(1, *options)
        assert line in said and (code == 2 or (code, shown) == (3, ""))
    assert "No grade yet for 1 of 5 students: 1 newer than its time in the worksheet" in said
    assert grade(3)[:2] == (0, "90.00"), "after the last day: the earlier one counts"
    assert (tmp_path / "out/submissions/Anna/problem_2.py").read_text() == "pass"
    (tmp_path / "policy.toml").write_text("missing = 'keep'\n")
    assert grade(3, "--yes")[0] == 0, "no time decides anything"


@pytest.mark.parametrize(("text", "rules", "held"), [
    ("pass", POLICY.replace("Z", ""), True), ("wrong # old", POLICY.replace("Z", ""), True),
    ("wrong # old", "", True), ("pass", "", False)])
def test_a_time_earlier_than_before_waits_for_a_newer_worksheet(
        moodle, tmp_path, capsys, text, rules, held):
    shutil.rmtree(tmp_path / "in/Eve_15_assignsubmission_file")
    (tmp_path / "policy.toml").write_text(rules)
    options = ("--policy", tmp_path / "policy.toml", "--yes")
    worksheet(tmp_path, *CLASS, day=2)
    assert moodle(*options) == 0
    before, file = points(tmp_path), tmp_path / "in/Anna_11_assignsubmission_file/problem_2.py"
    file.write_text(text)
    worksheet(tmp_path, *CLASS, day=1)
    for _ in range(2):
        assert moodle(*options) == 3 * held
        assert points(tmp_path)["Anna"] == ("" if held else before["Anna"])
        assert ("newer than its time in the worksheet" in capsys.readouterr().out) == held
    worksheet(tmp_path, *CLASS, day=2)
    file.write_text("pass")
    assert moodle(*options) == 0 and points(tmp_path) == before


@pytest.mark.parametrize(("status", "column"), [
    ("Zur Bewertung abgegeben", "submission_status"), ("Entwurf", "submission_status"),
    ("Keine Abgabe - Verlängerung gewährt bis Montag, 1. Januar 2990, 23:59", "submission_status"),
    ("No submission - Extension granted until 1er janvier 2990", "extension")])
def test_a_status_or_an_extension_that_cannot_be_read_asks_for_a_column(
        moodle, tmp_path, capsys, status, column):
    worksheet(tmp_path, *CLASS[:3], ("14", "Dora", status, ""), CLASS[4])
    (tmp_path / "policy.toml").write_text("missing = 'zero'\n")
    assert moodle("--policy", tmp_path / "policy.toml") == 2 and not (tmp_path / "out").exists()
    assert "of Dora in worksheet.csv: " in (said := capsys.readouterr().err)
    assert f"add a column {column} with" in said
    header, *rows = (tmp_path / "worksheet.csv").read_text("utf-8").splitlines()
    (tmp_path / "worksheet.csv").write_text("\n".join([f"{header},submission_status,extension", *(
        row + (",no submission,2990-01-01T00:00" if "Dora" in row else ",,") for row in rows)]))
    assert moodle("--policy", tmp_path / "policy.toml") == 3
    assert of_worksheet(tmp_path)["Dora"] == ""


@pytest.mark.parametrize(("deadline", "count"), [("2020-01-01T00:00:00Z", 5),
                                                 ("2990-01-01T00:00:00Z", 3)])
def test_a_download_packed_once_more_or_halved_stops_before_anything_is_written(
        moodle, tmp_path, capsys, deadline, count):
    (tmp_path / "in/download").mkdir()
    for path in (tmp_path / "in").glob("*_file"):
        path.rename(tmp_path / "in/download" / path.name)
    (tmp_path / "policy.toml").write_text(f"[late]\ndeadline = {deadline}\ndays = 1000000\n")
    assert moodle("--policy", tmp_path / "policy.toml") == 2 and not (tmp_path / "out").exists()
    assert f"should have handed in; {count} of them have none in" in (
        said := capsys.readouterr().err)
    assert "but download, not known by name or id or email: give the whole download" in said


def test_two_halves_graded_by_two_people_make_one_worksheet(moodle, tmp_path):
    worksheet(tmp_path, *(row[:2] + ("Submitted for grading", "") for row in CLASS[:4]))
    for name in ("Eve_15", "Finn_16"):
        shutil.rmtree(tmp_path / f"in/{name}_assignsubmission_file")
    assert moodle("--partial") == 0
    mine = of_worksheet(tmp_path)
    assert mine == {"Anna": "100.00", "Ben": "0.00", "Cleo": "", "Dora": ""}
    shutil.rmtree(tmp_path / "in")
    shutil.rmtree(tmp_path / "out")
    make(tmp_path / "in", {"Cleo_13_assignsubmission_file": {2: "pass"},
                           "Dora_14_assignsubmission_file": {2: "pass # d"}})
    worksheet(tmp_path, *((*row[:3], mine[row[1]]) for row in CLASS[:4]))
    assert moodle("--partial") == 0
    assert of_worksheet(tmp_path) == mine | {"Cleo": "100.00", "Dora": "100.00"}


def test_two_halves_are_joined_with_their_records_grades_and_history(
        moodle, tmp_path, monkeypatch, capsys):
    worksheet(tmp_path, *(row[:2] + ("Submitted for grading", "") for row in CLASS[:4]))
    everyone = {"Anna_11": "pass", "Ben_12": "wrong", "Cleo_13": "pass # c", "Dora_14": "rejected"}
    halves = {"first": ("Anna_11", "Ben_12"), "second": ("Ben_12", "Cleo_13", "Dora_14"), "in": (
        *everyone,)}
    policy, kept = tmp_path / "policy.toml", []
    for half, names in halves.items():
        shutil.rmtree(tmp_path / "in")
        make(tmp_path / "in", {f"{name}_assignsubmission_file": {2: everyone[name]}
                               for name in names})
        if half == "in":
            break
        policy.write_text(f"[points]\n2 = {100 + 2 * len(kept)}\n")
        assert moodle("--partial", "--scale", "100", "--policy", policy) in (0, 3)
        kept += history(tmp_path)
        (tmp_path / "out").rename(tmp_path / half)
    policy.write_text("")
    asked, options = (tmp_path / "asked").read_text(), ("--policy", policy, "--join",
                                                        tmp_path / "first", "--join")
    for count in (1, 2):  # Ben, and then Cleo, whose grade was taken over and changed
        assert moodle(*options, tmp_path / "second", "--yes") == 3
        assert (tmp_path / "asked").read_text() == asked, "nothing is graded twice"
        assert (said := capsys.readouterr().out).count(": graded here and in") == count
        assert f"in {tmp_path / 'second'}, where it is P2 0 of 100 -> 0 of 108" in said
        assert history(tmp_path)[:len(kept)] == kept
        assert len(history(tmp_path)) == len(kept) + 4  # by the policy: Ben's and Cleo's
    with open(tmp_path / "out/audit/runs.csv", newline="", encoding="utf-8") as file:
        assert sum("--partial" in row["command"] for row in csv.DictReader(file)) == 2
    shutil.rmtree(tmp_path / "out")
    assert moodle(*options[:2], "--join", tmp_path) == 2 and not (tmp_path / "out").exists()
    assert "want the folder that `grade` wrote" in capsys.readouterr().err


@pytest.mark.parametrize(("undecided", "decision"), [
    ("rejected", "braunben,2,0,talked about it,"), ("dies", "braunben,*,60,,by hand"),
    ("late", "braunben,*,,by the log,,1"), ("draft", "braunben,*,,your mail,,0")])
def test_what_is_undecided_is_in_no_gradebook_and_the_last_line_counts_it(
        grade, tmp_path, capsys, undecided, decision):
    shutil.rmtree(tmp_path / "in")
    (tmp_path / "in").mkdir()
    late = "_LATE" if undecided == "late" else ""
    for name, text in (("aberanna_1", "pass"), (f"braunben{late}_2", undecided)):
        (tmp_path / f"in/{name}_9_problem_2.py").write_text(
            text if text in ("rejected", "dies") else "pass")
    (tmp_path / "export.csv").write_text(
        "Student,ID,SIS Login ID,Section,Flash (7)\nPoints Possible,,,,100\n"
        "Anna,1,aberanna,A,\nBen,2,braunben,A,12\n")
    (tmp_path / "class.csv").write_text(
        "name,id,login,status\nAnna,1,aberanna,\n"
        f"Ben,2,braunben,{'Draft (not submitted)' * (undecided == 'draft')}\n")
    options = ("--canvas", tmp_path / "export.csv", "--roster", tmp_path / "class.csv",
               "--policy", tmp_path / "policy.toml")
    said = {"dies": "blocked", "late": "marked as late", "draft": "a draft"}
    for code, given, pages in ((3, "12", ["aberanna"]), (0, None, ["aberanna", "braunben"])):
        assert grade(*options, "--yes") == code
        with open(tmp_path / "out/canvas.csv", newline="", encoding="utf-8") as file:
            ben = next(row for row in csv.DictReader(file) if row["ID"] == "2")["Flash (7)"]
        assert ben == given if given else ben in ("0.00", "60.00", "90.00", "100.00")
        with zipfile.ZipFile(tmp_path / "out/feedback.zip") as packed:
            assert sorted(name.partition("_")[0] for name in packed.namelist()) == pages
        assert capsys.readouterr().out.splitlines()[-1].startswith(
            f"No grade yet for 1 of 2 students: 1 {said.get(undecided, undecided)}") == (code == 3)
        (tmp_path / "overrides.csv").write_text(
            "student,stage,points,reason,note,days_late\n" + decision + "\n")
        options = (*options, "--overrides", tmp_path / "overrides.csv")
    (P2, total) = [row[1:] for row in history(tmp_path) if row[0] == "Ben"]
    assert P2[:2] == ("P2", "") and total[:2] == ("all", ""), "it is the first grade"
    assert P2[-1] == total[-1] == {
        "late": "late: 1 day late: 10 % of the points are taken off (set by a person: by the log)",
        "draft": "late: on time (set by a person: your mail)", "dies": "a person: ",
        "rejected": "a person: talked about it"}[undecided]
    page = (tmp_path / "out/feedback/Ben.md").read_text("utf-8")
    assert "a person will look at it" not in page and "not settled" not in page


@pytest.mark.parametrize("stage", ["2", "*"])
@pytest.mark.parametrize(("first", "second"), [
    ("pass # a", "wrong # b"), ("twice # a", "pass"), ("twice # a", "twice # b"), ("", "wrong")])
def test_points_that_a_person_set_are_not_those_of_a_later_hand_in(
        grade, tmp_path, capsys, first, second, stage):
    line, held = f"ben,{stage},60,read by hand,", "newer than the points that a person set"

    def hand_in(text: str) -> None:
        shutil.rmtree(tmp_path / "in/ben", ignore_errors=True)
        make(tmp_path / "in", {"ben": {2: text}} if text else {})
        if "twice" in text:
            make(tmp_path / "in/ben", {"old": {2: "other"}})

    def run(row: str) -> tuple[int, str]:
        (tmp_path / "overrides.csv").write_text(f"student,stage,points,reason,note\n{row}\n")
        code = grade("--overrides", tmp_path / "overrides.csv", "--roster", tmp_path / "class.csv",
                     "--partial", "--yes")
        return code, points(tmp_path)["ben"]

    hand_in(first)
    assert [run(line), run(line)] == [(0, "60.0")] * 2 and held not in capsys.readouterr().out
    hand_in(second)
    assert grade() == 2 and f"all 60 of 100 -> not settled; {held}" in capsys.readouterr().out
    assert [run(line), run(line)] == [(3, "")] * 2
    assert f"No grade yet for 1 of 4 students: 1 {held}" in capsys.readouterr().out
    assert f"P2: {held}" in (tmp_path / "out/summary.html").read_text("utf-8")
    assert [row for row in history(tmp_path) if row[0] == "ben"][-2:] == [
        ("ben", what, "60 of 100", "not settled", f"{held} for it") for what in ("P2", "all")]
    if first:
        hand_in(first)
        assert run(line) == (0, "60.0"), "it is what they were set for"
        hand_in(second)
    assert run(line.replace("60", "50")) == (0, "50.0")
    assert history(tmp_path)[-1][3:] == ("50 of 100", "a person: read by hand")
    shutil.rmtree(tmp_path / "in/ben")
    assert run(line.replace("60", "50")) == (0, "50.0"), "what was handed in before counts"


def test_the_best_is_not_known_while_points_are_of_another_file(grade, tmp_path):
    index, given = tmp_path / "in/index.csv", tmp_path / "overrides.csv"
    make(tmp_path / "in", {"new": {2: "wrong # n", 3: "wrong # n"}, "anna": {3: "pass # a"}})
    given.write_text("student,stage,points,reason\nanna,2,60,read by hand\n")
    (tmp_path / "policy.toml").write_text(POLICY + "keep = 'best'\n[points]\n3 = 30\n")
    options = ("--policy", tmp_path / "policy.toml", "--overrides", given, "--yes",
               "--stages", "2-3")
    for more, code, shown in (("", 0, "90.0"), ("anna,new,2026-11-30T10:00:00Z\n", 3, "")):
        index.write_text("name,path,time\nanna,anna,2026-11-29T10:00:00Z\n" + more)
        assert grade(*options, submissions=index) == code and points(tmp_path) == {"anna": shown}


def test_an_earlier_hand_in_counts_once_the_policy_says_the_best(grade, options, tmp_path, capsys):
    policy, folder = tmp_path / "policy.toml", tmp_path / "in/anna"
    assert grade(*options) == 0
    for time, text in (("11-30 08:00", "wrong # 2"), ("11-30 09:00", "wrong # 3")):
        (folder / "problem_2.py").write_text(text)
        (folder / "timestamp.txt").write_text(f"2026-{time}:00 UTC\n")
        grade("--yes")
    assert points(tmp_path)["anna"] == "0.0"
    for rule, worth, line in (("best", "100.0", "P2 0 of 100 -> 100 of 100"),
                              ("last", "0.0", "P2 100 of 100 -> 0 of 100")):
        policy.write_text(POLICY + f"keep = '{rule}'\n")
        assert grade("--yes") == 0 and points(tmp_path)["anna"] == worth
        assert f"anna: {line}" in capsys.readouterr().out
    shutil.rmtree(folder)
    policy.write_text(POLICY.replace("11-30T12", "11-29T12").replace("days = 3", "days = 0"))
    assert grade("--yes") == 0 and points(tmp_path)["anna"] == "100.0", "the last that is in time"
    assert [row[-1].partition(" UTC")[0] for row in history(tmp_path) if row[0] == "anna"][-1] \
        == "the hand-in of 2026-11-29 10:00"


@pytest.mark.parametrize("keep", ["best", "last"])
def test_a_run_that_is_killed_while_it_writes_loses_no_hand_in(grade, options, tmp_path,
                                                               monkeypatch, keep):
    policy, folder = POLICY + f"keep = '{keep}'\n", tmp_path / "in/cleo"
    (tmp_path / "policy.toml").write_text(policy)
    (tmp_path / "overrides.csv").write_text("student,stage,points,reason\n")
    assert grade(*options) == 0
    (folder / "problem_2.py").write_text("pass # 2")
    (folder / "timestamp.txt").write_text("2026-12-01 10:00:00 UTC\n")
    written = Store.write

    def write(store, path, contents):
        if path.name == "grades.csv":
            raise SystemExit
        written(store, path, contents)
    with monkeypatch.context() as killed, pytest.raises(SystemExit):
        killed.setattr(Store, "write", write)
        grade("--yes")
    assert (tmp_path / "out/submissions/cleo/problem_2.py").read_text() == "pass # 2"
    assert grade("--yes") == 0
    assert points(tmp_path)["cleo"] == "90.0", "a day late"
    (tmp_path / "policy.toml").write_text(policy.replace("days = 3", "days = 0"))
    assert grade("--yes") == 0 and points(tmp_path)["cleo"] == "0.0", "the first one counts"
    assert (tmp_path / "out/submissions/cleo/problem_2.py").read_text() == "wrong"


def test_a_rejected_file_is_for_a_person_until_an_override_settles_it(grade, options, tmp_path,
                                                                      capsys):
    make(tmp_path / "in", {"cleo": {2: "rejected"}})
    assert grade() == 3
    assert "3 students: 1 rejected; summary.html lists them\n" in capsys.readouterr().out
    assert grade(*options, "--yes") == 0


def test_what_was_refused_is_in_the_results_until_its_student_is_forgotten(grade, tmp_path):
    make(tmp_path / "in/anna", {"old": {2: "wrong # old"}})
    for _ in range(2):
        assert grade() == 3
        with zipfile.ZipFile(tmp_path / "out/submissions/anna/refused.zip") as kept:
            assert kept.read("anna/problem_2.py") == b"pass"
            assert kept.read("anna/old/problem_2.py") == b"wrong # old"
    assert [path.parent.name for path in (tmp_path / "out").rglob("refused.zip")] == ["anna"]
    shutil.rmtree(tmp_path / "in/anna")
    assert grade("--forget", "anna") == 0 and not [*(tmp_path / "out").rglob("anna*")]


def test_files_of_stages_that_are_left_out_are_on_both_pages(grade, tmp_path):
    make(tmp_path / "in", {"anna": {8: "x"}, "ben": {9: "y"}, "cleo": {}})
    (tmp_path / "in/ben/problem_9.py").write_bytes(bytes(1 << 20))  # too large
    assert grade() == 0
    for name, number in (("anna", 8), ("ben", 9)):
        for end in ("md", "html"):
            page = (tmp_path / f"out/feedback/{name}.{end}").read_text("utf-8")
            assert f"problem_{number}.py, which is not graded here" in page
    page = " ".join((tmp_path / "out/summary.html").read_text("utf-8").split())
    assert "leaves out stage 8: problem_8.py of anna.</p>" in page
    assert "leaves out stage 9: problem_9.py of ben.</p>" in page


def test_a_roster_that_comes_later_renames_and_doubles_nobody(grade, options, tmp_path):
    assert grade() == 0 and list(points(tmp_path)) == ["anna", "ben", "cleo"]
    (tmp_path / "class.csv").write_text("name,login\nAnna A,anna\nBen B,ben\nCleo C,cleo\n")
    assert grade("--roster", tmp_path / "class.csv") == 0
    assert list(points(tmp_path)) == ["Anna A", "Ben B", "Cleo C"]
    assert sorted(path.stem for path in (tmp_path / "out/students").iterdir()) == [
        "Anna A", "Ben B", "Cleo C"]


def test_a_namesake_who_comes_later_inherits_nothing(grade, tmp_path, capsys):
    shutil.rmtree(tmp_path / "in")
    for name in ("annaa_1", "dahldora_5", "cleoc_3"):
        make(tmp_path / "in", {name: {2: f"pass # {name}"}})
        (tmp_path / f"in/{name}/problem_2.py").rename(tmp_path / f"in/{name}_70_problem_2.py")
        (tmp_path / f"in/{name}").rmdir()
    table = "Student,ID,SIS User ID,SIS Login ID,Section,Flash (7)\n    Points Possible,,,,,100\n" \
        "Anna A,1,S1,a1,A,\nCleo C,3,S3,c3,A,\nDora Dahl,{},A,\n"
    (tmp_path / "canvas.csv").write_text(table.format("5,S5,d5"))
    assert grade("--canvas", tmp_path / "canvas.csv") == 0
    (tmp_path / "in/dahldora_5_70_problem_2.py").unlink()
    (tmp_path / "canvas.csv").write_text(table.format("6,S6,d6"))
    for _ in range(2):
        assert grade("--yes") == 3 and "Dora Dahl: not in canvas.csv" in capsys.readouterr().out
        assert points(tmp_path) == {"Anna A": "100.0", "Cleo C": "100.0", "Dora Dahl": "100.0",
                                    "Dora Dahl (6)": ""}
        assert "Dora Dahl,6,S6,d6,A,\n" in (tmp_path / "out/canvas.csv").read_text().replace(
            "\r", "")
    assert grade("--forget", "Dora Dahl") == 2 and "matches 2" in capsys.readouterr().err
    assert grade("--forget", "5") == 0 and points(tmp_path)["Dora Dahl (6)"] == ""
    assert grade() == 0 and points(tmp_path)["Dora Dahl"] == "" and len(points(tmp_path)) == 3


def test_a_new_hand_in_is_graded_and_replaces_no_grade_unasked(grade, tmp_path, capsys):
    assert grade() == 0
    before = everything(tmp_path / "out")
    make(tmp_path / "in", {"anna": {2: "wrong # again"}, "eve": {2: "pass"}})
    (tmp_path / "in/eve/timestamp.txt").write_text("2026-11-29 10:00:00 UTC\n")
    assert grade("--policy", tmp_path / "policy.toml") == 2
    said, asked = capsys.readouterr().out, (tmp_path / "asked").read_text()
    assert "anna: P2 100 of 100 -> 0 of 100" in said and "wrong # again" in asked
    assert "ben: P2 100 of 100 -> 90 of 100" in said, "what is new to be graded hides no change"
    after = everything(tmp_path / "out")
    assert {name for name in after if after[name] != before.get(name)} == {
        "audit/runs.csv", ".written", *(
            name for name in after if name.startswith("graded/") and name not in before),
        ".refused.json"}
    assert grade("--policy", tmp_path / "policy.toml", "--yes") == 0
    assert (tmp_path / "asked").read_text() == asked, "nothing is graded twice"
    assert points(tmp_path) == {"anna": "0.0", "ben": "90.0", "cleo": "0.0", "eve": "100.0"}


def test_interrupted_what_stood_stands(grade, tmp_path, monkeypatch):
    assert grade() == 0
    make(tmp_path / "in", {"anna": {2: "hangs # again"}})
    submitted = (tmp_path / "out/submissions/anna/problem_2.py").read_text()
    monkeypatch.setattr(batch.Batch, "_progress", lambda self: os.kill(os.getpid(), signal.SIGINT))
    assert grade() == 130 and points(tmp_path)["anna"] == "100.0"
    assert (tmp_path / "out/submissions/anna/problem_2.py").read_text() == submitted


def test_a_timeout_that_was_not_confirmed_is_pending_everywhere(grade, tmp_path, monkeypatch):
    make(tmp_path / "in", {"anna": {2: "timeout timeout"}})
    begin = batch.Batch._begin

    def stopped(self, key, units, kind, slot):
        if kind == "alone":
            raise KeyboardInterrupt
        begin(self, key, units, kind, slot)

    monkeypatch.setattr(batch.Batch, "_begin", stopped)
    assert grade() == 130
    report = json.loads((tmp_path / "out/students/anna.json").read_bytes())
    (stage,) = report["stages"]
    assert (stage["outcome"], stage["earned"], report["points"], report["state"]) == (
        "pending", [], None, "pending")
    assert points(tmp_path)["anna"] == "" and b"type=\"pending\"" in (
        tmp_path / "out/junit.xml").read_bytes()
    assert "it timed out beside other files" in (tmp_path / "out/summary.html").read_text("utf-8")
    assert "not settled yet" in (tmp_path / "out/feedback/anna.md").read_text("utf-8")
    assert main.main(["gradebook", str(tmp_path / "out"), "--nbgrader",
                      str(tmp_path / "nb.csv")]) == 3
    assert "anna" not in (tmp_path / "nb.csv").read_text()
    monkeypatch.setattr(batch.Batch, "_begin", begin)
    assert grade() == 0 and points(tmp_path)["anna"] == "0.0"


def test_a_gradebook_is_not_filled_with_grades_of_other_settings(grade, options, tmp_path, capsys):
    assert grade(*options) == 0
    words = ["gradebook", str(tmp_path / "out"), "--nbgrader", str(tmp_path / "nb.csv")]
    assert main.main(words) == 0
    (tmp_path / "policy.toml").write_text(POLICY.replace("0.1", "0.2"))
    assert main.main(words) == 2
    assert "run `grade` again" in capsys.readouterr().err
    assert grade("--yes") == 0 and main.main(words) == 0
    assert json.loads((tmp_path / "out/students/ben.json").read_bytes())["points"] == 80.0


@pytest.mark.parametrize("name", ["grades.csv", "summary.html", "audit/history.csv",
                                  "feedback/anna.md", "submissions/anna/problem_3.py"])
@pytest.mark.parametrize("first", [False, True])
def test_nothing_of_ones_own_is_overwritten_or_removed(grade, options, tmp_path, capsys, name,
                                                       first):
    assert not first or grade(*options) == 0
    mine = tmp_path / "out" / name
    mine.parent.mkdir(parents=True, exist_ok=True)
    mine.write_text("student,grade\nanna,1.0\n")
    before = everything(tmp_path / "out")
    make(tmp_path / "in", {"anna": {2: "wrong # again"}})
    assert grade(*options, "--yes") == 2 and everything(tmp_path / "out") == before
    assert f"{name}, which it did not write" in capsys.readouterr().err
    mine.rename(tmp_path / "mine")
    assert grade(*options, "--yes") == 0


def test_a_worksheet_of_ones_own_in_the_results_is_seen_before_grading(
        moodle, tmp_path, capsys):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/moodle.csv").write_text("my own list\n")
    assert moodle() == 2 and (tmp_path / "asked").read_text() == ""
    assert "want a new file, or one as this command wrote it" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["out/moodle.csv", "nb.csv", "checks/Anna.json",
                                  "board/index.html"])
def test_a_gradebook_that_was_edited_by_hand_is_not_overwritten(moodle, tmp_path, capsys, name):
    assert moodle() == 3
    commands = {"nb.csv": ["gradebook", "--nbgrader", "nb.csv"],
                "checks/Anna.json": ["gradebook", "--check50", "checks"],
                "board/index.html": ["leaderboard", "--out", "board"]}
    command, option, place = commands.get(
        name, ["gradebook", "--moodle", "worksheet.csv"])
    words = [command, str(tmp_path / "out"), option, str(tmp_path / place)]
    assert main.main(words) in (0, 3) and main.main(words) in (0, 3), "its own file it replaces"
    (tmp_path / name).write_text((text := (tmp_path / name).read_text("utf-8")) + "\n", "utf-8")
    before = everything(tmp_path)
    capsys.readouterr()
    assert main.main(words) == 2 and f"got {tmp_path / name}, which" in capsys.readouterr().err
    assert name != "out/moodle.csv" or moodle("--yes") == 2
    assert everything(tmp_path) == before and before[name] == text.encode() + b"\n"
    (tmp_path / name).rename(tmp_path / "mine")
    assert main.main(words) in (0, 3) and (tmp_path / name).read_text("utf-8") == text


def history(tmp_path) -> list[tuple[str, ...]]:
    with open(tmp_path / "out/audit/history.csv", newline="", encoding="utf-8") as file:
        return [tuple(row[name] for name in ("student", "what", "before", "after", "reason"))
                for row in csv.DictReader(file)]


def test_every_change_of_a_grade_is_a_line_with_its_reason(grade, options, tmp_path, monkeypatch):
    full, part, none = "100 of 100", "90 of 100", "0 of 100"
    assert grade("--roster", tmp_path / "class.csv") == 0
    begin = [(name, what, "", now, "first grade") for name, now in (
        ("anna", full), ("ben", full), ("cleo", none)) for what in ("P2", "all")]
    assert history(tmp_path) == begin
    assert grade() == 0 and history(tmp_path) == begin, "nothing changed"
    assert grade(*options, "--yes") == 0
    late = "late: 1 day late: 10 % of the points are taken off ("
    (*_, ben, ben_all, cleo, cleo_all) = history(tmp_path)
    assert ben[:4] == ("ben", "P2", full, part) and ben[4].startswith(late)
    assert ben_all[1:4] == ("all", full, part)
    assert cleo == ("cleo", "P2", none, "50 of 100", "a person: showed me")
    make(tmp_path / "in", {"anna": {2: "rejected"}})
    assert grade("--yes") == 3
    assert history(tmp_path)[-2:] == [("anna", what, full, "not settled", "another file")
                                      for what in ("P2", "all")]
    (tmp_path / "overrides.csv").write_text("student,stage,points,reason\n")
    assert grade("--yes") == 3
    assert history(tmp_path)[-1] == ("cleo", "all", "50 of 100", none, "the override is gone")
    make(tmp_path / "in", {"ben": {2: "wrong"}})
    assert grade("--yes") == 3
    assert history(tmp_path)[-1][-1].startswith("another file; late: 1 day late: 10 % of the")
    shutil.rmtree(tmp_path / "in/ben")
    (tmp_path / "class.csv").write_text("name,id\nanna,1\ncleo,3\ndora,4\n")
    assert grade("--forget", "ben") == 3
    assert not any("ben" in row for row in history(tmp_path))
    assert "/ben" not in (tmp_path / "out/.written").read_text()


def test_the_history_says_where_a_join_left_a_grade_as_it_was(grade, options, tmp_path):
    assert grade(*options) == 0
    assert history(tmp_path)[2][-1].startswith("first grade; late: 1 day late: 10 % of the points")
    (tmp_path / "out").rename(tmp_path / "first")
    (tmp_path / "overrides.csv").write_text("student,stage,points,reason\nanna,2,60,talked to me\n")
    assert grade(*options) == 0
    (tmp_path / "out").rename(tmp_path / "second")
    (tmp_path / "first").rename(tmp_path / "out")
    (tmp_path / "overrides.csv").write_text("student,stage,points,reason\ncleo,2,50,showed me\n")
    before = points(tmp_path)
    assert grade("--join", tmp_path / "second") == 3 and points(tmp_path) == before
    assert history(tmp_path)[-4:] == [
        (name, what, was, now, audit.JOINED) for name, was, now in (
            ("anna", "60 of 100", "100 of 100"), ("cleo", "0 of 100", "50 of 100"))
        for what in ("P2", "all")]


@pytest.mark.parametrize("name", ["cleo.md", "grades.csv", "summary.html"])
def test_the_history_has_no_grade_that_no_table_has(grade, options, tmp_path, monkeypatch, capsys,
                                                    name):
    assert grade() == 0
    before, write = history(tmp_path), Store.write

    def full(self, path, contents):
        if path.name == name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        write(self, path, contents)

    with monkeypatch.context() as patched:
        patched.setattr(Store, "write", full)
        assert grade(*options, "--yes") == 2 and "No space left" in capsys.readouterr().err
    assert history(tmp_path) == before
    assert grade("--yes") == 0 and history(tmp_path)[-2] == (
        "cleo", "P2", "0 of 100", "50 of 100", "a person: showed me")


def test_a_sum_that_changes_alone_has_a_reason_too(grade, options, tmp_path):
    policy, roster = tmp_path / "policy.toml", tmp_path / "class.csv"
    policy.write_text("missing = 'zero'\n")
    (tmp_path / "overrides.csv").write_text("student,stage,points,reason\ncleo,*,50,showed me\n")
    assert grade(*options) == 0
    assert history(tmp_path)[-1] == ("dora", "all", "", "0 of 100", "first grade")
    for text, after in (("optional = [2]\nmissing = 'zero'\n", "0 of 0"), ("", "not settled")):
        policy.write_text(text)
        assert grade() == 2 and grade("--yes") == 0, "a 0 of who handed in nothing is a grade"
        assert history(tmp_path)[-1][3:] == (after, "policy")
    roster.write_text("name,id,status\nanna,1,Draft\nben,2,\ncleo,3,\ndora,4,\n")
    for status, reason in (("Draft", "a draft"), ("Submitted", "no longer a draft")):
        roster.write_text(f"name,id,status\nanna,1,{status}\nben,2,\ncleo,3,\ndora,4,\n")
        assert grade("--yes") == 3 * (status == "Draft")
        assert (row := history(tmp_path)[-1])[:2] == ("anna", "all") and row[4] == reason
    assert grade("--stages", "3", "--yes") == 3
    assert {row[4] for row in history(tmp_path) if row[2:4] == ("100 of 100", "not settled")
            and row[1] == "P2"} == {"a draft", "the stage is not graded any more"}


def test_no_cell_of_the_audit_is_a_formula(grade, tmp_path):
    make(tmp_path / "in", {"=1+1": {2: "pass # e"}})
    assert grade() == 0
    make(tmp_path / "in", {"=1+1": {2: "wrong # e"}})
    assert grade("--yes") == 0
    rows = history(tmp_path)
    assert [row[:4] for row in rows if "=1+1" in row[0]] == [
        ("'=1+1", what, *grades) for grades in (("", "100 of 100"), ("100 of 100", "0 of 100"))
        for what in ("P2", "all")]
    assert ",=" not in (tmp_path / "out/audit/history.csv").read_text()


def test_a_run_that_is_killed_is_in_the_audit_with_its_tables(grade, options, tmp_path,
                                                              monkeypatch):
    def killed(self):
        raise SystemExit

    run = batch.Batch.run
    monkeypatch.setattr(batch.Batch, "run", killed)
    with pytest.raises(SystemExit):
        grade(*options)
    monkeypatch.setattr(batch.Batch, "run", run)
    assert grade() == 0
    with open(tmp_path / "out/audit/runs.csv", newline="", encoding="utf-8") as file:
        first, second = csv.DictReader(file)
    assert first["tables"] == second["tables"] and "--policy" in first["command"]
    with open(tmp_path / "out/audit/history.csv", newline="", encoding="utf-8") as file:
        assert {row["date"] for row in csv.DictReader(file)} == {second["date"]}


def test_an_audit_has_no_table_that_the_last_run_had_not(grade, options, tmp_path):
    assert grade(*options) == 0
    toml = tmp_path / "out/class.toml"
    toml.write_text(re.sub("(?m)^(policy|overrides) =", r"# \1 =", toml.read_text()))
    assert grade("--yes") == 0
    for name in ("policy.toml", "overrides.csv"):
        assert (tmp_path / "out/audit" / name).read_bytes() == b""


def test_results_alone_tell_what_decided_and_fill_a_gradebook(grade, options, tmp_path):
    (tmp_path / "overrides.csv").write_text(
        "student,stage,points,reason,note\ncleo,2,50,showed me,is ill\n")
    assert grade(*options) == 0
    archive = tmp_path / "archive/2026"
    shutil.copytree(tmp_path / "out", archive)
    for name in ("policy.toml", "overrides.csv", "class.csv"):
        (tmp_path / name).unlink()
    assert (archive / "audit/policy.toml").read_text() == POLICY
    assert "showed me,sha256:" in (copy := (archive / "audit/overrides.csv").read_text())
    assert "is ill" not in copy
    (run,) = csv.DictReader(io.StringIO((archive / "audit/runs.csv").read_text("utf-8")))
    assert f"--policy {tmp_path / 'policy.toml'}" in run["command"]
    ben = json.loads((archive / "students/ben.json").read_bytes())
    assert (run["grader"], run["commit"]) == (ben["grader"], ben["commit"])
    assert set(json.loads(run["tables"])) == {"policy", "roster", "overrides"}
    assert main.main(["gradebook", str(archive), "--nbgrader", str(tmp_path / "nb.csv")]) == 0
    assert "100.0,10.0,90.0,100" in (tmp_path / "nb.csv").read_text()


def test_no_gradebook_is_filled_after_the_days_spent_before_changed(grade, options, tmp_path,
                                                                    capsys):
    spent, policy = tmp_path / "hw1.csv", tmp_path / "policy.toml"
    spent.write_text("student,free_days\nben,1\n")
    policy.write_text(POLICY + "budget = 1\nspent = ['hw1.csv']\n")
    assert grade(*options) == 0
    book = ["gradebook", str(tmp_path / "out"), "--nbgrader", str(tmp_path / "out/nb.csv")]
    spent.write_text("student,free_days\nben,0\n")
    assert main.main(book) == 2 and "older ones of anna" in capsys.readouterr().err
    assert grade("--yes") == 0 and main.main(book) == 0
    for gone in (spent, policy):
        gone.unlink()
        assert main.main(book) == 0


@pytest.mark.parametrize("changed", [False, True])
def test_a_version_names_the_commit_that_it_was_graded_with(tmp_path, monkeypatch, changed):
    git = ["git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@x.org"]
    make(tmp_path / "grader", {"course": {2: "x"}})
    assert audit.commit() and not monkeypatch.setattr(audit, "ROOT", tmp_path)
    assert audit.commit() == "", "no checkout of git"
    for words in (["init", "-q"], ["add", "."], ["commit", "-q", "-m", "All"]):
        subprocess.run([*git, *words], check=True)
    head = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True).stdout
    if changed:
        (tmp_path / "grader/course/problem_2.py").write_text("y")
    assert audit.commit() == head.strip() + "+" * changed


@pytest.mark.parametrize("text", ["stages = ", "polcy = 'x'", "device = 'tpu'", "seed = '7'",
                                  "benchmark = 1", "timeout = true", "roster = 3",
                                  "scale = '9'"])
def test_settings_that_are_none_are_named(grade, tmp_path, capsys, text):
    (tmp_path / "out").mkdir()
    (tmp_path / "out/class.toml").write_text(text)
    assert grade() == 2 and "class.toml" in capsys.readouterr().err


def test_one_gradebook_takes_the_place_of_the_other(moodle, grade, tmp_path, capsys):
    shutil.rmtree(tmp_path / "in/Eve_15_assignsubmission_file")
    (tmp_path / "canvas.csv").write_text(
        "Student,ID,SIS Login ID,Section,Flash (7)\n    Points Possible,,,,100\n"
        "Anna,1,A@x.org,S,\nBen,2,B@x.org,S,\nFinn,3,F@x.org,S,\n")
    (tmp_path / "in").rename(tmp_path / "moodle")
    make(tmp_path / "in", {"flat": {2: "pass"}})
    for name, text in (("anna_1", "pass"), ("ben_2", "wrong"), ("finn_3", "pass # f")):
        (tmp_path / f"in/{name}_70_problem_2.py").write_text(text)
    shutil.rmtree(tmp_path / "in/flat")
    canvas = ("--canvas", tmp_path / "canvas.csv", "--column", "Flash")
    assert grade(*canvas) == 0
    assert moodle(submissions=tmp_path / "moodle") == 0
    assert "class.toml: without canvas = ../canvas.csv and column = Flash now" in (
        capsys.readouterr().out)
    assert of_worksheet(tmp_path)["Anna"] == "100.00" and points(tmp_path)["Finn"] == "100.0"
    assert "# canvas =\n# column =\n" in (tmp_path / "out/class.toml").read_text()
    assert grade(submissions=tmp_path / "moodle") == 0
    assert "without" not in capsys.readouterr().out
    book = ["gradebook", str(tmp_path / "out"), "--nbgrader", str(tmp_path / "nb.csv")]
    assert main.main(book) in (0, 3), "the grades are by class.toml as it is now"
    assert grade(*canvas) in (0, 3)
    assert set(settings.read(tmp_path / "out")) & {"canvas", "moodle"} == {"canvas"}


def test_an_option_changes_its_line_and_no_other(tmp_path):
    (tmp_path / "class.toml").write_text("# ours\nseed = 3  # agreed\nstages = '1-7'\n")
    wanted = settings.read(tmp_path) | {"seed": 4, "roster": '../a "b".csv'}
    text = settings.text(tmp_path, wanted)
    assert text.startswith("# ours\nseed = 4\nstages = '1-7'\n")
    assert tomllib.loads(text) == wanted
