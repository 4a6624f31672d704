"""The tables: whole, readable by other programs, and no sum of what is not settled."""

import csv
import io
import json
import re
from pathlib import Path
from xml.etree import ElementTree

import pytest

from classroom import grades, summary
from classroom.alike import Alike
from classroom.gather import Submitted
from classroom.reports import (
    differences,
    grades_csv,
    junit,
    student_report,
    to_look_at,
    unconfirmed,
)
from classroom.store import Store, Unit
from grader.assignment.record import ROOT, sha256
from grader.report.results import StepCheck
from guide.colours import contrast
from tests.classroom.classes import NOON, SETTINGS, earned

NOBODY = Alike([], [], {}, [])  # is like another


def stage(number: int, outcome: str, points: float = 0.0, **more) -> dict:
    """points: of a hundred."""
    check = {"name": "standard/one", "group": "standard", "outcome": outcome, "errors": {},
             "where": "", "diagnosis": None, "message": "said <b>so</b>"} | more.pop("check", {})
    return {"stage": number, "title": f"Stage {number}", "outcome": outcome, "points": points,
            "max_points": 100, "earned": earned(points), "sha256": "", "seconds": 2.0,
            "message": "", "detail": "", "confined": [], "checks": [check],
            "benchmark": None} | more


def book(tmp_path, students: dict[str, dict[int, dict]], stages=(1, 2)) -> list[dict]:
    """Reports of students whose files were graded so."""
    with Store(tmp_path / "out", SETTINGS) as store:
        found = []
        for name, graded in students.items():
            files = {number: f"{name}{number}".encode() for number in graded}
            for number, result in graded.items():
                if result is not None:
                    digest = sha256(files[number])
                    store.put(Unit(number, digest), {
                        "stage": result | {"sha256": digest}, "device": "cpu", "torch": "2",
                        "triton": "3", "seed": 1, "alone": True, "timing": None})
            found.append(reported(Submitted(name, name, files), list(stages), store))
        return found


def reported(student: Submitted, stages: list[int], store: Store) -> dict:
    report = student_report(student, stages, store)
    grades.apply(report, grades.Policy())
    return report


def rows(reports) -> list[dict]:
    return list(csv.DictReader(io.StringIO(grades_csv(reports).decode())))


def test_points_add_up_and_a_missing_file_has_none(tmp_path):
    reports = book(tmp_path, {"anna": {1: stage(1, "pass", 100.0), 2: stage(2, "wrong", 70.0)},
                              "ben": {2: stage(2, "pass", 100.0)}})
    anna, ben = rows(reports)
    assert (anna["points"], anna["p2"], anna["p2_outcome"]) == ("270.0", "70.0", "wrong")
    assert (ben["points"], ben["p1"], ben["p1_outcome"], ben["passed"]) == (
        "100.0", "0.0", "missing", "1")


@pytest.mark.parametrize("outcome", ["grader_fault", "skipped", None])
def test_what_is_not_settled_has_no_points_nor_has_the_sum(tmp_path, outcome):
    given = {1: stage(1, "pass", 100.0), 2: outcome and stage(2, outcome)}
    reports = book(tmp_path, {"anna": given})
    (anna,) = rows(reports)
    assert (anna["points"], anna["p1"], anna["p2"], anna["unsettled"]) == ("", "200.0", "", "p2")
    assert reports[0]["points"] is None


def test_a_refused_student_has_empty_cells_and_enters_no_median(tmp_path):
    with Store(tmp_path / "out", SETTINGS) as store:
        eve = reported(Submitted("eve", "eve", trouble="it is a link"), [1, 2], store)
        near = reported(Submitted("near", "near", {2: b"x"}, {1: "want problem_1.py"}), [1],
                              store)
        gone = reported(Submitted("gone", "gone"), [1, 2], store)
    (anna,) = book(tmp_path, {"anna": {1: stage(1, "pass", 100.0), 2: stage(2, "wrong", 30.0)}})
    assert [(row["state"], row["points"], row["p1"], row["p1_outcome"])
            for row in rows([eve, gone, anna])] == [
        ("could not be read", "", "", "refused"), ("handed in nothing", "", "", "missing"),
        ("graded", "230.0", "200.0", "pass")]
    assert "want problem_1.py" in rows([near])[0]["refused"]
    assert [to_look_at(each) for each in (eve, near, gone, anna)] == [True, True, False, False]
    assert "the median has 230 of" in " ".join(
        summary.page([eve, gone, anna], NOBODY, NOON, Path("out"), {}).decode().split())


def test_files_of_no_graded_stage_are_for_a_person_and_no_0(tmp_path):
    with Store(tmp_path / "out", SETTINGS) as store:
        for student in (Submitted("eve", "eve", {3: b"x"}),
                        Submitted("eve", "eve", {}, {3: "it is a link"})):
            eve = reported(student, [1, 2], store)
            assert (eve["state"], eve["points"]) == ("could not be read", None) and to_look_at(eve)
            assert eve["refused"] == \
                "no file of a problem that is graded is in it, but problem_3.py"
        assert reported(student, [1, 3], store)["refused"] is None


def test_a_refused_submission_says_why_in_every_table(tmp_path):
    with Store(tmp_path / "out", SETTINGS) as store:
        student = Submitted("eve", "eve", trouble="the archive climbs out of its folder: ../x")
        reports = [reported(student, [1, 2], store)]
    assert rows(reports)[0]["refused"].startswith("the archive climbs out")
    assert b"climbs out" in junit(reports)
    page = summary.page(reports, NOBODY, NOON, Path("out"), {}).decode()
    assert page.count("<td class=\"wide\">the archive climbs out") == 1


@pytest.mark.parametrize("name", ["=1+1", "+cmd", "-2", "@x"])
def test_a_name_is_no_formula(tmp_path, name):
    assert rows(book(tmp_path, {name: {}}))[0]["student"] == "'" + name


def test_junit_tells_failures_from_faults_and_holds_any_text(tmp_path):
    reports = book(tmp_path, {"anna <&>": {
        1: stage(1, "wrong", check={"message": "a\x00b ]]> \x1b[31m \ufffe"}),
        2: stage(2, "grader_fault")}})
    suite = ElementTree.fromstring(junit(reports)).find("testsuite")
    assert (suite.get("name"), suite.get("failures"), suite.get("errors")) == ("anna <&>", "1", "1")
    assert "]]>" in suite.find("testcase/failure").text


def test_the_commonest_mistakes_come_first_and_count_students(tmp_path):
    def worst(row: int) -> dict:
        return {"check": {"diagnosis": {"id": "rows", "text": f"worst at row {row}"}}}

    mask = {"check": {"diagnosis": {"id": "window_plus_one", "text": "one key too wide"}}}
    reports = book(tmp_path, {
        "a": {1: stage(1, "wrong", **mask)}, "b": {1: stage(1, "wrong", **mask)},
        "c": {1: stage(1, "crashed", message="NameError: x")},
        "f": {1: stage(1, "timeout", message="hangs")}, "g": {1: stage(1, "timeout")},
        "h": {2: stage(2, "wrong", **worst(1))}, "i": {2: stage(2, "wrong", **worst(2))},
        "d": {1: stage(1, "pass", 100.0)},
        "e": {1: stage(1, "not_started")}})
    found = summary.mistakes(reports)
    assert [(each["id"], each["count"], each["text"]) for each in found] == [
        ("timeout", 2, "timed out, for several reasons; one: hangs"),
        ("window_plus_one", 2, "one key too wide"), ("rows", 2, "one: worst at row 1"),
        ("crashed", 1, "NameError: x")]


def red(id: str, mistake: str | None, given: str, seen: str, **parts: str) -> dict:
    return StepCheck(id, "wrong", mistake, given, (seen,), **parts).as_dict()


def test_the_page_and_junit_carry_the_red_steps_with_their_mistake_and_rule(tmp_path):
    lights = [red("1.2", "window-plus-one", "given W=3", "want 3; got 4.", says="one key too wide",
                  rule="the window counts the query itself"),
              red("1.4", None, "given x", "want 1; got 2."),
              {"id": "1.5", "light": "right", "mistake": None, "text": ""}]
    reports = book(tmp_path, {"anna": {1: stage(1, "wrong", steps=lights)}})
    failure = ElementTree.fromstring(junit(reports)).find("testsuite/testcase/failure")
    assert failure.get("message") == "step 1.2: one key too wide"
    page = summary.page(reports, NOBODY, NOON, Path("out"), {}).decode()
    for text in (failure.text, page):
        assert "step 1.2, run on its own: one key too wide." in text and "said" in text
        assert "the rule: the window counts the query itself." in text and "want 1; got 2." in text
    assert [(each["id"], each["text"]) for each in summary.mistakes(reports)] == [
        ("step 1.4", "step 1.4: want 1; got 2"),
        ("window-plus-one", "step 1.2: one key too wide")]


def test_step_by_step_the_page_says_who_is_right_wrong_and_blank(tmp_path):
    def lights(**found: str) -> list[dict]:
        return [{"id": id[1:].replace("_", "."), "light": light, "mistake": None, "text": "x"}
                for id, light in found.items()]

    reports = book(tmp_path, {
        "anna": {1: stage(1, "wrong", steps=lights(s1_2="right", s1_10="wrong"))},
        "ben": {1: stage(1, "wrong", steps=lights(s1_2="blank", s1_10="wrong"))}})
    assert summary.steps(reports) == [{"id": "1.2", "right": ["anna"], "blank": ["ben"]},
                                      {"id": "1.10", "wrong": ["anna", "ben"]}]
    page = summary.page(reports, NOBODY, NOON, Path("out"), {}).decode()
    assert "<summary>2</summary>anna; ben</details>" in page


def test_the_line_of_a_crash_is_quoted(tmp_path):
    check = {"outcome": "crashed", "where": "problem_1.py:2", "message": "NameError when called"}
    data = b"def f():\n    return <b>\x1b\n"
    with Store(tmp_path / "out", SETTINGS) as store:
        store.put(Unit(1, sha256(data)), {
            "stage": stage(1, "crashed", check=check, detail="problem_1.py:9 in g: h()"),
            "device": "cpu", "torch": "2", "triton": "3", "seed": 1, "alone": False,
            "timing": None})
        reports = [reported(Submitted("anna", "anna", {1: data}), [1], store)]
    assert reports[0]["stages"][0]["line"] == "2: return <b>\\x1b"
    assert "line 2: return &lt;b&gt;" in junit(reports).decode()
    page = summary.page(reports, NOBODY, NOON, Path("out"), {}).decode()
    assert "line 2: return &lt;b&gt;" in page and "problem_1.py:9 in g: h()" in page


def test_a_blank_step_is_unfinished_and_not_crashed(tmp_path):
    blank = {"outcome": "crashed", "diagnosis": {"id": "blank-step", "text": "step 1.2 is blank"}}
    both = stage(1, "crashed", check=blank)
    both["checks"].append(stage(1, "crashed")["checks"][0])
    reports = book(tmp_path, {"anna": {1: stage(1, "crashed", 70.0, check=blank)}, "ben": {1: both},
                              "cleo": {1: stage(1, "crashed", checks=[])}})
    assert [row["p1_outcome"] for row in rows(reports)] == ["unfinished", "crashed", "crashed"]
    assert rows(reports)[0]["p1"] == "140.0"
    page = summary.page(reports, NOBODY, NOON, Path("out"), {}).decode()
    assert "unfinished" in page
    assert sum(each["count"] for each in summary.mistakes(reports)) == 2
    said = own_report(p1=(reports[0]["stages"][0]["sha256"], "crashed", 0.0))
    assert differences(said, reports[0]["stages"]) == ["P1: crashed, 140 points; their report said "
                                                       "crashed, 0"]


def test_the_page_shows_the_lines_of_everyone_who_is_alike(tmp_path):
    lines = {"anna": ["P3, 7: a = <b>"], "ben": ["P3, 9: c = <b>"]}
    found = Alike([], [{"students": (*lines,), "lines": (1, 1), "text": lines, "stages": [3]}], {},
                  [])
    page = summary.page(book(tmp_path, {"anna": {}}), found, NOON, Path("out"), {}).decode()
    assert "<pre>anna\nP3, 7: a = &lt;b&gt;\n\nben\nP3, 9: c = &lt;b&gt;\n\n</pre>" in page


def test_every_table_of_the_page_has_heads_and_every_outcome_a_link(tmp_path):
    outcomes = {1: stage(1, "wrong", 30.0), 2: stage(2, "crashed")}
    page = summary.page(book(tmp_path, {"anna": outcomes, "ben": {1: stage(1, "pass", 100.0)}}),
                        NOBODY, NOON, Path("out"), {}).decode()
    for table in re.findall(r"<table.*?</table>", page, re.DOTALL):
        assert 'scope="col"' in table and "<th>" not in table and "<th class" not in table
    links = re.findall(r'href="#(\w+)"\naria-label="(.*?)"', page)
    assert links == [("s1p1", "anna, P1: wrong, 60"), ("s1p2", "anna, P2: crashed, 0")]
    assert all(f'id="{target}"' in page for target, _ in links)


@pytest.mark.parametrize("scheme", [0, 1])
def test_every_colour_of_text_can_be_read_on_every_background(scheme):
    style = (ROOT / "classroom/style.html").read_text("utf-8")
    colours = [dict(re.findall(r"--(\w+): (#\w+)", block))
               for block in re.findall(r":root {(.*?)}", style, re.DOTALL)][scheme]
    whole = {name: re.sub(r"^#(\w)(\w)(\w)$", r"#\1\1\2\2\3\3", colour)
             for name, colour in colours.items()}
    for text in ("text", "soft", "pass", "part", "fail", "none", "bar"):
        for ground in ("page", "card"):
            assert contrast(whole[text], whole[ground]) >= 4.5, (text, ground)


def test_the_page_needs_no_network_and_shows_what_students_wrote_as_text(tmp_path):
    reports = book(tmp_path, {"<script>alert(1)</script>": {
        1: stage(1, "wrong", check={"message": "<img src=x onerror=alert(2)>"})}})
    page = summary.page(reports, NOBODY, NOON, Path("out"), {}).decode()
    assert "<script>alert" not in page and "<img" not in page
    assert not re.search(r"https?://|src=|@import|url\(", page.replace("&lt;img src=x", ""))


def test_a_command_of_the_page_names_the_students_own_folder_quoted(tmp_path):
    again = "said so\nagain: python autograder.py --p1 --seed 7 --case standard/one"
    reports = book(tmp_path, {"Otto Aber": {1: stage(1, "wrong", check={"message": again})}})
    page = summary.page(reports, [], NOON, Path("my results"), {}).decode()
    assert ("again: python autograder.py --p1 --submission &#39;my results/submissions/Otto Aber"
            "&#39; --seed 7 --case standard/one") in page
    assert again in junit(reports).decode()


# --------------------------------------------------------------- a student's own report
def own_report(**stages) -> bytes:
    return json.dumps({"reports": {"autograder.py": {"stages": [
        {"stage": int(name[1:]), "sha256": sha, "outcome": outcome, "points": points}
        for name, (sha, outcome, points) in stages.items()]}}}).encode()


def test_where_a_students_report_differs_is_said():
    found = [stage(1, "pass", 100.0, sha256="a"), stage(2, "wrong", 0.0, sha256="b"),
             stage(3, "pass", 100.0, sha256="c"), stage(4, "grader_fault", sha256="d")]
    said = own_report(p1=("a", "pass", 100.0), p2=("b", "pass", 100), p3=("x", "pass", 100),
                      p4=("d", "pass", 100))
    assert differences(said, found) == ["P2: wrong, 0 points; their report said pass, 100",
                                        "P3: their report is of another file"]
    assert differences(b"", found) == []


@pytest.mark.parametrize("report", [b"{", b"[]", b"\xff", b'{"reports": 3}', b"[" * 100_000,
                                    own_report(p1=("a", "pass", None))])
def test_a_report_that_is_none_is_said_to_be_none(report):
    assert differences(report, [stage(1, "pass")]) == [
        "the report that was handed in cannot be read"]


def test_what_a_busy_machine_did_not_check_is_graded_alone_then_listed(
        tmp_path):
    starved = stage(1, "pass", 100, check={"outcome": "skipped", "not_checked": True})
    assert unconfirmed({"stage": starved, "alone": False})
    assert not unconfirmed({"stage": starved, "alone": True})
    anna, ben = book(tmp_path, {"anna": {1: starved}, "ben": {1: stage(1, "pass", 100)}}, (1,))
    assert anna["points"] == ben["points"] > 0
    assert anna["notes"] == ["P1: 1 of its cases could not be checked on a busy machine, which "
                             "costs no points"]
    assert to_look_at(anna) and not to_look_at(ben)
