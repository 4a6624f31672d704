"""--profile: its arithmetic without a GPU, and what a student sees with one."""

import io
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from grader.course.cases import Case
from grader.course.inputs import build
from grader.course.stages import STAGES
from grader.host.options import Options
from grader.judge import profiling
from grader.judge.context import GradingContext
from grader.judge.profiling import GPU, Launch, Work
from grader.judge.timing import Row
from grader.report.results import StageResult
from grader.report.screen import Reporter
from tests.commands import grader

H100 = GPU(count=132, threads=2048, shared=233472, flops=800e12, bytes=3e12)
LAUNCH = Launch("kernel", ms=1.0, programs=1024, warps=4, stages=3, registers=168, spilled=0,
                shared=65536, resident=3)


def changed(**fields) -> Launch:
    return Launch(**(vars(LAUNCH) | fields))


def test_the_larger_of_two_costs_binds():
    assert Work("", flops=800 * 10**9, bytes=3 * 10**8).floor(H100) == (1.0, "arithmetic")
    assert Work("", flops=8 * 10**9, bytes=3 * 10**9).floor(H100) == (1.0, "memory")


def test_products_are_counted_over_the_pairs_that_are_seen():
    causal = build(Case(8, "standard", N=8, D=16, B=2, HQ=4, HKV=2, is_causal=True,
                        grads=("q", "k", "v")), 0)
    forward, backward = profiling.works(causal)
    a_product = 2 * 16 * 2 * 4 * (8 * 9 // 2)
    assert (forward.flops, backward.flops) == (2 * a_product, 5 * a_product)
    q, k = 2 * (2 * 4 * 8 * 16), 2 * (2 * 2 * 8 * 16)  # bytes
    assert (forward.bytes, backward.bytes) == (q + 2 * k + q, 3 * q + 2 * k + q + 2 * k)


def test_a_window_and_sinks_hide_pairs_and_a_row_sum_takes_two_per_element():
    windowed = build(Case(7, "standard", N=8, is_causal=True, window=3, sinks=1), 0)
    assert profiling.works(windowed)[0].flops == 4 * 16 * (1 + 2 + 3 + 4 * 5)
    assert profiling.works(build(Case(2, "standard", M=4, N=8), 0))[0].flops == 2 * 4 * 8


def test_a_benchmark_notes_for_the_page_how_far_it_is_from_the_roofs(monkeypatch):
    asked = []
    monkeypatch.setattr(profiling, "measured", lambda dtype: asked.append(dtype) or H100)
    built = build(Case(8, "standard", N=8, D=16, HQ=4, HKV=2, is_causal=True,
                       grads=("q", "k", "v")), 0)
    rows = [Row("yours", 2.0, 0.1, 1.0), Row("naive", 9.0, 0.1, 1.0), Row("sdpa")]
    for page in (None, "a page"):
        context = GradingContext(STAGES[8], None, Options(Path("."), "cuda", 1, 60.0, page=page),
                                 Reporter(io.StringIO()), StageResult(8, "", 200, benchmark={}))
        profiling.note_roofline(context, None)
        assert context.result.benchmark == {}
        profiling.note_roofline(context, (built, rows))
    roofline = context.result.benchmark["roofline"]
    assert asked == [built.case.dtype]  # measuring takes a second, and is for pages
    assert roofline["flops"] == (4 + 10) * 16 * 4 * (8 * 9 // 2)
    assert roofline["bytes"] == sum(work.bytes for work in profiling.works(built))
    assert (roofline["ms"], roofline["naive_ms"], roofline["sdpa_ms"]) == (2.0, 9.0, None)
    assert (roofline["peak_flops"], roofline["peak_bytes"]) == (800e12, 3e12)
    assert roofline["label"].startswith("forward + backward, B=1, HQ=4, HKV=2, L=8")


@pytest.mark.parametrize("fields, lacks", [
    ({}, "registers"),
    ({"registers": 64, "resident": 3}, "shared memory"),
    ({"registers": 24, "shared": 1024, "resident": 16}, "threads"),
    ({"registers": 24, "shared": 1024, "warps": 1, "resident": 32}, "the number of programs"),
])
def test_what_one_more_program_lacks(fields, lacks):
    assert changed(**fields).limited_by(H100) == lacks


def test_occupancy_is_the_share_of_threads_that_a_multiprocessor_could_hold():
    assert LAUNCH.occupancy(H100) == 3 * 128 / 2048


@pytest.mark.parametrize("fields, share, binds, said", [
    ({"spilled": 40}, 0.9, "arithmetic", "num_warps=8"),
    ({}, 0.9, "arithmetic", "nothing"),
    ({"programs": 64}, 0.3, "arithmetic", "room for 396 programs at a time, and there are 64"),
    ({}, 0.3, "memory", "whole rows"),
    ({"resident": 1, "shared": 200_000}, 0.3, "arithmetic", "smaller num_stages"),
    ({"stages": 1}, 0.3, "arithmetic", "num_stages=2"),
    ({}, 0.3, "arithmetic", "other tiles"),
])
def test_one_thing_to_try(fields, share, binds, said):
    assert said in profiling.advice(changed(**fields), H100, share, binds)


def test_what_a_worker_says_is_read_as_counts():
    said = vars(LAUNCH) | {"grid": [32, 32, 1], "name": "kernel\x1b[2J"}
    read = Launch.read(said)
    assert read.programs == 1024 and "\x1b" not in read.name
    with pytest.raises(ValueError):
        Launch.read(said | {"registers": -1})


def test_the_report_has_each_kernel_and_one_thing_to_try():
    built = build(Case(4, "standard", N=64, HQ=2, HKV=2, is_causal=True), 0)
    text = "\n".join(profiling.report(built, H100, [(1.25, [LAUNCH])]))
    assert "forward: 1.250 ms" in text and "kernel: 1.000 ms (80%)" in text
    assert text.count("tip: ") == 1 and max(map(len, text.splitlines()[:-1])) <= 80


@pytest.mark.parametrize("stage, session, said", [
    (1, "a session", "this stage has no kernel of its own"),
    (4, None, "some answers are not right yet"),
])
def test_what_is_not_profiled_is_said(stage, session, said):
    stream, options = io.StringIO(), Options(Path("."), "cuda", 1, 60.0, profile=True)
    context = GradingContext(STAGES[stage], None, options, Reporter(stream), None)
    profiling.profile_stage(context, session)
    assert stream.getvalue() == f"profile skipped: {said}\n"


@pytest.mark.parametrize("reply", [
    {}, {"phases": 1}, {"phases": []}, {"phases": [{"ms": 0, "launches": []}]},
    {"phases": [{"ms": 1.0, "launches": [{"name": "kernel", "ms": 1.0, "grid": ["many"]}]}]},
])
def test_a_worker_whose_account_makes_no_sense_is_not_believed(reply, monkeypatch):
    monkeypatch.setattr(profiling, "measured", lambda dtype: H100)
    monkeypatch.setattr(profiling, "shapes", lambda *_: [Case(4, "standard", N=8, is_causal=True)])
    session = SimpleNamespace(prepare=lambda call: None, request=lambda *_: (reply, ()))
    stream, options = io.StringIO(), Options(Path("."), "cuda", 1, 60.0, profile=True)
    profiling.profile_stage(
        GradingContext(STAGES[4], None, options, Reporter(stream), None), session)
    assert "profile skipped: the worker's account cannot be read" in stream.getvalue()


def test_without_a_gpu_it_is_refused_in_a_sentence():
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    done = grader("--p4", "--profile")
    assert done.returncode == 2
    assert "--profile: want a CUDA GPU to profile on; got none" in done.stderr


def test_part_of_the_cases_is_no_profile():
    done = grader("--p4", "--profile", "--quick")
    assert done.returncode == 2 and "--profile: want every case asked" in done.stderr


@pytest.mark.gpu
@pytest.mark.parametrize("option, program, kernels", [
    ("--p4", "autograder.py", 1), ("--p9", "autograder_optional.py", 3)])
def test_a_right_file_is_profiled(option, program, kernels):
    done = grader(option, "--profile", "--no-benchmark", program=program)
    assert done.returncode == 0, done.stdout + done.stderr
    profile = done.stdout.partition("--- Profile ---")[2]
    assert profile.count(" registers per thread") >= kernels and "tip: " in profile
    assert "hottest lines, of " in profile
