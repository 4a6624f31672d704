"""The table of cases: inside the contract of each stage, and what the course promises of them."""

import dataclasses

import pytest
import torch

from grader.course import case_table
from grader.course.cases import Case
from grader.course.stages import STAGES


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("number", STAGES)
def test_case_names_are_unique_and_standard_ones_come_first(number, device, bf16):
    listed = case_table.listed(number, device, bf16)
    assert len({case.name for case in listed}) == len(listed)
    groups = [case.group for case in listed]
    assert groups == sorted(groups, key=["standard", "robust", "beyond"].index)
    assert set(groups) >= {"standard", "robust"}


def test_standard_cases_on_a_gpu_are_the_assignments_own():
    def shapes(number):
        return [(c.HQ, c.HKV, c.N, c.D, c.window, c.sinks)
                for c in case_table.listed(number, "cuda", True) if c.group == "standard"]

    assert shapes(3) == [(8, 8, 512, 16, None, None), (8, 8, 1024, 16, None, None),
                         (16, 16, 2048, 16, None, None), (16, 16, 4096, 16, None, None)]
    assert shapes(6)[0] == (8, 2, 512, 16, 128, None)
    assert shapes(7)[0] == (8, 2, 512, 32, 128, 8)
    assert shapes(8) == [(16, h, 4096, 16, None, None) for h in (16, 8, 1)]
    assert shapes(9) == [(16, h, 4096, 16, 256, 4) for h in (16, 8, 1)]


@pytest.mark.parametrize("number", STAGES)
def test_standard_cases_ask_a_cpu_for_what_the_assignment_asks_a_gpu(number):
    """Lengths and windows of whole tiles, so that a file earns the same points on both."""
    for case in case_table.listed(number, "cpu", False):
        if case.group == "standard":
            assert case.N % 128 == 0 and case.window in (None, 128) and case.NK is None
            assert case.HQ & (case.HQ - 1) == 0 and case.layout == "dense"


@pytest.mark.parametrize("number", STAGES)
def test_a_row_names_fields_of_a_case_and_where_it_is_asked(number):
    fields = {field.name for field in dataclasses.fields(Case)} - {"stage"}
    for row in case_table.TABLE[number]:
        assert set(row) <= fields | {"gpu", "gpu_only"}
        assert set(row.get("gpu", {})) <= fields and "dtype" in row
        named = {*row, *row.get("gpu", {})}
        assert ("window" in named) <= STAGES[number].windowed
        assert ("sinks" in named) <= STAGES[number].has_sinks


def test_half_is_bfloat16_where_the_gpu_has_it():
    for half, bf16 in ((torch.float16, False), (torch.bfloat16, True)):
        standard = [case for number in STAGES for case in case_table.listed(number, "cuda", bf16)
                    if case.group == "standard"]
        assert {case.dtype for case in standard} == {half}


def test_what_a_row_says_of_a_gpu_holds_there_alone():
    on_cpu, on_gpu = (case_table.listed(3, device, False) for device in ("cpu", "cuda"))
    assert not any(case.layout == "far" for case in on_cpu)
    assert [case.apart for case in on_gpu if case.layout == "far"] == ["q", "k", "v"]
    growth = [(case.N, case.window, case.sinks) for device in ("cpu", "cuda")
              for case in case_table.listed(7, device, False) if case.growth]
    assert growth == [(128, 32, 8), (8192, 5000, 0)]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_stage_is_asked_for_windows_and_sinks_once_it_has_them(device):
    def having(what):
        return {n for n in STAGES for case in case_table.listed(n, device, False)
                if getattr(case, what) is not None}

    assert having("window") == {6, 7, 9} and having("sinks") == {7, 9}


@pytest.mark.parametrize("number", [6, 7, 9])
def test_windows_and_sinks_go_beyond_their_defaults(number):
    listed = case_table.listed(number, "cpu", False)
    windows = {case.window for case in listed}
    assert {1, 17} <= windows and any((w or 0) > 257 for w in windows)
    if number > 6:
        sinks = {case.sinks for case in listed}
        assert {0, 1, 4, 70, 1000} <= sinks


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("number", STAGES)
def test_every_listed_case_is_inside_the_contract(number, device):
    for case in case_table.listed(number, device, device == "cuda"):
        assert case.D <= 128 and case.HQ % case.HKV == 0
        assert device == "cuda" or case.dtype != torch.bfloat16 or number == 1
        if number in (4, 5, 6, 7):
            assert case.is_causal
        if number == 3:
            assert not case.is_causal
        if number == 1 and case.is_causal:
            assert case.NK is None
        if number == 9 and case.window is not None:
            assert case.is_causal


@pytest.mark.parametrize("number", STAGES)
def test_what_decides_asks_nothing_that_the_assignment_does_not_allow(number):
    """Powers of two, and views whose last dimension is contiguous; stage 2 has dense rows.  What is
    more is asked of files of the course alone, whose text promises it."""
    for device in ("cpu", "cuda"):
        for case in case_table.listed(number, device, True):
            assert bool(case.asks) == (case.course or case.group == "beyond")
            if case.asks:
                continue
            assert number == 2 or case.D in (16, 32, 64, 128)
            assert case.dtype != torch.float32 or case.D <= 64
            assert case.layout in (("dense", "guarded") if number == 2 else
                                   ("dense", "guarded", "transposed", "views"))
            assert case.dout in ("dense", "expanded", "transposed", "loud")
            if number == 9:
                assert case.is_causal and case.window and not case.sink_logits


def test_a_key_that_is_a_view_keeps_its_last_dimension_and_q_follows():
    from grader.course.inputs import build

    for layout in ("transposed", "views", "guarded"):
        case = Case(3, "robust", 20, B=2, HQ=3, HKV=3, layout=layout)
        q, k, v = (build(case, 0).call.inputs[name].view() for name in "qkv")
        assert q.stride(3) == k.stride(3) == v.stride(3) == 1
        assert torch.empty_like(q).stride() == q.stride()
