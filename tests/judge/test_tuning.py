"""Every configuration of an autotuned kernel is judged; the worker is a stand-in here."""

import io

import pytest

from grader.assignment import submission
from grader.course.calls import SubmissionError, Tuned
from grader.course.case_table import listed
from grader.course.stages import STAGES
from grader.host.options import Options
from grader.judge.known import Known
from grader.judge.points import settle
from grader.judge.tuning import MOST, run_configurations, small_cases
from grader.report.results import Check
from grader.report.screen import Reporter
from tests.judged import answered

CONFIGURATIONS = tuple(f"BLOCK={16 << i}" for i in range(MOST + 2))


class Tuning:
    """Stands in for the session of a file with one autotuned kernel.  wrong(number, timed)."""

    gone = False

    def __init__(self, cases, wrong):
        self.cases, self.wrong, self.asked = list(cases), wrong, []

    def run(self, call):
        kernel, number, timed = call.configuration
        self.asked.append((number, timed))
        case = next(case for case in self.cases if call.outputs[0].shape == (case.M,))
        _, reply = answered(case)
        reply.tuned = Tuned(changed=("y_ptr",) if timed else ())
        if how := self.wrong(number, timed):
            if how == "crashed":
                raise SubmissionError("crashed", "tl.store writes outside of its tensor")
            reply.outputs[0]["y"] += 1
        return reply


@pytest.fixture
def tuned(tmp_path):
    """tuned(wrong) -> what is known afterwards of a file right in all cases of stage 2."""
    def run(wrong=lambda number, timed: False, configurations=CONFIGURATIONS):
        (tmp_path / "problem_2.py").write_text("def weighted_row_sum_forward(x, w): ...\n")
        stage = STAGES[2]
        known = Known(stage, Options(tmp_path, "cpu", 0, 60.0), Reporter(io.StringIO()))
        known.file = submission.read(tmp_path, stage.filename, stage.entry)
        known.cases = [case for case in listed(2, "cpu", False)
                       if case.group in ("standard", "robust") and not case.grads]
        known.result.checks = [Check(case.name, case.group, "pass") for case in known.cases]
        known.tuned = {"_sum_kernel": configurations}
        known.session = Tuning(small_cases(known), wrong)
        run_configurations(known)
        settle(known.result, known.cases, known.options)
        return known
    return run


def test_every_configuration_runs_a_standard_case_and_a_ragged_one_and_those_left_out_are_named(
        tuned):
    known = tuned()
    assert [case.group for case in known.session.cases] == ["standard", "robust"]
    assert known.session.cases[1].N % 16
    assert known.session.asked == [(i, i == 0) for i in range(MOST) for _ in range(2)]
    assert known.result.checks[-1].label == (
        f"({MOST} configurations of _sum_kernel, not {'; '.join(CONFIGURATIONS[MOST:])})")
    assert (known.result.outcome, known.result.points) == ("pass", 100)


def test_a_kernel_in_one_configuration_has_none_to_choose(tuned):
    assert tuned(configurations=("BLOCK=16",)).session.asked == []


@pytest.mark.parametrize("how", ["wrong", "crashed"])
def test_a_later_configuration_that_is_wrong_makes_the_stage_wrong_and_is_named(tuned, how):
    known = tuned(lambda number, timed: how if number == 2 else "")
    check = known.result.checks[-1]
    assert check.outcome == known.result.outcome == how
    assert check.lines[0].startswith("The autotuner may choose BLOCK=64 for _sum_kernel, which is")
    assert len(check.lines) > 2 and check.lines[-1].startswith("again: python autograder.py --p2")
    assert known.result.earned == ["standard"]


def test_a_kernel_that_adds_to_what_its_timed_runs_left_is_told_what_to_reset(tuned):
    known = tuned(lambda number, timed: timed)
    failed = [check for check in known.result.checks if check.outcome == "wrong"]
    assert {check.group for check in failed} == {"standard", "robust"}
    for check in failed:
        assert "Each run adds to y_ptr, so the answer is wrong on a GPU." in check.lines[0]
        assert "reset_to_zero=['y_ptr']" in check.lines[1]
    assert (known.result.outcome, known.result.points) == ("wrong", 0)


def test_what_a_worker_says_of_autotuned_kernels_is_read_or_refused():
    assert Tuned.read(None) == Tuned()
    said = {"configurations": {"k": ["BLOCK=1"]}, "changed": ["y"]}
    assert Tuned.read(said) == Tuned({"k": ("BLOCK=1",)}, ("y",))
    with pytest.raises(TypeError):
        Tuned.read({"configurations": {"k": 3}, "changed": []})
