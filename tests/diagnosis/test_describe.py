"""The message: where it is wrong, what follows from that and nothing else, in twelve lines."""

import re
import textwrap
from dataclasses import replace

import pytest
import torch

from grader.course.cases import Case
from grader.course.correctness import Answer, Wrong
from grader.course.inputs import build
from grader.course.stages import STAGES
from grader.diagnosis import describe
from grader.diagnosis.isolating import NUMBERS, SURROUNDINGS, THINGS
from grader.report.results import Check
from grader.sandbox.worker.recorder import poison

CASE = Case(7, "robust", 100, D=8, B=2, HQ=4, HKV=2, is_causal=True, window=20, sinks=4)
PLAIN = Case(3, "standard", 64, D=8, HQ=2, HKV=2)
WRONG = Check("robust/x", "robust", "wrong")


def told(finding: describe.Finding, stage, steps=(), **more) -> tuple[str, ...]:
    return describe.describe(WRONG, finding, stage, steps, **more).lines


def found(case: Case, spoil, name: str = "o", dtype=torch.float64, unit=2.0**-12):
    gen = torch.Generator().manual_seed(0)
    truth = torch.randn(case.B, case.HQ, case.N, case.D, generator=gen, dtype=torch.float64)
    answer = Answer({name: truth}, {}, {name: truth}, unit)
    x = spoil(truth.to(dtype, copy=True))
    verdict = answer.judge(name, x)
    assert not verdict.accepted
    return describe.locate(case, answer, name, x, verdict)


def noisy(*where):
    """Add something to some rows."""
    def spoil(x):
        gen = torch.Generator().manual_seed(1)
        x[where] += torch.randn(x.shape, generator=gen, dtype=torch.float64)[where].to(x.dtype)
        return x
    return spoil


def test_an_error_after_the_first_batch_entry_is_a_batch_error():
    finding = found(CASE, noisy(slice(1, None)))
    assert finding.id == "batch" and "batch entry 1 (of 0-1)" in finding.where


def test_whole_groups_of_heads_are_named_and_no_rule_of_heads_is_blamed():
    finding = found(CASE, noisy(slice(None), slice(2, None)))
    assert finding.id == "heads" and "heads 2-3 (of 0-3)" in finding.where
    assert "key/value head 1" in finding.seen and not describe.PATTERNS["heads"]


def test_heads_across_groups_ask_for_the_mapping():
    assert found(CASE, noisy(slice(None), slice(1, 3))).id == "heads-in-groups"


def test_a_few_wrong_rows_in_some_heads_say_nothing_of_heads_and_batch_entries():
    few = found(CASE, noisy(slice(1, None), slice(1, 3), slice(8, 12)))
    assert few.id == "rows" and "heads 1-2 (of 0-3), rows 8-11 (of 0-99)" in few.where


def test_only_the_ragged_tail():
    finding = found(CASE, noisy(slice(None), slice(None), slice(96, None)))
    assert finding.id == "tail" and "rows 96-99 (of 0-99)" in finding.where


def test_rows_right_until_the_window_cuts():
    finding = found(CASE, noisy(slice(None), slice(None), slice(20, None)))
    assert finding.seen == "Rows are right until the window (W=20) first hides a key."
    assert "rows 20-99" in finding.where


def test_right_numbers_in_the_order_of_another_layout_are_said_to_be_so():
    finding = found(CASE, lambda x: x.reshape(2, 100, 4, 8).transpose(1, 2))
    assert finding.id == "stored-otherwise"
    assert finding.seen.startswith("All values of o are right but in the wrong places")


def test_wrong_columns_are_named():
    finding = found(replace(PLAIN, HQ=1, HKV=1), noisy(..., slice(6, None)))
    assert finding.id == "columns" and "columns 6-7 (of 0-7)" in finding.where


@pytest.mark.parametrize("size, least", [(0.08, 0.5), (5.0, 0.01)])
def test_columns_outside_the_limits_are_not_called_right(size, least):
    def spoil(x):
        gen = torch.Generator().manual_seed(1)
        return x + size * torch.rand(x.shape, generator=gen, dtype=torch.float64) \
            * torch.linspace(least, 1.0, x.shape[-1], dtype=torch.float64)
    finding = found(replace(PLAIN, HQ=1, HKV=1), spoil)
    assert finding.id != "columns" and "columns" not in finding.where


@pytest.mark.parametrize("right, said", [
    (3, "almost everywhere (125 of 128 rows)"), (64, "64 of 128 rows, scattered")])
def test_nearly_all_rows_are_not_called_scattered(right, said):
    bad = torch.ones(1, 2, 64, dtype=torch.bool)
    for row in range(right):
        bad[0, row % 2, row] = False
    assert describe._where(bad, torch.zeros(1, 2, 64, 8)) == said


@pytest.mark.parametrize("factor, said", [
    (1.4426950, "is 1.4427 (log2(e)) times"), (0.5, "is 0.5 times"),
    (1.04, "is 1.04 times")])
def test_a_constant_multiple_of_the_right_rows_is_said_as_such(factor, said):
    finding = found(PLAIN, lambda x: x * factor)
    assert finding.id == "multiple-of-all" and said in finding.seen
    assert finding.where == "everywhere"


def test_rows_that_are_multiples_by_several_factors_are_said_as_such():
    factors = torch.linspace(0.5, 0.9, 64, dtype=torch.float64)[:, None]
    assert "between 0.5 and 0.9" in found(PLAIN, lambda x: x * factors).seen


def test_a_tensor_of_single_numbers_has_a_factor_too():
    gen = torch.Generator().manual_seed(0)
    lse = torch.randn(1, 2, 64, generator=gen, dtype=torch.float64) / 5 + 5

    def located(truth, x):
        answer = Answer({"lse": truth}, {"lse": truth.abs() + 1}, {"lse": truth}, 2.0**-12)
        return describe.locate(PLAIN, answer, "lse", x, answer.judge("lse", x))
    finding = located(lse, lse * describe.LOG2E)
    assert finding.what[1] == "Every value is 1.4427 (log2(e)) times the right one."
    assert "; its worst value is " in finding.what[0]
    alike = 5 + lse / 1000
    finding = located(alike, alike + 1)  # which is 1.2 times as much, within the limits
    assert finding.id == "everywhere" and len(finding.what) == 1


@pytest.mark.parametrize("factor, D, said", [
    (1.5**0.5, 8, " (sqrt(1.5))"), (0.5**0.5, 16, " (sqrt(0.5))"),
    (80**0.5 / 8, 80, " (sqrt(D) / isqrt(D))"), (8 / 80**0.5, 80, " (isqrt(D) / sqrt(D))"),
    (4.0, 16, " (sqrt(D))"), (0.75, 64, ""), (1.2243, 64, ""), (3.0, 64, ""), (0.0, 64, ""),
    (-1.0, 64, "")])
def test_a_factor_that_is_a_known_constant_is_named(factor, D, said):
    assert describe.constant(factor, Case(3, "standard", 64, D=D, HQ=2, HKV=2)) == said


def test_only_small_errors_that_are_everywhere_are_called_rounding():
    noise = torch.randn(1, 2, 64, 8, generator=torch.Generator().manual_seed(1)).double()
    finding = found(PLAIN, lambda x: x * (1 + noise * 2e-3))
    assert finding.id == "rounded" and "usually comes from rounding" in finding.seen

    def half_of_the_rows(x):
        x[:, :, 32:] *= 1 + noise[:, :, 32:] * 2e-3
        return x
    assert found(PLAIN, half_of_the_rows).id != "rounded"
    assert found(PLAIN, lambda x: x * (1 + noise * 2e-2)).id == "everywhere"


@pytest.mark.parametrize("rows, said", [
    (slice(16, None, 16), "All wrong rows are the first of a tile of 16."),
    (slice(31, None, 32), "All wrong rows are the last of a tile of 32.")])
def test_wrong_rows_that_all_begin_or_end_a_tile_are_said_to(rows, said):
    assert found(PLAIN, noisy(slice(None), slice(None), rows)).seen == said


@pytest.mark.parametrize("row, said", [
    (99, "] (in the last row) is "), (20, "] (in the first row that the window hides a key from) "),
    (50, "] is ")])
def test_the_worst_row_says_what_is_special_about_it(row, said):
    finding = found(CASE, noisy(slice(None), slice(None), row))
    assert re.match(rf"o\[\d, \d, {row}, \d", finding.worst) and said in finding.worst
    assert f"; {finding.worst}." in _text(told(finding, STAGES[7]))


def test_zero_is_zero():
    finding = found(PLAIN, torch.zeros_like)
    assert (finding.id, finding.where, finding.what) == (
        "zero", "everywhere", ("o is all zeros.",))


def test_a_single_number_is_said_in_the_singular():
    def one(x):
        poison(x[0, 0, 5, 3:4])
        return x
    finding = found(PLAIN, one, dtype=torch.float16)
    assert finding.what[0] == "1 of the 1024 values of o is NaN or inf."
    assert finding.what[1] == "Your code never wrote this element."


def test_numbers_of_float32_that_float16_can_hold_were_rounded():
    finding = found(PLAIN, lambda x: x.half().float(), dtype=torch.float32, unit=2.0**-21)
    assert finding.id == "rounded" and "float16" in finding.seen


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_memory_that_nothing_was_stored_in_is_told_from_what_was_computed(dtype):
    def never(x):
        poison(x[:, :, 32:])
        return x

    def computed(x):
        x[:, :, 32:] = float("nan")
        return x

    def both(x):
        x[:, 1] = float("nan")
        return never(x)
    finding = found(PLAIN, never, dtype=dtype)
    assert finding.id == "never-stored" and "Your code never wrote" in finding.what[1]
    assert STAGES[3].steps_of(finding.places) == ["3.1", "3.8"]
    finding = found(PLAIN, computed, dtype=dtype)
    assert finding.id == "nan" and "Your code stored these values itself." in finding.seen
    heads, rest = PLAIN.B * PLAIN.HQ, (PLAIN.N - 32) * PLAIN.D
    assert finding.what[0].startswith(
        f"{heads * rest} of the {heads * PLAIN.N * PLAIN.D} values of o are NaN")
    assert not finding.places
    assert "It computed the others" in found(PLAIN, both, dtype=dtype).seen


@pytest.mark.parametrize("stage, name, steps", [
    (2, "y", ["2.1"]), (2, "d_x", ["2.4", "2.6"]), (2, "d_w", ["2.5", "2.6"]),
    (3, "o", ["3.1", "3.8"]), (8, "o", ["8.1", "8.20"]), (8, "d_q", ["8.7", "8.10"]),
    (8, "d_k", ["8.13", "8.20"]), (9, "d_v", ["9.15", "9.23"])])
def test_of_rows_never_stored_the_steps_that_choose_them_are_looked_at(
        stage, name, steps):
    assert STAGES[stage].steps_of(describe.WRITERS[name]) == steps


def test_what_is_computed_in_16_bits_is_no_poison():
    memory = torch.empty(4)
    poison(memory)
    assert describe._of_nan(memory, memory.double())[0] == "never-stored"
    for dtype in (torch.float16, torch.bfloat16):
        x = (memory + 1).to(dtype)
        assert describe._of_nan(x, x.double())[0] == "nan"


@pytest.mark.parametrize("family, layout", [
    ("shift+", "dense"), ("rising", "dense"), ("needles", "dense"), ("randn", "transposed")])
def test_why_a_case_was_asked_is_not_what_is_wrong(family, layout):
    plain = found(CASE, noisy(...))
    finding = found(replace(CASE, family=family, layout=layout), noisy(...))
    assert (finding.id, finding.what) == (plain.id, plain.what) == ("everywhere", plain.what)
    assert not any(line.startswith("try:") for line in told(finding, STAGES[7]))


AGAIN = "python autograder.py --p7 --seed 1234567890 --case robust/HQ4-HKV2-N100-D8-W20-S4-float16"


@pytest.mark.parametrize("id", describe.PATTERNS)
def test_a_pattern_stays_within_twelve_lines_and_points_at_no_step(id):
    finding = describe.Finding(id, "everywhere", ("what " * 30, "worst " * 30, "pattern " * 30))
    check = describe.describe(WRONG, finding, STAGES[7])
    lines = replace(check, again=AGAIN).lines
    shown = [row for line in lines for row in textwrap.wrap(line, 75)]
    assert len(shown) <= 12 and lines[-1] == "again: " + AGAIN
    assert not any("step" in line for line in lines)


def test_what_was_seen_of_a_gradient_points_at_the_steps_that_are_left():
    finding = describe.Finding("rows", "rows 0-9", ("k.grad differs",),
                            ("dkdv products", "delta"))
    lines = told(finding, STAGES[8], seen=("v.grad is right.",))
    assert "look at step 8.17 or 8.9; more: python autograder_optional.py --hint 8.17" in lines


def test_a_step_that_is_a_copy_is_named_with_its_origin():
    finding = describe.Finding("rows", "rows 0-9", ("o differs",), ("softmax",))
    lines = told(finding, replace(STAGES[4], origins={"4.5": "3.5"}))
    assert "look at step 4.5, copied from 3.5; more: python autograder.py --hint 3.5" in lines


def test_steps_that_are_right_asked_alone_are_not_pointed_at():
    finding = describe.Finding("rows", "rows 0-9", ("o differs",), ("mask", "loop"))
    lines = told(finding, STAGES[7], right=["7.8"])
    assert "look at step 7.4; more: python autograder.py --hint 7.4" in lines
    text = _text(told(finding, STAGES[7], right=["7.4", "7.8"]))
    assert "look at step" not in text and "look at the code around them" in text


def _text(lines: tuple[str, ...]) -> str:
    return " ".join(" ".join(lines).split())


def test_where_the_launch_is_a_step_nobody_is_sent_outside_of_the_steps():
    finding = describe.Finding("rows", "rows 0-9", ("d_w differs",), ("dw", "launch"))
    text = _text(told(finding, STAGES[2], right=["2.5", "2.6"]))
    assert "outside" not in text and "the whole call is not" in text
    assert "look at step 2.5 or 2.6; more: python autograder.py --hint 2.5" in text


def test_stage_1_hears_nothing_of_kernels():
    texts = [*describe.PATTERNS.values()]
    texts += [text for thing in (*THINGS, NUMBERS, SURROUNDINGS)
              for text in (thing.right, thing.hint)]
    for text in texts:
        for word in ("program", "grid", "kernel", "launch", "tl.", "constexpr"):
            assert word not in text, text


@pytest.mark.parametrize("rows, length, said", [
    ([99], 100, "last row"), (range(64, 100), 100, "They are the last 36 rows"),
    (range(64), 128, "They are the first 64 rows"),
    (range(64, 256), 256, "Only the first 64 rows are written"),
    (range(65, 128), 128, "tiles of 64 began one row apart"), ([3, 70], 128, ""),
    (range(128), 128, "")])
def test_rows_never_written_tell_which_program_is_missing(rows, length, said):
    found = describe._not_written(list(rows), length)
    assert said in found and bool(said) == bool(found)


def test_heads_whose_numbers_were_computed_lack_no_program():
    def second_head(x):
        x[:, 1] = float("nan")
        return x

    assert not any("Only head 0 is written" in said for said in found(PLAIN, second_head).what)


def test_rows_that_are_written_in_part_are_told_from_those_that_are_not():
    assert describe._not_written([*range(16, 70)], 70, range(16, 32)).startswith(
        "Rows 16-31 are written only in part, rows 32-69 not at all: the grid has too few programs")
    assert describe._not_written([*range(16, 70)], 70, range(16, 70)) == ""


@pytest.mark.parametrize("batch, said", [(slice(1, None), True), (slice(0, 1), False)])
def test_a_batch_without_programs_is_asked_for_its_grid(batch, said):
    def unwritten(x):
        poison(x[batch])
        return x
    what = found(replace(PLAIN, B=3), unwritten, dtype=torch.float16).what
    assert any("Only batch entry 0 is written." in one for one in what) is said


def test_all_values_are_not_counted_as_some_of_them():
    finding = found(PLAIN, lambda x: x * float("nan"))
    assert finding.what[0].startswith("All 1024 values of o are NaN or inf.")


def test_columns_of_a_gradient_of_x_that_are_never_written_are_named():
    truth = torch.randn(70, 300, generator=torch.Generator().manual_seed(0)).double()
    x = truth.half()
    poison(x[:, 128:])
    answer = Answer({"d_x": truth}, {}, {"d_x": truth}, 2.0**-12)
    finding = describe.locate(Case(2, "robust", 300), answer, "d_x", x, answer.judge("d_x", x))
    assert finding.where == "columns 128-299 (of 0-299)" and finding.id == "never-stored"


def test_rows_of_a_gradient_of_x_are_called_rows():
    bad = torch.arange(70) > 63
    assert describe._where(bad, torch.zeros(70, 3)) == "rows 64-69 (of 0-69)"
    assert describe._where(bad[60:], torch.zeros(10)) == "elements 4-9 (of 0-9)"


def test_a_copy_of_an_input_is_said_to_be_one():
    built = build(replace(PLAIN, dtype=torch.float32), 1)
    finding = describe.of_an_input(built, "d_q", built.tensors["q"])
    assert finding.seen == "q.grad is a copy of the input q."
    assert describe.of_an_input(built, "d_q", built.tensors["q"] * 2) is None


def test_a_tensor_in_16_bits_is_rounded_unless_the_right_one_fits_in_them():
    right = torch.tensor([1.23456789, 2.3456789], dtype=torch.float64)
    assert describe.is_rounded(right.half().double(), right)
    assert not describe.is_rounded(right.float().double(), right)
    assert not describe.is_rounded(right.half().double(), right.half().double())


def test_a_file_without_steps_is_told_which_steps_cover_what_is_wrong():
    finding = describe.Finding("rows", "rows 0-9", ("o differs",), ("mask",))
    assert ("In this course's problem_7.py, this is done in step 7.8. For a hint: "
            "python autograder.py --hint 7.8" in told(finding, STAGES[7], marked=False))


def test_a_given_line_that_was_changed_is_looked_at_first():
    finding = describe.Finding("rows", "rows 0-9", ("o differs",), ("mask",))
    assert "Look first at line 12, a given line that you changed." in told(
        finding, STAGES[7], right=["7.8"], changed="line 12")


@pytest.mark.parametrize("marked", [True, False])
def test_a_file_without_steps_has_a_backward_of_its_own(marked):
    """Wrong gradients say nothing of its lse then."""
    gen = torch.Generator().manual_seed(0)
    truth = torch.randn(1, 2, 64, 8, generator=gen, dtype=torch.float64)
    exact = Answer({"d_q": truth}, {}, {"d_q": truth}, 2.0**-12)
    wrong = Wrong("d_q", -truth + 1, exact.judge("d_q", -truth + 1), exact,
                  {"o": 0.1, "d_q": 9.0, "d_k": 0.1, "d_v": 0.1})
    check = describe.said(WRONG, wrong, PLAIN, STAGES[3], marked)
    assert bool(check.look_at) is marked
