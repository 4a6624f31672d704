"""Groups of checks become an outcome and points."""

from types import SimpleNamespace

import pytest

from grader.judge.points import settle
from grader.report.results import Check, StageResult

PASS, WRONG, LATE = "pass", "wrong", "late"
CASES = [SimpleNamespace(name=name, group=group) for name, group in (
    ("s1", "standard"), ("s2", "standard"), ("r1", "robust"))]


def settled(cases=CASES, quick=False, case=None, before="", **outcomes) -> StageResult:
    """A stage of 200 points.  outcomes: of each check by its name; those of s are standard, r
    robust, w count what loops visit, b lie beyond the stage.  LATE: not checked on a busy
    machine."""
    groups = {"s": "standard", "r": "robust", "w": "walk", "b": "beyond"}
    result = StageResult(3, "Three", 200)
    result.outcome = before or result.outcome
    result.checks += [Check(name, groups[name[0]], "skipped", what="the machine was busy",
                            not_checked=True) if outcome == LATE
                      else Check(name, groups[name[0]], outcome, what="why")
                      for name, outcome in outcomes.items()]
    settle(result, cases, SimpleNamespace(quick=quick, case=case))
    return result


ALL = {"s1": PASS, "s2": PASS, "r1": PASS}


@pytest.mark.parametrize(("checks", "outcome", "points", "earned"), [
    ({}, "pass", 200, ["standard", "robust", "walk"]),
    ({"s2": WRONG}, "wrong", 60, ["robust", "walk"]),
    ({"r1": WRONG}, "wrong", 140, ["standard"]),
    ({"s1": WRONG, "r1": "crashed"}, "wrong", 0, []),
    ({"s1": "skipped", "r1": "crashed"}, "crashed", 0, []),
    ({"s1": "skipped"}, "skipped", 60, ["robust", "walk"]),
    ({"w1": "needless work"}, "pass", 180, ["standard", "robust"]),
    ({"w1": "skipped"}, "pass", 200, ["standard", "robust", "walk"]),
    ({"b1": WRONG}, "pass", 200, ["standard", "robust", "walk"]),
    ({"s1": "rejected"}, "rejected", 0, []),
    ({"s1": WRONG, "r1": "not_started"}, "not_started", 0, []),
    ({"s1": LATE}, "pass", 200, ["standard", "robust", "walk"]),
    ({"s1": LATE, "s2": WRONG}, "wrong", 60, ["robust", "walk"]),
    ({"r1": LATE}, "grader_fault", 140, ["standard"]),
    ({"s1": "grader_fault"}, "grader_fault", 60, ["robust", "walk"]),
    ({"s1": WRONG, "s2": "grader_fault"}, "grader_fault", 60, ["robust", "walk"])])
def test_a_group_in_which_a_case_failed_earns_nothing(checks, outcome, points, earned):
    result = settled(**ALL | checks)
    assert (result.outcome, result.points, result.earned) == (outcome, points, earned)


def test_a_group_of_which_a_case_did_not_run_earns_nothing():
    assert settled(s1=PASS, r1=PASS).earned == ["robust", "walk"]
    assert settled(s1=PASS, s2=PASS).earned == ["standard"]


def test_a_stage_without_cases_keeps_what_it_is():
    result = settled([], before="missing")
    assert (result.outcome, result.points) == ("missing", 0)


def test_a_fault_of_ours_before_the_cases_is_not_hidden_by_right_ones():
    assert settled(before="grader_fault", **ALL).outcome == "grader_fault"


def test_quick_earns_the_standard_group_and_says_what_is_left():
    result = settled(CASES[:2], quick=True, s1=PASS, s2=PASS)
    assert (result.outcome, result.points, result.earned) == ("pass", 140, ["standard"])
    assert "30 %" in result.sentence
    assert settled(CASES[:2], quick=True, s1=WRONG, s2=PASS).sentence == ""


def test_one_case_alone_decides_and_earns_no_points():
    right, wrong = (settled([SimpleNamespace(name="b1", group="beyond")], case="b1", b1=outcome)
                    for outcome in (PASS, WRONG))
    assert [(one.outcome, one.points) for one in (right, wrong)] == [("pass", 0), ("wrong", 0)]
    assert "no points" in right.sentence


@pytest.mark.parametrize(("checks", "says"), [
    ({"s1": LATE}, "1 of 3 cases was not checked, which costs no points: the machine was busy."),
    ({"s1": LATE, "s2": LATE, "r1": PASS}, "2 of 3 cases were not checked"),
    ({"s1": "skipped", "w1": PASS, "b1": PASS}, "1 of 3 cases was skipped: why."),
    ({"s1": "skipped", "s2": "skipped"}, "2 of 3 cases were skipped: why."),
    ({"s1": "skipped", "s2": "skipped", "r1": "skipped"}, "why.")])
def test_what_was_not_checked_or_skipped_is_said_with_its_reason(checks, says):
    assert settled(**ALL | checks).sentence.startswith(says)
