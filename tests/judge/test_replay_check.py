"""Right numbers carried out again, on other numbers, by a worker without the file."""

import ast
import io
import re
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from grader.course import correctness, inputs
from grader.course.calls import SubmissionError
from grader.course.cases import Case
from grader.course.stages import STAGES
from grader.host.clock import Clock
from grader.host.options import Options
from grader.judge import replay_check
from grader.judge.context import GradingContext
from grader.judge.replay_check import HANDFUL, draw, judge_repeated, not_repeated
from grader.judge.run_cases import Right
from grader.report.results import Check, StageResult
from grader.report.screen import Reporter
from tests.judged import PLAIN, answered, judged


def repeated(off_by=0.0, case=PLAIN):
    """off_by: the error of what came out, as a multiple of the limit of all numbers together."""
    built, reply = answered(PLAIN)
    other = inputs.other_numbers(case, 0)
    exact = correctness.answer(other, "cpu")
    limit = exact.judge("o", exact.tiled["o"]).fro_limit
    got = {"o": exact.tiled["o"] if not off_by else exact.truth["o"] * (1 + off_by * limit)}
    check, _ = judge_repeated(judged(built, reply), other, got, "cpu")
    return check


@pytest.mark.parametrize("off_by, outcome, said", [
    (0.0, "pass", ""), (0.9, "pass", ""),
    (2.0, "wrong", "only just passed.*: o is 0.\\d+ % off \\(0.\\d+ % allowed\\)"),
    (20.0, "rejected", "your kernels did not compute them")])
def test_a_plan_that_is_wrong_on_other_numbers_was_not_how_it_was_made(off_by, outcome, said):
    check = repeated(off_by)
    assert check.outcome == outcome and re.search(said, "".join(check.lines[:1]))


def test_of_problem_1_which_has_no_kernels_none_are_spoken_of():
    check = repeated(20.0, replace(PLAIN, stage=1))
    assert "PyTorch did not compute them" in check.what and "kernel" not in check.message


@pytest.mark.parametrize("said, outcome", [("wrong", "rejected"), ("crashed", "crashed"),
                                           ("timeout", "timeout"),
                                           ("grader_fault", "grader_fault")])
def test_a_plan_that_cannot_be_carried_out_says_why(said, outcome):
    built, reply = answered(PLAIN)
    check = not_repeated(judged(built, reply), SubmissionError(said, "it uses numpy"))
    assert check.outcome == outcome and "it uses numpy" in check.lines[0]


def replayed(check, reply, replay, folder, refilled=None) -> list:
    """The checks of a stage, once this answer is replayed; replay: stands in for the workers'."""
    result = StageResult(PLAIN.stage, "", 100, checks=[check])
    file = SimpleNamespace(source=b"", tree=ast.parse(""), blank_steps=(), steps=("3.1",))
    options = Options(folder, "cpu", 0, 60.0, clock=Clock(600))
    with GradingContext(STAGES[PLAIN.stage], file, options, Reporter(io.StringIO()),
                        result) as context:
        replay_check.replay_some(context, SimpleNamespace(count=1, replay=replay), [
            Right(PLAIN, check, reply.trace, refilled)])
    return result.checks


def test_a_handful_is_drawn_with_both_groups_two_ragged_lengths_and_a_gradient():
    plain = [Case(8, "robust", 64 * n, HQ=n) for n in range(1, 30)]
    few = [Case(8, "standard", 128), Case(8, "robust", 65), Case(8, "robust", 66),
           Case(8, "robust", 64, grads=("q", "k", "v"))]
    right = [Right(case, Check(case.name, case.group, "pass"), None, None) for case in plain + few]
    drawn = [{one.case.name for one in draw(right, seed)} for seed in range(20)]
    assert {len(names) for names in drawn} == {HANDFUL}
    assert all(names >= {case.name for case in few} for names in drawn)
    assert len(set(map(frozenset, drawn))) > 5
    assert len(draw(right[:3], 0)) == 3 and draw([], 0) == []


def test_nothing_is_replayed_of_a_file_that_is_wrong_in_a_standard_case(tmp_path):
    built, reply = answered(PLAIN)
    wrong = Check("standard/x", "standard", "wrong")
    result = StageResult(PLAIN.stage, "", 100, checks=[wrong])
    context = GradingContext(STAGES[3], None, Options(tmp_path, "cpu", 0, 60.0), None, result)
    replay_check.replay_some(context, None, [Right(PLAIN, judged(built, reply), reply.trace, None)])
    assert result.checks == [wrong]


@pytest.mark.parametrize("times, outcome", [(2.0, "wrong"), (20.0, "rejected")])
def test_the_command_it_says_brings_the_numbers_a_replay_fails_on(
        times, outcome, monkeypatch, tmp_path):
    built, reply = answered(PLAIN)
    asked = []

    def other_numbers(case, seed):
        asked.append(inputs.build(case, 77))
        return asked[0]

    def replay(call, trace):
        exact = correctness.answer(asked[0], "cpu")
        limit = exact.judge("o", exact.tiled["o"]).fro_limit
        return {"o": exact.truth["o"] * (1 + times * limit)}
    monkeypatch.setattr(replay_check, "other_numbers", other_numbers)
    monkeypatch.setattr(replay_check, "run_apart", lambda context, other: judged(built, reply))
    check, = replayed(judged(built, reply), reply, replay, tmp_path)
    assert check.outcome == outcome
    assert check.lines[-1].startswith("again: python autograder.py --p3 --submission ")
    assert check.lines[-1].endswith(f" --seed 77 --case {PLAIN.name}")


def in_turn(*found):
    """A function that gives these one after the other; an exception is raised."""
    left = iter(found)

    def give(*asked):
        one = next(left)
        if isinstance(one, Exception):
            raise one
        return one
    return give


def test_a_judgement_that_others_left_no_gpu_memory_for_is_made_once_more(monkeypatch, tmp_path):
    built, reply = answered(PLAIN)
    right, waited = judged(built, reply), []
    monkeypatch.setattr(replay_check, "judge_repeated", in_turn(
        torch.OutOfMemoryError("Tried to allocate 2.00 GiB"), (right, False)))
    monkeypatch.setattr(replay_check.device_memory, "comes_back",
                        lambda text, clock: waited.append(text))
    monkeypatch.setattr(replay_check.torch.cuda, "empty_cache", lambda: None)
    assert replayed(right, reply, in_turn({}), tmp_path) == [right]
    assert waited == ["Tried to allocate 2.00 GiB"]


def test_a_replay_that_others_left_no_gpu_memory_for_is_made_once_more(monkeypatch, tmp_path):
    built, reply = answered(PLAIN)
    right = judged(built, reply)
    crowded = SubmissionError("crashed", "CUDA error: out of memory")
    monkeypatch.setattr(replay_check.device_memory, "crowded_out",
                        lambda error, device, clock: error is crowded)
    monkeypatch.setattr(replay_check, "judge_repeated", lambda check, *asked: (check, False))
    replay = in_turn(crowded, {})
    assert replayed(right, reply, replay, tmp_path) == [right] and right.outcome == "pass"
    with pytest.raises(StopIteration):  # it was asked twice
        replay()


def other_answer(monkeypatch, off_by=0.0):
    """-> a stand-in for the workers' replay that is off by so much on the other numbers."""
    other = inputs.build(PLAIN, 77)
    monkeypatch.setattr(replay_check, "other_numbers", lambda case, seed: other)
    exact = correctness.answer(other, "cpu")
    return lambda call, trace: {"o": exact.tiled["o"] * (1 + off_by)}


@pytest.mark.parametrize("own, outcome, said", [
    ("pass", "rejected", "your kernels did not compute them"),
    ("rejected", "rejected", "your kernels did not compute them"),
    ("wrong", "wrong", "Right with these numbers, and not with new ones of the same shape: no."),
    ("crashed", "crashed", "Right with these numbers, and not with new ones")])
def test_a_rejection_needs_a_file_that_is_right_on_the_other_numbers(monkeypatch, tmp_path, own,
                                                                     outcome, said):
    built, reply = answered(PLAIN)
    monkeypatch.setattr(replay_check, "run_apart", lambda *what: Check("x", "robust", own,
                                                                       what="no."))
    check, = replayed(judged(built, reply), reply, other_answer(monkeypatch, 0.5), tmp_path)
    assert (check.outcome, check.name, check.seed) == (outcome, PLAIN.name, 77)
    assert said in check.what


@pytest.mark.parametrize("line, said", [(12, "Numbers leave a tensor here: problem_3.py:12."),
                                        (None, "")])
def test_a_rejection_says_where_numbers_leave_a_tensor(monkeypatch, tmp_path, line, said):
    built, reply = answered(PLAIN)
    reply.trace.read = [line] * bool(line)
    monkeypatch.setattr(replay_check, "run_apart", lambda *what: judged(built, reply))
    check, = replayed(judged(built, reply), reply, other_answer(monkeypatch, 0.5), tmp_path)
    assert "".join(check.seen) == said


def test_what_only_just_passes_is_told_of_statistics_in_16_bits(monkeypatch, tmp_path):
    built, reply = answered(PLAIN)
    replay = other_answer(monkeypatch, 0.001)
    monkeypatch.setattr(replay_check, "kept_in_16_bits", lambda case, trace: "lse is in float16.")
    check, = replayed(judged(built, reply), reply, replay, tmp_path)
    assert (check.outcome, check.seen[0]) == ("wrong", "lse is in float16.")


@pytest.mark.parametrize("kept, outcome", [(False, "pass"), (True, "rejected")])
def test_an_unrecorded_call_must_return_the_bits_of_the_recorded_one(monkeypatch, tmp_path, kept,
                                                                     outcome):
    built, reply = answered(PLAIN)
    replay = other_answer(monkeypatch)
    refilled = {"o": replay(None, None)["o"] + 2.0**-11 * kept}
    check, = replayed(judged(built, reply), reply, replay, tmp_path, refilled)
    assert check.outcome == outcome
    assert not kept or check.what.startswith("A call that was not recorded returned different bits")


def test_a_trace_that_is_too_long_to_be_recorded_is_not_replayed(tmp_path):
    built, reply = answered(PLAIN)
    reply.trace.cut = True
    right = judged(built, reply)
    assert replayed(right, reply, in_turn(), tmp_path) == [right]


@pytest.mark.parametrize("id, again", [("does-not-compile", ""), ("", "--seed 77 --case ")])
def test_a_replay_that_crashes_says_the_line_of_the_file_and_the_numbers(monkeypatch, tmp_path, id,
                                                                         again):
    built, reply = answered(PLAIN)
    other_answer(monkeypatch)
    error = SubmissionError("crashed", "line 9: no such thing", id=id)
    check, = replayed(judged(built, reply), reply, in_turn(error), tmp_path)
    assert check.outcome == "crashed" and "problem_3.py:9: no such thing." in check.what
    assert again in check.again and bool(again) == bool(check.again)


@pytest.mark.parametrize("errors, outcome", [
    ([], "pass"), ([True], "pass"), ([True, True], "skipped"), ([False], "timeout")])
def test_a_late_replay_is_made_again_if_others_had_the_cpus(monkeypatch, tmp_path, errors, outcome):
    built, reply = answered(PLAIN)
    replay, right = other_answer(monkeypatch), judged(built, reply)
    left = [SubmissionError("timeout", "late", waited_for_cpu=waited) for waited in errors]
    check, = replayed(right, reply, lambda *what: in_turn(left.pop(0) if left else replay(
        *what))(), tmp_path)
    assert (check.outcome, check.not_checked) == (outcome, outcome == "skipped")


def test_all_right_answers_are_replayed_where_that_is_asked_for(monkeypatch, tmp_path):
    built, reply = answered(PLAIN)
    right, asked = judged(built, reply), []
    many = [Right(PLAIN, right, reply.trace, None)] * 8
    monkeypatch.setattr(replay_check, "_replayed", lambda context, workers, one: asked.append(
        one) or one.check)
    for every in (True, False):
        context = GradingContext(
            STAGES[3], None, Options(tmp_path, "cpu", 0, 60.0, replays_all=every),
            Reporter(io.StringIO()), StageResult(3, "", 100, checks=[right]))
        replay_check.replay_some(context, SimpleNamespace(count=1), many)
    assert len(asked) == 8 + 1  # of one name, one is drawn


@pytest.mark.parametrize("steps, as_given", [(("3.1",), False), ((), True)])
def test_a_replay_is_judged_by_the_rule_of_the_first_answer(monkeypatch, tmp_path, steps, as_given):
    built, reply = answered(PLAIN)
    right, told = judged(built, reply), []
    monkeypatch.setattr(replay_check, "judge_repeated", lambda *what: told.append(
        what[-1]) or (right, False))
    file = SimpleNamespace(source=b"", state="ready", steps=steps)
    context = GradingContext(STAGES[3], file, Options(tmp_path, "cpu", 0, 60.0), None, None)
    replay_check._replayed(context, SimpleNamespace(replay=other_answer(monkeypatch)),
                           Right(PLAIN, right, reply.trace, None))
    assert told == [as_given]
