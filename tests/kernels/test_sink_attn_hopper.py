"""The Gluon kernels: what they compile to, what they refuse, and, on a Hopper GPU, what they say.

SINK_ATTN_TRITON=folder:folder names further Triton installations to compile with, each made by
`pip install --no-deps --target folder triton==...`.
"""

import functools
import json
import math
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import reference
import sink_attn
from sink_attn.entry import no_gluon
from tests.kernel_checks import place

attention = functools.partial(sink_attn.attention, kernel="gluon")

ROOT = Path(__file__).parents[2]
TRITONS = ["", *filter(None, os.environ.get("SINK_ATTN_TRITON", "").split(os.pathsep))]
SHARED = {("_fwd_kernel", 128): 196900, ("_fwd_kernel", 64): 164164,
          ("_bwd_kernel", 128): 214400, ("_bwd_kernel", 64): 231808}
# Bytes of stack, and loads and stores of them in a round of the loop over tiles, at the most: a few
# addresses that stay the same.  The forward needs the loop's only with the ptxas of Triton 3.9, the
# backward at D = 64 since dq is a tile late.
SPILLS = {("_fwd_kernel", 128): (24, 0), ("_bwd_kernel", 64): (32, 4)}
SPILLS_3_9 = SPILLS | {("_fwd_kernel", 128): (64, 4)}


def in_a_process(*command: str, triton: str = "", seconds: int = 600) -> str:
    """Standard output of a Python process, in which kernels are compiled, not interpreted."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    environment["PYTHONPATH"] = os.pathsep.join(filter(None, [triton, str(ROOT)]))
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=environment, capture_output=True, text=True,
        timeout=seconds,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def _compiled(*options: str, triton: str) -> tuple[str, list[dict]]:
    """-> version of Triton, a row for each kernel."""
    out = in_a_process(
        "-m", "tools.sink_attn_resources", "--gluon", "--json", *options, triton=triton)
    found = json.loads(out.splitlines()[-1])
    return found["triton"], found["rows"]


# --------------------------------------------------------------- without a GPU
@pytest.mark.slow
@pytest.mark.parametrize("triton", TRITONS)
def test_every_kernel_compiles_as_stated(triton):
    version, rows = _compiled(triton=triton)
    spills = SPILLS_3_9 if version.startswith("3.9") else SPILLS
    assert {r["kernel"] for r in rows} == {
        "_fwd_kernel", "_bwd_kernel", "_prepare_kernel", "_finish_kernel", "_dq_kernel"
    }
    for r in rows:
        key = r["kernel"], r["D"]
        assert not [note for note in r["notes"] if "C7510" <= note <= "C7515"], r
        stack, in_loop = spills.get(key, (0, 0))
        assert r["stack"] <= stack and r["spills_in_loop"] <= in_loop, r
        if key in SHARED:
            assert r["registers"] == 168 and {24, 240} <= set(r["roles"]), r
            assert r["shared"] <= SHARED[key], r


@pytest.mark.slow
@pytest.mark.parametrize("triton", TRITONS)
def test_a_version_that_serialises_is_noticed(triton):
    _, [row] = _compiled("--serialised", triton=triton)
    assert [note for note in row["notes"] if "C7510" <= note <= "C7515"]


KEPT = """
import torch
from triton.compiler.compiler import CompiledKernel
from triton.runtime.jit import JITFunction

launch = JITFunction.run
from tools import sink_attn_resources

sink_attn_resources.pretend()
JITFunction.run = launch  # this time up to the driver, which is left out
CompiledKernel._init_handles = lambda kernel: setattr(kernel, "function", 0)
passed = []
CompiledKernel.run = property(lambda kernel: lambda *args: passed.append(args))

from sink_attn import kept
from sink_attn.attention_hopper import forward
from sink_attn.attention_hopper_launch import backward

q, k = (torch.empty(1, heads, 300, 128, dtype=torch.bfloat16) for heads in (4, 2))
sinks = torch.empty(4)
new_empty, made = torch.Tensor.new_empty, []


def call(old):
    # Every kernel once, in the memory of the call before; returns what the driver was given.
    passed.clear()
    made.clear()
    old = iter(old)
    torch.Tensor.new_empty = lambda x, *a, **o: made.append(next(old, None)) or _last(x, *a, **o)
    o, lse = forward(q, k, k, True, 0.1, 100, sinks)
    backward(q, k, k, sinks, o, lse, q, True, 0.1, 100, False, True, lse)
    return [args[:5] + args[9:] for args in passed]  # between: Triton's own hooks


def _last(x, *args, **options):
    if made[-1] is None:
        made[-1] = new_empty(x, *args, **options)
    return made[-1]


first = call([])
second = call(list(made))
assert len(kept._kernels) == len(first) == len(second) == 4
for x, y in zip((x for args in first for x in args), (y for args in second for y in args),
                strict=True):
    assert x is y or (type(x) is type(y) and x == y), (x, y)
# A kernel kept for one head is asked for any number: but for constexprs, nothing is built into it.
kept._kernels.clear()
q = k = torch.empty(1, 1, 300, 128, dtype=torch.bfloat16)
call([])
for kernel in kept._kernels.values():
    for (i,), value in kernel.src.constants.items():
        parameter = kernel.src.fn.params[i]
        assert value is None or parameter.is_constexpr, (parameter.name, value)
print(*map(len, first))
"""


@pytest.mark.parametrize("triton", TRITONS)
def test_a_kept_kernel_gets_the_arguments_that_triton_would_pass(triton):
    said = in_a_process("-c", KEPT, triton=triton)  # by ptxas, too
    assert said.splitlines()[-1] == " ".join(str(5 + n) for n in (21, 19, 20, 9))


def _inputs(N=64, D=64, HQ=2, HKV=2, dtype=torch.float16, device="cpu", B=1):
    torch.manual_seed(0)
    return [
        torch.randn(B, heads, N, D, device=device).to(dtype) for heads in (HQ, HKV, HKV)
    ]


@pytest.mark.interpreter
@pytest.mark.parametrize("inputs, options, words", [
    (_inputs(D=32), {}, "want D 64 or 128; got 32"),
    (_inputs(dtype=torch.float32), {}, "want float16 or bfloat16; got torch.float32"),
    (_inputs(), dict(sink_size=4), "want no sink tokens; got sink_size=4"),
    (_inputs(), {}, "want CUDA tensors; got cpu"),
])
def test_what_only_plain_triton_can_do_is_refused(inputs, options, words):
    with pytest.raises(ValueError, match=f"kernel='gluon': {words}"):
        attention(*inputs, **options)


@pytest.fixture
def gpu_of(monkeypatch):
    """gpu_of((8, 0)) makes tensors those of a GPU of this capability."""
    def pretend(capability):
        monkeypatch.setattr(torch.Tensor, "is_cuda", True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
        no_gluon.cache_clear()

    yield pretend
    no_gluon.cache_clear()


@pytest.mark.parametrize("capability", [(8, 0), (8, 9), (10, 0), (12, 0)])
def test_another_gpu_is_refused_before_anything_is_compiled(capability, gpu_of):
    gpu_of(capability)
    with pytest.raises(ValueError, match=rf"want .* 9.0 \(Hopper\); got \({capability[0]}, "):
        attention(*_inputs())


def test_another_triton_is_refused_by_the_import():
    others = ["3.5.1", "3.10.0", "4.0.0"]
    said = in_a_process("-c", f"""
import triton
for triton.__version__ in {others}:
    try:
        import sink_attn.attention_hopper
    except ImportError as error:
        print(error)
""")
    assert said.splitlines() == [f"want Triton 3.6 to 3.9; got {version}" for version in others]


def test_what_the_copy_engine_cannot_step_through_is_copied():
    from sink_attn.hopper import copyable

    x = torch.randn(2, 3, 10, 64).half()
    assert copyable(x) is x
    assert copyable(x.transpose(1, 2)).data_ptr() == x.data_ptr()
    odd = torch.empty(x.numel() + 1).half()[1:].view(x.shape).copy_(x)
    for view in (odd, x.mT.contiguous().mT, x[:1, :1, :1, :1].expand(x.shape)):
        copied = copyable(view)
        assert copied.is_contiguous() and copied.data_ptr() % 16 == 0 and torch.equal(copied, view)


def test_a_descriptor_is_kept_by_its_place_and_its_copy_lives_as_long():
    from sink_attn import hopper, kept

    describe = functools.partial(kept.describe, make=hopper.tiles)
    x = torch.randn(2, 3, 10, 64).half()
    assert describe(x, 64) is describe(x, 64) and describe(x, 64) is not describe(x, 128)
    assert describe(x, 64).base is not x and describe(x, 64).base.data_ptr() == x.data_ptr()
    assert describe(x.transpose(1, 2), 64).strides == [1920, 64, 640, 1]
    odd = torch.empty(x.numel() + 1).half()[1:].view(x.shape).copy_(x)
    found = describe(odd, 64)
    assert torch.equal(found.base, x) and found.base.data_ptr() % 16 == 0
    assert describe(odd.fill_(1.0), 64).base.eq(1).all()


@pytest.mark.interpreter
@pytest.mark.parametrize("with_dlse", [False, True])
def test_the_sums_before_the_backward_are_padded(with_dlse, device):
    from sink_attn.attention_hopper_launch import _prepare_kernel

    B, HQ, N, D, rows = 2, 3, 70, 64, 128
    o = torch.randn(B, HQ, N, 2 * D, device=device)[..., :D]
    do = torch.randn(B, N, HQ, D, device=device).transpose(1, 2)
    lse = torch.randn(B, HQ, N, device=device)
    lse_log2, delta = torch.full((2, B, HQ, rows), torch.nan, device=device)
    dq = torch.full((B * HQ, N, D), torch.nan, device=device)
    dlse = torch.randn(B, HQ, N, device=device) if with_dlse else None
    sinks = torch.randn(HQ, device=device)
    dsinks = torch.full((B, HQ, rows // 64), torch.nan, device=device)
    _prepare_kernel[(rows // 64 * B * HQ,)](
        o, do, dlse, lse, lse_log2, delta, dq, sinks, dsinks, N, HQ, rows, *o.stride()[:3],
        *do.stride()[:3], D=D, num_warps=4,
    )
    want = (o * do).sum(3) - (dlse if with_dlse else 0)
    assert torch.allclose(delta[..., :N], want, atol=1e-4)
    assert torch.allclose(lse_log2[..., :N], lse / 0.6931471805599453)
    assert torch.all(lse_log2[..., N:] == torch.inf) and torch.all(delta[..., N:] == 0)
    assert torch.all(dq == 0)
    p_sink = torch.exp(sinks[:, None] - lse)
    assert torch.allclose(dsinks.sum(2), -(p_sink * want).sum(2), rtol=1e-4)


# ------------------------------------------------------------------ on a Hopper
@functools.cache
def _no_hopper() -> str:
    if not torch.cuda.is_available():
        return ""  # conftest.py says so
    capability = torch.cuda.get_device_capability()
    return "" if capability == (9, 0) else f"needs compute capability 9.0; got {capability}"


hopper_only = [pytest.mark.gpu, pytest.mark.skipif(bool(_no_hopper()), reason=_no_hopper())]


def _error(got, want) -> float:
    """Relative, of the whole tensor; absolute where the truth is next to nothing."""
    return ((got.double() - want).norm() / want.norm().clamp(min=1.0)).item()


def _check(N, D, HQ=4, HKV=2, B=2, dtype=torch.bfloat16, layout="dense", dout="dense",
           is_causal=True, window_size=None, sinks=False, deterministic=False):
    from sink_attn.attention_hopper import forward

    inputs = [place(x, layout) for x in _inputs(N, D, HQ, HKV, dtype, "cuda", B)]
    do = place(torch.randn(B, HQ, N, D, device="cuda").to(dtype), dout)
    sink_logits = torch.randn(2 * HQ, device="cuda")[::2] if sinks else None
    truth = reference.attention(
        *inputs, dout=do, is_causal=is_causal, window_size=window_size, sink_logits=sink_logits
    )
    leaves = [x.detach().requires_grad_() for x in inputs]
    leaves += [sink_logits.requires_grad_()] if sinks else []
    options = dict(is_causal=is_causal, window_size=window_size, sink_logits=sink_logits)
    with torch.no_grad():
        o, lse = forward(*inputs, is_causal, 1 / math.sqrt(D), window_size, sink_logits)
    got = attention(*leaves[:3], **options, deterministic=deterministic)
    grads = torch.autograd.grad(got, leaves, do)
    limit = 4e-3 if dtype == torch.bfloat16 else 6e-4
    assert torch.equal(o, got)
    assert _error(o, truth["o"]) < limit and _error(lse, truth["lse"]) < 1e-5
    for name, grad in zip(("q", "k", "v", "sink_logits"), grads, strict=False):
        assert _error(grad, truth[name]) < 2 * limit, name


@pytest.mark.parametrize("is_causal", [True, False])
@pytest.mark.parametrize("D", [128, 64])
@pytest.mark.parametrize("N", [1, 2, 63, 64, 65, 127, 128, 129, 257, 1000])
class TestLengths:
    pytestmark = hopper_only

    def test_any_length_is_right(self, N, D, is_causal):
        _check(N, D, is_causal=is_causal)


@pytest.mark.parametrize("options", [
    dict(HQ=8, HKV=1, dtype=torch.float16), dict(HQ=3, HKV=3), dict(HQ=6, HKV=2, B=3),
    dict(layout="strided", dout="strided"), dict(layout="columns"), dict(dout="expanded"),
    dict(layout="strided", is_causal=False), dict(deterministic=True),
    dict(deterministic=True, is_causal=False), dict(sinks=True), dict(sinks=True, is_causal=False),
    dict(window_size=1), dict(window_size=17, deterministic=True), dict(window_size=64),
    dict(window_size=128, sinks=True), dict(window_size=200), dict(window_size=5000),
], ids=str)
@pytest.mark.parametrize("D", [128, 64])
class TestOptions:
    pytestmark = hopper_only

    def test_every_option_is_right(self, D, options):
        _check(500, D, **options)


class TestRepeats:
    pytestmark = hopper_only

    @pytest.mark.parametrize("is_causal", [True, False])
    def test_forward_dk_and_dv_are_the_same_200_times(self, is_causal):
        from sink_attn.attention_hopper import forward
        from sink_attn.attention_hopper_launch import backward

        q, k, v = _inputs(2048, 128, 16, 8, torch.bfloat16, "cuda", 2)  # several tiles a program
        do = torch.randn_like(q)
        o, lse = forward(q, k, v, is_causal, 0.1)
        _, dk, dv, _ = backward(q, k, v, None, o, lse, do, is_causal, 0.1)
        for _ in range(200):
            again = forward(q, k, v, is_causal, 0.1)
            assert torch.equal(o, again[0]) and torch.equal(lse, again[1])
            again = backward(q, k, v, None, o, lse, do, is_causal, 0.1)
            assert torch.equal(dk, again[1]) and torch.equal(dv, again[2])

    def test_deterministic_dq_is_the_same_every_time(self):
        from sink_attn.attention_hopper import forward
        from sink_attn.attention_hopper_launch import backward

        q, k, v = _inputs(2048, 128, 8, 2, torch.bfloat16, "cuda", 2)
        do = torch.randn_like(q)
        o, lse = forward(q, k, v, True, 0.1)
        dq = backward(q, k, v, None, o, lse, do, True, 0.1, deterministic=True)[0]
        for _ in range(20):
            again = backward(q, k, v, None, o, lse, do, True, 0.1, deterministic=True)[0]
            assert torch.equal(dq, again)

    def test_streams_and_graphs_do_not_share_a_counter(self):
        from sink_attn.attention_hopper import forward

        q, k, v = _inputs(2048, 128, 16, 16, torch.bfloat16, "cuda", 2)
        o, lse = forward(q, k, v, True, 0.1)
        torch.cuda.synchronize()
        streams, found = [torch.cuda.Stream() for _ in range(3)], []
        for stream in streams * 5:
            with torch.cuda.stream(stream):
                found.append(forward(q, k, v, True, 0.1))
        torch.cuda.synchronize()
        assert all(torch.equal(o, x) and torch.equal(lse, y) for x, y in found)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            again, _ = forward(q, k, v, True, 0.1)
        for _ in range(3):
            again.zero_()
            graph.replay()
            assert torch.equal(o, again)

    def test_nothing_hangs(self):
        code = """
import torch
from sink_attn import attention
for N in (1, 100, 4096):
    for causal in (True, False):
        q, k, v = (torch.randn(1, 16, N, 128, device="cuda", dtype=torch.bfloat16,
                               requires_grad=True) for _ in "qkv")
        attention(q, k, v, is_causal=causal, kernel="gluon").sum().backward()
torch.cuda.synchronize()
print("done")
"""
        assert in_a_process("-c", code, seconds=120).strip() == "done"
