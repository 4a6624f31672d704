"""What evidence is worth: points, shares, optional stages, right steps, a person's word."""

import copy
import json
import random
import zipfile
from contextlib import nullcontext
from datetime import datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from classroom import grades
from classroom.gather import Submitted
from classroom.grades import Override, Policy
from classroom.late import Late
from classroom.roster import Person
from grader.course.stages import STAGES
from tests.classroom.classes import earned, make, program

SHARES = {"standard": 0.5, "robust": 0.4, "walk": 0.1}


def stage(number: int, points: float, outcome: str = "wrong", steps: str = "") -> dict:
    """points: of a hundred; steps: a letter a step, right, wrong, blank or none."""
    lights = {"r": "right", "w": "wrong", "b": "blank", "n": "none"}
    return {"stage": number, "earned": earned(points), "outcome": outcome,
            "steps": [{"light": lights[letter]} for letter in steps]}


def worth(rules: Policy, *stages: dict, overrides=()) -> dict:
    report = {"stages": list(stages), "notes": [], "handed_in": None, "marked_late": False}
    grades.apply(report, rules, list(overrides))
    return report


@pytest.fixture
def written(tmp_path):
    def write(text: str):
        (tmp_path / "file").write_text(text, "utf-8")
        return tmp_path / "file"
    return write


def test_without_a_policy_points_stay_and_right_steps_bring_nothing():
    report = worth(Policy(), stage(4, 70.0), stage(5, 0.0, steps="rrrrrrrw"))
    assert (report["points"], report["max_points"], report["step_credit"]) == (70.0, 150, None)


@pytest.mark.parametrize(("points", "gives"), [
    (0.0, 0.0), (20.0, 60.0), (30.0, 75.0), (70.0, 75.0), (90.0, 135.0), (100.0, 150.0)])
def test_points_and_shares_are_those_of_the_policy(points, gives):
    report = worth(Policy({4: 150}, SHARES), stage(4, points))
    assert report["points"] == gives and report["max_points"] == 150


def by_hand(report: dict, rules: Policy, overrides: dict[int, float]) -> list[float]:
    """The points of each stage, as a person would work them out."""
    days, made = rules.late.days_of(datetime.fromisoformat(report["handed_in"])), []
    for each in report["stages"]:
        full = rules.points.get(each["stage"], STAGES[each["stage"]].points)
        points = full * sum(rules.shares[group] for group in each["earned"])
        points *= 0 if days > rules.late.days else max(0, 1 - rules.late.per_day * days)
        made.append(overrides.get(each["stage"], points))
    return made


@pytest.mark.parametrize("seed", range(200))
def test_shares_late_days_and_overrides_give_the_same_in_any_order(seed):
    draw = random.Random(seed)
    deadline = datetime(2026, 11, 30, 12, 0)

    def rules() -> Policy:
        a, b = sorted((draw.random(), draw.random()))
        return Policy({n: draw.randrange(300) for n in draw.sample(sorted(STAGES), 4)},
                      {"standard": a, "robust": b - a, "walk": 1 - b},
                      frozenset(draw.sample(sorted(STAGES), 2)), draw.random() * a,
                      Late(deadline, draw.randrange(4), draw.random()))

    numbers = draw.sample(sorted(STAGES), draw.randrange(1, 10))
    report = {"notes": [], "marked_late": False, "stages": [
        stage(n, draw.choice((0, 20, 30, 70, 90, 100)), steps=draw.choice(("", "rw", "rrb")))
        for n in numbers],
        "handed_in": (deadline + timedelta(hours=draw.randrange(-50, 120))).isoformat()}
    words = [Override("anna", n, float(draw.randrange(100)), "") for n in draw.sample(
        numbers, draw.randrange(len(numbers) + 1))]
    last, again = rules(), copy.deepcopy(report)
    grades.apply(report, last, words)
    wanted = by_hand(report, last, {each.stage: each.points for each in words})
    assert [each["points"] for each in report["stages"]] == pytest.approx(wanted, abs=0.0051)
    assert report["points"] == pytest.approx(sum(wanted), abs=0.05)
    grades.apply(again, last, draw.sample(words, len(words)))
    assert again == report


def test_an_optional_stage_adds_points_and_is_not_expected():
    report = worth(Policy(optional=frozenset({9})), stage(4, 100.0), stage(9, 100.0))
    assert (report["points"], report["max_points"]) == (300.0, 100)


def test_right_steps_are_a_column_of_their_own_where_the_standard_cases_fail():
    rules = Policy(steps=0.4)
    assert worth(rules, stage(4, 0.0, steps="rrrrrrrw"))["step_credit"] == 35.0
    assert worth(rules, stage(4, 0.0, steps="rrrrrrrw"))["points"] == 0.0
    assert worth(rules, stage(4, 30.0, steps="rrbn"))["step_credit"] == 20.0
    for none in (stage(4, 70.0, steps="rw"), stage(4, 0.0, "rejected", "rr"),
                 stage(4, 0.0, steps="nb"), stage(4, 0.0), stage(4, 100.0, "pass", "rr")):
        assert worth(rules, none)["step_credit"] == 0.0


def test_right_steps_are_in_the_points_if_the_policy_says_so(written):
    rules = grades.read(written("steps = 0.3\nstep_credit = 'points'\n"))
    report = worth(rules, stage(4, 0.0, steps="rrrrrrrw"), stage(5, 100.0))
    assert (report["points"], report["step_credit"]) == (76.25, 26.25)
    assert report["stages"][0]["points"] == 26.25 and report["steps_added"]


@pytest.mark.parametrize("adds", [False, True])
def test_points_that_a_person_set_bring_no_credit_for_steps(adds):
    report = worth(Policy(steps=0.4, adds_steps=adds), stage(4, 0.0, steps="rrrrrrrw"),
                   overrides=[Override("anna", 4, 0.0, "copied")])
    assert (report["points"], report["step_credit"]) == (0.0, 0.0)


def test_a_day_late_costs_right_steps_as_much_as_it_costs_points():
    rules = Policy(steps=0.4, late=Late(datetime(2026, 11, 30, 12), 2, 0.1))
    report = {"stages": [stage(4, 0.0, steps="rrrrrrrw"), stage(5, 100.0)], "notes": [],
              "marked_late": False, "handed_in": "2026-12-01T10:00:00"}
    grades.apply(report, rules)
    assert (report["step_credit"], report["points"], report["late_penalty"]) == (31.5, 45.0, 5.0)
    report = {"stages": [stage(4, 100.0), stage(5, 100.0)], "notes": [], "marked_late": False,
              "handed_in": "2026-12-01T10:00:00"}
    grades.apply(report, rules, [Override("anna", 4, 70.0, "copied")])
    assert (report["points"], report["late_penalty"]) == (115.0, 5.0), "points set cost no days"


def test_an_override_settles_a_stage_and_says_why():
    given = Override("anna", 4, 80.0, "told me how it works")
    report = worth(Policy(), stage(4, 0.0, "refused"), stage(5, 0.0, "grader_fault"),
                   overrides=[given])
    assert report["unsettled"] == [5] and report["points"] is None
    report = worth(Policy(), stage(4, 20.0), overrides=[given])
    assert report["points"] == 80.0
    assert report["stages"][0]["override"] == {
        "points": 80.0, "reason": "told me how it works", "was": 20.0}


def test_the_private_note_of_an_override_reaches_no_student(tmp_path, monkeypatch):
    make(tmp_path / "in", {"ben": {2: "wrong"}, "cleo": {2: "wrong # c"}})
    (tmp_path / "overrides.csv").write_text(
        "student,stage,points,reason,note\nben,2,9,see my mail,\"copied from Anna Müller\"\n"
        "cleo,2,8,,says she was ill\n", "utf-8")
    assert program(monkeypatch, tmp_path)("--overrides", tmp_path / "overrides.csv") == 0
    files = {path: path.read_bytes() for path in (tmp_path / "out").rglob("*") if path.is_file()}
    with zipfile.ZipFile(tmp_path / "out/feedback.zip") as packed:
        files |= {Path(name): packed.read(name) for name in packed.namelist()}
    for words in ("Anna Müller", "she was ill"):
        assert [path.name for path in files if words.encode() in files[path]] == ["summary.html"]
    for kind in ("html", "md"):
        assert b"Set by a person: see my mail" in files[tmp_path / f"out/feedback/ben.{kind}"]
        assert b"Set by a person." in files[tmp_path / f"out/feedback/cleo.{kind}"]


def test_an_override_is_of_whom_it_names():
    students = [Submitted("Anna A", "Anna A", person=Person("Anna A", "7", "aa", "a@x")),
                Submitted("Ben", "Ben", person=Person("Ben", "8"))]
    of = partial(grades.by_student, students=students, stages=[4], policy=Policy())
    for word in ("Anna A", "7", "aa", "a@x"):
        assert list(of([Override(word, 4, 1.0, "x")])) == ["Anna A"]
    for word in ("A, Anna", "anna a", "AA", "A@X"):  # as a submission's name would be
        assert list(of([Override(word, 4, 1.0, "x")])) == ["Anna A"]
    for word in ("anna", "?"):
        with pytest.raises(ValueError, match="want the name, id.*, which matches no student"):
            of([Override(word, 4, 1.0, "x")])


def test_a_star_is_all_stages_and_a_row_of_one_stage_comes_before_it(written):
    words = grades.read_overrides(written(
        "student,stage,points,reason,note,days late\nanna,*,0,copied,see mail,\nanna,4,7,own,,\n"))
    report = worth(Policy(), stage(4, 100.0), stage(5, 100.0, "refused"), overrides=words)
    assert [each["points"] for each in report["stages"]] == [7.0, 0.0]
    assert report["unsettled"] == [] and report["points"] == 7.0


def test_the_days_that_a_person_says_replace_those_of_the_time(written):
    late = Policy(late=Late(datetime(2026, 11, 30, 12), 2, 0.1))
    for days, points, says in ((0, 100.0, "on time (set by a person: was ill)"),
                               (1, 90.0, "1 day late: 10 % of the points are taken off (set by a "
                                "person: was ill)"), (3, 0.0, "more than the 2 that count")):
        words = grades.read_overrides(written(
            f"student,stage,points,reason,days_late\nanna,*,,was ill,{days}\n"))
        report = {"stages": [stage(4, 100.0)], "notes": [], "marked_late": True,
                  "handed_in": "2026-12-20T12:00:00"}
        grades.apply(report, late, words)
        assert (report["points"], report["late_days"]) == (points, days) and says in report["late"]
        assert report["notes"] == []


def test_the_assignment_that_a_policy_names_is_what_files_are_graded_by(
        written, tmp_path, monkeypatch):
    make(tmp_path / "in", {"anna": {2: "pass"}})
    grade = program(monkeypatch, tmp_path)
    for text, assignment in (("", "original"), ('assignment = "this"\n', "this"), ("", "original")):
        assert grade("--policy", written(text)) == 0
        records = [json.loads(path.read_bytes()) for path in (tmp_path / "out/graded").iterdir()]
        assert assignment in [record["settings"]["assignment"] for record in records]
    assert len(records) == 2, "what was graded by another assignment is graded again, once"


@pytest.mark.parametrize(("rows", "says"), [
    ([("7", 4), ("Anna A", 4)], "want one row for a stage; got two for Anna A, P4"),
    ([("7", 9)], "want stages that are graded .*; got P9 of 7")])
def test_an_override_is_of_a_stage_that_is_graded_and_of_no_other(rows, says):
    anna = [Submitted("Anna A", "Anna A", person=Person("Anna A", "7"))]
    with pytest.raises(ValueError, match=says):
        grades.by_student([Override(who, stage, 1.0, "x") for who, stage in rows], anna, [4],
                          Policy())


@pytest.mark.parametrize(("stage", "points", "says"), [
    (1, 500.0, "want points of 0 to 200; got 500 for 7, P1"), (4, 151.0, "0 to 150; got 151"),
    (None, 200.0, r"0 to 150; got 200 for 7, \*"), (1, 200.0, None), (4, 150.0, None),
    (None, 150.0, None)])
def test_an_override_has_no_more_points_than_its_stage(stage, points, says):
    anna = [Submitted("Anna A", "Anna A", person=Person("Anna A", "7"))]
    given = [Override("7", stage, points, "x")]
    with pytest.raises(ValueError, match=says) if says else nullcontext():
        assert grades.by_student(given, anna, [1, 4], Policy({4: 150})) == {"Anna A": given}


def test_a_policy_is_read(written):
    path = written("optional = [8, 9]\nsteps = 0.3\n[points]\n4 = 150\n"
                   "[shares]\nstandard = 0.5\nrobust = 0.4\nwalk = 0.1\n")
    assert grades.read(path) == Policy({4: 150}, SHARES, frozenset({8, 9}), 0.3)
    assert grades.read(None) == Policy()


def test_every_rule_of_late_work_is_read(written):
    late = written("[late]\ndeadline = 2026-11-30T12:00:00\ndays = 3\nper_day = 1.0\ngrace = 5\n"
                   "keep = 'best'\nbudget = 4\nspent = []\n")
    assert grades.read(late).late == Late(
        datetime(2026, 11, 30, 12), 3, 1.0, "best", 5, 4)


@pytest.mark.parametrize(("overridden", "held"), [((), 1), ((4,), 1), ((4, 5), 0)])
def test_what_a_person_must_say_waits_until_every_stage_has_a_word(overridden, held):
    report = {"stages": [stage(4, 70.0), stage(5, 70.0)], "notes": [], "handed_in": None,
              "marked_late": True}
    grades.apply(report, Policy(), [Override("anna", each, 9.0, "mail") for each in overridden])
    assert len(report["held"]) == len(report["notes"]) == held


@pytest.mark.parametrize(("text", "says"), [
    ("steps = ", "want TOML"), ("assignment = true", "want assignment = "),
    ("grace = 1", "late and assignment only; got 'grace'"),
    ("step_credit = 1", 'want step_credit = "apart" or "points"; got 1'),
    ("steps = 0.8", "want steps of 0 to 0.7"), ("steps = true", "want steps of"),
    ("steps = nan", "want steps of"), ("optional = 8", "want optional"),
    ("optional = [10]", "want optional"), ('optional = ["8"]', "want optional"),
    ("[points]\n4 = 1" + 400 * "0", "want points such as"),
    ("missing = 'none'", "want missing ="),
    ("[points]\n12 = 5", "want points such as"),
    ("[points]\n4 = -5", "want points such as"), ("[points]\n4 = inf", "want points such as"),
    ("[shares]\nstandard = 1.0", "want shares of"),
    ("[shares]\nstandard = 0.5\nrobust = 0.4\nwalk = 0.2", "that make 1"),
    ("late = 1", r"want \[late\] with a deadline"),
    ("[late]\ndays = 1", "budget and spent; got days = 1 in"),
    ("[late]\ndeadline = 2026-11-30T12:00:00Z\nper_day = 0.1",
     "want days beside per_day; got none in"),
    ("late = {}", "budget and spent; got nothing in"),
    ("[late]\ndeadline = 2026-11-30", "want deadline = 2026-11-30T.*; got 2026-11-30 in"),
    ("[late]\ndeadline = 2026-11-30T12:00:00\ndays = -1", "want days of"),
    ("[late]\ndeadline = 2026-11-30T12:00:00\nper_day = 2", "want per_day of 0 to 1"),
    ("[late]\ndeadline = 2026-11-30T12:00:00\nkeep = 'all'", "want keep ="),
    ("[late]\ndeadline = 2026-11-30T12:00:00\ngrace = -3", "want grace of"),
    ("[late]\ndeadline = 2026-11-30T12:00:00\nhours = 3", "got deadline = .*, hours = 3 in"),
])
def test_a_policy_that_is_none(written, text, says):
    with pytest.raises(ValueError, match=says):
        grades.read(written(text))


def test_overrides_are_read(written):
    path = written("Student;Stage;Points;Reason\nanna;P4;12,5;late by permission\n;;;\n")
    assert grades.read_overrides(path) == [Override("anna", 4, 12.5, "late by permission")]
    path = written("student,stage,points,reason,note\nben,4,0,,copied from Anna\n")
    assert grades.read_overrides(path) == [Override("ben", 4, 0.0, "", "copied from Anna")]
    path = written("student,stage,points,reason,days late\nben,4,1e1,x,\nben,*,,x,1.0\n")
    assert [(each.points, each.days_late) for each in grades.read_overrides(path)] == [
        (10.0, None), (None, 1)]
    assert grades.read_overrides(None) == []


@pytest.mark.parametrize(("row", "says"), [
    ("anna,4,80,", "a reason or a note; got anna, 4, 80, - in row 2"),
    ("anna,12,80,x", "a stage of 1-9"), ("anna,4,,x", "points or"), ("anna,*,,x", "points or"),
    ("anna,4,all,x", "points or, for ., days_late, and a reason or a note"),
    ("anna,4,-1,x", "points"), (",4,1,x", "a student"),
    ("anna,4,nan,x", "points"), ("anna,4,1e9,x", "points"), ("anna,4,1_0,x", "got anna, 4, 1_0"),
    ("anna,4,1,x,y", "want 4 cells a row; got 5"),
])
def test_overrides_that_are_none(written, row, says):
    with pytest.raises(ValueError, match=says):
        grades.read_overrides(written(f"student,stage,points,reason\n{row}\n"))


@pytest.mark.parametrize("days", ["-1", "one", "1.5", "1_0"])
def test_a_message_on_bad_days_shows_them(written, days):
    with pytest.raises(ValueError, match=rf"got anna, \*, -, ok, {days} in row 2"):
        grades.read_overrides(written(
            f"student,stage,points,reason,days late\nanna,*,,ok,{days}\n"))


def test_a_table_without_the_columns_is_no_overrides(written, tmp_path):
    with pytest.raises(ValueError, match="want the columns student, stage, points, reason"):
        grades.read_overrides(written("student,points\nanna,3\n"))
    for read in (grades.read, grades.read_overrides):
        with pytest.raises(ValueError, match="want a .*; got .*gone"):
            read(tmp_path / "gone")
