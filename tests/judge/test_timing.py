"""Benchmark: the clock's arithmetic, the table, and the timed answer's verdict, without a GPU."""

import io
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

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


def test_a_noisy_measurement_is_made_once_more():
    rounds = []

    def timed(n):
        if n <= timing.FEW + timing.WARM:
            return 0.002 * n
        rounds.append(n)
        return 0.002 * n + 0.1 * (len(rounds) % 2) * (len(rounds) <= timing.ROUNDS)

    ms, spread = timing.measure(timed)
    assert ms == pytest.approx(2.0) and spread == pytest.approx(0.0, abs=1e-9)
    assert len(rounds) == 2 * timing.ROUNDS


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


@pytest.mark.parametrize("case", [Case(8, "standard", 64, HQ=4, HKV=2, is_causal=True, scale=0.3),
                                  Case(3, "standard", 64, HQ=2, HKV=2)])
def test_naive_and_sdpa_compute_what_the_case_asks(case):
    built = timing.build(case, 0)
    inputs = {name: x.float() for name, x in built.tensors.items()}
    truth = answer(built, "cpu").truth["o"].float()
    for made in (timing._naive(case), timing._sdpa(case)):
        torch.testing.assert_close(made(**inputs), truth, rtol=1e-4, atol=1e-4)


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


def test_the_file_keeps_each_number_under_its_own_name():
    rows = [Row("Triton (yours)", 0.25, 0.02, 10.0), Row("x", 8.0, 0.1, 2000.0), Row("y", 0.5)]
    assert timing.as_record(Case(3, "standard", 4096, HQ=16, HKV=16), rows) == {
        "label": "B=1, H=16, L=4096, D=16, float16", "ms": 0.25, "spread_ms": 0.02, "naive_ms": 8.0,
        "sdpa_ms": 0.5, "peak_mib": 10.0, "naive_peak_mib": 2000.0}


def test_what_is_slower_or_takes_more_memory_than_naive_is_told_by_how_much():
    rows = [Row("Triton (yours)", 4.0, 0.02, 10.0), Row("PyTorch (Naive)", 1.0, 0.1, 5.0), Row("z")]
    lines = timing.table(STAGES[3], Case(3, "standard", 128), rows)
    assert lines[-2:] == ["Triton is 4.00x slower than PyTorch (Naive).",
                          "Triton uses 2.00x more memory."]


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


@pytest.mark.parametrize("spoiled, failed", [(None, []), (0, [0]), (1, [1])])
def test_the_file_gets_the_first_shapes_times_and_any_shape_may_fail(monkeypatch, spoiled, failed):
    first, second = Case(3, "standard", 64), Case(3, "standard", 128)
    ours = {case: (Row("Triton (yours)", case.N / 64, 0.1, 1.0), None if i != spoiled else Check(
        str(i), "robust", "wrong")) for i, case in enumerate((first, second))}
    monkeypatch.setattr(timing, "shapes", lambda *what: [first, second])
    monkeypatch.setattr(timing, "build", lambda case, seed: SimpleNamespace(case=case))
    monkeypatch.setattr(timing, "_measure_submission", lambda *what: ours[what[-1].case])
    monkeypatch.setattr(timing, "_measure_here", lambda name, *what: Row(name))
    recorded = []
    monkeypatch.setattr(timing, "record", lambda context, check: recorded.append(int(check.name)))
    result = StageResult(3, "", 200)
    run = SimpleNamespace(session=None, prepare=lambda session, case: None)
    built, rows = timing.time_stage(
        GradingContext(STAGES[3], None, Options(Path("."), "cuda", 1, 60.0),
                       Reporter(io.StringIO()), result), run, SimpleNamespace(replay=None))
    assert (built.case, rows[0].ms, result.benchmark["ms"]) == (second, 2.0, 1.0)
    assert recorded == failed


def test_nothing_is_timed_unless_it_is_asked_for():
    options = replace(Options(Path("."), "cuda", 1, 60.0), benchmark=False)
    assert timing.time_stage(GradingContext(STAGES[3], None, options, None, None), None,
                             None) is None


class Timed:
    """Stands in for a session on a GPU in which two calls take 2 ms each."""

    def __init__(self, kept: float = 1.0):
        self.kept_answer, self.asked = kept, []

    def prepare(self, call):
        pass

    def memory(self, call):
        return 3 * timing.MIB

    def time(self, call, n):
        self.asked.append(n)
        return 0.002 * n

    def kept(self, call):
        return 7, {"o": torch.full((2,), self.kept_answer)}

    def run(self, call):
        return SimpleNamespace(trace="trace")


def measured(monkeypatch, session, again: float = 1.0, wrong=None):
    monkeypatch.setattr(timing, "_judge_kept", lambda *what: wrong)
    context = GradingContext(STAGES[3], None, Options(Path("."), "cuda", 1, 60.0), None, None)
    return timing._measure_submission(
        context, session, lambda call, trace: {"o": torch.full((2,), again)},
        timing.build(Case(3, "standard", 64), 0))


def test_the_peak_is_that_of_a_call_and_of_its_inputs(monkeypatch):
    row, problem = measured(monkeypatch, Timed())
    assert (row.ms, problem) == (pytest.approx(2.0), None)
    assert row.peak_mib == 3 + 3 * 64 * 16 * 2 / timing.MIB


def test_no_time_where_other_kernels_answered_or_the_answer_is_wrong(monkeypatch):
    row, problem = measured(monkeypatch, Timed(), again=1.5)
    assert (row.ms, row.note, problem) == (None, "n/a (other kernels)", None)
    wrong = Check("timing/x", "robust", "rejected")
    row, problem = measured(monkeypatch, Timed(), wrong=wrong)
    assert (row.ms, row.note, problem) == (None, "n/a (wrong answers)", wrong)


def test_only_long_requests_are_sampled_and_each_may_be_the_one_kept(monkeypatch):
    drawn, numbers = iter([0, 0, 1, 0]), []
    monkeypatch.setattr(timing.secrets, "randbelow", lambda n: numbers.append(n) or next(drawn))
    session = Timed()
    session.kept = lambda call: (len(numbers), {})
    timed, seen = timing._Timed(session, None), []
    for n in (timing.FEW, 40, 40, 40, timing.FEW, 40):
        timed(n)
        seen.append(timed.kept and timed.kept[0])
    assert numbers == [1, 2, 3, 4] and seen == [None, 0, 1, 1, 1, 3]


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
