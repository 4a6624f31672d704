"""Every configuration of an autotuned kernel is judged; the worker is a stand-in here."""

import io

import pytest

from grader.assignment import submission
from grader.course.calls import SubmissionError, Tuned
from grader.course.case_table import listed
from grader.course.stages import STAGES
from grader.host.clock import Clock
from grader.host.options import Options
from grader.judge.context import GradingContext
from grader.judge.points import settle
from grader.judge.run_cases import CasesRun
from grader.judge.tuning import MOST, run_configurations, small_cases
from grader.report.results import Check, StageResult
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
    """tuned(wrong) -> session and result of a file that is right in all cases of stage 2."""
    def run(wrong=lambda number, timed: False, configurations=CONFIGURATIONS):
        (tmp_path / "problem_2.py").write_text(
            "def kernel(): pass\ndef weighted_row_sum_forward(x, w): ...\n")
        stage = STAGES[2]
        file = submission.read(tmp_path, stage.filename, stage.entry)
        result = StageResult(2, stage.title, stage.points)
        context = GradingContext(stage, file, Options(tmp_path, "cpu", 0, 60.0, clock=Clock(600)),
                                 Reporter(io.StringIO()), result)
        cases = [case for case in listed(2, "cpu", False)
                 if case.group in ("standard", "robust") and not case.grads]
        result.checks = [Check(case.name, case.group, "pass") for case in cases]
        session = Tuning(small_cases(stage, cases), wrong)
        run_configurations(context, CasesRun(
            prepare=None, explained=True, session=session,
            tuned={"_plain_kernel": CONFIGURATIONS[:1], "_sum_kernel": configurations}), cases)
        settle(result, cases, context.options)
        return session, result
    return run


def test_every_configuration_runs_two_cases_and_those_left_out_are_named(
        tuned):
    session, result = tuned()
    assert [case.group for case in session.cases] == ["standard", "robust"]
    assert session.cases[1].N % 16
    assert session.asked == [(i, i == 0) for i in range(MOST) for _ in range(2)]
    assert result.checks[-1].label == (
        f"({MOST} configurations of _sum_kernel, not {'; '.join(CONFIGURATIONS[MOST:])})")
    assert (result.outcome, result.points) == ("pass", 100)


def test_a_kernel_in_one_configuration_has_none_to_choose(tuned):
    assert tuned(configurations=("BLOCK=16",))[0].asked == []


@pytest.mark.parametrize("how", ["wrong", "crashed"])
def test_a_later_configuration_that_is_wrong_makes_the_stage_wrong_and_is_named(tuned, how):
    session, result = tuned(lambda number, timed: how if number == 2 else "")
    check = result.checks[-1]
    assert check.outcome == result.outcome == how
    assert check.lines[0].startswith("The autotuner may choose BLOCK=64 for _sum_kernel, and that")
    assert len(check.what) > 90 and check.again.startswith("python autograder.py --p2")
    assert result.earned == ["standard"]


def test_a_kernel_that_adds_to_what_its_timed_runs_left_is_told_what_to_reset(tuned):
    session, result = tuned(lambda number, timed: timed)
    failed = [check for check in result.checks if check.outcome == "wrong"]
    assert {check.group for check in failed} == {"standard", "robust"}
    for check in failed:
        assert "Each run adds to y_ptr, so the answer is wrong on a GPU." in check.lines[0]
        assert "reset_to_zero=['y_ptr']" in check.lines[1]
    assert (result.outcome, result.points) == ("wrong", 0)


def test_what_a_worker_says_of_autotuned_kernels_is_read_or_refused():
    assert Tuned.read(None) == Tuned()
    said = {"configurations": {"k": ["BLOCK=1"]}, "changed": ["y"]}
    assert Tuned.read(said) == Tuned({"k": ("BLOCK=1",)}, ("y",))
    with pytest.raises(TypeError):
        Tuned.read({"configurations": {"k": 3}, "changed": []})
