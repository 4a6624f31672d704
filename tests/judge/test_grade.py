"""The loop: points, outcomes, dead workers, faults of our own.  The worker is a stand-in here."""

import concurrent.futures
import contextlib
import io
import math
import threading
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from grader.course import case_table, contract, correctness, stages
from grader.course.calls import Reply, SubmissionError
from grader.course.case_table import listed
from grader.course.cases import Case
from grader.course.stages import STAGES
from grader.host import device_memory, options, worker_pool
from grader.host.clock import Clock
from grader.host.options import Options
from grader.judge import (
    claims,
    compile_check,
    extra_cases,
    grade,
    interpreter_check,
    profiling,
    record_check,
    replay_check,
    run_cases,
    timing,
    tuning,
    wasted_tiles,
)
from grader.judge.context import GradingContext
from grader.judge.grade import grade_stage
from grader.judge.points import settle
from grader.judge.record_check import record, report_rejections
from grader.report import results
from grader.report.results import RIGHT, WRONG, Check, StageResult, StepCheck
from grader.report.screen import Reporter
from grader.step_checks.checks import StepChecks
from tests.sessions import trace

pytestmark = [pytest.mark.filterwarnings(f"error::{what}") for what in (  # sockets left open
    "ResourceWarning", "pytest.PytestUnraisableExceptionWarning")]

STAGE = STAGES[1]
SEEN = trace()
PLAIN = "class FlashAttention2Function:\n    apply = staticmethod(abs)\n"
KERNEL = "def kernel(): pass\n"  # the text of SEEN's kernel


class Honest:
    """Stands in for a Session whose submission is right."""

    started = 0
    confined = ()
    gone = False
    timeout = 60.0

    def __init__(self, *args, **kwargs):
        pass

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def start(self):
        pass

    def close(self):
        pass

    def load(self, *args):
        type(self).started += 1

    def run(self, call):
        options = {"q": None, "k": None, "v": None}
        q, k, v = (call.inputs[name].view() for name in options)
        got = correctness.tiled_attention(q, k, v, is_causal=(*call.args, False)[3])
        again = None
        if call.refill:
            again = correctness.tiled_attention(*(call.refill[n].view() for n in options),
                                                is_causal=(*call.args, False)[3])
        inputs = {n: t.storage for n, t in call.inputs.items()}
        return Reply([got] * call.repeats, {}, again, {}, {}, {}, got, inputs, {}, SEEN, "", 0.0)



class Replaying:
    """Stands in for the workers that carry out traces."""

    count = 1

    def begin(self):
        pass

    def replay(self, call, trace):
        return Honest().run(call).outputs[0]


@pytest.fixture
def graded(tmp_path, monkeypatch):
    """graded(session class, source, ...) -> the result of stage 1."""
    short = [case for case in listed(STAGE.number, "cpu", False)
             if case.N < 500 or case.group == "standard"]
    short = [replace(case, N=min(case.N, 99), NK=case.NK and min(case.NK, 199), growth=False)
             for case in short]
    monkeypatch.setattr(case_table, "listed", lambda number, device, bf16: short)
    of_contract = contract.cases
    monkeypatch.setattr(contract, "cases", lambda *what: of_contract(*what)[:5])

    def run(session, source=PLAIN, replaying=Replaying, **chosen):
        monkeypatch.setattr(options, "Session", session)
        monkeypatch.setattr(options, "Worker", lambda *args, **settings: None)  # no process
        monkeypatch.setattr(worker_pool, "workers", lambda *settings: replaying())
        session.started = 0
        (tmp_path / "problem_1.py").write_text(KERNEL + source, "utf-8")
        settings = Options(tmp_path, "cpu", 1, 60.0, benchmark=False, **chosen)
        return grade_stage(STAGE, settings, Reporter(io.StringIO()))

    return run


def spoiled(wrong):
    """A session that is right but for the calls wrong(call) is true of."""
    class Session(Honest):
        def run(self, call):
            reply = super().run(call)
            if wrong(call):
                reply.outputs = [{n: x * 1.1 for n, x in outputs.items()}
                                 for outputs in reply.outputs]
            return reply
    return Session


def failing(outcome, fatal, when):
    class Session(Honest):
        def run(self, call):
            if when(call):
                raise SubmissionError(outcome, "a sentence", fatal=fatal)
            return super().run(call)
    return Session


def is_standard(call):
    return call.inputs["q"].shape[1] >= 8


def is_refilled(call):
    """Of one robust case; those that are standard all are."""
    return call.refill is not None and not is_standard(call)


@pytest.mark.parametrize("wrong, quick, outcome, points, earned", [
    (lambda call: False, False, "pass", 200, ["standard", "robust", "walk"]),
    (lambda call: not is_standard(call), False, "wrong", 140, ["standard"]),
    (is_standard, False, "wrong", 60, ["robust", "walk"]),
    (lambda call: not is_standard(call), True, "pass", 140, ["standard"])])
def test_standard_cases_carry_seventy_percent_and_robust_ones_thirty(graded, wrong, quick, outcome,
                                                                    points, earned):
    result = graded(spoiled(wrong), quick=quick)
    assert (result.outcome, result.points, result.earned) == (outcome, points, earned)
    assert not quick or {check.group for check in result.checks} == {"standard"}


@pytest.mark.parametrize("may_stop, unrun", [(True, True), (False, False)])
def test_where_a_step_is_red_robust_cases_may_stop_at_the_first_that_fails(
        graded, monkeypatch, may_stop, unrun):
    red = [StepCheck("1.2", WRONG, given="N=7", seen=("no.",))]
    monkeypatch.setattr(StepChecks, "result", lambda checks: red)
    monkeypatch.setattr(StepChecks, "explained", lambda checks: red)
    result = graded(spoiled(lambda call: not is_standard(call)), may_stop=may_stop)
    assert (result.outcome, result.points, result.earned) == ("wrong", 140, ["standard"])
    assert ("no more tests were run after" in result.sentence) == unrun
    assert (len([c for c in result.checks if c.outcome == "wrong"]) == 1) == unrun
    if unrun:  # all standard ones run, whatever a step check says
        result = graded(spoiled(is_standard), may_stop=True)
        assert result.points == 60 and "robust" in {check.group for check in result.checks}


def test_what_is_wrong_at_a_border_of_tiles_alone_is_wrong_and_named(graded, monkeypatch):
    border = Case(1, "robust", 65, by_contract=True)
    monkeypatch.setattr(contract, "cases", lambda *what: [border])
    assert graded(Honest).outcome == "pass"
    result = graded(spoiled(lambda call: call.inputs["q"].shape[2] == 65
                            and call.inputs["q"].shape[1] == 1))
    assert (result.outcome, result.points) == ("wrong", 140)
    assert [check.name for check in result.checks if check.outcome != "pass"] == [border.name]
    assert graded(spoiled(lambda call: call.inputs["q"].shape[2] == 65), quick=True).points == 140


@pytest.mark.parametrize(("found", "outcome"), [
    (Honest, "pass"), (spoiled(lambda call: call.inputs["q"].shape[2] == 47), "wrong"),
    (failing("crashed", True, lambda call: call.inputs["q"].shape[2] == 46), "pass")])
def test_the_worker_of_the_lights_takes_cases_and_the_unsettled_are_asked(
        graded, monkeypatch, found, outcome):
    borders, asked = [Case(1, "robust", N, by_contract=True) for N in range(40, 50)], []
    monkeypatch.setattr(contract, "cases", lambda *what: list(borders))
    right = spoiled(lambda call: outcome == "wrong" and call.inputs["q"].shape[2] == 47)

    taken, done = threading.Event(), concurrent.futures.Future()
    done.set_result([])  # of a file with steps, which are all right

    def note(call):
        if is_border := call.inputs["q"].shape[1:3] in {(1, case.N) for case in borders}:
            asked.append(call.inputs["q"].shape[2])
        return is_border

    class Other(found):
        def run(self, call):
            if note(call):
                taken.set()
            return super().run(call)

    class First(right):
        def run(self, call):
            if note(call):
                assert taken.wait(60)  # the other one takes a border, too
            return super().run(call)

    monkeypatch.setattr(StepChecks, "found", property(lambda lights: done, lambda *none: None),
                        raising=False)
    monkeypatch.setattr(StepChecks, "explained", lambda lights: [])
    monkeypatch.setattr(StepChecks, "worker", lambda lights: Other(None, 60.0))
    result = graded(First)
    assert result.outcome == outcome
    assert outcome == "wrong" or set(asked) == set(range(40, 50))


@pytest.mark.parametrize("outcome", ["pass", "wrong"])
def test_a_case_at_a_border_of_tiles_can_be_asked_alone_by_its_name(graded, outcome):
    name = "robust/H1-N65-D16-causal-float16-odd.odd.odd"
    result = graded(spoiled(lambda call: outcome == "wrong"), case=name)
    assert [(check.name, check.outcome) for check in result.checks] == [(name, outcome)]


def test_a_red_step_asks_further_and_what_fails_there_decides(graded, monkeypatch):
    example = Case(1, "robust", 7, by_contract=True)
    monkeypatch.setattr(contract, "cases", lambda *what: [])
    monkeypatch.setattr(contract, "aimed", lambda stage, given, *what: [
        example] if given == {"N": 7} else pytest.fail("want the light's own example"))
    wrong = spoiled(lambda call: call.inputs["q"].shape[2] == 7)
    monkeypatch.setattr(StepChecks, "explained", lambda lights: lights.result())
    monkeypatch.setattr(StepChecks, "result", lambda lights: [StepCheck("1.1", RIGHT)])
    assert graded(wrong).outcome == "pass"
    monkeypatch.setattr(StepChecks, "result", lambda lights: [
        StepCheck("1.1", RIGHT),
        StepCheck("1.2", WRONG, given="N=7", seen=("no.",), example={"N": 7})])
    assert graded(wrong, quick=True).points == 140
    assert graded(Honest).outcome == "pass"
    result = graded(wrong)
    assert (result.outcome, result.points) == ("wrong", 140)
    assert [check.name for check in result.checks if check.outcome != "pass"] == [example.name]


def test_borders_are_not_asked_of_a_file_that_is_wrong_anyway(graded, monkeypatch):
    monkeypatch.setattr(contract, "cases", lambda *what: pytest.fail("they were"))
    assert graded(spoiled(is_standard)).outcome == "wrong"


def cheat(wrong=lambda call: False):
    class Cheat(spoiled(wrong)):
        def run(self, call):
            reply = super().run(call)
            reply.trace = trace(operations=("aten::scaled_dot_product_attention",))
            return reply
    return Cheat


@pytest.mark.parametrize("wrong, outcome", [
    (lambda call: False, "rejected"), (lambda call: not is_standard(call), "rejected"),
    (lambda call: is_standard(call) and call.args[3], "wrong")])
def test_rejected_costs_every_point_and_a_wrong_file_is_accused_of_nothing(
        graded, wrong, outcome):
    result = graded(cheat(wrong))
    assert (result.outcome, result.points, result.earned) == (outcome, 0, [])
    assert ("rejected" in {check.outcome for check in result.checks}) == (outcome == "rejected")


def context(number, folder, said=None):
    """Of a stage whose file has no steps."""
    stage = STAGES[number]
    return GradingContext(stage, None, Options(folder, "cpu", 1, 60.0),
                          Reporter(said or io.StringIO()),
                          StageResult(number, stage.title, stage.points))


@pytest.mark.parametrize(("fro", "outcome"), [(math.nan, "wrong"), (0.5, "rejected")])
def test_a_file_that_reads_beside_its_tensors_is_accused_of_nothing(fro, outcome, tmp_path):
    grading = context(3, tmp_path)
    grading.result.kernels = {"k@1"}
    grading.result.checks.append(Check("robust/H2-N65-guarded", "robust", "wrong", what="NaN",
                                       errors={"o": {"fro": fro}}))
    record(grading, Check("robust/H2-N40", "robust", "rejected", what="other numbers"))
    report_rejections(grading)
    settle(grading.result, [Case(3, "standard", 64)], grading.options)
    assert (grading.result.outcome, grading.result.points) == (outcome, 0)


class Elsewhere(Replaying):
    """Plans that are wrong in one case, as of kernels that read what the host computed."""

    def replay(self, call, trace):
        got = super().replay(call, trace)
        return {n: x * 1.1 for n, x in got.items()} if call.inputs["q"].shape[2] == 65 else got


def test_a_plan_that_is_wrong_where_the_file_is_right_proves_an_accusation(graded):
    result = graded(Honest, replaying=Elsewhere, replays_all=True)
    assert (result.outcome, result.points) == ("rejected", 0)


def test_a_file_that_is_wrong_on_the_numbers_of_the_replay_is_wrong(graded, monkeypatch):
    asked = []
    monkeypatch.setattr(contract, "cases", lambda *what: [])  # of this length, too

    def later(call):  # right when it is asked first
        asked.append(call.inputs["q"].shape[2])
        return asked.count(65) > 1 and asked[-1] == 65

    result = graded(spoiled(later), replaying=Elsewhere, replays_all=True)
    assert (result.outcome, result.points) == ("wrong", 140)
    check, = [check for check in result.checks if check.outcome != "pass"]
    assert "not with new ones of the same shape" in check.lines[0] and "where: " in check.message
    assert check.lines[-1].startswith("again: python autograder.py --p1 ")
    assert check.lines[-1].endswith(f" --case {check.name}")


@pytest.mark.parametrize(("kernels", "outcome"), [(set(), "not_started"), ({"k@1"}, "rejected")])
def test_a_file_that_launches_nothing_is_not_started(kernels, outcome, tmp_path):
    said = io.StringIO()
    grading = context(3, tmp_path, said)
    grading.result.kernels = kernels
    record(grading, Check("standard/x", "standard", "rejected", what="no kernel ran"))
    assert said.getvalue() == ""
    report_rejections(grading)
    settle(grading.result, [Case(3, "standard", 64)], grading.options)
    assert (grading.result.outcome, grading.result.points) == (outcome, 0)
    assert ("No kernel was launched yet" in said.getvalue()) == (outcome == "not_started")


def test_a_layout_that_a_file_without_markers_does_not_know_decides_nothing(graded):
    result = graded(spoiled(lambda call: call.inputs["q"].stride[3] == 2))
    assert (result.outcome, result.points) == ("pass", 200)
    assert {(c.group, c.outcome) for c in result.checks if "-last" in c.name} == {
        ("beyond", "wrong")}


def test_a_stage_whose_cases_are_all_skipped_is_skipped_for_their_reason(graded):
    result = graded(failing("skipped", False, lambda call: True))
    assert (result.outcome, result.points) == ("skipped", 0)
    assert result.sentence == f"{result.checks[0].lines[0]}."


@pytest.mark.parametrize("right, outcome", [(True, "skipped"), (False, "wrong")])
def test_a_stage_with_a_skipped_case_is_as_its_others_or_skipped(graded, right, outcome):
    skips = failing("skipped", False, is_standard)

    class Session(skips):
        def run(self, call):
            reply = super().run(call)
            return reply if right else replace(reply, outputs=[
                {name: x * 1.1 for name, x in outputs.items()} for outputs in reply.outputs])

    result = graded(Session)
    assert result.outcome == outcome and result.points < 200
    assert result.sentence.endswith(" cases were skipped: a sentence.")


def test_inputs_that_the_driver_cannot_lay_out_are_no_case(graded):
    result = graded(failing("skipped", False, lambda call: call.inputs["q"].shape[3] == 40))
    assert (result.outcome, result.points) == ("pass", 200)
    assert result.checks and all(check.outcome == "pass" for check in result.checks)


def is_odd(call):
    return call.inputs["q"].shape[3] == 40


@pytest.mark.parametrize("session, group, outcome, points", [
    (Honest, "robust", "pass", 200),
    (failing("crashed", False, is_odd), "beyond", "pass", 200),
    (failing("timeout", True, is_odd), "beyond", "pass", 200),
    (spoiled(is_odd), "robust", "wrong", 140)])
def test_the_courses_own_promises_decide_where_an_unmarked_file_answers(
        graded, session, group, outcome, points):
    result = graded(session)
    odd, = (check for check in result.checks if "-D40-" in check.name)
    assert (odd.group, result.outcome, result.points) == (group, outcome, points)
    assert odd.name.startswith("beyond/") and "step markers" in result.remarks[0]


def test_markers_promise_all_of_the_course_even_damaged_ones(graded):
    marked = "\n".join(["# BEGIN SOLUTION 1.1", "x = 1", "# END SOLUTION 1.1", ""])
    damaged = marked.replace("# END SOLUTION 1.1", "")
    for source in (PLAIN + marked, PLAIN + damaged):
        result = graded(failing("crashed", False, is_odd), source)
        assert (result.outcome, result.points, result.remarks) == ("crashed", 140, [])


def test_needless_work_costs_a_tenth_and_is_not_wrong(tmp_path):
    grading, case = context(4, tmp_path), Case(4, "standard", 64)
    record(grading, Check(case.name, "standard", "pass"))
    record(grading, Check("needless-work", "walk", "needless work", what="tile 3 reads 16"))
    settle(grading.result, [case], grading.options)
    assert (grading.result.outcome, grading.result.points) == ("pass", 90)
    assert grading.result.earned == ["standard", "robust"]


@pytest.mark.parametrize("session, points, started, failed, ends", [
    (failing("crashed", False, is_refilled), 140, 1, 1, False),  # an exception
    (failing("crashed", True, is_refilled), 140, 2, 1, False),  # a dead worker is replaced once
    (failing("crashed", True, lambda call: True), 0, 2, 2, True),
    (failing("timeout", True, lambda call: call.inputs["q"].shape[2] == 65), 140, 1, 1, True)])
def test_what_a_failing_case_costs_the_worker_and_the_other_cases(graded, session, points, started,
                                                                 failed, ends):
    result = graded(session)
    assert (result.points, session.started) == (points, started)
    outcomes = [check.outcome for check in result.checks if check.outcome != "pass"]
    assert len(outcomes) == failed and set(outcomes) == {result.outcome}
    assert ("no more cases were run" in result.sentence) == ends


def late(waited_for_cpu, at_import=False, times=1):
    """A session whose first so many loads, or calls, time out."""
    class Session(Honest):
        ended = 0

        def spend(self, due):
            if due and type(self).ended < times:
                type(self).ended += 1
                raise SubmissionError("timeout", "late", id="timeout", fatal=True,
                                      waited_for_cpu=waited_for_cpu)

        def load(self, *args):
            super().load(*args)
            self.spend(at_import)

        def run(self, call):
            self.spend(not at_import)
            return super().run(call)
    return Session


@pytest.mark.parametrize("at_import", [True, False])
def test_a_timeout_of_a_starved_worker_is_asked_again_of_another(graded, at_import):
    session = late(waited_for_cpu=True, at_import=at_import)
    result = graded(session, quick=True)
    assert (result.outcome, result.points, session.started) == ("pass", 140, 2)


def test_a_call_that_does_not_end_is_a_timeout(graded):
    session = late(waited_for_cpu=False, times=9)
    result = graded(session)
    assert (result.outcome, result.points, session.started) == ("timeout", 0, 1)
    assert len(result.checks) == 1 and "a call did not end" in result.sentence


def test_a_case_that_is_starved_again_is_not_checked_and_costs_nothing(graded):
    session = late(waited_for_cpu=True, times=2)
    result = graded(session)
    assert (result.outcome, result.points, session.started) == ("pass", 200, 3)
    first, *others = result.checks
    assert (first.outcome, first.not_checked) == ("skipped", True)
    assert {check.outcome for check in others if check.group != "beyond"} == {"pass"}
    assert result.sentence == (
        f"1 of {len(result.checks)} cases was not checked, which costs no points: late.")
    found = results.as_dict(results.Run("cpu", "", None, 1, "", [result]))["stages"][0]["checks"]
    assert [check["not_checked"] for check in found][:2] == [True, False]


@pytest.mark.parametrize("wrong, outcome, points", [
    (lambda call: not is_standard(call), "wrong", 140), (is_standard, "wrong", 60)])
def test_beside_a_case_that_is_not_checked_the_others_decide(graded, wrong, outcome, points):
    class Session(late(waited_for_cpu=True, times=2)):
        def run(self, call):
            reply = super().run(call)
            return replace(reply, outputs=[{n: x * 1.1 for n, x in out.items()}
                                           for out in reply.outputs]) if wrong(call) else reply

    result = graded(Session)
    assert (result.outcome, result.points) == (outcome, points)


@pytest.mark.parametrize("session, points", [
    (late(waited_for_cpu=True, at_import=True, times=2), 0),
    (late(waited_for_cpu=True, times=99), 0)])
def test_where_a_busy_machine_let_nothing_be_checked_the_stage_is_graded_again(graded, session,
                                                                              points):
    result = graded(session)
    assert (result.outcome, result.points) == ("grader_fault", points)


def test_before_it_is_asked_again_what_else_was_under_way_has_ended(graded, monkeypatch):
    seen = []
    monkeypatch.setattr(run_cases.concurrent.futures, "wait", seen.append)
    under_way = concurrent.futures.Future()
    under_way.set_result((Check("compile/sm_90", "robust", "pass"), None))
    monkeypatch.setattr(compile_check, "start", lambda context: context.under_way.append(under_way))
    graded(late(waited_for_cpu=True))
    assert seen[0][0] is under_way


def failing_replays(error, when=lambda number: True):
    """Workers that fail at those calls, counted from 1, that `when` is true of."""
    class Failing(Replaying):
        calls = 0

        def replay(self, call, trace):
            Failing.calls += 1
            if when(Failing.calls):
                raise error
            return super().replay(call, trace)
    return Failing


LATE = SubmissionError("timeout", "late", fatal=True, waited_for_cpu=True)


def test_a_starved_replay_is_made_again(graded):
    replaying = failing_replays(LATE, lambda number: number == 2)
    result = graded(Honest, replaying=replaying, quick=True)
    replayed = min(replay_check.HANDFUL, len(result.checks))
    assert (result.outcome, replaying.calls) == ("pass", replayed + 1)


@pytest.mark.parametrize("starved, outcome", [(True, "pass"), (False, "timeout")])
def test_a_replay_that_is_late_twice_is_a_timeout_or_not_checked(graded, starved, outcome):
    error = SubmissionError("timeout", "late", fatal=True, waited_for_cpu=starved)
    result = graded(Honest, replaying=failing_replays(error))
    late = next(check for check in result.checks if check.outcome != "pass")
    assert result.outcome == outcome and "Repeated in a clean process" in late.lines[0]
    assert late.not_checked == starved


def test_a_stage_whose_time_is_over_ends_and_what_was_judged_stands(graded):
    class Session(Honest):
        def run(self, call):
            if not is_standard(call):
                self.clock.end = 0.0
                raise SubmissionError("timeout", self.clock.words(), fatal=True)
            return super().run(call)

    result = graded(Session, stage_timeout=900.0)
    standard = [check for check in result.checks if check.group == "standard"]
    assert {check.outcome for check in standard} == {"pass"}
    assert (result.outcome, result.points) == ("timeout", 140)
    assert result.sentence.startswith("the stage's 900 s (--stage-timeout) ran out in case ")
    assert "no more cases were run" in result.sentence


def test_memory_that_our_own_judgement_lacks_is_no_death_of_the_worker(graded, monkeypatch):
    right, failed = run_cases.judge_reply, set()

    def judge(stage, file, built, reply, device, as_given):
        if built.case.name not in failed:
            failed.add(built.case.name)
            raise torch.OutOfMemoryError
        return right(stage, file, built, reply, device, as_given)

    monkeypatch.setattr(run_cases, "judge_reply", judge)
    result = graded(Honest)
    assert (result.outcome, result.points) == ("pass", 200) and len(failed) > 10


def test_an_error_at_import_is_the_stages_outcome(graded):
    class Broken(Honest):
        def load(self, *args):
            raise SubmissionError("crashed", "ImportError: no such thing", fatal=True)

    result = graded(Broken)
    assert (result.outcome, result.points, result.checks) == ("crashed", 0, [])


def faulty():
    class Faulty(Honest):
        def run(self, call):
            if call.repeats > 1:
                raise ZeroDivisionError("ours")
            return super().run(call)
    return Faulty


@pytest.mark.parametrize("session, detail", [
    (faulty(), "ZeroDivisionError"),
    (failing("grader_fault", True, lambda call: call.repeats > 1), "")])  # said by the sandbox
def test_a_fault_of_the_grader_settles_nothing_that_was_not_judged(graded, session, detail):
    result = graded(session)
    assert (result.outcome, result.points) == ("grader_fault", 140) and detail in result.detail


def test_missing_and_syntactically_wrong_files_have_their_own_outcomes(graded, tmp_path):
    settings = Options(tmp_path / "nowhere", "cpu", 1, 60.0)
    result = grade_stage(STAGE, settings, Reporter(io.StringIO()))
    assert (result.outcome, result.points) == ("missing", 0)
    assert graded(Honest, "def f(:\n").outcome == "crashed"


@pytest.mark.parametrize("left, said", [
    ("", "step 1.2 is still blank"),
    ("    x = 1\n", "step 1.2: your code is there; delete line 10,")])
def test_a_raise_no_call_reaches_still_fails_the_stage(graded, left, said):
    source = PLAIN + ("\n\n\ndef a():\n    # BEGIN SOLUTION 1.2\n" + left
                      + "    raise NotImplementedError('step 1.2')\n    # END SOLUTION 1.2\n")
    source += "    # BEGIN SOLUTION 1.1\n    x = 1\n    # END SOLUTION 1.1\n"
    result = graded(Honest, source)
    message = result.checks[-1].message
    assert (result.outcome, result.points, result.waits) == ("crashed", 140, True)
    assert said in message and ("still blank" in message) == (not left)
    assert said in result.sentence.lower().replace("\n", " ")


def test_without_triton_the_triton_stages_are_skipped_with_the_ways_on(tmp_path, monkeypatch):
    monkeypatch.setattr(results, "no_triton", lambda: stages.NO_TRITON)
    (tmp_path / "problem_3.py").write_text("def flash_attention_forward(q, k, v):\n    return q\n")
    settings = Options(tmp_path, "cpu", 1, 60.0)
    result = grade_stage(STAGES[3], settings, Reporter(io.StringIO()))
    assert result.outcome == "skipped"
    assert all(way in result.sentence for way in ("WSL", "container", "Codespaces", "Colab"))


TEMPLATE = """\
class FlashAttention2Function:
    def forward(ctx, q, k, v):
        # --- STUDENT IMPLEMENTATION REQUIRED HERE ---
        pass
        # --- END OF STUDENT IMPLEMENTATION ---
        return q
    apply = forward
"""
EMPTY = "nothing is written here yet: problem_1.py, lines 4-6."


BEGUN = TEMPLATE + "def g():\n    # STUDENT IMPLEMENTATION\n    return given(1)\n"


@pytest.mark.parametrize("session, source, outcome, sentence", [
    (failing("crashed", False, lambda call: True), TEMPLATE, "not_started", EMPTY),
    (spoiled(lambda call: True), TEMPLATE, "not_started", EMPTY),
    (Honest, TEMPLATE, "pass", ""),  # what answers is graded, though its blocks are empty
    (spoiled(lambda call: not is_standard(call)), TEMPLATE, "wrong", EMPTY),
    (spoiled(is_standard), BEGUN, "wrong", EMPTY),
    (late(waited_for_cpu=False), BEGUN, "timeout", EMPTY)])
def test_a_block_that_is_empty_is_told_of_a_file_that_does_not_pass(graded, session, source,
                                                                    outcome, sentence):
    result = graded(session, source)
    assert result.outcome == outcome and result.sentence.endswith(sentence)
    assert outcome != "not_started" or (result.checks, result.sentence) == ([], EMPTY)
    assert outcome != "pass" or (result.points, result.sentence) == (200, "")


def out_of_memory(in_use: str) -> SubmissionError:
    return SubmissionError(
        "crashed", "out of GPU memory: is something of size N x N kept?", id="out-of-memory",
        detail="CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity of "
               "79.60 GiB of which 812.00 MiB is free. Including non-PyTorch memory, this process "
               f"has {in_use} memory in use.")


@pytest.mark.parametrize("error", [
    out_of_memory("3.10 GiB"), out_of_memory("60.00 GiB"),
    *(SubmissionError("crashed", f"RuntimeError during the call: {said}", detail=said)
      for said in ("CUDA error: out of memory", "Triton Error [CUDA]: out of memory"))], ids=str)
def test_memory_that_others_hold_is_not_the_submissions_fault(error, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**30, 80 * 2**30))
    assert "other processes hold 79" in device_memory.held_by_others(error)
    assert not device_memory.held_by_others(SubmissionError("crashed", "another crash"))
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (70 * 2**30, 80 * 2**30))
    assert not device_memory.held_by_others(error)


@pytest.mark.parametrize("in_use, again", [("512.00 MiB", True), ("60.00 GiB", False)])
def test_what_a_worker_says_of_others_memory_gets_it_asked_again(in_use, again, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (70 * 2**30, 80 * 2**30))
    assert device_memory.crowded_out(out_of_memory(in_use), "cuda", Clock(600)) == again


def on_a_gpu(monkeypatch):
    """What a worker ran out of is looked at as of a GPU."""
    crowded_out, excused = device_memory.crowded_out, run_cases.excused
    monkeypatch.setattr(device_memory, "crowded_out",
                        lambda error, device, clock: crowded_out(error, "cuda", clock))
    for module in (run_cases, replay_check):
        monkeypatch.setattr(module, "excused",
                            lambda check, error, device: excused(check, error, "cuda"))


@pytest.mark.parametrize("times, outcome", [(1, "pass"), (3, "pass"), (4, "crashed")])
def test_a_case_waits_for_memory_that_others_hold_and_is_asked_again(graded, monkeypatch, times,
                                                                     outcome):
    class Session(Honest):
        ended = 0

        def run(self, call):
            if Session.ended < times:
                Session.ended += 1
                raise out_of_memory("3.10 GiB")
            return super().run(call)

    free, slept = iter(()), []

    def memory():
        return next(free, 70) * 2**30, 80 * 2**30

    monkeypatch.setattr(torch.cuda, "mem_get_info", memory)
    monkeypatch.setattr(device_memory.time, "sleep", slept.append)
    on_a_gpu(monkeypatch)
    free = iter([1, 1, 1])  # when it is blamed, and twice while it waits
    result = graded(Session, quick=True)
    assert result.outcome == outcome and len(slept) == 2


def test_more_memory_than_there_is_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**30, 2 * 2**30))
    monkeypatch.setattr(device_memory.time, "sleep", lambda seconds: pytest.fail("it waited"))
    assert not device_memory.comes_back(out_of_memory("3.10 GiB").detail, Clock(600))


def test_memory_that_does_not_come_back_for_a_replay_is_no_fault_of_the_file(graded, monkeypatch):
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda: (2**30, 80 * 2**30))
    monkeypatch.setattr(device_memory, "WAIT_SECONDS", 0)
    on_a_gpu(monkeypatch)
    result = graded(Honest, replaying=failing_replays(out_of_memory("3.10 GiB")))
    assert result.outcome == "grader_fault" and result.points == 0
    assert any("other processes hold 7" in check.message for check in result.checks)


ALWAYS = ["note_rounding", "compile_check", "replay_some", "record_blanks", "profile_stage",
          "report_rejections"]
IF_RIGHT = ["run_claimed", "run_at_tile_borders", "run_configurations", "note_rounding",
            "compile_check", "replay_some", "record_blanks", "interpreter_check", "count",
            "time_stage", "note_roofline", "profile_stage", "report_rejections",
            "run_informational"]


@pytest.mark.parametrize("right, has_session, gone, calls", [
    (True, True, False, IF_RIGHT), (False, True, False, ALWAYS), (True, True, True, ALWAYS),
    (True, False, False, ALWAYS)])
def test_what_follows_the_cases_while_a_file_is_right_and_its_worker_lives(
        monkeypatch, tmp_path, right, has_session, gone, calls):
    asked = []
    for module, name in (
            (extra_cases, "run_claimed"), (extra_cases, "run_at_tile_borders"),
            (extra_cases, "run_informational"), (tuning, "run_configurations"),
            (claims, "note_rounding"), (replay_check, "replay_some"), (wasted_tiles, "count"),
            (record_check, "record_blanks"), (record_check, "report_rejections"),
            (timing, "time_stage"), (profiling, "note_roofline"), (profiling, "profile_stage")):
        monkeypatch.setattr(module, name, lambda *what, name=name: asked.append((name, what)))
    for module in (compile_check, interpreter_check):
        name = module.__name__.rpartition(".")[2]
        monkeypatch.setattr(module, "start", lambda context: None)
        monkeypatch.setattr(module, "finish", lambda *what, name=name: asked.append((name, what)))
    session = SimpleNamespace(gone=gone)
    run = SimpleNamespace(session=session if has_session else None, right=[])
    monkeypatch.setattr(grade, "run_cases", lambda *what: run)
    monkeypatch.setattr(worker_pool, "workers", lambda *settings: Replaying())
    grading = context(3, tmp_path)
    monkeypatch.setattr(grading, "open_session", lambda: session)
    monkeypatch.setattr(grading, "show_steps", lambda: [])
    monkeypatch.setattr(grading, "all_right", lambda: right)
    monkeypatch.setattr(grade, "StepChecks", lambda *what: contextlib.nullcontext())
    promised, other = Case(3, "beyond", 40, course=True), Case(3, "beyond", 41)
    grade.judge_file(grading, [], [promised, other])
    assert [name for name, _ in asked] == calls
    found = dict(asked)
    assert found["profile_stage"][1] is (session if calls is IF_RIGHT else None)
    if calls is IF_RIGHT:
        assert found["run_claimed"][2] == [promised] and found["run_informational"][2] == [other]


def test_a_stage_says_how_long_it_took_and_keeps_why_it_ended(graded, monkeypatch):
    now = iter((100, 142))
    monkeypatch.setattr(grade, "time", SimpleNamespace(monotonic=lambda: next(now)))
    result = graded(failing("crashed", True, lambda call: True), stage_timeout=0.001)
    assert result.seconds == 42
    assert "ran out" in result.sentence and "what was judged stands" not in result.sentence

