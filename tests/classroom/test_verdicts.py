"""Every stage is a test: passed, failed by a mistake that is named, or not settled."""

from classroom.verdicts import verdicts
from tests.classroom.test_reports import book, stage

RED = {"id": "2.3", "light": "wrong", "mistake": "window", "text": "given x:\nit is too wide."}


def test_a_stage_passed_failed_or_is_not_settled(tmp_path):
    (report,) = book(tmp_path, {"anna": {1: stage(1, "pass", 100.0),
                                         2: stage(2, "grader_fault")}})
    one, two = verdicts(report)
    assert (one.name, one.passed, one.points, one.max_points) == ("p1", True, 200.0, 200)
    assert (one.said, one.mistake, one.help) == ("", "", "")
    assert two.passed is None and two.points == 0.0


def test_the_step_that_is_red_names_the_mistake_and_the_hint(tmp_path):
    (report,) = book(tmp_path, {"anna": {2: stage(2, "wrong", steps=[RED])}})
    missing, two = verdicts(report)
    assert two.mistake == "step 2.3: it is too wide"
    assert two.help == "python autograder.py --hint 2.3"
    assert two.said.splitlines()[0] == two.mistake
    assert missing.mistake == "no problem_1.py was handed in"
    assert missing.help == "python autograder.py --p1"


def test_without_a_red_step_the_first_failing_case_does(tmp_path):
    diagnosis = {"id": "no-mask", "kind": "named", "text": "no mask is applied", "step": "2.3"}
    (report,) = book(tmp_path, {"anna": {2: stage(2, "wrong", check={"diagnosis": diagnosis})}})
    assert verdicts(report)[1].mistake == "no mask is applied"
