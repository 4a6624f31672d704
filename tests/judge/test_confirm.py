"""Right numbers carried out again, on other numbers, by a worker without the file."""

import io
from types import SimpleNamespace

import pytest
import torch

from grader.course import correctness, inputs
from grader.course.calls import SubmissionError
from grader.course.stages import STAGES
from grader.host.options import Options
from grader.judge import confirm
from grader.judge.confirm import judge_repeated, not_repeated
from grader.judge.known import Known
from grader.report.screen import Reporter
from tests.judged import PLAIN, answered, judged


def repeated(off_by=0.0):
    """off_by: the error of what came out, as a multiple of the limit of all numbers together."""
    built, reply = answered(PLAIN)
    other = inputs.other_numbers(PLAIN, 0)
    exact = correctness.answer(other, "cpu")
    limit = exact.judge("o", exact.tiled["o"]).fro_limit
    got = {"o": exact.tiled["o"] if not off_by else exact.truth["o"] * (1 + off_by * limit)}
    return judge_repeated(judged(built, reply), other, got, "cpu")


def test_a_plan_that_is_right_on_other_numbers_changes_nothing():
    assert repeated().outcome == "pass"


def test_a_plan_that_is_wrong_on_other_numbers_was_not_how_it_was_made():
    check = repeated(off_by=20.0)
    assert check.outcome == "rejected" and "not by the kernels" in check.lines[0]


def test_a_plan_barely_right_on_its_own_numbers_and_not_on_others_is_wrong():
    check = repeated(off_by=2.0)
    assert check.outcome == "wrong" and "Barely right" in check.lines[0]
    assert ": 2.0 times the limit." in check.lines[0]
    assert repeated(off_by=0.9).outcome == "pass"


@pytest.mark.parametrize("said, outcome", [("wrong", "rejected"), ("crashed", "crashed"),
                                           ("timeout", "timeout"),
                                           ("grader_fault", "grader_fault")])
def test_a_plan_that_cannot_be_carried_out_says_why(said, outcome):
    built, reply = answered(PLAIN)
    check = not_repeated(judged(built, reply), SubmissionError(said, "it uses numpy"))
    assert check.outcome == outcome and "it uses numpy" in check.lines[0]


def settled(check, reply, replay, monkeypatch, folder) -> list:
    """The checks of a stage, once this one is confirmed; replay: stands in for the workers'."""
    monkeypatch.setattr(confirm.submission, "foreign_texts", lambda source, texts: [])
    known = Known(STAGES[PLAIN.stage], Options(folder, "cpu", 0, 60.0), Reporter(io.StringIO()))
    known.file = SimpleNamespace(source=b"")
    known.workers = SimpleNamespace(count=1, replay=replay)
    known.confirmations = confirm.Confirmations(known)
    known.confirmations.add(check, [(PLAIN, reply)])
    confirm.rest(known)
    known.confirmations.close()
    return known.result.checks


@pytest.mark.parametrize("times, outcome", [(2.0, "wrong"), (20.0, "rejected")])
def test_numbers_on_which_a_replay_fails_are_there_again_with_the_command_it_says(
        times, outcome, monkeypatch, tmp_path):
    built, reply = answered(PLAIN)
    asked = []

    def other_numbers(case, seed):
        asked.append(inputs.build(case, 77))
        return asked[0]

    def replay(call, plan):
        exact = correctness.answer(asked[0], "cpu")
        limit = exact.judge("o", exact.tiled["o"]).fro_limit
        return {"o": exact.truth["o"] * (1 + times * limit)}
    monkeypatch.setattr(confirm, "other_numbers", other_numbers)
    monkeypatch.setattr(confirm.asking, "apart", lambda known, other: judged(built, reply))
    check, = settled(judged(built, reply), reply, replay, monkeypatch, tmp_path)
    assert check.outcome == outcome
    assert check.lines[-1].startswith("again: python autograder.py --p3 --submission ")
    assert check.lines[-1].endswith(f" --seed 77 --case {PLAIN.name}")


def test_a_judgement_that_others_left_no_gpu_memory_for_is_made_once_more(monkeypatch, tmp_path):
    built, reply = answered(PLAIN)
    right = judged(built, reply)
    tries, waited = iter([torch.OutOfMemoryError("Tried to allocate 2.00 GiB"), right]), []

    def judged_again(*asked):
        found = next(tries)
        if isinstance(found, Exception):
            raise found
        return found
    monkeypatch.setattr(confirm, "judge_repeated", judged_again)
    monkeypatch.setattr(confirm.device_memory, "comes_back",
                        lambda text, clock: waited.append(text))
    monkeypatch.setattr(confirm.torch.cuda, "empty_cache", lambda: None)
    assert settled(right, reply, lambda call, plan: {}, monkeypatch, tmp_path) == [right]
    assert waited == ["Tried to allocate 2.00 GiB"]


def test_a_replay_that_others_left_no_gpu_memory_for_is_made_once_more(monkeypatch, tmp_path):
    built, reply = answered(PLAIN)
    right = judged(built, reply)
    crowded = SubmissionError("crashed", "CUDA error: out of memory")
    tries = iter([crowded, {}])

    def replay(call, plan):
        found = next(tries)
        if isinstance(found, Exception):
            raise found
        return found
    monkeypatch.setattr(confirm.device_memory, "crowded_out",
                        lambda error, device, clock: error is crowded)
    monkeypatch.setattr(confirm, "judge_repeated", lambda check, *asked: check)
    assert settled(right, reply, replay, monkeypatch, tmp_path) == [right]
    assert right.outcome == "pass" and next(tries, None) is None
