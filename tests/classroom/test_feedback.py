"""Each student gets their own findings back, and nothing of anyone else."""

import html
import io
import zipfile

import numpy as np

from classroom import feedback, grades
from classroom.gather import Submitted, gather
from classroom.reports import student_report
from classroom.roster import Person
from classroom.store import Store, Unit
from grader.assignment.record import sha256
from grader.step_checks import evidence
from grader.step_checks.examples import Example, difference
from tests.classroom.classes import SETTINGS, make
from tests.classroom.test_reports import stage

AGAIN = "again: python autograder.py --p2 --seed 7 --case standard/one"
STEPS = [{"id": "2.1", "light": "right", "mistake": None, "text": ""},
         {"id": "2.3", "light": "wrong", "mistake": "wrong-operator", "text":
          "given x:\nwant 1; got 2.\nthe mistake: the sign.\nthe rule: products are added."},
         {"id": "2.4", "light": "blank", "mistake": None, "text": ""}]
WRONG = stage(2, "wrong", steps=STEPS, check={"message": f"```\n<b>off</b>\n{AGAIN}"})


def reported(tmp_path, result: dict | None, overrides=(), **more) -> dict:
    student = Submitted("Otto Aber", "Otto Aber", {2: b"x"} if result else {}, **more)
    with Store(tmp_path / "out", SETTINGS) as store:
        if result:
            store.put(Unit(2, sha256(b"x")), {
                "stage": result | {"sha256": sha256(b"x")}, "device": "cpu", "torch": "2",
                "triton": "3", "seed": 1, "alone": False, "timing": None})
        report = student_report(student, [2, 3], store)
    grades.apply(report, grades.Policy(steps=0.3), list(overrides))
    return report


def test_it_says_outcome_lights_mistake_rule_hint_and_what_to_run(tmp_path):
    report = reported(tmp_path, WRONG)
    for page in feedback.pages(report).values():
        text = page.decode()
        for words in ("wrong", "2.1 right", "2.3 wrong", "the mistake: the sign.",
                      "the rule: products are added.", "Hint for step 2.3: ", AGAIN,
                      "python autograder.py --step 2.3", "python autograder.py --p2",
                      "in addition to the points: 10", "no file was handed in"):
            assert words in text, words


def test_what_a_red_step_was_given_and_returned_is_drawn(tmp_path):
    got = np.eye(4)
    table = evidence.evidence(Example("", {"x": got}, None), difference("y", got + 1, got))
    mask = evidence.mask(got > 0, got >= 0, (0, 0))
    steps = [STEPS[1] | {"evidence": table | mask}, STEPS[2]]
    page = feedback.pages(reported(tmp_path, stage(2, "wrong", steps=steps)))["html"].decode()
    assert "Step 2.3, run on its own" in page and page.count("<svg class=\"drawn\"") == 3
    assert "12 pairs: a hidden key is seen." in page
    assert "<b>given</b> x" in page and page.count('<td class="wrong">') == 16
    assert "run on its own" not in feedback.pages(reported(tmp_path, stage(
        2, "pass", steps=steps)))["html"].decode().replace("each run on its own", "")


def test_what_a_student_wrote_is_text_in_both(tmp_path):
    pages = feedback.pages(reported(tmp_path, WRONG))
    assert "<b>off" not in pages["html"].decode()
    assert "    ```\n    <b>off</b>\n" in pages["md"].decode()
    report = reported(tmp_path, None) | {"student": "Otto <b>[A](b)", "refused": "got <i>\nx"}
    text = feedback.pages(report)["md"].decode()
    assert r"# Otto \<b>\[A](b): " in text and r"could not be read: got \<i> x." in text


def test_nothing_of_what_an_instructor_looks_at_is_in_it(tmp_path):
    report = reported(tmp_path, WRONG, notes=("of several on the roster: Otto Aber, Zoe",),
                      person=Person("Otto Aber", "7")) | {
        "as_published": (20, 24), "differs": ["P2: their report said pass"]}
    for page in feedback.pages(report).values():
        for word in ("Zoe", "20 of 24", "their report", str(tmp_path)):
            assert word not in page.decode()


def test_what_is_not_settled_says_so_and_is_not_packed(tmp_path):
    fault = reported(tmp_path, stage(2, "grader_fault", message="exit code 5"))
    pages = feedback.pages(fault)
    assert "not settled yet; that is not because of your file" in pages["md"].decode()
    assert "exit code 5" not in pages["md"].decode()
    for page in pages.values():
        assert "Your grade is not settled yet: P2 is blocked. Your instructor" in page.decode()
    late = feedback.pages(reported(tmp_path, WRONG, marked_late=True))["html"].decode()
    assert ">Otto Aber: not settled yet</h1>" in late
    assert "settled yet: your submission is marked as late, but " in late
    assert zipfile.ZipFile(io.BytesIO(feedback.packed(
        [fault], {"Otto Aber": pages}))).namelist() == []
    given = grades.Override("Otto Aber", 2, 50.0, "shown in class")
    assert "Set by a person: shown in class" in feedback.pages(
        reported(tmp_path, WRONG, [given]))["html"].decode()


def test_a_page_says_that_files_were_refused_and_nothing_gets_no_page(tmp_path):
    near = {"refused": {2: "want problem_2.py; got problem2.py"}}
    given = grades.Override("Otto Aber", 2, 50.0, "renamed by hand")
    reports = [reported(tmp_path, None, overrides, **more) | {"key": key}
               for key, overrides, more in (
                   ("near", [], near), ("settled", [given], near), ("nothing", [], {}),
                   ("unread", [], {"trouble": "the archive is encrypted"}))]
    assert [report["state"] for report in reports] == ["could not be read"] * 2 + [
        "handed in nothing", "could not be read"]
    made = {report["key"]: feedback.pages(report) for report in reports}
    assert zipfile.ZipFile(io.BytesIO(feedback.packed(reports, made))).namelist() == [
        "near/feedback.html", "settled/feedback.html", "unread/feedback.html"]
    for page in made["near"].values():
        assert b"the file was not taken" in page and b"got problem2.py" in page
        assert b"Your grade is not settled yet: P2 is refused. Your instructor" in page
    for page in made["unread"].values():
        assert b"could not be read: the archive is encrypted" in page
        assert b"Your grade is not settled yet. Your instructor will decide." in page
    for key, total in (("settled", b"50 points of 300"), ("nothing", b"nothing was handed in")):
        for page in made[key].values():
            assert b"Otto Aber: " + total in page and b"Your grade" not in page


def test_what_became_of_all_that_was_handed_in_is_said_to_the_student(tmp_path):
    make(tmp_path / "class", {"cleo": {2: "x"}, "cleo/old": {3: "y"}})
    for name in ("rest.rar", "utils.py", "problem_2_test.py"):
        (tmp_path / "class/cleo" / name).write_text("z")
    (cleo,) = gather(tmp_path / "class")
    for page in feedback.pages(reported(tmp_path, WRONG, aside=cleo.aside)).values():
        text = html.unescape(page.decode().replace("\\", ""))
        for line in ("old/problem_3.py was taken as problem_3.py", "got rest.rar",
                     "problem_2_test.py lies beside problem_2.py",
                     "not graded, as it is not the file of one problem: utils.py"):
            assert "Also handed in: " in text and line in text, line


def test_the_zip_has_the_names_that_learning_systems_take_back(tmp_path):
    make(tmp_path / "class", {"Ben Braun_4712_assignsubmission_file": {2: "x"}, "cleo": {2: "x"}})
    (tmp_path / "class/andersonanna_LATE_101_55101_problem_2.py").write_text("x")
    (tmp_path / "class/Dora Dahl_4713_assignsubmission_file_problem_2.py").write_text("x")
    reports, made = [], {}
    for student in gather(tmp_path / "class"):
        reports.append(reported(tmp_path, WRONG, returns=student.returns) | {"key": student.key})
        made[student.key] = feedback.pages(reports[-1])
    packed = feedback.packed(reports, made)
    assert sorted(zipfile.ZipFile(io.BytesIO(packed)).namelist()) == [
        "Ben Braun_4712_assignsubmission_file/feedback.html",
        "Dora Dahl_4713_assignsubmission_file/feedback.html",
        "andersonanna_LATE_101_55101_feedback.html"], "cleo is in none of these downloads"
    assert packed == feedback.packed(reports, made)
    (cleo,) = (report for report in reports if not report["returns"])
    packed = feedback.packed([cleo], made)
    assert zipfile.ZipFile(io.BytesIO(packed)).namelist() == ["cleo/feedback.html"]
