"""Right numbers carried out again, on other numbers, by a worker without the file."""

import ast
import io
import re
from types import SimpleNamespace

import pytest
import torch

from grader.course import correctness, inputs
from grader.course.calls import SubmissionError
from grader.course.cases import Case
from grader.course.stages import STAGES
from grader.host.options import Options
from grader.judge import replay_check
from grader.judge.context import GradingContext
from grader.judge.replay_check import HANDFUL, draw, judge_repeated, not_repeated
from grader.judge.run_cases import Right
from grader.report.results import Check, StageResult
from grader.report.screen import Reporter
from tests.judged import PLAIN, answered, judged


def repeated(off_by=0.0):
    """off_by: the error of what came out, as a multiple of the limit of all numbers together."""
    built, reply = answered(PLAIN)
    other = inputs.other_numbers(PLAIN, 0)
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


@pytest.mark.parametrize("said, outcome", [("wrong", "rejected"), ("crashed", "crashed"),
                                           ("timeout", "timeout"),
                                           ("grader_fault", "grader_fault")])
def test_a_plan_that_cannot_be_carried_out_says_why(said, outcome):
    built, reply = answered(PLAIN)
    check = not_repeated(judged(built, reply), SubmissionError(said, "it uses numpy"))
    assert check.outcome == outcome and "it uses numpy" in check.lines[0]


def replayed(check, reply, replay, folder) -> list:
    """The checks of a stage, once this answer is replayed; replay: stands in for the workers'."""
    result = StageResult(PLAIN.stage, "", 100, checks=[check])
    file = SimpleNamespace(source=b"", tree=ast.parse(""), blank_steps=(), steps=("3.1",))
    with GradingContext(STAGES[PLAIN.stage], file, Options(folder, "cpu", 0, 60.0),
                        Reporter(io.StringIO()), result) as context:
        replay_check.replay_some(context, SimpleNamespace(count=1, replay=replay), [
            Right(PLAIN, check, reply.trace, None)])
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
