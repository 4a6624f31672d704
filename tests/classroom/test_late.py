"""Hand-in times are read where they are, and cost what the policy says."""

import csv
import zipfile
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone

import pytest

from classroom import batch, grades, late, standing
from classroom.gather import Asked, Submitted, gather
from classroom.late import Late
from classroom.roster import Person
from tests.classroom import classes
from tests.classroom.classes import earned, make

DEADLINE = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
RULES = Late(DEADLINE, days=2, per_day=0.1)


def report(hours: float | None, marked_late: bool = False) -> dict:
    """Of somebody who handed in so many hours after the deadline."""
    time = None if hours is None else (DEADLINE + timedelta(hours=hours)).isoformat()
    stage = {"stage": 4, "earned": earned(100), "outcome": "pass"}
    return {"stages": [stage], "notes": [], "handed_in": time,
            "marked_late": marked_late}


@pytest.mark.parametrize(("hours", "points", "days"), [
    (-5, 100.0, 0), (0, 100.0, 0), (0.1, 90.0, 1), (24, 90.0, 1), (25, 80.0, 2), (49, 0.0, 3),
    (None, 100.0, None)])
def test_each_day_begun_costs_its_share_and_after_the_last_nothing_counts(hours, points, days):
    made = report(hours)
    grades.apply(made, grades.Policy(late=RULES))
    assert (made["points"], made["late_days"]) == (points, days)
    assert bool(made["late"]) == bool(days)


def test_within_the_grace_period_nobody_is_late_after_it_the_deadline_counts():
    rules = Late(DEADLINE, days=2, per_day=0.1, grace=30)
    assert [rules.days_of(DEADLINE + timedelta(minutes=time)) for time in (30, 31, 1440, 1441)
            ] == [0, 1, 1, 2]


def test_what_is_late_says_both_times_and_their_zones():
    made = report(25)
    grades.apply(made, grades.Policy(late=RULES))
    assert made["late"].endswith(
        "(2026-12-01 13:00 UTC+00:00; the deadline was 2026-11-30 12:00 UTC+00:00)")
    made = report(25) | {"handed_in": "2026-12-01T14:00:00"}
    grades.apply(made, grades.Policy(late=RULES))
    assert "2026-12-01 14:00 without a zone; the deadline was 2026-11-30 12:00 UTC" in made["late"]
    grades.apply(made, grades.Policy(late=Late(DEADLINE.replace(tzinfo=None), days=2)))
    assert "2026-12-01 14:00 without a zone; the deadline was" in made["late"]


@pytest.mark.parametrize(("hours", "rules", "words", "points", "days", "notes"), [
    (25, RULES, [grades.Override("anna", 4, 95.0, "was ill")], 95.0, 2, []),  # not reduced
    (None, RULES, [grades.Override("anna", 4, 95.0, "was ill")], 95.0, None, []),
    (None, RULES, [grades.Override("anna", None, None, "mail", days_late=1)], 90.0, 1, []),
    (None, RULES, [], None, None, [late.UNKNOWN]),
    (-1, RULES, [], None, 0, [late.DOUBTED.format("2026-11-30 11:00 UTC+00:00")]),
    (0.5, replace(RULES, grace=30), [], 100.0, 0, []),  # after the deadline, as was said
    (1000, None, [], None, None, [late.UNKNOWN]),
    (None, None, [], None, None, [late.UNKNOWN]),
    (None, None, [grades.Override("anna", None, None, "mail", days_late=3)], 100.0, 3, [])])
def test_work_late_by_unknown_days_has_no_points_until_a_person_says_them(
        hours, rules, words, points, days, notes):
    made = report(hours, marked_late=True)
    grades.apply(made, grades.Policy(late=rules), words)
    assert (made["points"], made["late_days"], made["notes"]) == (points, days, notes)


@pytest.mark.parametrize(("text", "time"), [
    ("2026-11-30T23:59:00+01:00",
     datetime(2026, 11, 30, 23, 59, tzinfo=timezone(timedelta(hours=1)))),
    ("2026-11-30 23:59", datetime(2026, 11, 30, 23, 59)),
    ("Friday, 20 November 2026, 1:00 PM", datetime(2026, 11, 20, 13, 0)),
    ("2026-11-30 23:59:00.5 UTC", datetime(2026, 11, 30, 23, 59, 0, 500000, UTC)),
    ("Friday, November 20, 2026, 1:00 PM", datetime(2026, 11, 20, 13, 0)),
    ("Friday, 20 November 2026, 13:00", datetime(2026, 11, 20, 13, 0)),
    ("2026-11-30 23:59:00.500000000 Z", datetime(2026, 11, 30, 23, 59, 0, 500000, UTC)),
    ("-", None), ("", None), ("tomorrow", None), ("2026-11-30", None)])
def test_times_as_systems_write_them(text, time):
    assert late.read(text) == time


def test_a_time_without_a_zone_is_in_that_of_the_deadline():
    berlin = DEADLINE.astimezone(timezone(timedelta(hours=1)))
    assert Late(berlin).days_of(datetime(2026, 11, 30, 13, 0)) == 0
    assert Late(berlin).days_of(datetime(2026, 11, 30, 13, 1)) == 1


def handed_in(*hours: float) -> Submitted:
    """Somebody with hand-ins so many hours after the deadline."""
    made = tuple(Submitted("anna", f"anna~{i}", time=DEADLINE + timedelta(hours=hour))
                 for i, hour in enumerate(hours, start=1))
    return Submitted("anna", "anna", time=made[-1].time, hand_ins=made)


@pytest.mark.parametrize(("keep", "hours", "keys"), [
    ("last", (-9, -1, 60), ["anna~2"]), ("last", (-9, -1, 30), ["anna~3"]),
    ("last", (60, 70), ["anna~2"]), ("best", (-9, -1, 60), ["anna~1", "anna~2"]),
    ("best", (60, 70), ["anna~2"])])
def test_of_several_hand_ins_those_count_that_are_not_too_late(keep, hours, keys):
    rules = Late(DEADLINE, days=2, keep=keep)
    assert [each.key for each in grades.that_count(handed_in(*hours), rules)] == keys
    assert grades.that_count(handed_in(*hours), None)[0].key == f"anna~{len(hours)}"


def test_times_come_with_the_downloads_that_hold_them(tmp_path):
    make(tmp_path / "in", {"anna": {2: "x"}, "Ben Braun_4712_assignsubmission_file": {2: "y"}})
    (tmp_path / "in/carlocara_LATE_103_55_problem_2.py").write_text("z")
    (tmp_path / "class.csv").write_text(
        "Identifier,Full name,Last modified (submission)\n"
        'Participant 4711,Anna,"Thursday, 19 November 2026, 1:00\u202fPM"\n'
        'Participant 4712,Ben Braun,"Friday, 20 November 2026, 1:00 PM"\n'
        "Participant 103,Carlo Cara,-\n")
    anna, ben, carlo = gather(tmp_path / "in", tmp_path / "class.csv")
    assert anna.time == datetime(2026, 11, 19, 13, 0)
    assert ben.time == datetime(2026, 11, 20, 13, 0)
    assert carlo.time is None and carlo.marked_late and not ben.marked_late


@pytest.mark.parametrize("below", ["", "flash"])
def test_nbgraders_times_count_where_every_student_has_one_in_one_place(tmp_path, below):
    names = ("anna", "ben", "cleo")
    make(tmp_path, {f"{name}/{below}": {2: "x"} for name in names})
    for name in names:
        (tmp_path / name / below / "timestamp.txt").write_text("2026-11-30 23:59:00 UTC\n")
    in_time = datetime(2026, 11, 30, 23, 59, tzinfo=UTC)
    assert [each.time for each in gather(tmp_path)] == [in_time] * 3
    (tmp_path / "cleo" / below / "timestamp.txt").unlink()
    assert [each.time for each in gather(tmp_path)] == [None] * 3


def test_nbgraders_times_are_those_of_the_assignment_that_is_graded(tmp_path):
    for name, day in (("anna/hw1", 1), ("ben/hw1", 1), ("ben/hw3", 27), ("cleo/hw3", 19)):
        make(tmp_path, {name: {int(name[-1]): "x"}})
        (tmp_path / name / "timestamp.txt").write_text(f"2026-11-{day:02} 20:00:00 UTC\n")

    def days(stage):
        return [each.time and each.time.day for each in gather(tmp_path, asked=Asked({stage}))]

    assert days(3) == [None, 27, 19] and days(1) == [1, 1, None]
    (tmp_path / "cleo/hw3/timestamp.txt").unlink()
    assert days(3) == [None] * 3
    (tmp_path / "cleo/hw3").rename(tmp_path / "cleo/own")  # then ben may have written his
    assert days(3) == [None] * 3


def test_no_student_says_when_they_handed_in(tmp_path):
    forged = "2020-01-01 00:00:00 UTC\n"
    for system, name in (("canvas", "aberanna_LATE_101_55_"),
                         ("moodle", "Anna Aber_4711_assignsubmission_file_")):
        (tmp_path / system).mkdir()
        for file, text in (("problem_2.py", "x"), ("timestamp.txt", forged)):
            (tmp_path / system / (name + file)).write_text(text)
    make(tmp_path / "folders", {"Anna_4711_assignsubmission_file": {2: "x"}})
    (tmp_path / "folders/Anna_4711_assignsubmission_file/timestamp.txt").write_text(forged)
    (tmp_path / "archives").mkdir()
    for archive in ("archives/anna.zip", "class.zip"):
        with zipfile.ZipFile(tmp_path / archive, "w") as packed:
            for file, text in (("anna/problem_2.py", "x"), ("anna/timestamp.txt", forged)):
                packed.writestr(file, text)
    for place in ("canvas", "moodle", "folders", "archives", "class.zip"):
        (anna,) = gather(tmp_path / place)
        assert anna.files and anna.time is None and anna.marked_late == (place == "canvas"), place


INDEX = """name,path,time
anna,first,2026-11-28T10:00:00+00:00
anna,second,2026-11-30T18:00:00+00:00
anna,third,2026-12-05T10:00:00+00:00
"""


@pytest.mark.parametrize(("keep", "outcome", "points", "text"), [
    ("last", "wrong", "0.0", "wrong # b"), ("best", "pass", "100.0", "pass # a")])
def test_the_last_or_the_best_of_an_index_is_graded(tmp_path, monkeypatch, keep, outcome, points,
                                                    text):
    grade = classes.program(monkeypatch, tmp_path)
    make(tmp_path / "in", {"first": {2: "pass # a"}, "second": {2: "wrong # b"},
                           "third": {2: "pass # c"}})
    (tmp_path / "in/index.csv").write_text(INDEX)
    (tmp_path / "policy.toml").write_text(
        f"[late]\ndeadline = 2026-11-30T12:00:00Z\ndays = 2\nper_day = 0.1\nkeep = '{keep}'\n")
    assert grade("--policy", tmp_path / "policy.toml",
                 submissions=tmp_path / "in/index.csv") == 0
    (row,) = (tmp_path / "out/grades.csv").read_text().splitlines()[1:]
    assert f",{outcome}" in row and f",{points}," in row
    assert "# c" not in (tmp_path / "asked").read_text(), "it came too late to count"
    assert (tmp_path / "out/submissions/anna/problem_2.py").read_text() == text


@pytest.mark.parametrize("keep", ["last", "best"])
def test_a_download_with_a_hand_in_too_late_leaves_the_grade(tmp_path, monkeypatch, keep):
    grade = classes.program(monkeypatch, tmp_path)
    (tmp_path / "policy.toml").write_text(
        f"[late]\ndeadline = 2026-11-30T12:00:00Z\ndays = 2\nkeep = '{keep}'\n")
    options = ("--roster", tmp_path / "class.csv", "--policy", tmp_path / "policy.toml")
    for hand_in, time in (("pass # a", "30 10:00"), *[("wrong # b", "03 10:00")] * 2):
        make(tmp_path / "in", {"anna": {2: hand_in}})
        month = "11" if time.startswith("30") else "12"
        (tmp_path / "class.csv").write_text(f"name,handed in\nanna,2026-{month}-{time}\n")
        assert grade(*options) == 0
        assert ",100.0," in (tmp_path / "out/grades.csv").read_text()
    for page in ("feedback/anna.md", "summary.html"):
        assert (tmp_path / "out" / page).read_text().count(grades.TOO_LATE) == 1
    assert (tmp_path / "out/submissions/anna/problem_2.py").read_text() == "pass # a"
    (tmp_path / "days.csv").write_text("student,stage,points,reason,days_late\nanna,*,,agreed,0\n")
    assert grade(*options, "--overrides", tmp_path / "days.csv", "--yes") == 0
    points = "100.0" if keep == "best" else "0.0"
    assert f",{points}," in (tmp_path / "out/grades.csv").read_text()


@pytest.mark.parametrize("place", ["index", "roster", "worksheet"])
def test_a_time_that_was_corrected_is_no_second_hand_in(tmp_path, monkeypatch, place):
    grade = classes.program(monkeypatch, tmp_path)
    make(tmp_path / "in", {"anna": {2: "pass"}})
    (tmp_path / "policy.toml").write_text("[late]\ndeadline = 2026-11-30T12:00:00Z\n")
    options, given = ("--policy", tmp_path / "policy.toml", "--yes"), tmp_path / "in"
    for time, points in (("2026-11-30 10:00", "100.0"), ("2026-11-30 13:00", "0.0")):
        table, text = "class.csv", f"name,handed in\nanna,{time}\n"
        if place == "index":
            table, text = "in/i.csv", f"name,path,time\nanna,anna,{time}\n"
            given = tmp_path / table
        elif place == "worksheet":  # Moodle's own time: the same file was handed in again
            text, points = text.replace("handed in", "last modified (submission)"), "100.0"
        (tmp_path / table).write_text(text)
        roster = () if place == "index" else ("--roster", tmp_path / table)
        assert grade(*options, *roster, submissions=given) == 0
        assert f",{points}," in (tmp_path / "out/grades.csv").read_text()
        assert (grades.TOO_LATE in (tmp_path / "out/feedback/anna.md").read_text()) == (
            place == "worksheet" and time.endswith("13:00"))


def test_days_that_a_person_set_are_not_those_of_a_later_hand_in(tmp_path, monkeypatch, capsys):
    grade = classes.program(monkeypatch, tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "policy.toml").write_text(
        "[late]\ndeadline = 2026-11-30T12:00:00Z\ndays = 2\nper_day = 0.1\n")
    options = ("--policy", tmp_path / "policy.toml", "--overrides", tmp_path / "days.csv", "--yes")
    for number, days, reason, code, points in (
            (54, 1, "by the log", 0, "90.0"), (54, 1, "by the log", 0, "90.0"),
            (55, 1, "by the log", 3, ""), (55, 1, "by the log", 3, ""),
            (55, 2, "by the log", 0, "80.0"), (56, 2, "by the log", 3, ""),
            (56, 2, "the log again", 0, "80.0")):
        for path in (tmp_path / "in").iterdir():
            path.unlink()
        (tmp_path / f"in/aberanna_LATE_101_{number}_problem_2.py").write_text(f"pass # {number}")
        (tmp_path / "days.csv").write_text(
            f"student,stage,points,reason,days_late\naberanna,*,,{reason},{days}\n")
        assert grade(*options) == code
        with open(tmp_path / "out/grades.csv", newline="", encoding="utf-8") as file:
            assert next(csv.DictReader(file))["points"] == points
        assert ("1 newer than the days that a person set" in capsys.readouterr().out) == (code == 3)
    page = (tmp_path / "out/feedback/aberanna.md").read_text()
    assert "newer" not in page and "80 points of 100" in page


def test_days_of_an_earlier_hand_in_wait_whatever_the_policy(tmp_path, monkeypatch):
    grade = classes.program(monkeypatch, tmp_path)
    (tmp_path / "days.csv").write_text("student,stage,points,reason,days_late\nanna,*,,log,1\n")
    options = ("--policy", tmp_path / "policy.toml", "--overrides", tmp_path / "days.csv", "--yes")
    for text, share, code in (("pass", 0.1, 0), ("pass # b", 0.1, 3), ("pass # b", 0.2, 3)):
        make(tmp_path / "in", {"anna": {2: text}})
        (tmp_path / "policy.toml").write_text(
            f"[late]\ndeadline = 2026-11-30T12:00:00Z\ndays = 2\nper_day = {share}\n")
        assert grade(*options) == code


def test_days_that_are_set_before_a_hand_in_count_for_it(tmp_path, monkeypatch):
    grade = classes.program(monkeypatch, tmp_path)
    make(tmp_path / "in", {"ben": {2: "pass"}})
    (tmp_path / "class.csv").write_text("name\nanna\nben\n")
    (tmp_path / "days.csv").write_text("student,stage,points,reason,days_late\nanna,*,,agreed,0\n")
    options = ("--roster", tmp_path / "class.csv", "--overrides", tmp_path / "days.csv",
               "--partial")
    assert grade(*options) == 0
    make(tmp_path / "in", {"anna": {2: "pass # a"}})
    assert grade(*options) == 0 and ",100.0," in (tmp_path / "out/grades.csv").read_text()


def test_more_days_than_count_are_asked_about_before_they_give_a_zero(
        tmp_path, monkeypatch, capsys):
    grade = classes.program(monkeypatch, tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/aberanna_LATE_101_54_problem_2.py").write_text("pass")
    (tmp_path / "class.csv").write_text("name,login,extension\nAnna,aberanna,2026-12-05T12:00Z\n")
    (tmp_path / "policy.toml").write_text("[late]\ndeadline = 2026-11-30T12:00:00Z\ndays = 2\n")
    options = [each for name in ("roster", "policy", "overrides") for each in (
        f"--{name}", tmp_path / {"roster": "class.csv", "policy": "policy.toml"}.get(
            name, "days.csv"))]
    for days, code in ((4, 2), (0, 0)):
        (tmp_path / "days.csv").write_text(
            f"student,stage,points,reason,days_late\nAnna,*,,agreed,{days}\n")
        assert grade(*options) == code and (tmp_path / "out").exists() == (code == 0)
        assert ("want days_late of 0 to 2, the days that count; got 4 for Anna: write 0 if an "
                "extension covers them" in capsys.readouterr().err) == (code == 2)
    assert ",100.0," in (tmp_path / "out/grades.csv").read_text()


def test_before_a_person_says_how_late_they_read_what_the_earlier_had(tmp_path, monkeypatch):
    grade = classes.program(monkeypatch, tmp_path)
    (tmp_path / "in").mkdir()
    (tmp_path / "in/aberanna_101_54_problem_2.py").write_text("pass")
    assert grade() == 0
    (tmp_path / "in/aberanna_101_54_problem_2.py").unlink()
    (tmp_path / "in/aberanna_LATE_101_55_problem_2.py").write_text("wrong")
    for _ in range(2):
        assert grade("--yes") == 3
        page = (tmp_path / "out/summary.html").read_text()
        assert page.count(f"{standing.EARLIER}, with 100 points") == 1


def test_a_hand_in_within_an_extension_counts_among_several():
    several = replace(handed_in(-1, 60), person=Person(extension="2026-12-05T12:00:00Z"))
    assert [each.key for each in grades.that_count(several, RULES)] == ["anna~2"]


@pytest.fixture
def best_of(tmp_path, monkeypatch):
    """best_of(first, second, *options): grade anna's two hand-ins, of which the best counts.  ->
    the exit code, her points."""
    grade = classes.program(monkeypatch, tmp_path)
    (tmp_path / "policy.toml").write_text(
        "[late]\ndeadline = 2026-11-30T12:00:00Z\ndays = 2\nkeep = 'best'\n")

    def best(first: str, second: str, *options, more: str = "") -> tuple[int, str]:
        make(tmp_path / "in", {"first": {2: first}, "second": {2: second}})
        (tmp_path / "in/index.csv").write_text("".join(INDEX.splitlines(True)[:3]) + more)
        code = grade("--policy", tmp_path / "policy.toml", *options,
                     submissions=tmp_path / "in/index.csv")
        with open(tmp_path / "out/grades.csv", newline="", encoding="utf-8") as file:
            return code, next(csv.DictReader(file))["points"]
    return best


def test_the_history_says_that_an_earlier_hand_in_counts(best_of, tmp_path):
    assert best_of("pass # a", "wrong # b") == (0, "100.0")
    policy = tmp_path / "policy.toml"
    for keep, time, points in (("last", "30 18:00", "0.0"), ("best", "28 10:00", "100.0")):
        policy.write_text(policy.read_text().replace("best", keep).replace("last", keep))
        assert best_of("pass # a", "wrong # b", "--yes") == (0, points)
        with open(tmp_path / "out/audit/history.csv", newline="", encoding="utf-8") as file:
            assert [row["reason"].partition("; ")[0] for row in csv.DictReader(file)][-2:] == [
                f"the hand-in of 2026-11-{time} UTC+00:00 counts"] * 2


def test_the_file_that_was_graded_is_the_one_that_is_compared(best_of, tmp_path):
    make(tmp_path / "in", {"other": {2: "pass # a"}})
    best_of("pass # a", "wrong # b", more="ben,other,2026-11-29T10:00:00+00:00\n")
    assert "anna; ben</th><td>equal files" in (tmp_path / "out/summary.html").read_text()


@pytest.mark.parametrize(("first", "second", "code", "points"), [
    ("dies", "wrong", 3, ""), ("wrong", "dies", 3, ""), ("dies", "pass", 0, "100.0"),
    ("pass", "dies", 0, "100.0")])
def test_the_best_is_not_known_while_one_that_may_be_better_is_blocked(best_of, first, second,
                                                                       code, points):
    assert best_of(first, second) == (code, points)


def test_a_grade_stands_while_the_best_hand_in_waits_to_be_graded_again(best_of, tmp_path,
                                                                        monkeypatch):
    assert best_of("pass # a", "wrong # b") == (0, "100.0")

    def interrupted(self):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(batch.Batch, "run", interrupted)
        assert best_of("pass # a", "wrong # b", "--again", "anna", "--yes") == (130, "100.0")
    assert best_of("pass # a", "wrong # b") == (0, "100.0")
    asked = (tmp_path / "asked").read_text().splitlines()
    assert sorted(asked) == ["2 pass # a False None"] * 2 + ["2 wrong # b False None"] * 2


def test_a_deadline_without_times_is_said(tmp_path, monkeypatch, capsys):
    make(tmp_path / "in", {"anna": {2: "pass"}, "ben": {2: "pass # b"}})
    (tmp_path / "class.csv").write_text("name,handed in\nanna,\nben,2026-11-30 10:00\ncleo,\n")
    (tmp_path / "policy.toml").write_text("[late]\ndeadline = 2026-11-30T12:00:00Z\n")
    grade = classes.program(monkeypatch, tmp_path)
    assert grade("--roster", tmp_path / "class.csv", "--policy", tmp_path / "policy.toml") == 0
    assert "it is not known when 1 of 3 students handed in" in capsys.readouterr().out


GERMAN = "ID,Vollständiger Name,Status,Bewertung,Zuletzt geändert (Abgabe){more}\n" \
    'Teilnehmer/in11,Anna,Zur Bewertung abgegeben,-,"Montag, 30. November 2026, 13:00"{time}\n' \
    "Teilnehmer/in12,Ben,Keine Abgabe,-,-{none}\nTeilnehmer/in13,Cleo,Keine Abgabe,-,-{none}\n"


def test_times_in_another_language_ask_for_a_column_of_plain_ones(tmp_path, monkeypatch, capsys):
    make(tmp_path / "in", {"Anna_11_assignsubmission_file": {2: "pass"}})
    (tmp_path / "policy.toml").write_text(
        "[late]\ndeadline = 2026-11-30T12:00:00\ndays = 1\nper_day = 0.5\n")
    grade = classes.program(monkeypatch, tmp_path)
    options = ("--roster", tmp_path / "class.csv", "--policy", tmp_path / "policy.toml",
               "--partial")
    (tmp_path / "class.csv").write_text(GERMAN.format(more="", time="", none=""), "utf-8")
    assert grade(*options) == 2
    assert "got Zur Bewertung abgegeben of Anna in class.csv" in capsys.readouterr().err
    (tmp_path / "class.csv").write_text(GERMAN.format(
        more=",submission_status", time=",submitted", none=",no submission"), "utf-8")
    assert grade(*options) == 2
    assert "got Montag, 30. November 2026, 13:00 of Anna" in (said := capsys.readouterr().err)
    assert "add a column handed_in" in said and not (tmp_path / "out").exists()
    (tmp_path / "class.csv").write_text(GERMAN.format(
        more=",handed_in,submission_status", time=",2026-11-30T13:00,submitted",
        none=",,no submission"), "utf-8")
    assert grade(*options) == 0
    assert ",50.0,100," in (tmp_path / "out/grades.csv").read_text()


def test_days_of_a_terms_budget_cost_nothing_until_they_are_spent(tmp_path):
    (tmp_path / "hw1.csv").write_text(
        "student,id,login,email,late_days,free_days\nAnna,7,,,2,2\nBen,8,,,1,\n"
        "Cleo,,,,1,1\nDora,,,,0,0\n")
    path = tmp_path / "policy.toml"
    path.write_text("[late]\ndeadline = 2026-11-30T12:00:00Z\ndays = 4\nper_day = 0.1\n"
                    "budget = 3\nspent = ['hw1.csv']\n")
    rules = grades.read(path)
    anna, ben = Person("Anna", "7"), Person("Dr. Ben", "9", also=(("sid", "8"),))
    spent, doubts, lines = rules.late.spent_by([anna, ben])
    assert not doubts
    assert lines == ["spent: Cleo used 1 of the budget's days, and matches no student"]
    for person, hours, points, free in (
            (anna, 47, 90.0, 1), (ben, 47, 100.0, 2), (ben, 95, 90.0, 3), (ben, 1000, 0.0, 0),
            (ben, -1, 100.0, 0)):
        made = report(hours)
        grades.apply(made, rules, spent=spent[person])
        assert (made["points"], made["free_days"]) == (points, free)
    (tmp_path / "old.csv").write_text("name\n")
    (tmp_path / "half.csv").write_text("student,free_days\nAnna,1.5\n")
    for wrong, says in (("budget = -1", "want a budget of 0"), ("spent = 3", "want spent ="),
                        ("spent = ['gone.csv']", "want a table, a .csv; got"),
                        ("spent = ['half.csv']", "want whole days .*; got 1.5 of Anna"),
                        ("spent = ['old.csv']", "want the columns student, free_days; got name")):
        path.write_text(f"[late]\ndeadline = 2026-11-30T12:00:00Z\n{wrong}\n")
        with pytest.raises(ValueError, match=says):
            grades.read(path)


@pytest.mark.parametrize("row", ['"Braun, Ben",,', "ben.braun,,", ",8,", ",,b@x"])
def test_days_spent_are_found_by_any_name_or_number(tmp_path, monkeypatch, capsys, row):
    make(tmp_path / "in", {"Ben Braun": {2: "pass"}})
    (tmp_path / "class.csv").write_text(
        "name,id,login,email,sis user id,handed in\nBen Braun,7,benbraun,b@x,8,2026-11-30 13:00\n")
    (tmp_path / "hw1.csv").write_text(f"student,id,email,free_days\n{row},1\nCleo,9,,1\n")
    (tmp_path / "policy.toml").write_text(
        "[late]\ndeadline = 2026-11-30T12:00:00\ndays = 1\nper_day = 0.5\nbudget = 1\n"
        "spent = ['hw1.csv']\n")
    grade = classes.program(monkeypatch, tmp_path)
    assert grade("--roster", tmp_path / "class.csv", "--policy", tmp_path / "policy.toml") == 0
    assert ",50.0," in (tmp_path / "out/grades.csv").read_text()
    assert "spent: Cleo used 1 of the budget's days, and matches no student" in (
        capsys.readouterr().out)


@pytest.mark.parametrize(("now", "more", "points"), [
    (("Chen Li,7", "Chen Li,8"), "", ["", ""]), (("Chen Li,7",), "", [""]),
    (("Chen Li,7", "Li Chen,4703"), "", ["100.0", "50.0"]),
    (("Chen Li,7", "Chen Li,8"), "budget = 3", ["100.0", "100.0"]),
    (("Chen Li,7", "Chen Li,8"), "per_day = 0.5\ndays = 0", ["0.0", "0.0"]),
    (("Chen Lin,7", "Li,8"), "", ["100.0", "100.0"])])
def test_days_spent_by_a_namesake_hold_a_grade_that_they_may_change(
        tmp_path, monkeypatch, capsys, now, more, points):
    make(tmp_path / "in", {row.replace(",", " ("): {2: f"pass # {row}"} for row in now})
    (tmp_path / "in/index.csv").write_text("name,path,time\n" + "".join(
        f"{row.partition(',')[2]},{row.replace(',', ' (')},2026-11-30T13:00\n" for row in now))
    (tmp_path / "class.csv").write_text("name,id\n" + "\n".join(now))
    (tmp_path / "hw1.csv").write_text(
        "student,id,free_days\nChen Li (4703),4703,2\nChen Li (4704),4704,0\n")
    rules = {"deadline": "2026-11-30T12:00:00", "days": 2, "per_day": 0.5, "budget": 2,
             "spent": "['hw1.csv']"} | dict(line.split(" = ") for line in more.splitlines())
    (tmp_path / "policy.toml").write_text("[late]\n" + "".join(
        f"{name} = {value}\n" for name, value in rules.items()))
    grade = classes.program(monkeypatch, tmp_path)
    code = grade("--roster", tmp_path / "class.csv", "--policy", tmp_path / "policy.toml",
                 submissions=tmp_path / "in/index.csv")
    with open(tmp_path / "out/grades.csv", newline="", encoding="utf-8") as file:
        assert [row["points"] for row in csv.DictReader(file)] == points
    held = f"No grade yet for {len(now)} of {len(now)} students: {len(now)} late by free days that"
    assert code == 3 * ("" in points) and (held in capsys.readouterr().out) == ("" in points)


def test_an_index_with_a_time_that_is_none_is_refused(tmp_path):
    make(tmp_path, {"first": {2: "x"}})
    (tmp_path / "index.csv").write_text("name,path,time\nanna,first,yesterday\n")
    with pytest.raises(ValueError, match="want a time such as .*; got yesterday in row 2"):
        gather(tmp_path / "index.csv")
