"""(B, H, N, D) and (B, N, H, D): where o and the gradients lie in memory, and that they are right.

On a GPU the same for both kernels, whose outputs are stored by the threads and the copy engine.
"""

import functools
import itertools

import pytest
import torch

import sink_attn
from sink_attn import entry
from tests import kernel_checks

LAYOUTS = ("bhnd", "bnhd")
CPU_AXES = kernel_checks.CPU_AXES | {"D": (16, 40, 64, 80, 128)}
MASKS = [
    dict(is_causal=False), dict(), dict(window_size=20), dict(window_size=20, sink_size=4),
]


def _lies(x) -> str:
    """The layout of x (B, H, N, D), more than one head and row, without gaps."""
    assert x.transpose(1, 2).is_contiguous() or x.is_contiguous(), x.stride()
    return "bhnd" if x.is_contiguous() else "bnhd"


def _inputs(layouts, N=70, D=16, heads=(4, 2), B=2, dtype=torch.float32, device="cpu"):
    """q, k, v and do, each in its layout, or "strided", and without gradients: the numbers."""
    torch.manual_seed(0)
    shapes = [(B, h, N, D) for h in (heads[0], heads[1], heads[1], heads[0])]
    found = []
    for shape, layout in zip(shapes, layouts, strict=True):
        x = torch.randn(shape, device=device).to(dtype)
        if layout == "bnhd":
            x = x.transpose(1, 2).contiguous().transpose(1, 2)
        found.append(x if layout in LAYOUTS else kernel_checks.place(x, layout))
    return found


def _run(q, k, v, do, attend=sink_attn.attention, **options):
    """o and the gradients of q, k and v."""
    leaves = [x.detach().requires_grad_() for x in (q, k, v)]
    o = attend(*leaves, **options)
    return o.detach(), *torch.autograd.grad(o, leaves, do)


@pytest.fixture
def in_rows(monkeypatch):
    """kernel_checks judges o in (B, N, HQ, D), and all gradients."""

    def call(setting, q, k, v, sink_logits=None):
        o = sink_attn.attention(
            q, k, v, is_causal=setting.causal, window_size=setting.window_size,
            sink_size=setting.sink_size, sink_logits=sink_logits, o_layout="bnhd",
        )
        assert o.transpose(1, 2).is_contiguous()
        return o

    monkeypatch.setattr(kernel_checks, "call", call)


@pytest.mark.interpreter
@pytest.mark.parametrize("setting", kernel_checks.settings(9, CPU_AXES), ids=str)
def test_output_and_gradients_match_float64(setting, device, in_rows):
    worst = kernel_checks.error_over_limit(setting, device)
    assert max(worst.values()) <= 1, worst


@functools.cache
def _in_one_layout(mask: int, N: int, device: str):
    return _run(*_inputs(["bhnd"] * 4, N, device=device), **MASKS[mask])


# Every mask takes its own way through the kernels, and two of the four arrangements of the inputs.
@pytest.mark.interpreter
@pytest.mark.parametrize(("mask", "layouts"), [
    (0, ("bnhd", "bnhd", "bnhd", "bnhd")), (0, ("bnhd", "bhnd", "strided", "bhnd")),
    (1, ("bhnd", "bhnd", "bhnd", "bnhd")), (1, ("strided", "strided", "bhnd", "bhnd")),
    (2, ("bnhd", "bnhd", "bnhd", "bnhd")), (2, ("strided", "strided", "bhnd", "bhnd")),
    (3, ("bnhd", "bhnd", "strided", "bhnd")), (3, ("bhnd", "bhnd", "bhnd", "bnhd")),
], ids=str)
def test_o_lies_as_asked_and_each_gradient_as_its_input(mask, layouts, device):
    options = MASKS[mask]
    N = 200 if "sink_size" in options else 70  # with sinks, so long that dkdv runs in parts
    want = _in_one_layout(mask, N, device)
    assert [*map(_lies, want)] == ["bhnd"] * 4
    for o_layout in LAYOUTS:
        got = _run(*_inputs(layouts, N, device=device), o_layout=o_layout, **options)
        lie = [o_layout, *(x.replace("strided", "bnhd") for x in layouts[:3])]
        assert [*map(_lies, got)] == lie
        for x, y in zip(got, want, strict=True):
            assert torch.equal(x, y) if device == "cpu" else (x - y).norm() <= 2e-3 * y.norm()


@pytest.mark.interpreter
@pytest.mark.parametrize(("o_layout", "layouts"), [
    ("bhnd", ["bhnd"] * 4), ("bnhd", ["bnhd"] * 4), ("bnhd", ["strided"] * 4)], ids=str)
def test_fake_and_compiled_tensors_have_the_strides_of_real_ones(o_layout, layouts, device):
    inputs = _inputs(layouts, device=device)
    want = _run(*inputs, o_layout=o_layout)
    with torch._subclasses.FakeTensorMode() as mode:
        fake = _run(*map(mode.from_tensor, inputs), o_layout=o_layout)
    torch._dynamo.reset()
    attend = torch.compile(sink_attn.attention, fullgraph=True, dynamic=True, backend="aot_eager")
    compiled = _run(*inputs, attend, o_layout=o_layout)
    for x, y, z in zip(fake, compiled, want, strict=True):
        assert x.stride() == y.stride() == z.stride()
    options = None, True, None, 0, False, 0.25, False, None
    torch.library.opcheck(entry._forward_operator, (*inputs[:3], None, None, *options, o_layout))


@pytest.mark.interpreter
def test_packed_sequences_need_no_copy_before_or_after(device, monkeypatch):
    # In one launch, and one by one: (T, H, D), as the projections around it want it.
    q, k, v, do = (x[0].transpose(0, 1) for x in _inputs(["bnhd"] * 4, N=90, B=1, device=device))
    ends = torch.tensor([0, 50, 90], dtype=torch.int32, device=device)
    for _ in range(2):
        for x in _run(q, k, v, do, lambda *qkv: sink_attn.attention_varlen(*qkv, ends, ends, 50)):
            assert x.is_contiguous()
        monkeypatch.setattr(entry.policy, "are_long", lambda *work: True)
        monkeypatch.setattr(entry, "_not_for_gluon", lambda q, sink_size: "")
        monkeypatch.setattr(entry.policy, "GLUON", {})


@pytest.mark.interpreter
@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_sums_of_dq_are_stored_in_its_layout(layout, device):
    from sink_attn.attention_hopper_launch import _finish_kernel

    B, HQ, N, D = 2, 3, 70, 64
    (dq, *_) = _inputs([layout] * 4, N, D, (HQ, HQ), device=device)
    sums, dq = torch.randn(B, HQ, N, D, device=device), dq.fill_(torch.nan)
    _finish_kernel[(2 * B * HQ,)](sums, dq, 0.5, N, HQ, *dq.stride()[:3], D=D)
    assert torch.equal(dq, sums * 0.5) and _lies(dq) == layout


def test_another_layout_is_refused():
    q = torch.randn(1, 1, 4, 16)
    with pytest.raises(ValueError, match="want o_layout 'bhnd' or 'bnhd'; got 'bshd'"):
        sink_attn.attention(q, q, q, o_layout="bshd")


# -------------------------------------------------------------------- on a GPU
class TestOnAGpu:
    pytestmark = pytest.mark.gpu

    @pytest.mark.parametrize("setting", kernel_checks.settings(9, kernel_checks.GPU_AXES), ids=str)
    def test_output_and_gradients_match_float64(self, setting, in_rows):
        worst = kernel_checks.error_over_limit(setting, "cuda")
        assert max(worst.values()) <= 1, worst

    @pytest.mark.parametrize("kernel", ["triton", "gluon"])
    @pytest.mark.parametrize("deterministic", [False, True])
    @pytest.mark.parametrize("options", MASKS[:3], ids=str)
    @pytest.mark.parametrize("D, N", [(64, 512), (64, 300), (128, 300)])
    def test_both_kernels_store_both_layouts(self, D, N, options, deterministic, kernel):
        if kernel == "gluon" and torch.cuda.get_device_capability() != (9, 0):
            pytest.skip("needs compute capability 9.0")
        made = dict(N=N, D=D, heads=(8, 2), dtype=torch.bfloat16, device="cuda")
        options = dict(options, deterministic=deterministic, kernel=kernel)
        want = _run(*_inputs(["bhnd"] * 4, **made), **options)
        for layout, o_layout in itertools.product((*LAYOUTS, "strided"), LAYOUTS):
            got = _run(*_inputs([layout] * 4, **made), o_layout=o_layout, **options)
            assert [*map(_lies, got)] == [
                o_layout, *[layout.replace("strided", "bnhd")] * 3]
            for x, y in zip(got, want, strict=True):
                assert (x - y).float().norm() <= 4e-3 * y.float().norm()

    @pytest.mark.parametrize("layouts", [["bhnd"] * 4, ["bnhd"] * 4], ids=str)
    @pytest.mark.parametrize("D", [32, 64])
    def test_inductor_sees_the_strides_that_are_there(self, D, layouts):
        torch._dynamo.reset()
        attend = torch.compile(sink_attn.attention, fullgraph=True, dynamic=True)
        inputs = _inputs(layouts, 300, D, dtype=torch.bfloat16, device="cuda")
        got, want = (_run(*inputs, f, o_layout="bnhd") for f in (attend, sink_attn.attention))
        for x, y in zip(got, want, strict=True):
            assert x.stride() == y.stride() and (x - y).float().norm() <= 4e-3 * y.float().norm()
