"""Benchmark: the clock's arithmetic, the table, and the timed answer's verdict, without a GPU."""

import io
from pathlib import Path

import pytest
import torch

from grader.assignment import submission
from grader.course.calls import SubmissionError
from grader.course.cases import Case
from grader.course.correctness import answer
from grader.course.stages import STAGES
from grader.host.options import Options
from grader.judge import timing
from grader.judge.context import GradingContext
from grader.judge.timing import Row
from grader.report.results import Check, StageResult
from grader.report.screen import Reporter


def test_the_constant_cost_of_a_request_cancels():
    ms, spread = timing.measure(lambda n: 5.0 + 0.002 * n)
    assert ms == pytest.approx(2.0) and spread == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize("seconds, most", [(0.25, 30), (0.03, 60)])
def test_slow_calls_are_few(seconds, most):
    calls = []
    ms, _ = timing.measure(lambda n: calls.append(n) or seconds * n)
    assert ms == pytest.approx(1000 * seconds) and sum(calls) < most


def test_two_shapes_a_stage_the_assignments_and_one_of_today():
    assert [case.N for case in timing.shapes(STAGES[1])] == [4096]  # a quarter of a second a call
    for number, stage in [*STAGES.items()][1:]:
        first, second = timing.shapes(stage)
        assert first.group == second.group == "standard"
        if number != 2:
            assert (first.B, first.HQ, first.N, first.D) == (1, 16, 4096, 16)
            assert second.D in (64, 128)
            assert (first.window, first.sinks) == (second.window, second.sinks)


def test_sdpa_is_left_out_where_it_cannot_do_the_work():
    assert timing._sdpa(Case(6, "standard", 64, is_causal=True, window=16)) is None
    assert timing._sdpa(Case(5, "standard", 64, HQ=4, HKV=2, is_causal=True)) is not None


def test_the_table_keeps_the_shape_readers_know():
    case = Case(3, "standard", 4096, HQ=16, HKV=16)
    rows = [Row("Triton (yours)", 0.25, 0.02, 10.0), Row("PyTorch (Naive)", 10.0, 0.1, 2000.0),
            Row("PyTorch (SDPA)")]
    lines = timing.table(STAGES[3], case, rows)
    assert "--- Benchmark Results ---" in lines
    assert any(line.startswith("Implementation ") and "Avg Time (ms)" in line for line in lines)
    assert "Triton is 40.00x faster than PyTorch (Naive)." in lines
    assert "Triton uses 200.00x less memory." in lines
    assert any(line.startswith("PyTorch (SDPA)") and "n/a" in line for line in lines)
    assert max(map(len, lines)) <= 80


def test_no_ratio_where_naive_ran_out_of_memory():
    rows = [Row("Triton (yours)", 0.25, 0.02, 10.0),
            Row("PyTorch (Naive)", note="n/a (out of memory)"), Row("PyTorch (SDPA)")]
    lines = timing.table(STAGES[3], Case(3, "standard", 4096), rows)
    assert any("n/a (out of memory)" in line for line in lines)
    assert not any("faster" in line for line in lines)
    assert timing.as_record(Case(3, "standard", 4096), rows)["naive_ms"] is None


def test_a_backward_benchmark_says_what_it_times():
    rows = [Row("Triton (yours)", 1.0, 0.1, 1.0)] + [Row("x")] * 2
    case = Case(8, "standard", 64, grads=("q", "k", "v"))
    assert any("forward + backward" in line for line in timing.table(STAGES[8], case, rows))


def test_without_a_gpu_timing_is_skipped_in_words():
    stream = io.StringIO()
    result = StageResult(3, "", 200)
    timing.time_stage(GradingContext(STAGES[3], None, Options(Path("."), "cpu", 1, 60.0),
                                     Reporter(stream), result), None, None)
    assert stream.getvalue().startswith("timing skipped: no GPU") and result.benchmark is None


def test_a_spread_of_a_quarter_is_no_measurement():
    assert timing._row("x", 1.0, 0.2, 3.0).ms == 1.0
    assert timing._row("x", 1.0, 0.3, 3.0).note == "n/a (too noisy)"


def test_timed_calls_have_storages_to_go_on_in():
    call = timing.build(Case(3, "standard", 64), 0).call
    longer = timing._lengthened(call)
    most = timing.STEP * (timing.MOST + timing.FEW)
    for name, old in call.inputs.items():
        new = longer.inputs[name]
        assert new.storage.numel() - old.storage.numel() >= most
        assert (new.view() == old.view()).all()


def test_the_inputs_of_a_timed_call_are_those_that_far_into_the_storages():
    built = timing.build(Case(3, "standard", 64), 0)
    call = timing._lengthened(built.call)
    third = timing._of_turn(built, call, 3)
    start = 3 * timing.STEP
    for name, old in built.call.inputs.items():
        want = call.inputs[name].storage[start:start + old.storage.numel()].view(old.shape)
        assert third.call.inputs[name].storage.numel() == old.storage.numel()
        assert torch.equal(third.call.inputs[name].view(), want)
        assert torch.equal(third.tensors[name], want)


ROW_SUM = Case(2, "standard", M=64, N=2048)  # of whose inputs two timed calls share most
TIMED = Case(8, "standard", 96, HQ=2, HKV=2, D=32, is_causal=True, grads=("q", "k", "v"))


def of_turn(turn: int, case: Case = TIMED):
    built = timing.build(case, 0)
    return timing._of_turn(built, timing._lengthened(built.call), turn)


def right(turn: int, case: Case = TIMED) -> dict[str, torch.Tensor]:
    """The answer of a timed call."""
    given = {"o", "y", "d_q", "d_k", "d_v"}
    return {name: x.clone() for name, x in answer(of_turn(turn, case), "cpu").tiled.items()
            if name in given}


def judged(monkeypatch, kept, alone="pass", case=TIMED):
    """The check of what call 5 left; alone: the outcome of the same call while nothing is timed."""
    monkeypatch.setattr(timing, "judged", lambda *what: Check(
        case.name, "standard", alone, what="o is 96 % off."))
    context = GradingContext(case.course_stage, None, Options(Path("."), "cpu", 1, 60.0), None,
                             None)
    return timing._judge_kept(context, lambda turn: of_turn(turn, case), 5, kept, None)


@pytest.mark.parametrize("case", [TIMED, ROW_SUM])
def test_a_timed_answer_that_is_right_is_no_check(monkeypatch, case):
    assert judged(monkeypatch, right(5, case), case=case) is None


@pytest.mark.parametrize("other", [0, 4])
@pytest.mark.parametrize("case", [TIMED, ROW_SUM])
def test_a_timed_answer_of_another_call_rejects(monkeypatch, case, other):
    check = judged(monkeypatch, right(other, case), case=case)
    assert (check.outcome, check.group) == ("rejected", "robust")
    assert "does not belong to that call's inputs" in check.what


@pytest.mark.parametrize("left", [
    torch.zeros_like, torch.randn_like, lambda x: torch.full_like(x, torch.nan)],
    ids=["zeros", "whatever was there", "NaN"])
@pytest.mark.parametrize("name", ["o", "d_k"])
def test_a_timed_answer_of_untouched_memory_rejects(monkeypatch, name, left):
    kept = right(5)
    check = judged(monkeypatch, kept | {name: left(kept[name])})
    assert (check.outcome, check.name) == ("rejected", f"timing/{TIMED.name}")


def test_gradients_of_another_call_reject_whatever_the_forward_returned(monkeypatch):
    assert judged(monkeypatch, right(5) | {"d_k": right(4)["d_k"]}).outcome == "rejected"


@pytest.mark.parametrize("spoil", [
    lambda x: x[0, 1, 40:44].add_(1.0), lambda x: x[0, 0, 7].fill_(torch.nan),
    lambda x: x[0, 1, -1].fill_(1e4), lambda x: x.mul_(1.1)])
@pytest.mark.parametrize("name", ["o", "d_k"])
def test_a_timed_answer_that_a_race_spoiled_is_wrong_and_no_cheat(monkeypatch, name, spoil):
    kept = right(5)
    spoil(kept[name])
    check = judged(monkeypatch, kept)
    assert (check.outcome, check.group) == ("wrong", "robust")
    assert "differs from call to call" in check.what and "same place?" in check.advice
    assert check.again.endswith("--p8")


def test_an_answer_that_is_wrong_whether_timed_or_not_is_wrong(monkeypatch):
    kept = right(5)
    check = judged(monkeypatch, kept | {"o": torch.zeros_like(kept["o"])}, alone="wrong")
    assert (check.outcome, check.what) == ("wrong", "o is 96 % off.")
    assert check.name == f"timing/{TIMED.name}" and check.again.endswith("--p8")


@pytest.mark.parametrize("error, outcome", [
    (SubmissionError("wrong", "it was not made"), "rejected"),
    (SubmissionError("crashed", "illegal memory access"), "crashed"),
    (SubmissionError("timeout", "late"), None)])
def test_an_answer_that_was_never_made_rejects_and_a_crash_does_not(tmp_path, error, outcome):
    (tmp_path / "problem_8.py").write_text("x = 1\n")
    file = submission.read(tmp_path, "problem_8.py", "")
    context = GradingContext(STAGES[8], file, Options(tmp_path, "cuda", 1, 60.0), None, None)
    check = timing._not_made(context, TIMED, error)
    assert (check and check.outcome) == outcome
    assert outcome is None or error.sentence in check.message
