"""The message: where it is wrong, what follows from that and nothing else, in twelve lines."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from grader.course.cases import Case
from grader.course.correctness import Answer
from grader.course.stages import STAGES
from grader.diagnosis import describe
from grader.diagnosis.isolating import NUMBERS, SURROUNDINGS, THINGS
from grader.sandbox.worker.recorder import poison

CASE = Case(7, "robust", 100, D=8, B=2, HQ=4, HKV=2, is_causal=True, window=20, sinks=4)
PLAIN = Case(3, "standard", 64, D=8, HQ=2, HKV=2)


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
    assert finding.id == "batch" and "batch entry 1 of 2" in finding.where


def test_whole_groups_of_heads_are_named_and_no_rule_of_heads_is_blamed():
    finding = found(CASE, noisy(slice(None), slice(2, None)))
    assert finding.id == "heads" and "heads 2-3 of 4" in finding.where
    assert "key/value head 1" in finding.seen and not describe.PATTERNS["heads"]


def test_heads_across_groups_ask_for_the_mapping():
    assert found(CASE, noisy(slice(None), slice(1, 3))).id == "heads-in-groups"


def test_only_the_ragged_tail():
    finding = found(CASE, noisy(slice(None), slice(None), slice(96, None)))
    assert finding.id == "tail" and "rows 96-99 of 100" in finding.where


def test_rows_right_until_the_window_cuts():
    finding = found(CASE, noisy(slice(None), slice(None), slice(20, None)))
    assert "until the window (W=20)" in finding.seen and "rows 20-99" in finding.where


def test_right_numbers_in_the_order_of_another_layout_are_said_to_be_so():
    finding = found(CASE, lambda x: x.reshape(2, 100, 4, 8).transpose(1, 2))
    assert finding.id == "stored-otherwise"
    assert finding.seen.startswith("All numbers of o are right and in the wrong places")


def test_wrong_columns_are_named():
    finding = found(replace(PLAIN, HQ=1, HKV=1), noisy(..., slice(6, None)))
    assert finding.id == "columns" and "columns 6-7 of 8" in finding.where


def test_columns_that_are_only_a_little_worse_than_the_others_are_chance():
    def spoil(x):
        gen = torch.Generator().manual_seed(1)
        return x + 0.04 * torch.rand(x.shape, generator=gen, dtype=torch.float64) \
            * torch.linspace(1.0, 2.0, x.shape[-1], dtype=torch.float64)
    finding = found(replace(PLAIN, HQ=1, HKV=1), spoil)
    assert finding.id != "columns" and "columns" not in finding.where


@pytest.mark.parametrize("error, said", [
    (0.0004, "0.04 %"), (0.0123, "1.2 %"), (0.994, "99 %"), (0.996, "100 %"), (1.0, "100 %"),
    (3.68, "368 %")])
def test_a_share_is_a_plain_number(error, said):
    assert describe._percent(error) == said


@pytest.mark.parametrize("times, said", [
    (1.0004, "1.0004 times"), (1.04, "1.04 times"), (1.32, "1.3 times"), (2.0, "2.0 times"),
    (9.97, "10 times"), (942.3, "942 times")])
def test_how_far_over_the_limit(times, said):
    from types import SimpleNamespace

    assert describe._times(SimpleNamespace(times=times)) == said


@pytest.mark.parametrize("factor, said", [
    (1.4426950, "is 1.4427 = log2(e) times"), (0.5, "is 0.5 = 1 / 2 times"),
    (1.04, "is 1.04 times")])
def test_a_constant_multiple_of_the_right_rows_is_said_as_such(factor, said):
    finding = found(PLAIN, lambda x: x * factor)
    assert finding.id == "multiple" and said in finding.seen and finding.where == "everywhere"


def test_rows_that_are_multiples_by_several_factors_are_said_as_such():
    factors = torch.linspace(0.5, 0.9, 64, dtype=torch.float64)[:, None]
    assert "by 0.5 to 0.9" in found(PLAIN, lambda x: x * factors).seen


def test_zero_is_zero():
    assert found(PLAIN, torch.zeros_like).id == "zero"


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
    assert finding.id == "never-stored" and "nothing was stored there" in finding.seen
    assert STAGES[3].steps_of(finding.places) == ["3.1", "3.8"]
    finding = found(PLAIN, computed, dtype=dtype)
    assert finding.id == "nan" and "They were computed" in finding.seen and not finding.places
    assert "The others were computed" in found(PLAIN, both, dtype=dtype).seen


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
    assert not any(line.startswith("try:") for line in describe.describe(finding, STAGES[7]))


AGAIN = "python autograder.py --p7 --seed 1234567890 --case robust/HQ4-HKV2-N100-D8-W20-S4-float16"


@pytest.mark.parametrize("id", describe.PATTERNS)
def test_a_pattern_stays_within_twelve_lines_and_points_at_no_step(id):
    finding = describe.Finding(id, "everywhere", ("what " * 30, "worst " * 30, "pattern " * 30))
    lines = describe.describe(finding, STAGES[7], again=AGAIN)
    assert len(lines) <= 12 and lines[-1] == "again: " + AGAIN
    assert not any("step" in line for line in lines)


def test_what_was_seen_of_a_gradient_points_at_the_steps_that_are_left():
    finding = describe.Finding("rows", "rows 0-9", ("the gradient of k differs",),
                            ("dkdv products", "delta"))
    lines = describe.describe(finding, STAGES[8], seen=("The gradient of v is right.",))
    assert "look at step 8.17 or 8.9; more: python autograder_optional.py --hint 8.17" in lines


def test_a_step_that_is_a_copy_is_named_with_its_origin():
    finding = describe.Finding("rows", "rows 0-9", ("o differs",), ("softmax",))
    lines = describe.describe(finding, replace(STAGES[4], origins={"4.5": "3.5"}))
    assert "look at step 4.5, carried from 3.5; more: python autograder.py --hint 3.5" in lines


def test_steps_that_are_right_asked_alone_are_not_pointed_at():
    finding = describe.Finding("rows", "rows 0-9", ("o differs",), ("mask", "walk"))
    lines = describe.describe(finding, STAGES[7], right=["7.8"])
    assert "look at step 7.4; more: python autograder.py --hint 7.4" in lines
    text = _text(describe.describe(finding, STAGES[7], right=["7.4", "7.8"]))
    assert "look at step" not in text and "look outside of the steps" in text


def _text(lines: tuple[str, ...]) -> str:
    return " ".join(" ".join(lines).split())


def test_where_the_launch_is_a_step_nobody_is_sent_outside_of_the_steps():
    finding = describe.Finding("rows", "rows 0-9", ("d_w differs",), ("dw", "launch"))
    text = _text(describe.describe(finding, STAGES[2], right=["2.5", "2.6"]))
    assert "outside" not in text and "the whole call is not" in text
    assert "look at step 2.5 or 2.6; more: python autograder.py --hint 2.5" in text


MADE, INPUT, RESULT = range(3)  # storages


def narrow(case, shape, dtype="float16", storage=MADE) -> str:
    launch = ["launch", 0, [1], {"N": 100, "lse_ptr": {
        "tensor": [storage, 0, shape, [1], dtype]}}, {}]
    return describe.kept_in_16_bits(case, SimpleNamespace(
        steps=[["op", "aten::empty", [], {}, []], launch],
        value={"storages": [{}, {"input": "w"}, {}], "gradients": [],
               "outputs": [{"tensor": [RESULT, 0, [1], [1], "float16"]}]}))


@pytest.mark.parametrize("shape, dtype, said", [
    ([2, 4, 100], "float16", "lse_ptr holds one number per row, in float16: "),
    ([8, 100, 1], "bfloat16", "lse_ptr holds one number per row, in bfloat16: "),
    ([2, 4, 100], "float32", ""), ([2, 4, 100, 8], "float16", ""), ([2, 2, 50, 4], "float16", "")])
def test_a_statistic_that_a_kernel_was_given_in_16_bits_is_seen(shape, dtype, said):
    found = narrow(CASE, shape, dtype)
    assert found.startswith(said) and bool(found) == bool(said)


@pytest.mark.parametrize("case, shape, storage", [
    (Case(2, "robust", 100, M=9), [100], MADE),  # a copy of stage 2's w
    (CASE, [2, 4, 100], INPUT), (CASE, [2, 4, 100], RESULT),
    (Case(5, "robust", 100, D=16, HQ=16, HKV=1), [1, 16, 100], MADE),  # k, transposed
])
def test_what_only_has_as_many_numbers_is_no_statistic(case, shape, storage):
    assert narrow(case, shape, storage=storage) == ""


def test_stage_1_hears_nothing_of_kernels():
    texts = [*describe.PATTERNS.values()]
    texts += [text for thing in (*THINGS, NUMBERS, SURROUNDINGS)
              for text in (thing.right, thing.hint)]
    for text in texts:
        for word in ("program", "grid", "kernel", "launch", "tl.", "constexpr"):
            assert word not in text, text
