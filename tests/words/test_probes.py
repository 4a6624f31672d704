"""Further cases: small, plain in float32, and without NaN in the gaps."""

from dataclasses import replace

import pytest
import torch

from grader.course.case_table import listed
from grader.course.stages import STAGES
from grader.words import probes


@pytest.mark.parametrize("stage", STAGES)
def test_further_cases_are_small_and_of_the_stage(stage):
    for case in listed(stage, "cpu", False):
        plain, long, alike = (make(case) for make in (probes.general, probes.long, probes.alike))
        assert plain.dtype == long.dtype == torch.float32
        assert (alike.dtype, alike.family) == (case.dtype, case.family)
        assert long.N > plain.N and long.B * long.HQ <= plain.B * plain.HQ
        for other in (plain, long, alike):
            assert other.stage == stage and other.group == "probe"
            assert other.HQ % other.HKV == 0 and other.N <= 1025
            assert (other.window is None) == (case.window is None)
            assert bool(other.grads) == bool(case.grads) and other.repeats == 1


def test_groups_are_of_three_so_that_a_head_in_its_group_is_no_head_of_another():
    case = probes.general(next(iter(listed(5, "cpu", False))))
    assert case.HQ // case.HKV != case.HKV and case.HKV > 1 and case.B > 1


def test_a_window_that_hides_nothing_stays_so():
    for case in listed(9, "cpu", False):
        if case.window is not None:
            for other in (probes.general(case), probes.long(case)):
                assert (other.window < other.N) == (case.window < case.N)


def test_gaps_hold_numbers_that_can_be_recognised():
    case = replace(probes.general(next(iter(listed(4, "cpu", False)))), layout="mixed")
    built, again = probes.build_probe(case, 1), probes.build_probe(case, 1)
    for name, sent in built.call.inputs.items():
        assert not bool(torch.isnan(sent.storage).any())
        assert torch.equal(sent.storage, again.call.inputs[name].storage)
        assert torch.equal(sent.view(), built.tensors[name])
