"""attention: what it picks and refuses, and that PyTorch's own machinery takes it as its own.

The kernels themselves are judged in test_sink_attn.py and test_sink_attn_hopper.py.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import reference
import sink_attn
from sink_attn import entry, policy

RESULTS = Path(__file__).parents[2] / "benchmarks/results"
BEHIND = 1.03  # times the better kernel's time: what a pick may take at most
MASKS = [
    dict(is_causal=False), dict(), dict(window_size=100), dict(window_size=150, sink_size=4),
]
mask = pytest.mark.parametrize("options", MASKS, ids=str)


def _inputs(N=40, D=16, HQ=4, HKV=2, B=1, dtype=torch.float32, device="cpu"):
    """q, k, v, sink_logits, do."""
    torch.manual_seed(0)
    shapes = (B, HQ, N, D), (B, HKV, N, D), (B, HKV, N, D), (HQ,)
    leaves = [torch.randn(shape, device=device).to(dtype).requires_grad_() for shape in shapes]
    return *leaves, torch.randn(shapes[0], device=device).to(dtype)


def _run(q, k, v, sink_logits, do, attend=sink_attn.attention, **options):
    """o and the gradients."""
    o = attend(q, k, v, sink_logits=sink_logits, **options)
    return o, *torch.autograd.grad(o, (q, k, v, sink_logits), do)


def _close(got, want) -> None:
    """Up to other orders of the same sums."""
    for x, y in zip(got, want, strict=True):
        assert x.dtype == y.dtype and (x - y).float().norm() <= 4e-3 * y.float().norm()


# ------------------------------------------------------------------------- picks
def _timed_by_both() -> list:
    """(workload of results.json, ms of plain Triton, ms of Gluon).

    Without backward calls under 1 ms, whose rounds lie up to 55 % apart by the host's time, and
    without the H200's at D = 64: Gluon's kernel for them is newer than those results.
    """
    found = []
    for gpu in ("h100", "h200"):
        for r in json.loads((RESULTS / gpu / "results.json").read_text())["records"]:
            triton, gluon = (r["peers"].get(name, {}).get("ms") for name in ("fast", "gluon"))
            newer = gpu == "h200" and r["D"] == 64
            if triton and gluon and (r["direction"] == "forward" or triton > 1 and not newer):
                found.append((r, triton, gluon))
    return found


@pytest.mark.parametrize(
    "record, triton, gluon", [pytest.param(*row, id=row[0]["label"]) for row in _timed_by_both()]
)
def test_the_pick_is_at_most_3_percent_behind_where_both_were_measured(record, triton, gluon):
    pick = policy.pick(
        record["direction"], record["B"] * record["HKV"],
        *(record[name] for name in ("N", "D", "causal", "window")),
    )
    assert {"triton": triton, "gluon": gluon}[pick] <= BEHIND * min(triton, gluon)


def test_the_readme_has_the_table_of_picks():
    readme = (Path(sink_attn.__file__).parent / "README.md").read_text()
    for (direction, D, mask), keys in policy.GLUON.items():
        words = "any" if keys.start == 1 else f"from {keys.start} on"
        if keys.stop < policy.FAR:
            words = f"up to {keys.stop - 1}"
        assert f"| {direction} | {D} | {mask} | {words} |" in readme


@pytest.mark.parametrize(("options", "want"), [
    ({}, "gluon"), (dict(D=96), "triton"), (dict(dtype=torch.float32), "triton"),
    (dict(sink_size=4), "triton"), (dict(D=64, window_size=128), "triton"),
    (dict(D=64, N=100, window_size=128), "gluon"), (dict(window_size=128), "gluon"),
    (dict(direction="backward"), "triton"), (dict(direction="backward", N=8000), "gluon"),
    (dict(direction="backward", heads=10), "gluon"), (dict(heads=10), "gluon"),
    (dict(direction="backward", N=8000, deterministic=True), "triton"),
    (dict(kernel="triton"), "triton"), (dict(capability=(8, 0)), "triton"),
    (dict(capability=(10, 0)), "triton"), (dict(importable=False), "triton"),
])
def test_gluon_is_picked_only_where_it_runs_and_pays(options, want, monkeypatch):
    asked = dict(
        D=128, N=5000, heads=1, dtype=torch.bfloat16, window_size=None, sink_size=0, kernel=None,
        deterministic=False, direction="forward", capability=(9, 0), importable=True,
    ) | options
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: asked["capability"])
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)
    if not asked["importable"]:  # as with another Triton
        monkeypatch.setitem(sys.modules, "sink_attn.attention_hopper_launch", None)
    q = torch.empty(1, asked["heads"], asked["N"], asked["D"], dtype=asked["dtype"])
    entry.no_gluon.cache_clear()
    forward, backward = entry.picked(
        q, q, asked["kernel"], None, True, asked["window_size"], asked["sink_size"],
        asked["deterministic"],
    )
    entry.no_gluon.cache_clear()
    assert (forward if asked["direction"] == "forward" else backward) == want


def test_a_kernel_of_another_name_is_refused(device):
    q = torch.randn(1, 1, 4, 16, device=device)
    with pytest.raises(ValueError, match="want kernel None, 'triton' or 'gluon'; got 'cuda'"):
        sink_attn.attention(q, q, q, kernel="cuda")


def test_the_interpreter_asked_for_after_triton_was_imported_is_refused():
    # What Triton defines itself would be compiled, and fail in the middle of a kernel.
    program = """
import os, torch, triton
os.environ["TRITON_INTERPRET"] = "1"
import sink_attn
sink_attn.attention(*torch.zeros(3, 1, 1, 4, 16))
"""
    environment = {k: x for k, x in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run([sys.executable, "-c", program], env=environment, capture_output=True,
                          text=True, cwd=Path(sink_attn.__file__).parents[1])
    assert "want CUDA tensors, or TRITON_INTERPRET=1 at start; got cpu" in done.stderr


# ----------------------------------------------- without a GPU: in the interpreter
@pytest.mark.interpreter
@pytest.mark.parametrize("options", MASKS[1:3], ids=str)
def test_the_operators_are_what_pytorch_wants_of_one(options, device):
    # Schema, fake tensors, autograd's registration, and a graph for dynamic shapes.
    *inputs, do = _inputs(device=device)
    arguments = None, True, options.get("window_size"), 0, False, 0.25, False
    torch.library.opcheck(entry._forward_operator, (*inputs, None, *arguments, None, "bnhd"))
    with torch.no_grad():
        o, lse = entry._forward(*inputs, None, *arguments, ("triton", "triton"))
        torch.library.opcheck(
            entry._backward_operator,
            (*inputs, None, o, lse, do, None, *arguments, None, [True, False, False, True]),
        )


@pytest.mark.interpreter
@mask
def test_fake_tensors_have_the_shapes_strides_and_dtypes_of_real_ones(options, device):
    inputs = _inputs(device=device)
    want = _run(*inputs, **options)
    with torch._subclasses.FakeTensorMode() as mode:
        got = _run(*(mode.from_tensor(x) for x in inputs), **options)
    for x, y in zip(got, want, strict=True):
        assert (x.shape, x.stride(), x.dtype) == (y.shape, y.stride(), y.dtype)


def _one_graph_for_lengths(backend, options, inputs) -> None:
    """Compiled once, for all lengths of one batch: what it gives is what a plain call gives."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(sink_attn.attention, fullgraph=True, dynamic=True, backend=backend)
    for N in (300, 190, 257):
        at_n = inputs(N)
        got, want = _run(*at_n, attend=compiled, **options), _run(*at_n, **options)
        _close(got, want)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.interpreter
@pytest.mark.parametrize("options", MASKS[:2], ids=str)
def test_one_graph_serves_every_length(options, device):
    _one_graph_for_lengths("aot_eager", options, lambda N: _inputs(N, device=device))


@pytest.mark.interpreter
def test_under_autocast_inputs_are_cast_and_gradients_keep_their_dtype(device):
    q, k, v, sink_logits, do = _inputs(device=device)
    k = k.detach().half().requires_grad_()
    with torch.autocast(device, torch.float16):
        got = _run(q, k, v, sink_logits, do.half())
    cast = [x.detach().half().requires_grad_() for x in (q, k, v)]
    want = _run(*cast, sink_logits, do.half())
    assert [x.dtype for x in got] == [torch.float16, q.dtype, k.dtype, v.dtype, sink_logits.dtype]
    assert all(torch.equal(x, y.to(x.dtype)) for x, y in zip(got, want, strict=True))
    with torch.autocast(device, torch.float16), pytest.raises(TypeError, match="got torch.float64"):
        sink_attn.attention(*(x.detach().double() for x in (q, k, v)))


def test_deterministic_is_what_pytorch_was_asked_for(device, monkeypatch):
    seen = []
    monkeypatch.setattr(entry, "_forward", lambda *args: seen.append(args[9]) or (args[0], None))
    q = torch.randn(1, 1, 4, 16, device=device)
    with torch.no_grad():
        for wanted in (True, False):
            torch.use_deterministic_algorithms(wanted)
            sink_attn.attention(q, q, q)
        sink_attn.attention(q, q, q, deterministic=True)
    assert seen == [True, False, True]


# -------------------------------------------------------------------- on a GPU
GPU = dict(HQ=16, HKV=4, B=2, dtype=torch.bfloat16, device="cuda")


@pytest.mark.parametrize("D", [32, 64, 128])  # on a Hopper: Triton's kernels, both, Gluon's
@mask
class TestOnAGpu:
    pytestmark = pytest.mark.gpu

    def test_output_and_gradients_match_float64(self, options, D):
        inputs = _inputs(1000, D, **GPU)
        *leaves, sink_logits, do = inputs
        want = reference.attention(
            *(x.detach() for x in leaves), dout=do, sink_logits=sink_logits.detach(),
            **{"is_causal": True, **options},
        )
        for name, x in zip(("o", "q", "k", "v"), _run(*inputs, **options), strict=False):
            assert (x - want[name]).norm() <= 8e-3 * want[name].norm(), name

    def test_torch_compile_has_one_graph_for_every_length(self, options, D):
        _one_graph_for_lengths("inductor", options, lambda N: _inputs(N, D, **GPU))

    def test_a_cuda_graph_replays_with_new_inputs(self, options, D):
        inputs = _inputs(700, D, **GPU)
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            _run(*inputs, **options)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = _run(*inputs, **options)
        for _ in range(2):
            with torch.no_grad():
                for x in inputs:
                    x.copy_(torch.randn_like(x))
            graph.replay()
            _close(got, _run(*inputs, **options))

    def test_autocast_gives_what_inputs_of_that_dtype_give(self, options, D):
        *inputs, do = _inputs(500, D, **GPU | dict(dtype=torch.float32))
        half = [x.detach().bfloat16().requires_grad_() for x in inputs[:3]]
        options = dict(options, deterministic=True)
        with torch.autocast("cuda", torch.bfloat16):
            got = _run(*inputs, do.bfloat16(), **options)
        want = _run(*half, inputs[3], do.bfloat16(), **options)
        assert [x.dtype for x in got] == [torch.bfloat16] + [torch.float32] * 4
        assert all(torch.equal(x, y.to(x.dtype)) for x, y in zip(got, want, strict=True))

    @pytest.mark.parametrize("kernel", [None, "triton"])
    def test_50_repeats_give_the_same_bits(self, kernel, options, D):
        inputs, options = _inputs(2048, D, **GPU), dict(options, deterministic=True, kernel=kernel)
        want = _run(*inputs, **options)
        for _ in range(49):
            assert all(map(torch.equal, _run(*inputs, **options), want))
