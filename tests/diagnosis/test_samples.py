"""Further cases: small, plain in float32, and without NaN in the gaps."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from grader.course.case_table import listed
from grader.course.stages import STAGES
from grader.diagnosis import samples


@pytest.mark.parametrize("stage", STAGES)
def test_the_plain_case_is_small_and_of_the_stage(stage):
    for case in listed(stage, "cpu", False):
        plain = samples.general(case)
        assert plain.stage == stage and plain.group == "probe" and plain.dtype == torch.float32
        assert plain.HQ % plain.HKV == 0 and plain.N <= 333
        assert (plain.window is None) == (case.window is None)
        assert bool(plain.grads) == bool(case.grads) and plain.repeats == 1


def test_groups_are_of_three_so_that_a_head_in_its_group_is_no_head_of_another():
    case = samples.general(next(iter(listed(5, "cpu", False))))
    assert case.HQ // case.HKV != case.HKV and case.HKV > 1 and case.B > 1


def test_a_window_that_hides_nothing_stays_so():
    for case in listed(9, "cpu", False):
        if case.window is not None:
            plain = samples.general(case)
            assert (plain.window < plain.N) == (case.window < case.N)


def test_gaps_hold_numbers_that_can_be_recognised():
    case = replace(samples.general(next(iter(listed(4, "cpu", False)))), layout="mixed")
    built, again = samples.without_nan(case, 1), samples.without_nan(case, 1)
    for name, sent in built.call.inputs.items():
        assert not bool(torch.isnan(sent.storage).any())
        assert torch.equal(sent.storage, again.call.inputs[name].storage)
        assert torch.equal(sent.view(), built.tensors[name])


@pytest.mark.parametrize("wrong, first", [
    ("o lse d_q", ["o"]), ("lse d_q", ["lse"]), ("o d_q", ["o"]), ("d_q", ["d_q", "d_k"])])
def test_what_is_wrong_is_looked_at_before_what_is_made_from_it(wrong, first):
    got = dict.fromkeys(("o", "lse", "d_q", "d_k"))
    verdicts = {name: SimpleNamespace(accepted=name not in wrong.split()) for name in got}
    assert samples.Sample(None, got, None, verdicts).first_wrong == first
