"""Diagnosis: the wrong place and the pattern are named, in at most twelve lines."""

from dataclasses import replace

import torch

from grader.cases import Case
from grader.correctness import Answer
from grader.naming import words
from grader.naming.search import Name
from grader.stages import STAGES

CASE = Case(7, "robust", 100, D=8, B=2, HQ=4, HKV=2, is_causal=True, window=20, sinks=4)


def found(case: Case, spoil, name: str = "o"):
    gen = torch.Generator().manual_seed(0)
    truth = torch.randn(case.B, case.HQ, case.N, case.D, generator=gen, dtype=torch.float64)
    answer = Answer({name: truth}, {}, {name: truth}, 2.0**-12)
    x = truth.clone()
    spoil(x)
    verdict = answer.judge(name, x)
    assert not verdict.accepted
    return words.locate(case, answer, name, x, verdict)


def test_an_error_after_the_first_batch_entry_is_a_batch_error():
    finding = found(CASE, lambda x: x[1:].mul_(2))
    assert finding.symptom == "batch" and "batch entry 1 of 2" in finding.where


def test_one_head_group_is_named():
    finding = found(CASE, lambda x: x[:, 2:].mul_(2))
    assert finding.symptom == "head" and "heads 2-3 of 4" in finding.where
    assert "key/value head 1" in " ".join(finding.what)


def test_only_the_ragged_tail():
    finding = found(CASE, lambda x: x[:, :, 96:].mul_(2))
    assert finding.symptom == "tail" and "rows 96-99 of 100" in finding.where


def test_rows_right_until_the_window_cuts():
    finding = found(CASE, lambda x: x[:, :, 20:].mul_(2))
    assert finding.symptom == "window" and "rows 20-99" in finding.where


def test_wrong_everywhere():
    finding = found(Case(3, "standard", 64, D=8, B=1, HQ=2, HKV=2), lambda x: x.mul_(1.04))
    assert finding.symptom == "numbers" and finding.where == "everywhere"


def test_wrong_columns_are_named():
    finding = found(Case(3, "standard", 64, D=8), lambda x: x[..., 6:].zero_())
    assert "columns 6-7 of 8" in finding.where


def test_nan_everywhere_in_a_head_of_odd_width_is_about_columns():
    case = replace(CASE, D=80, layout="transposed")
    assert found(case, lambda x: x.fill_(float("nan"))).symptom == "width"
    assert found(replace(case, D=64), lambda x: x.fill_(float("nan"))).symptom == "stride"


def test_nan_rows_are_counted_and_located():
    finding = found(CASE, lambda x: x[0, 1, 3].fill_(float("nan")))
    assert finding.symptom == "nan" and "8 of the" in finding.what[0]
    assert "batch entry 0 of 2, head 1 of 4, row 3 of 100" in finding.where


def test_overflow_is_suspected_where_logits_are_128():
    case = Case(3, "robust", 64, D=8, family="shift+")
    assert found(case, lambda x: x.fill_(float("nan"))).symptom == "overflow"


def test_a_wrong_gradient_names_its_formula():
    finding = found(CASE, lambda x: x.mul_(1.04), name="d_k")
    assert finding.symptom == "d_k" and finding.what[0].startswith("the gradient of k differs")


NAME = Name("window-plus-one", "the window is one key too wide: query i sees W + 1 keys",
            "query i sees keys i - W + 1 ... i", ("mask",), 0.3, "no-scale", 900.0, 2e4)
AGAIN = "python autograder.py --p7 --seed 1234567890 --case robust/HQ4-HKV2-N100-D8-W20-S4-float16"


def test_every_symptom_has_something_to_try_and_stays_within_twelve_lines():
    for symptom in words.TRY:
        finding = words.Finding(symptom, "everywhere", ("what", "worst", "pattern"))
        lines = words.describe(finding, STAGES[7], again=AGAIN)
        assert len(lines) <= 12 and lines[-1] == "again: " + AGAIN
        assert any(line.startswith("try:") for line in lines)
        assert any("--hint 7." in line for line in lines)


def test_a_name_comes_with_its_line_its_distance_and_the_command():
    finding = words.Finding("numbers", "rows " + "100-200, " * 20, ("what " * 30, "x " * 60))
    also = replace(NAME, id="no-scale", words="the scores are not divided by sqrt(D) " * 3)
    for name in (NAME, replace(NAME, only="H=1, L=127, D=80"), replace(NAME, also=also)):
        lines = words.describe(finding, STAGES[7], name=name,
                                   again=AGAIN)
        text = " ".join(" ".join(lines).split())
        assert len(lines) <= 12 and all(len(line) <= 74 for line in lines[:-1])
        assert "the mistake: the window is one key too wide" in text
        assert lines[-1] == "again: " + AGAIN


def test_what_cannot_be_told_apart_is_said_in_one_breath():
    finding = words.Finding("numbers", "everywhere", ("what",))
    other = replace(NAME, id="another", words="the window is rounded")
    name = replace(NAME, either=other)
    lines = words.describe(finding, replace(STAGES[7], steps={}), name=name)
    text = " ".join(" ".join(lines).split())
    assert "W + 1 keys; or else the window is rounded (both give these numbers)." in text


def test_a_step_that_is_a_copy_is_named_with_its_origin():
    finding = words.Finding("rescale", "rows 0-9", ("o differs",))
    lines = words.describe(finding, replace(STAGES[4], origins={"4.5": "3.5"}))
    assert "look at step 4.5, carried from 3.5; more: python autograder.py --hint 3.5" in lines
