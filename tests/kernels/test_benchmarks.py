"""benchmarks/: what is counted, what is written, what is refused.  Times need a GPU; the rest not.
"""

import csv
import json
import math
import os
import statistics
import sys
from argparse import Namespace
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import reference
from benchmarks import __main__ as cli
from benchmarks import measure, peers, plots, results, tables, workloads
from benchmarks.peers import PEERS, Unsupported
from benchmarks.workloads import SWEEP, TABLE, Workload, floor, tiny

H200 = "NVIDIA H200"
OPTIONS = Namespace(tutorial=None, rounds=1)
SMALL = Workload("small", 9, B=2, HQ=4, HKV=2, N=70, D=16, window=17, sinks=3, sink_logits=True)


# ------------------------------------------------------------------ workloads
@pytest.mark.parametrize("window", [None, 1, 7, 40, 100])
@pytest.mark.parametrize("sinks", [0, 1, 5, 39, 100])
def test_pairs_are_those_of_the_reference_mask(window, sinks):
    work = replace(SMALL, N=40, window=window, sinks=sinks)
    keep = reference.keep_mask(40, 40, True, window, sinks)
    query, key = torch.arange(40)[:, None], torch.arange(40)[None, :]
    assert torch.equal(work.visible(query, key), keep)
    assert work.pairs() == keep.sum().item()


def test_without_a_mask_every_pair_counts():
    work = replace(tiny(3), N=40)
    keys = torch.arange(40)
    assert work.visible(keys[:, None], keys).all() and work.pairs() == 1600


def test_the_mask_that_flex_gets_is_the_mask_of_the_workload():
    query, key = torch.arange(60)[:, None], torch.arange(60)[None, :]
    for window, sinks in ((None, 0), (9, 0), (9, 4)):
        want = replace(SMALL, N=60, window=window, sinks=sinks).visible(query, key)
        assert torch.equal(peers._mask_mod(window, sinks)(0, 0, query, key), want)


def test_flops_are_two_products_forward_and_five_backward():
    work = Workload("full", 3, B=2, HQ=3, HKV=3, N=10, D=16, causal=False)
    product = 2 * 2 * 3 * 10 * 10 * 16
    assert work.flops() == 2 * product
    assert replace(work, direction="backward").flops() == 5 * product


def test_bytes_are_those_of_the_tensors_that_must_be_read_and_written():
    for direction in ("forward", "backward"):
        work = replace(SMALL, direction=direction)
        t = peers.make_tensors(replace(work, direction="backward"), "cpu")
        lse = torch.empty(work.B, work.HQ, work.N)
        tensors = [t.q, t.k, t.v, t.q, lse]  # o has the size of q
        if work.is_backward:
            tensors += [t.do, t.q, t.k, t.v]  # and the gradients that of their inputs
        assert work.bytes() == sum(x.nbytes for x in tensors)


def test_the_bound_is_the_slowest_of_the_three():
    by_name = {work.label: work for work in TABLE}
    binds = {label: floor(work, H200)[1] for label, work in by_name.items()}
    assert binds["stage 3, original shape, forward"] == "exp"
    assert binds["stage 3, D=128, forward"] == "matrix"
    assert binds["stage 9, GPT-OSS window, forward"] == "memory"
    ms, _ = floor(by_name["stage 3, D=128, forward"], H200)
    assert ms == pytest.approx(4 * 128 * 4 * 16 * 4096**2 / 790e12 * 1e3)


def test_a_gpu_whose_ceilings_are_unknown_has_no_bound():
    assert floor(TABLE[0], "NVIDIA H100 PCIe") is None
    assert floor(TABLE[0], "NVIDIA H100 80GB HBM3") is not None


def test_labels_are_unique_and_every_stage_with_a_kernel_is_swept():
    labels = [work.label for work in TABLE + SWEEP]
    assert len(set(labels)) == len(labels) == 21 + 9 * 9
    assert {work.stage for work in SWEEP} == {3, 4, 5, 6, 7, 8, 9}
    assert {work.N for work in SWEEP} == {2**n for n in range(8, 17)}


# ---------------------------------------------------------------------- peers
def _truth(work, tensors):
    out = reference.attention(
        tensors.q, tensors.k, tensors.v, dout=tensors.do, is_causal=work.causal,
        window_size=work.window, sink_size=work.sinks, sink_logits=tensors.sinks)
    names = ("q", "k", "v", "sink_logits") if work.is_backward else ("o",)
    return [out[name].float() for name in names]


def _answer(name, work, tensors):
    call = PEERS[name].build(work, tensors, OPTIONS)
    return [call.restore(t) for t in measure.prepared(work, call)()]


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_naive_peer_agrees_with_the_reference(direction):
    work = replace(SMALL, direction=direction)
    tensors = peers.make_tensors(work, "cpu", torch.float32)
    got = _answer("naive", work, tensors)
    assert measure.error(got, _truth(work, tensors)) < 1e-5


@pytest.mark.filterwarnings("ignore:flex_attention called without", "ignore:return_lse is")
@pytest.mark.parametrize("sink_logits", [False, True])
def test_flex_computes_the_same_with_and_without_sink_logits(sink_logits, monkeypatch):
    monkeypatch.setattr(torch, "compile", lambda attend, **options: attend)
    work = replace(SMALL, N=128, sink_logits=sink_logits)
    tensors = peers.make_tensors(work, "cpu", torch.float32)
    assert measure.error(_answer("flex", work, tensors), _truth(work, tensors)) < 1e-5


@pytest.mark.interpreter
@pytest.mark.parametrize("stage", [3, 4, 5, 6, 7, 8, 9])
def test_stages_and_fast_get_the_mask_of_the_workload(stage, device):
    work = replace(tiny(stage), N=40, HQ=2, HKV=2 if stage in (3, 4) else 1)
    tensors = peers.make_tensors(work, device, torch.float16)
    for name in peers.OURS:
        assert measure.error(_answer(name, work, tensors), _truth(work, tensors)) < 3e-3


@pytest.mark.interpreter
def test_the_problem_files_of_another_checkout_are_the_baseline(tmp_path, device):
    work = replace(tiny(4), N=40)
    assert PEERS["baseline"].cannot(work, OPTIONS) == "no folder"
    (tmp_path / "problem_4.py").write_text(
        "def flash_attention_forward(q, k, v, is_causal):\n    return q + v * is_causal\n")
    tensors = peers.make_tensors(work, device)
    call = PEERS["baseline"].build(work, tensors, Namespace(baseline=tmp_path))
    assert torch.equal(measure.prepared(work, call)()[0], tensors.q + tensors.v)


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_the_float32_truth_of_a_group_of_heads_is_the_reference(direction, monkeypatch):
    monkeypatch.setattr(measure, "CHUNK", 32)  # so that there are several, the last one ragged
    work = replace(SMALL, direction=direction)
    tensors = peers.make_tensors(work, "cpu", torch.float32)
    want = _truth(work, tensors)
    assert measure.error_against_truth(work, tensors, want) < 1e-5
    for i in range(len(measure.truth(work, tensors, 0, 0))):
        off = [t.clone() for t in want]
        off[i][-1, -1] *= 1.05
        assert 1e-2 < measure.error_against_truth(work, tensors, off) < 6e-2


def test_a_peer_that_cannot_do_a_workload_says_why():
    window = replace(tiny(6), sink_logits=True)
    assert PEERS["fa2"].cannot(window, OPTIONS) == "window"
    assert PEERS["cudnn"].cannot(replace(window, window=None), OPTIONS) == "sink logits"
    assert PEERS["fa4"].cannot(tiny(7), OPTIONS) == "sinks"
    assert PEERS["cudnn_fe"].cannot(tiny(7), OPTIONS) == "sinks"
    assert PEERS["cudnn_fe"].cannot(replace(window, direction="backward"), OPTIONS) == "sink logits"
    assert PEERS["fla"].cannot(tiny(7), OPTIONS) == "sinks"
    assert PEERS["fla"].cannot(tiny(3), OPTIONS) == "full"
    assert PEERS["tutorial"].cannot(tiny(4), OPTIONS) == "no file"
    given = Namespace(tutorial="some.py")
    assert PEERS["tutorial"].cannot(tiny(4), given) == "D=16"
    assert PEERS["tutorial"].cannot(replace(tiny(4), D=64, HQ=4), given) == "grouped heads"
    assert PEERS["tutorial"].cannot(replace(tiny(4), D=64), given) == ""
    assert PEERS["gluon"].cannot(tiny(4), OPTIONS) == "D=16"
    assert PEERS["gluon"].cannot(replace(tiny(7), D=64), OPTIONS) == "sinks"
    assert PEERS["gluon"].cannot(replace(window, D=64), OPTIONS) == ""
    long = next(work for work in SWEEP if work.N == 65536)
    assert PEERS["naive"].cannot(long, OPTIONS) == "memory"


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("window", [None, 17])
def test_fa4_gets_its_own_layout_and_counts_keys_before_the_query(window, direction, monkeypatch):
    def flash_attn_func(q, k, v, *, causal, window_size, learnable_sink):
        keys, past = torch.arange(q.shape[1]), window_size[0]
        hidden = keys > keys[:, None]
        if past is not None:
            assert window_size[1] == 0
            hidden = hidden | (keys < keys[:, None] - past)
        assert causal and all(t.is_contiguous() for t in (q, k, v))
        k, v = (t.repeat_interleave(q.shape[2] // t.shape[2], dim=2) for t in (k, v))
        s = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[3] ** -0.5
        column = learnable_sink[None, :, None, None].expand(*s.shape[:3], 1)
        s = torch.cat([s.masked_fill(hidden, -torch.inf), column], -1)
        return torch.einsum("bhqk,bkhd->bqhd", s.softmax(-1)[..., :-1], v), None

    module = SimpleNamespace(flash_attn_func=flash_attn_func)
    monkeypatch.setitem(sys.modules, "flash_attn", SimpleNamespace(cute=module))
    monkeypatch.setitem(sys.modules, "flash_attn.cute", module)
    work = replace(SMALL, window=window, sinks=0, direction=direction)
    tensors = peers.make_tensors(work, "cpu", torch.float32)
    assert measure.error(_answer("fa4", work, tensors), _truth(work, tensors)) < 1e-5


@pytest.mark.parametrize("direction", ["forward", "backward"])
@pytest.mark.parametrize("window", [None, 17])
def test_fla_gets_its_own_layout_and_a_window_that_counts_the_query(window, direction, monkeypatch):
    def parallel_attn(q, k, v, *, window_size, sink_bias):
        assert window_size == window and all(t.is_contiguous() for t in (q, k, v))
        naive = PEERS["naive"].build(work, tensors, OPTIONS).attend
        return naive(*(t.transpose(1, 2) for t in (q, k, v)), sink_bias).transpose(1, 2)

    module = SimpleNamespace(parallel_attn=parallel_attn)
    for name in ("fla", "fla.ops", "fla.ops.attn"):
        monkeypatch.setitem(sys.modules, name, module)
    work = replace(SMALL, window=window, sinks=0, direction=direction)
    tensors = peers.make_tensors(work, "cpu", torch.float32)
    assert measure.error(_answer("fla", work, tensors), _truth(work, tensors)) < 1e-5


@pytest.mark.parametrize("window", [None, 17])
def test_cudnns_package_gets_float32_sinks_and_a_window_that_counts_the_query(window, monkeypatch):
    def sdpa_torch(q, k, v, *, is_causal, window_left, sinks, return_lse):
        assert is_causal and return_lse and sinks.dtype == torch.float32
        out = reference.attention(q, k, v, is_causal=True, sink_logits=sinks,
                                  window_size=None if window_left == -1 else window_left)
        return out["o"], out["lse"]

    monkeypatch.setitem(sys.modules, "cudnn", SimpleNamespace(sdpa_torch=sdpa_torch))
    work = replace(SMALL, window=window, sinks=0)
    tensors = peers.make_tensors(work, "cpu", torch.bfloat16)
    assert measure.error(_answer("cudnn_fe", work, tensors), _truth(work, tensors)) < 1e-5


@pytest.mark.filterwarnings("ignore:flex_attention called without", "ignore:return_lse is")
def test_flex_is_asked_for_its_backend_by_name(monkeypatch):
    from torch.nn.attention import flex_attention

    asked = []

    def attend(q, k, v, *, block_mask, enable_gqa, kernel_options=None):
        asked.append(kernel_options)
        return q

    monkeypatch.setattr(torch, "compile", lambda attend, **options: attend)
    monkeypatch.setattr(flex_attention, "flex_attention", attend)
    work = replace(SMALL, sinks=0, sink_logits=False)
    for name in ("flex", "flex_flash"):
        _answer(name, work, peers.make_tensors(work, "cpu"))
    assert asked == [None, {"BACKEND": "FLASH"}]


def test_the_gluon_kernel_gets_the_mask_and_our_own_is_no_peer(monkeypatch):
    import sink_attn

    def attend(q, k, v, is_causal, window_size, sink_size, sink_logits, kernel):
        assert kernel == "gluon" and sink_size == 0
        out = reference.attention(q, k, v, is_causal=is_causal, window_size=window_size,
                                  sink_logits=sink_logits)
        return out["o"].float()

    monkeypatch.setattr(sink_attn, "attention", attend)
    work = replace(SMALL, sinks=0, D=64)
    tensors = peers.make_tensors(work, "cpu", torch.float32)
    assert measure.error(_answer("gluon", work, tensors), _truth(work, tensors)) < 1e-6
    entries = {name: {"ms": ms, "error": 0.0}
               for name, ms in (("fast", 3.0), ("gluon", 1.0), ("stages", 1.1), ("fa2", 2.0),
                                ("naive", 1.5))}
    assert tables.best_peer({"peers": entries}) == "fa2"


@pytest.mark.parametrize("more", ["", ", warp_specialize=True"])
def test_the_tutorial_is_called_as_its_file_wants(tmp_path, more):
    file = tmp_path / "06-fused-attention.py"
    file.write_text(
        "import torch\n"
        "class _attention(torch.autograd.Function):\n"
        "    @staticmethod\n"
        f"    def forward(ctx, q, k, v, causal, sm_scale{more}):\n"
        f"        assert {'not warp_specialize' if more else 'True'}\n"
        "        return torch.nn.functional.scaled_dot_product_attention(\n"
        "            q, k, v, is_causal=causal, scale=sm_scale)\n"
        "attention = _attention.apply\n")
    work = replace(tiny(4), D=64)
    tensors = peers.make_tensors(work, "cpu", torch.float32)
    call = PEERS["tutorial"].build(work, tensors, Namespace(tutorial=file))
    (o,) = measure.prepared(work, call)()
    assert o.dtype == torch.float16
    assert measure.error([o], _truth(work, tensors)) < 5e-3


def test_a_tutorial_that_does_not_load_is_skipped_with_its_error(tmp_path):
    file = tmp_path / "broken.py"
    file.write_text("raise RuntimeError('no driver')\n")
    work = replace(tiny(4), D=64)
    tensors = peers.make_tensors(work, "cpu")
    with pytest.raises(Unsupported, match="RuntimeError: no driver"):
        PEERS["tutorial"].build(work, tensors, Namespace(tutorial=file))


# ------------------------------------------------------------ a pretended GPU
@pytest.fixture
def pretended_gpu(monkeypatch):
    """Tensors stay on the CPU, in float32, and every measurement takes 1, 2, 3, ... ms."""
    ticks = iter(range(1, 1000))
    cuda = {"is_available": lambda: True, "get_device_name": lambda: H200,
            "synchronize": lambda: None, "empty_cache": lambda: None,
            "reset_peak_memory_stats": lambda: None, "memory_allocated": lambda: 0,
            "max_memory_allocated": lambda: 3 * 2**20}
    for name, pretended in cuda.items():
        monkeypatch.setattr(torch.cuda, name, pretended)

    def do_bench(run, **options):
        run()
        return float(next(ticks))

    monkeypatch.setattr("triton.testing.do_bench", do_bench)
    monkeypatch.setattr(measure, "NAP_S", 0.0)
    monkeypatch.setattr(
        measure, "make_tensors", lambda work: peers.make_tensors(work, "cpu", torch.float32))
    for name in peers.OURS:  # the interpreter is tested elsewhere
        monkeypatch.setitem(PEERS, name, PEERS["naive"])
    return monkeypatch


def _peer(attend, change=lambda t: t):
    def build(work, tensors, options):
        return peers.Call(lambda *t: change(attend(*t)), peers._leaves(tensors), tensors.do)

    return peers.Peer(build)


def _fail(*inputs):
    raise RuntimeError("no kernel image")


def test_all_peers_are_timed_in_turn_and_the_median_counts(pretended_gpu):
    record = measure.measure(tiny(4), ["fast", "fa2"], Namespace(rounds=3))
    assert record["peers"]["fast"]["rounds"] == [1.0, 3.0, 5.0]
    assert record["peers"]["fa2"]["rounds"] == [2.0, 4.0, 6.0]
    assert record["peers"]["fa2"]["ms"] == 4.0
    assert record["peers"]["fa2"]["extra_mib"] == 3.0
    assert record["peers"]["fa2"]["error"] < 1e-5


def test_every_round_has_an_order_of_its_own_and_the_median_counts(pretended_gpu):
    calls = []
    runs = {name: lambda name=name: calls.append(name) for name in "abc"}
    found = measure.medians(runs, 9)
    rounds = [calls[i:i + 3] for i in range(0, 27, 3)]
    assert all(sorted(names) == list("abc") for names in rounds) and len(set(map(str, rounds))) > 1
    assert found == {name: statistics.median(i + 1 for i, x in enumerate(calls) if x == name)
                     for name in "abc"}


def test_a_slow_naive_call_is_timed_once(pretended_gpu):
    pretended_gpu.setattr(measure, "ONE_ROUND_MS", 1.5)
    record = measure.measure(tiny(4), ["fast", "naive", "fa2"], Namespace(rounds=3))
    assert [len(entry["rounds"]) for entry in record["peers"].values()] == [3, 1, 3]


@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_a_peer_that_fails_or_runs_out_of_memory_ends_nothing(pretended_gpu, direction):
    def too_large(*inputs):
        raise torch.OutOfMemoryError("CUDA out of memory")

    pretended_gpu.setitem(PEERS, "flex", _peer(_fail))
    pretended_gpu.setitem(PEERS, "fa4", _peer(too_large))
    work = replace(tiny(4), direction=direction)
    entries = measure.measure(work, ["fast", "flex", "fa4", "fa2"], OPTIONS)["peers"]
    assert entries["flex"] == {"failed": "RuntimeError: no kernel image"}
    assert entries["fa4"] == {"skipped": "memory"}
    assert "ms" in entries["fast"] and "ms" in entries["fa2"]


def test_a_lost_gpu_ends_the_run(pretended_gpu):
    pretended_gpu.setitem(PEERS, "flex", _peer(_fail))
    pretended_gpu.setattr(torch.cuda, "synchronize", _fail)
    with pytest.raises(measure.GpuLost, match="no kernel image"):
        measure._guarded({}, _fail)


def test_a_wrong_answer_is_timed_and_not_ranked(pretended_gpu):
    def attend(q, k, v):
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)

    pretended_gpu.setitem(PEERS, "flex", _peer(attend, lambda o: 1.05 * o))
    pretended_gpu.setitem(PEERS, "fa4", _peer(attend, lambda o: o * math.nan))
    record = measure.measure(tiny(4), ["fast", "flex", "fa4", "fa2"], OPTIONS)
    assert set(tables.ranked(record)) == {"fast", "fa2"}
    assert record["peers"]["flex"]["error"] == pytest.approx(0.05, rel=1e-3)
    assert record["peers"]["fa4"]["error"] is None
    assert tables._time_cell(record, "flex").startswith("wrong: ")


def test_the_sink_gradient_may_be_missing_and_that_is_noted(pretended_gpu):
    def build(work, tensors, options):
        call = PEERS["naive"].build(work, tensors, options)
        return replace(call, attend=lambda q, k, v, sinks: call.attend(q, k, v, sinks.detach()))

    pretended_gpu.setitem(PEERS, "fa4", peers.Peer(build))
    record = measure.measure(replace(SMALL, direction="backward"), ["fast", "fa4"], OPTIONS)
    assert record["peers"]["fa4"]["note"] == "no gradient for the sink logits"
    assert record["peers"]["fa4"]["error"] == 0.0


def test_compiling_ahead_survives_what_fails():
    broken = replace(tiny(4), B=-1)  # no such tensor, on any machine
    assert measure.warm([broken, broken], ["fast"], OPTIONS, processes=1) is None


def test_the_host_cost_is_the_best_of_the_repeats(pretended_gpu):
    clock = iter([0.0, 10.0, 12.0, 20.0, 21.0, 30.0, 33.0])  # the first is of the warm-up
    pretended_gpu.setattr(measure.time, "perf_counter", lambda: next(clock))
    calls = []
    assert measure.host_us(lambda: calls.append(1), calls=100) == pytest.approx(1e4)
    assert len(calls) == 20 + 3 * 100


@pytest.fixture
def small_table(pretended_gpu):
    works = [replace(tiny(4), name="stage 4, one"), replace(tiny(6), name="stage 6, two"),
             replace(tiny(8), name="stage 8, three", direction="backward")]
    sweep = [replace(tiny(4), name=f"stage 4, N={N}", N=N, group="sweep") for N in (32, 64)]
    pretended_gpu.setattr(workloads, "TABLE", works)
    pretended_gpu.setattr(workloads, "SWEEP", sweep)
    return pretended_gpu


def test_one_command_leaves_json_csv_and_markdown(small_table, tmp_path, capsys):
    small_table.setattr(measure, "host_us", lambda run: 12.5)
    arguments = ["--out", str(tmp_path), "--rounds", "2", "--peers", "naive,fa2"]
    assert cli.main(arguments) == 0
    run = json.loads((tmp_path / "results.json").read_text())
    assert [record["label"] for record in run["records"]] == [
        "stage 4, one, forward", "stage 6, two, forward", "stage 8, three, backward",
        "stage 4, N=32, forward", "stage 4, N=64, forward"]
    assert run["records"][1]["peers"]["fa2"] == {"skipped": "window"}
    assert run["host"]["stage 6"] == {
        "stages": {"us": 12.5}, "fast": {"us": 12.5}, "fa2": {"skipped": "window"}}
    assert run["machine"]["gpu"] == H200
    assert "sink_attn against fa2: at least" in (tmp_path / "results.md").read_text()
    with open(tmp_path / "results.csv", newline="") as stream:
        assert len(list(csv.DictReader(stream))) == 5 * 4
    printed = capsys.readouterr().out
    assert "[  2/5] stage 6, two, forward: stages " in printed
    assert "--- Backward: ms (TFLOP/s) ---" in printed


def test_resume_times_only_what_is_missing(small_table, tmp_path, capsys):
    arguments = ["--out", str(tmp_path), "--peers", "fa2", "--no-sweep"]
    assert cli.main([*arguments, "--only", "stage 4"]) == 0
    first = results.read(tmp_path / "results.json")["records"]
    capsys.readouterr()
    assert cli.main([*arguments, "--resume", "--only", "stage"]) == 0
    assert "2 of 3 workloads to time" in capsys.readouterr().out
    records = results.read(tmp_path / "results.json")["records"]
    assert len(records) == 3 and records[0] == first[0]


def test_a_killed_run_keeps_the_workloads_it_ended(small_table, tmp_path, capsys):
    whole = measure.measure

    def interrupted(work, names, options):
        if work.stage == 6:
            raise KeyboardInterrupt
        return whole(work, names, options)

    small_table.setattr(measure, "measure", interrupted)
    assert cli.main(["--out", str(tmp_path), "--peers", "fa2", "--only", "stage"]) == 1
    assert len(results.read(tmp_path / "results.json")["records"]) == 1
    assert "--resume" in capsys.readouterr().err


# -------------------------------------------------------------------- results
MACHINE = {"gpu": H200, "driver": "580.1", "torch": "2.11.0", "triton": "3.6.0"}


def _record(work, **times):
    """A made-up record: ms by implementation, or the text of a reason."""
    entries = {
        name: {"ms": ms, "rounds": [0.9 * ms, ms, 1.1 * ms], "error": 3e-3, "extra_mib": 2.5}
        if isinstance(ms, float) else {"skipped": ms} for name, ms in times.items()}
    bound = floor(work, H200)
    return {"label": work.label, **vars(work), "shape": work.shape, "flops": work.flops(),
            "floor_ms": bound[0], "bound": bound[1], "seconds": 1.0, "peers": entries}


@pytest.fixture
def made_up():
    run = results.new(MACHINE, "2026-01-02", {"rounds": 5})
    one, two = TABLE[4], TABLE[12]
    results.put(run, _record(two, stages=0.4, fast=0.2, fa2="window", flex=0.3, fa4=0.1), TABLE)
    results.put(run, _record(one, stages=0.7, fast=0.5, gluon=0.45, fa2=1.0, flex=0.8, cudnn=0.6,
                             fa4=0.55), TABLE)
    run["host"] = {"stage 4": {"fast": {"us": 21.0}, "fa2": {"us": 9.5}}}
    return run


def test_records_stand_in_the_order_of_the_table_and_are_replaced_by_label(made_up):
    assert [r["name"] for r in made_up["records"]] == ["stage 4, D=64", "stage 9, GPT-OSS window"]
    results.put(made_up, _record(TABLE[4], fast=0.4), TABLE)
    assert [r["peers"]["fast"]["ms"] for r in made_up["records"]] == [0.4, 0.2]


def test_a_write_that_fails_leaves_the_old_file_whole(made_up, tmp_path, monkeypatch):
    path = tmp_path / "results.json"
    results.write(made_up, path)
    old = path.read_text()

    def full(*arguments):
        raise OSError("no space left")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(OSError, match="no space left"):
        results.write(results.new(MACHINE, "", {}), path)
    assert path.read_text() == old and list(tmp_path.iterdir()) == [path]


def test_a_missing_peer_brings_back_all_that_the_record_has(made_up):
    work = TABLE[12]  # has stages, fast, fa2, flex, fa4
    assert results.peers_to_time(made_up, work, ["fast", "fa2"]) == []
    assert results.peers_to_time(made_up, work, ["fast", "cudnn"]) == [
        "fast", "cudnn", "stages", "fa2", "flex", "fa4"]
    assert results.peers_to_time(made_up, TABLE[0], ["fast"]) == ["fast"]


def test_results_of_another_gpu_or_version_are_not_continued(made_up, tmp_path):
    path = tmp_path / "results.json"
    assert results.resume(path, MACHINE) is None
    results.write(made_up, path)
    assert results.resume(path, MACHINE | {"driver": "999"}) == made_up
    with pytest.raises(results.Mismatch, match="want results of .*2.12.0.*; got .*2.11.0"):
        results.resume(path, MACHINE | {"torch": "2.12.0"})
    results.write(made_up | {"format": 1}, path)
    with pytest.raises(results.Mismatch, match="want a results.json of format 2; got format 1: "):
        results.resume(path, MACHINE)
    path.write_text("{")
    with pytest.raises(results.Mismatch, match="want a results.json"):
        results.resume(path, MACHINE)


# --------------------------------------------------------------------- tables
def test_a_ratio_is_ms_of_the_other_over_ms_of_our_own(made_up):
    record = made_up["records"][0]
    assert tables.ratios(record, "fast") == pytest.approx(
        {"stages": 1.4, "gluon": 0.9, "fa2": 2.0, "flex": 1.6, "cudnn": 1.2, "fa4": 1.1})
    assert tables.best_ratio(record, "fast") == pytest.approx(1.1)
    assert tables.best_ratio(record, "stages") == pytest.approx(0.55 / 0.7)
    assert tables.best_peer(record) == "fa4"
    assert tables.best_ratio(record, "fast", ("flex", "tutorial")) == pytest.approx(1.6)
    record["peers"]["fa4"]["error"] = 0.03
    assert tables.best_ratio(record, "fast") == pytest.approx(1.2)
    record["peers"]["fast"]["error"] = None
    assert tables.best_ratio(record, "fast") is None


def test_the_summary_names_the_worst_workload_and_the_geometric_mean(made_up):
    *plain, triton, fa2, hopper, _, _, gluon = tables.summary(made_up)
    assert all(line.startswith("stages against ") for line in plain) and len(plain) == 3
    assert "at least 0.75x (stage 9, GPT-OSS window, forward)" in plain[0]
    assert "at least 1.50x (stage 9, GPT-OSS window, forward)" in triton
    assert f"geometric mean {math.sqrt(1.6 * 1.5):.2f}x, over 2 workloads" in triton
    assert "at least 2.00x" in fa2 and "over 1 workloads" in fa2
    assert "at least 0.50x" in hopper
    assert gluon.startswith("sink_attn (Gluon) against ") and "over 1 workloads" in gluon
    made_up["records"] = []
    assert all(line.endswith("nothing to compare") for line in tables.summary(made_up))


def test_the_summary_says_what_is_left_without_the_original_shapes(made_up):
    results.put(made_up, _record(TABLE[3], stages=1.0, fast=1.0, fa4=90.0), TABLE)
    assert "original shape" in made_up["records"][0]["label"]
    hopper = tables.summary(made_up)[5]
    assert "over 3 workloads; without the original shapes" in hopper
    assert f"{math.sqrt(0.5 * 1.1):.2f}x, over 2 workloads, slower on 1" in hopper


def test_the_sweep_is_no_part_of_the_summary(made_up):
    before = tables.summary(made_up)
    made_up["records"].append(_record(SWEEP[0], fast=1.0, flex=0.001, fa2=0.001))
    assert tables.summary(made_up) == before


def test_the_text_shows_times_bound_and_fastest(made_up):
    lines = tables.as_text(made_up).splitlines()
    times = next(line for line in lines if line.startswith("stage 4, D=64"))
    assert "0.500 (550)" in times and "0.450 (611)*" in times and "1.00 (275)" in times
    columns = next(line for line in lines if "HQ/HKV" in line).split("mask")[1].split()
    assert columns == ["stages", "sink_attn", "sink_attn", "(Gluon)", "fa2", "cudnn", "flex", "fa4"]
    fast = next(line for line in lines if "0.450..0.550" in line)
    matrix_ms = TABLE[4].flops() / 790e12 * 1e3
    assert fast.split()[6:9] == ["matrix", f"{100 * matrix_ms / 0.5:.0f}", "%"]
    gpt_oss = next(line for line in lines if "GPT-OSS" in line)
    assert gpt_oss.split().count("-") == 3  # gluon, fa2, cudnn
    assert any(line.split() == ["stage", "4", "21.0", "9.5"] for line in lines)
    assert lines[0].startswith("NVIDIA H200, driver 580.1, torch 2.11.0")


def test_a_time_is_told_in_three_digits():
    times = 0.0080, 1.2345, 152.4, 1234.5
    assert [tables.digits(ms) for ms in times] == ["0.00800", "1.23", "152", "1.23e+03"]


def test_a_ratio_says_which_peers_were_timed_and_calls_one_alone_no_fastest():
    assert tables._fastest(["flex"]) == "flex"
    assert tables._fastest(["flex", "fla"]) == "the faster of flex, fla"
    assert tables._fastest(["flex", "fla", "tutorial"]) == "the fastest of flex, fla, tutorial"


@pytest.mark.parametrize("gpu", ["h200", "h100"])
def test_the_committed_tables_are_made_of_the_committed_numbers(gpu):
    folder = Path(plots.__file__).parent / "results" / gpu
    run = json.loads((folder / "results.json").read_text("utf-8"))
    assert (folder / "results.md").read_text("utf-8") == tables.as_markdown(run)


def test_the_markdown_has_a_cell_for_every_column(made_up):
    text = tables.as_markdown(made_up)
    assert "**0.450 (611)**" in text
    for block in text.split("\n\n"):
        if block.startswith("|"):
            assert len({line.count("|") for line in block.splitlines()}) == 1


def test_the_csv_has_a_row_a_workload_and_implementation(made_up, tmp_path):
    made_up["records"][1]["peers"]["flex"] = {"failed": "RuntimeError: x"}
    tables.write_csv(made_up, tmp_path / "results.csv")
    with open(tmp_path / "results.csv", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert len(rows) == 7 + 5
    by = {(row["workload"], row["implementation"]): row for row in rows}
    flex = by["stage 4, D=64", "flex"]
    assert float(flex["ratio_to_fast"]) == pytest.approx(1.6) and flex["outcome"] == "timed"
    assert float(flex["ratio_to_stages"]) == pytest.approx(0.8 / 0.7)
    assert float(flex["min_ms"]) < float(flex["ms"]) < float(flex["max_ms"])
    assert by["stage 9, GPT-OSS window", "fa2"]["reason"] == "window"
    assert by["stage 9, GPT-OSS window", "flex"]["outcome"] == "failed"


def test_without_known_ceilings_the_bound_is_a_dash(made_up):
    for record in made_up["records"]:
        record["floor_ms"] = record["bound"] = None
    table = next(t for t in tables.tables(made_up) if "the bound" in t.title)
    assert all(row[4:7] == ["-", "-", "-"] for row in table.rows)


# ---------------------------------------------------------------------- plots
def test_a_figure_a_stage_and_an_overview_are_written(made_up, tmp_path, capsys):
    pytest.importorskip("matplotlib")
    for work in SWEEP:
        if work.stage in (3, 8):
            naive = "memory" if work.N > 8192 else 1.0 * work.N
            made_up["records"].append(_record(work, fast=0.1 * work.N, naive=naive))
    results.write(made_up, tmp_path / "results.json")
    assert cli.main(["--plot", str(tmp_path / "results.json")]) == 0
    written = {"stage_3.png", "stage_8.png", "overview.png"}
    assert {path.name for path in tmp_path.glob("*.png")} == written
    assert all((tmp_path / name).read_bytes()[:4] == b"\x89PNG" for name in written)
    assert len(capsys.readouterr().out.split()) == 3


def test_every_axis_has_numbers_and_the_overview_shows_both_of_our_fast_kernels(
        made_up, tmp_path, monkeypatch):
    pyplot = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.setattr(pyplot, "close", lambda figure: drawn.append(figure))
    made_up["records"] += [_record(work, fast=work.N / 1e3) for work in SWEEP if work.stage == 4]
    drawn = []
    plots.draw(made_up, tmp_path)
    monkeypatch.undo()
    stage, overview = drawn
    for axis in stage.axes:
        low, high = axis.get_ylim()
        shown = [label.get_text() for label in axis.get_yticklabels()
                 if label.get_text() and low <= label.get_position()[1] <= high]
        assert len(shown) >= 2
    assert [line.get_label() for line in overview.axes[0].lines[:3]] == [
        "stages", "sink_attn", "sink_attn (Gluon)"]
    assert list(overview.axes[0].lines[2].get_xdata()) == pytest.approx([0.55 / 0.45])
    for figure in drawn:
        pyplot.close(figure)


def test_a_line_leaves_out_what_was_not_timed_or_is_wrong():
    sweep = [work for work in SWEEP if work.stage == 3][:3]
    records = [_record(sweep[0], flex=1.0), _record(sweep[1], flex="memory"),
               _record(sweep[2], flex=3.0)]
    assert plots._points(records, "flex", "forward", "ms") == [(256, 1.0), (1024, 3.0)]
    assert plots._points(records, "flex", "backward", "ms") == []
    records[1]["peers"]["flex"] = {"extra_mib": 9.0, "failed": "RuntimeError: while timed"}
    assert plots._points(records, "flex", "forward", "extra_mib") == [(256, 2.5), (1024, 2.5)]
    records[0]["peers"]["flex"]["error"] = 1.0
    assert plots._points(records, "flex", "forward", "ms") == [(1024, 3.0)]


def test_without_matplotlib_the_way_to_it_is_said(made_up, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    results.write(made_up, tmp_path / "results.json")
    assert cli.main(["--plot", str(tmp_path / "results.json")]) == 2
    assert "pip install matplotlib" in capsys.readouterr().err


# ----------------------------------------------------------------- command line
def test_without_a_gpu_nothing_runs(monkeypatch, tmp_path, capsys):
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert cli.main(["--out", str(tmp_path / "out")]) == 2
    assert "want a CUDA GPU to time on; got none" in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("arguments, told", [
    (["--only", "stage 99"], "--only: want part of one of stage 3, original shape; "),
    (["--peers", "fast,flash"], "--peers: want one of stages, fast, gluon, "),
    (["--rounds", "0"], "want --rounds >= 1"),
    (["--tutorial", "nowhere.py"], "--tutorial: want a file; got nowhere.py"),
    (["--baseline", "nowhere"], "--baseline: want a folder with problem_3.py in it; got nowhere"),
    (["--plot", "nowhere.json"], "want a results.json; got nowhere.json"),
])
def test_a_wrong_argument_is_refused_in_words(arguments, told, capsys):
    assert cli.main(arguments) == 2
    assert told in capsys.readouterr().err


def test_the_list_says_who_would_run_and_why_not(capsys):
    assert cli.main(["--list", "--no-sweep", "--only", "Mistral", "--peers", "fa2,flex"]) == 0
    assert capsys.readouterr().out == (
        "stage 6, Mistral, forward (1, 32/8, 16384, 128, window 4096): "
        "stages, fast, fa2 - (window), flex\n")


# ---------------------------------------------------------------------- a GPU
@pytest.mark.gpu
def test_packed_sequences_are_timed_beside_each_alone_and_a_document_mask():
    from benchmarks import packed

    line = packed.timed(packed.Packing(packed.mixed(9, 1000), window=100))
    for name in ("ours", "alone", "flex"):
        assert line[name]["error"] < measure.LIMIT and line[name]["backward"] > 0, line


def test_packings_hold_all_tokens_and_ours_is_each_sequence_alone(device):
    from benchmarks import packed

    assert [sum(packed.mixed(n, 8192)) for n in (1, 4, 40)] == [8192] * 3
    assert min(packed.mixed(400, 16384)) >= 1
    work = packed.Packing((5, 9), (4, 2), 16, window=3)
    q, k, v = (torch.randn(14, H, 16, device=device) for H in (4, 2, 2))
    borders = torch.tensor([0, 5, 14], dtype=torch.int32, device=device)
    ours, alone = (make(work, borders)(q, k, v, torch.ones(4, device=device))
                   for make in (packed.ours, packed.alone))
    assert (ours - alone).norm() <= 4e-3 * alone.norm()


@pytest.mark.gpu
@pytest.mark.parametrize("work", [
    Workload("causal", 8, B=1, HQ=4, HKV=2, N=256, D=64),
    Workload("sink logits", 9, B=1, HQ=4, HKV=2, N=256, D=64, window=100, sink_logits=True),
], ids=lambda work: work.name)
@pytest.mark.parametrize("direction", ["forward", "backward"])
def test_every_peer_that_can_is_timed_and_right(work, direction):
    record = measure.measure(replace(work, direction=direction), list(PEERS), OPTIONS)
    for name, entry in record["peers"].items():
        if "skipped" not in entry:
            assert entry["ms"] > 0 and entry["error"] < measure.LIMIT, (name, entry)
    assert {"stages", "fast", "naive", "flex"} <= set(tables.ranked(record))


def test_the_shapes_of_picks_are_30_and_none_of_those_in_the_results():
    from benchmarks import picks

    def key(work):
        return work.B, work.HQ, work.HKV, work.N, work.D, work.causal, work.window

    asked = [key(picks.works(shape)[0]) for shape in picks.SHAPES]
    assert len(set(asked)) == 30 and not set(asked) & {key(work) for work in [*TABLE, *SWEEP]}


def test_split_sequences_are_checked_and_timed_on_every_rank(tmp_path, monkeypatch, device):
    from benchmarks import context_parallel

    small = context_parallel.Work((2, 1), 16)
    checks = [replace(small, window=5, sink_size=2, sequences=n) for n in (1, 3)]
    monkeypatch.setattr(context_parallel, "CHECKED", checks)
    monkeypatch.setattr(context_parallel, "TIMED", [replace(small, sequences=3), small])
    monkeypatch.setattr(context_parallel, "ENOUGH_MS", 0.0)
    file = tmp_path / "lines"
    context_parallel.work(0, 1, tmp_path / "store", [20], file, torch.float32, checked=23)
    head, *lines = map(json.loads, file.read_text().splitlines())
    errors = [line["errors"] for line in lines if "errors" in line]
    assert head["gpus"] == 1 and [len(x) for x in errors] == [10, 10, 2, 2]
    limit = 1e-5 if device == "cpu" else 4e-3  # a GPU multiplies in TF32
    assert max(x for found in errors for x in found.values()) < limit
    times = [(line["who"], line["sequences"]) for line in lines if line.get("ms", 0) > 0]
    assert times[:4] == [("alone", 3), ("ours", 3), ("alone", 1), ("ours", 1)]
    assert lines[-1]["who"] == "torch"
