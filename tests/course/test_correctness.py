"""The verdict rule: it takes every honest kernel, and no wrong one, on the real list of cases."""

import itertools
import math

import pytest
import torch

import reference
from grader.course import contract, correctness, inputs
from grader.course.case_table import listed
from grader.course.cases import Case
from grader.course.stages import STAGES
from tests import variants

ATTENTION = (1, 3, 4, 5, 6, 7, 8, 9)


def small_cases(number: int) -> list[Case]:
    return [case for case in listed(number, "cpu", False) if case.N <= 512]


def mistakes(number: int) -> dict[str, dict]:
    found = dict(variants.FORWARD)
    if number >= 4:
        found |= variants.CAUSAL
    if number in (5, 6, 7, 8, 9):
        found |= variants.GROUPED
    if number in (6, 7, 9):
        found |= variants.WINDOW
    if number in (7, 9):
        found |= variants.SINKS
    if number in (8, 9):
        found |= variants.BACKWARD
    if number == 9:
        found |= variants.BACKWARD_WINDOW
    return found


def _share(number, built, answer, switches) -> float:
    """The worst error of a variant over its limit; infinite where it is not a number."""
    got = variants.attend(**built.tensors, **built.upstream, **built.case.mask(), **switches)
    worst = 0.0
    for name, x in got.items():
        if name not in answer.truth or (name == "lse" and number != 1):
            continue
        verdict = answer.judge(name, x)
        assert verdict.accepted == (verdict.times <= 1)
        worst = max(worst, verdict.times)
    return worst


@pytest.mark.parametrize("number", ATTENTION)
@pytest.mark.parametrize("seed", (0, *(pytest.param(n, marks=pytest.mark.slow) for n in (1, 2))))
def test_honest_variants_stay_well_inside_the_limits(number, seed):
    on_a_gpu = [case for case in listed(number, "cuda", True)
                if case.N <= 520 and case.n_keys <= 2000 and case.layout != "far"]
    rows = contract.cases(STAGES[number], {32, 64}, None, seed=0)
    for case in {case.name: case for case in (*small_cases(number), *on_a_gpu, *rows)}.values():
        built = inputs.build(case, seed)
        answer = correctness.answer(built, "cpu")
        for honest, switches in variants.HONEST.items():
            assert _share(number, built, answer, switches) <= 0.85, f"{case.name}: {honest}"


@pytest.mark.parametrize("number", (3, 4, 5, 6, 7, 8, 9))
def test_matrix_units_may_cut_float32_where_ours_round_it(number, monkeypatch):
    for case in listed(number, "cuda", True):
        if case.dtype != torch.float32 or case.group == "beyond" or case.N > 1000:
            continue
        built = inputs.build(case, 0)
        answer = correctness.answer(built, torch.device("cpu"))  # not "cpu": as on a GPU, in TF32
        # The third scales as the second, but has TF32 in the forward, too.
        for scaled in (*correctness.SCALED, ("scores", "k", "sums")):
            with monkeypatch.context() as patched:
                patched.setattr(correctness, "_round_tf32", correctness._cut_tf32)
                x = correctness.tiled_attention(**built.tensors, **built.upstream, **case.mask(),
                                                scaled=scaled, tf32=True)
            for name in answer.truth:
                assert answer.judge(name, x[name]).times < 0.85, (case.name, name)


@pytest.mark.parametrize("number", ATTENTION)
def test_every_small_mistake_is_rejected_by_some_case_of_its_stage(number):
    worst = dict.fromkeys(mistakes(number), 0.0)
    for case in small_cases(number):
        built = inputs.build(case, 0)
        answer = correctness.answer(built, "cpu")
        for name, switches in mistakes(number).items():
            if worst[name] < 2:
                windowed = "window" not in switches and "backward_window" not in switches
                if windowed or (case.window or 1) > 1:
                    worst[name] = max(worst[name], _share(number, built, answer, switches))
    missed = {name: share for name, share in worst.items() if share < 2}
    assert not missed


def _answer(truth: torch.Tensor, tiled: torch.Tensor) -> correctness.Answer:
    return correctness.Answer({"o": truth}, {}, {"o": tiled}, 2.0**-12)


@pytest.mark.parametrize("dtype, unit", [
    (torch.float16, 2.0**-12), (torch.bfloat16, 2.0**-9), (torch.float32, 2.0**-21)])
def test_an_answer_may_be_off_by_few_units_of_its_dtype(dtype, unit):
    answer = correctness.answer(inputs.build(Case(3, "robust", 8, dtype=dtype), 0), "cpu")
    assert answer.unit == unit and not answer.given
    truth = torch.randn(1, 1, 8, 16, dtype=torch.float64)
    verdict = correctness.Answer({"o": truth}, {}, {"o": truth}, unit).judge("o", truth)
    assert (verdict.fro_limit, verdict.row_limit, verdict.times) == (3 * unit, 16 * unit, 0)
    assert correctness.answer(inputs.build(
        Case(2, "robust", 8, M=4, dtype=dtype), 0), "cpu").unit == unit


@pytest.mark.parametrize("stage, unit", [(3, 2.0**-10), (1, 2.0**-21)])
def test_only_kernels_on_a_gpu_multiply_float32_in_tf32(stage, unit):
    built = inputs.build(Case(stage, "robust", 8, dtype=torch.float32), 0)
    assert correctness.answer(built, torch.device("cpu")).unit == unit  # not "cpu": as on a GPU


@pytest.mark.parametrize("case, given", [
    (Case(1, "robust", 8), {"o", "lse"}), (Case(1, "robust", 8, dtype=torch.float32), set()),
    (Case(3, "robust", 8), set()), (Case(2, "robust", 8, M=4), {"y"})])
def test_lines_that_the_assignment_gives_may_round_where_it_gives_some(case, given):
    built = inputs.build(case, 0)
    assert set(correctness.answer(built, "cpu", as_given=True).given) == given
    assert not correctness.answer(built, "cpu").given


def test_what_such_a_line_makes_infinite_excuses_nothing():
    built = inputs.build(Case(1, "robust", 8), 0)
    built.tensors["q"] = built.tensors["q"] * 2e4  # scores overflow float16
    assert "o" not in correctness.answer(built, "cpu", as_given=True).given


@pytest.mark.parametrize("factor, accepted, excused", [
    (1.0, True, False), (1.01, True, True), (1.05, False, False)])
def test_an_excuse_is_told_where_it_was_needed(factor, accepted, excused):
    truth = torch.randn(1, 1, 8, 16, dtype=torch.float64)
    answer = correctness.Answer({"o": truth}, {}, {"o": truth}, 2.0**-12,
                                given={"o": 1.01 * truth})
    verdict = answer.judge("o", factor * truth)
    assert (verdict.accepted, verdict.excused) == (accepted, excused)
    assert verdict.as_dict().get("excused", False) == excused


def test_of_few_sink_logits_the_worst_alone_decides():
    truth = torch.tensor([1.0, 2.0], dtype=torch.float64)
    answer = correctness.Answer({"d_sink_logits": truth}, {"d_sink_logits": torch.ones(2)},
                                {"d_sink_logits": truth + torch.tensor([0.0, 0.5])}, 2.0**-12)
    verdict = answer.judge("d_sink_logits", truth)
    assert verdict.fro_limit == verdict.row_limit == 2.0


def test_a_refilled_call_is_judged_by_its_refill():
    built = inputs.build(Case(3, "robust", 8, refill=True), 0)
    want = reference.attention(**built.refilled, is_causal=False)["o"]
    assert torch.equal(correctness.answer(built, "cpu", refilled=True).truth["o"], want)
    assert not torch.equal(correctness.answer(built, "cpu").truth["o"], want)


def test_the_scale_of_dw_is_that_of_a_sum_of_random_signs():
    built = inputs.build(Case(2, "robust", 30, M=50, grads=("x", "w")), 0)
    terms = built.upstream["dy"].double()[:, None] * built.tensors["x"].double()
    found = correctness.answer(built, "cpu").scale["d_w"]
    torch.testing.assert_close(found, terms.norm(dim=0))


def test_a_gradient_of_lse_is_a_term_of_dq_and_dk_like_delta():
    built = inputs.build(Case(1, "robust", 8, grads=("q", "k", "v")), 0)
    given = {**built.tensors, "dout": built.upstream["dout"]}
    exact = reference.attention(**built.tensors, **built.upstream, is_causal=False)
    without = correctness.term_sizes(**given, exact=exact)
    with_it = correctness.term_sizes(**given, exact=exact, dlse=built.upstream["dlse"])
    assert all((with_it[name] > without[name]).all() for name in ("d_q", "d_k"))


@pytest.mark.parametrize("number, family", [(8, "falling"), (9, "needles")])
def test_a_kernel_may_round_its_scores_otherwise_in_the_backward(number, family):
    case = next(case for case in listed(number, "cpu", False)
                if case.family == family and case.dtype == torch.float32)
    for seed in range(12):
        built = inputs.build(case, seed)
        answer = correctness.answer(built, "cpu")
        x = correctness.tiled_attention(**built.tensors, **built.upstream, **case.mask(),
                                        scaled=("k", "scores", "sums"))
        for name in answer.truth:
            assert answer.judge(name, x[name]).times < 0.8, (seed, name)


@pytest.mark.parametrize("number", [3, 6])
def test_a_kernel_may_visit_the_keys_twice_first_for_lse(number):
    for case in contract.cases(STAGES[number], {32, 64}, None, seed=0):
        if case.family != "steep" or case.dtype != torch.float32:
            continue
        for seed in range(6):
            built = inputs.build(case, seed)
            q, k, v = built.tensors.values()
            keep = reference.keep_mask(case.N, case.N, case.is_causal, case.window, 0)
            k, v = (t.repeat_interleave(case.HQ // case.HKV, 1) for t in (k, v))
            s = (q @ k.mT * (math.log2(math.e) * case.D**-0.5)).masked_fill(~keep, -math.inf)
            lse = torch.log2(torch.exp2(s - s.amax(-1, keepdim=True)).sum(-1, keepdim=True))
            o = torch.exp2(s - (lse + s.amax(-1, keepdim=True))) @ v
            verdict = correctness.answer(built, "cpu").judge("o", o)
            assert verdict.times < 0.85, (case.name, seed)


@pytest.mark.parametrize("number", [8, 9])
def test_a_kernel_may_scale_ds_before_it_is_rounded_in_steps_of_float16(number):
    for case in contract.cases(STAGES[number], {32}, None, seed=0):
        if case.family != "falling":  # all keys but the first weigh less than 2^-14
            continue
        for seed in range(12):
            built = inputs.build(case, seed)
            answer = correctness.answer(built, "cpu")
            right, wrong = (_share(number, built, answer, {"scale_ds": True, "dk_factor": factor})
                            for factor in (1.0, 1.04))
            assert right < 0.6 and wrong > 1, f"{case.name}, seed {seed}"


def _one_element(x: torch.Tensor, value: float) -> torch.Tensor:
    return x.index_put((torch.tensor(0), torch.tensor(0), torch.tensor(2), torch.tensor(3)),
                       torch.tensor(value, dtype=x.dtype))


@pytest.mark.parametrize("change, by", [
    (lambda x: _one_element(x, float("nan")), "nan"),
    (lambda x: _one_element(x, float("inf")), "nan"),
    (lambda x: torch.cat([x[:, :, :1] * 1.02, x[:, :, 1:]], 2), "row"),  # one of thousands
    (lambda x: x * 1.002, "fro")])  # a little everywhere
def test_every_kind_of_error_is_seen_by_its_own_measure(change, by):
    truth = torch.randn(1, 1, 4096, 16, dtype=torch.float64)
    verdict = _answer(truth, truth).judge("o", change(truth))
    assert not verdict.accepted and (verdict.nan == 1) == (by == "nan")
    assert (verdict.times == math.inf) == (by == "nan")
    if by != "nan":
        assert (verdict.fro < verdict.fro_limit) == (by == "row")
        assert (verdict.row < verdict.row_limit) == (by == "fro")


def test_lse_is_judged_by_its_absolute_error_near_zero():
    truth = torch.zeros(1, 1, 8, dtype=torch.float64)
    answer = correctness.Answer({"lse": truth}, {"lse": torch.ones_like(truth)}, {"lse": truth},
                                2.0**-12)
    assert answer.judge("lse", truth + 1e-4).accepted
    assert not answer.judge("lse", truth + 1e-2).accepted


def test_row_sums_that_cancel_are_judged_by_the_size_of_their_terms():
    built = inputs.build(Case(2, "robust", 400, M=50, dtype=torch.float16), 3)
    answer = correctness.answer(built, "cpu")
    x, w = built.tensors["x"], built.tensors["w"]
    split = sum((x[:, i:i + 37].float() * w[i:i + 37].float()).sum(1) for i in range(0, 400, 37))
    assert answer.judge("y", split.half()).accepted
    assert answer.judge("y", (x * w).float().sum(1).half()).accepted  # products rounded first
    assert not answer.judge("y", (x[:, :-1].float() @ w[:-1].float()).half()).accepted
    assert not answer.judge("y", (x.float() @ w.float() * 1.04).half()).accepted


def test_the_sizes_of_terms_are_those_of_a_sum_term_by_term():
    case = Case(9, "robust", 5, D=3, HQ=4, HKV=2, dtype=torch.float32, is_causal=True, window=3,
                sink_logits=True, grads=("q", "k", "v"))
    built = inputs.build(case, 0)
    given = {name: x.double() for name, x in built.tensors.items()}
    q, k, v, do = (x[0] for x in (given["q"], given["k"], given["v"], built.upstream["dout"]))
    exact = reference.attention(**given, dout=do[None].double(), **case.mask())
    wanted_q, wanted_k, scale = torch.zeros(4, 5), torch.zeros(2, 5), 3**-0.5
    for h, i, j in itertools.product(range(4), range(5), range(5)):
        if j <= i < j + 3:
            kv = h // 2
            p = math.exp(scale * q[h, i].dot(k[kv, j]) - exact["lse"][0, h, i])
            dp, delta = ((do[h, i] * x).norm() for x in (v[kv, j], exact["o"][0, h, i]))
            wanted_q[h, i] += (scale * p * (dp + delta) * k[kv, j].norm()) ** 2
            wanted_k[kv, j] += (scale * p * (dp + delta) * q[h, i].norm()) ** 2
    got = correctness.term_sizes(**built.tensors, dout=do[None], exact=exact, **case.mask())
    torch.testing.assert_close(got["d_q"][0].float(), wanted_q.sqrt())
    torch.testing.assert_close(got["d_k"][0].float(), wanted_k.sqrt())


def test_the_scale_of_a_sink_logits_gradient_is_that_of_its_terms():
    case = Case(9, "robust", 5, D=3, B=2, HQ=2, HKV=2, dtype=torch.float32, is_causal=True,
                window=3, sink_logits=True, grads=("q", "k", "v", "sink_logits"))
    built = inputs.build(case, 0)
    answer, sinks = correctness.answer(built, "cpu"), built.tensors["sink_logits"].double()
    wanted = torch.zeros(2, dtype=torch.float64)
    for b, h, i in itertools.product(range(2), range(2), range(5)):
        p = math.exp(sinks[h] - answer.truth["lse"][b, h, i])
        wanted[h] += (p * built.upstream["dout"][b, h, i].double().dot(
            answer.truth["o"][b, h, i])) ** 2
    torch.testing.assert_close(answer.scale["d_sink_logits"], wanted.sqrt())


def test_float32_on_a_gpu_is_given_the_room_tf32_needs():
    t = torch.randn(1000)
    error = (correctness._round_tf32(t) - t).abs() / t.abs()
    assert 2.0**-13 < error.max() <= 2.0**-11


def test_our_own_tiles_agree_with_the_truth_in_float32():
    case = Case(9, "robust", 150, D=24, HQ=4, HKV=2, dtype=torch.float32, is_causal=True,
                window=20, sinks=3, sink_logits=True, grads=("q", "k", "v", "sink_logits"))
    answer = correctness.answer(inputs.build(case, 1), "cpu")
    for name, truth in answer.truth.items():
        torch.testing.assert_close(answer.tiled[name].double(), truth, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("error, said", [
    (0.0004, "0.04 %"), (0.0123, "1.2 %"), (0.994, "99 %"), (0.996, "100 %"), (1.0, "100 %"),
    (3.68, "368 %")])
def test_a_share_is_a_plain_number(error, said):
    assert correctness._percent(error) == said


@pytest.mark.parametrize("fro, row, said", [
    (0.96, 20.8, "o is 96 % off (0.07 % allowed); its worst row is 2080 % off."),
    (4.66, 4.66, "o is 466 % off (0.07 % allowed)."),
    (0.0007004, 0.001, "o is 0.07004 % off (0.07 % allowed); its worst row is 0.1 % off."),
    (0.0003, 0.12, "o is 0.03 % off, but its worst row is 12 % off (0.39 % allowed)."),
    (9e4, 9e5, "o is more than 9999 % off (0.07 % allowed).")])
def test_how_far_it_is_off_is_one_line(fro, row, said):
    verdict = correctness.Verdict(fro, 0.0007, row, 0.0039, 0)
    assert correctness.how_far("o", verdict) == said
