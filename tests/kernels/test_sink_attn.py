"""sink_attn/ in plain Triton against float64, in all the forms that its wrapper chooses from."""

import functools
import itertools
import re
from pathlib import Path

import pytest
import torch

import reference
import sink_attn
from sink_attn import policy
from tests import kernel_checks

attention = functools.partial(sink_attn.attention, kernel="triton")

# The forms of the forward depend on D, on N, on the window and on the size of the groups.
CPU_AXES = kernel_checks.CPU_AXES | {
    "N": (1, 65, 192, 290), "D": (16, 40, 64, 128), "window_size": (1, 17, 128, 150, None),
}
GPU_AXES = kernel_checks.GPU_AXES | {"window_size": (1, 17, 128, 200, 5000, None)}
MASKS = [
    dict(is_causal=False), dict(), dict(window_size=100), dict(window_size=150, sink_size=4),
]
mask = pytest.mark.parametrize("options", MASKS, ids=str)


@pytest.fixture(autouse=True)
def checks_call_it(monkeypatch):
    """kernel_checks judges o and every gradient of what its `call` returns."""

    def call(setting, q, k, v, sink_logits=None):
        return attention(
            q, k, v, is_causal=setting.causal, window_size=setting.window_size,
            sink_size=setting.sink_size, sink_logits=sink_logits,
        )

    monkeypatch.setattr(kernel_checks, "call", call)


def _inputs(N=300, D=64, HQ=4, HKV=2, B=1, dtype=torch.float16, device="cpu"):
    """q, k, v, sink_logits, do."""
    torch.manual_seed(0)
    shapes = (B, HQ, N, D), (B, HKV, N, D), (B, HKV, N, D), (HQ,)
    leaves = [torch.randn(shape, device=device).to(dtype).requires_grad_() for shape in shapes]
    return *leaves, torch.randn(shapes[0], device=device).to(dtype)


def _run(q, k, v, sink_logits, do, attend=attention, **options):
    """o and the gradients."""
    o = attend(q, k, v, sink_logits=sink_logits, **options)
    return o, *torch.autograd.grad(o, (q, k, v, sink_logits), do)


def _close(got, want) -> None:
    """Up to other orders of the same sums; that of the sink logits' gradient is a sum of noise."""
    for x, y in itertools.islice(zip(got, want, strict=True), 4):
        assert (x - y).float().norm() <= 4e-3 * y.float().norm()


# ---------------------------------------------------------------------- numbers
@pytest.mark.interpreter
@pytest.mark.parametrize("setting", kernel_checks.settings(9, CPU_AXES), ids=str)
def test_output_and_gradients_match_float64(setting, device):
    worst = kernel_checks.error_over_limit(setting, device)
    assert max(worst.values()) <= 1, worst


@pytest.mark.interpreter
@pytest.mark.parametrize("N", [256, 200])
@pytest.mark.parametrize("D", [16, 64, 128])
def test_full_attention_matches_float64_in_each_of_its_forms(D, N, device):
    setting = kernel_checks.Setting(9, N, D, (2, 1), dtype="float16", causal=False)
    assert max(kernel_checks.error_over_limit(setting, device).values()) <= 1


def test_the_forms_are_chosen_as_their_comments_say():
    def options(D, N, mask="causal", short=False):
        return policy.forward_options(9, D, 2, N, mask, short, short, D > 32 and not short)

    assert options(64, 256, "full")["TWO_TILES"] and options(64, 256, "full")["Q_IN_REGISTERS"]
    assert not options(64, 200, "full")["Q_IN_REGISTERS"]
    assert options(64, 256)["Q_IN_REGISTERS"] and not options(64, 256)["TWO_TILES"]
    assert options(128, 256)["LATE_V"] and options(128, 256)["num_stages"] == 1
    assert options(16, 256)["maxnreg"] == 96 and options(16, 256, "full")["maxnreg"] == 128
    assert options(64, 256, "window", short=True)["HEADS"] == 8


@pytest.mark.interpreter
@pytest.mark.parametrize("sink_size", [0, 1, 63, 70, 10**12])
@pytest.mark.parametrize("window_size", [1, 17, 100, None])
def test_window_and_sinks_are_a_union_forward_and_backward(window_size, sink_size, device):
    # With one-hot v, o is the attention matrix; with one-hot do, dv is its transpose.
    N, options = 128, dict(window_size=window_size, sink_size=sink_size)
    q, k = torch.zeros(2, 1, 1, N, N, device=device)
    v = torch.eye(N, device=device)[None, None].requires_grad_()
    o = attention(q, k, v, **options)
    (dv,) = torch.autograd.grad(o, v, torch.eye(N, device=device)[None, None])
    i = torch.arange(N)
    age = i[:, None] - i[None, :]
    want = (age >= 0) & ((age < (window_size or N)) | (i[None, :] < sink_size))
    assert torch.equal((o[0, 0] > 0).cpu(), want) and torch.equal((dv[0, 0].T > 0).cpu(), want)


@pytest.mark.interpreter
@pytest.mark.parametrize(
    ("N", "window_size", "sink_size"), [(600, 20, 4), (500, 10, 70), (200, 9, 200)]
)
def test_a_long_walk_over_sinks_is_cut_into_parts_and_adds_up(N, window_size, sink_size, device):
    setting = kernel_checks.Setting(9, N, 16, (2, 1), window_size, sink_size)
    assert max(kernel_checks.error_over_limit(setting, device).values()) <= 1


@pytest.mark.interpreter
@pytest.mark.parametrize("heads", [(1, 1), (8, 1)])
def test_a_walk_that_begins_between_two_tiles_reads_nothing_past_the_end(heads, device):
    # N is a multiple of every tile, but the walk is not; beyond N there is NaN.
    setting = kernel_checks.Setting(9, 192, 16, heads, 20, layout="strided")
    assert max(kernel_checks.error_over_limit(setting, device).values()) <= 1


@pytest.mark.interpreter
def test_the_scale_is_what_was_asked_for(device):
    q, k, v, _, do = _inputs(70, 16, dtype=torch.float32, device=device)
    o = attention(q, k, v, softmax_scale=0.7)
    dq = torch.autograd.grad(o, q, do)[0]
    q, k, v = (x.detach() for x in (q, k, v))
    want = reference.attention(q * (0.7 * 4), k, v, dout=do, is_causal=True)  # divided by 4 there
    assert (o - want["o"]).norm() <= 2e-3 * want["o"].norm()
    assert (dq - want["q"] * (0.7 * 4)).norm() <= 2e-3 * dq.norm()


@pytest.mark.interpreter
@pytest.mark.parametrize("shift", [-128.0, 128.0])
def test_shifted_scores_change_nothing(shift, device):
    q, k, v = torch.randn(3, 1, 1, 100, 16, device=device)
    q[..., 0], k[..., 0] = 16.0, 0.0
    o = attention(q, k, v, window_size=33, sink_size=5)
    k[..., 0] = shift / 4  # adds 16 * shift / 4 / sqrt(16) = shift to every score
    assert (attention(q, k, v, window_size=33, sink_size=5) - o).abs().max() < 5e-3


@pytest.mark.interpreter
def test_a_sink_logit_of_minus_infinity_is_no_sink(device):
    q, k, v = torch.randn(3, 1, 2, 70, 16, device=device)
    nothing = torch.full((2,), -torch.inf, device=device)
    for options in MASKS:
        none = attention(q, k, v, **options)
        assert torch.equal(attention(q, k, v, sink_logits=nothing, **options), none)


@pytest.mark.interpreter
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_the_gradient_of_the_sink_logits_has_their_dtype(dtype, device):
    if dtype == torch.bfloat16 and device == "cpu":
        pytest.skip("the interpreter has no bfloat16")
    q, k, v = torch.randn(3, 1, 2, 9, 16, device=device)
    sink_logits = torch.randn(2, device=device).to(dtype).requires_grad_()
    attention(q, k, v, window_size=5, sink_logits=sink_logits).sum().backward()
    assert sink_logits.grad.dtype == dtype and sink_logits.grad.shape == (2,) and q.grad is None


@pytest.mark.interpreter
def test_only_the_gradients_asked_for_are_computed(device):
    q, k, v = torch.randn(3, 1, 2, 9, 16, device=device)
    attention(q, k, v.requires_grad_()).sum().backward()
    assert v.grad is not None
    attention(q.requires_grad_(), k, v).sum().backward()
    assert q.grad is not None and k.grad is None
    with torch.no_grad():
        assert not attention(q, k, v).requires_grad


@pytest.mark.interpreter
def test_the_default_dtype_of_the_moment_changes_nothing(device):
    inputs = _inputs(300, 16, dtype=torch.float32, device=device)
    want = _run(*inputs, window_size=20, sink_size=4)
    torch.set_default_dtype(torch.bfloat16)
    try:
        got = _run(*inputs, window_size=20, sink_size=4)
    finally:
        torch.set_default_dtype(torch.float32)
    assert all(torch.equal(x, y) for x, y in zip(got, want, strict=True))


# ---------------------------------------------------------------------- refused
@pytest.mark.parametrize(("options", "message"), [
    (dict(window_size=0), "want an integer window_size >= 1, or None; got 0"),
    (dict(window_size=2.5), "want an integer window_size >= 1, or None; got 2.5"),
    (dict(sink_size=-1), "want an integer sink_size >= 0; got -1"),
    (dict(window_size=4, is_causal=False), "want is_causal=True with a window"),
    (dict(softmax_scale=0.0), "want softmax_scale > 0 and finite; got 0.0"),
    (dict(softmax_scale=float("nan")), "want softmax_scale > 0 and finite; got nan"),
    (dict(sink_logits=torch.zeros(3)), r"want sink_logits \(HQ,\) = \(1,\), a float dtype; got"),
    (dict(sink_logits=torch.zeros(1).int()), "want sink_logits"),
])
def test_options_it_cannot_honour_are_refused(options, message, device):
    with pytest.raises(ValueError, match=message):
        attention(*torch.randn(3, 1, 1, 4, 16, device=device), **options)


@pytest.mark.parametrize(("shapes", "message"), [
    (((1, 2, 4, 16), (1, 2, 5, 16), (1, 2, 5, 16)), r"want q \(B, HQ, N, D\)"),
    (((1, 4, 4, 16), (1, 3, 4, 16), (1, 3, 4, 16)), "want HQ a multiple of HKV; got 4, 3"),
    (((1, 2, 4, 16), (1, 4, 4, 16), (1, 4, 4, 16)), "want HQ a multiple of HKV; got 2, 4"),
    (((2, 2, 4, 16), (1, 2, 4, 16), (1, 2, 4, 16)), r"want q \(B, HQ, N, D\)"),
    (((1, 2, 4, 16), (1, 2, 4, 16), (1, 1, 4, 16)), r"want q \(B, HQ, N, D\)"),
    (((1, 2, 4, 129),) * 3, "want D <= 128; got 129"),
    (((1, 2, 0, 16),) * 3, "not empty"),
    (((4, 16),) * 3, r"want q \(B, HQ, N, D\)"),
])
def test_shapes_it_cannot_honour_are_refused(shapes, message):
    with pytest.raises(ValueError, match=message):
        attention(*(torch.randn(*shape) for shape in shapes))


def test_other_dtypes_are_refused():
    with pytest.raises(TypeError, match="want float16, bfloat16 or float32; got torch.float64"):
        attention(*torch.randn(3, 1, 1, 4, 16, dtype=torch.float64))
    with pytest.raises(TypeError, match="want one dtype"):
        attention(torch.randn(1, 1, 4, 16), *torch.randn(2, 1, 1, 4, 16).half())


# ---------------------------------------------------------------------- README
def test_the_readme_names_functions_and_lengths_that_are_so():
    folder = Path(sink_attn.__file__).parent
    readme = (folder / "README.md").read_text()
    places = re.findall(r"`(\w+\.py):(\w+)`(?: \((\w+)\))?", readme)
    assert len(places) > 15
    for file, function, word in places:
        body = (folder / file).read_text().split(f"\ndef {function}(")[1].split("\ndef ")[0]
        assert word in body, (function, word)
    lengths = dict(re.findall(r"\| `(\w+\.py)` \| (\d+) \|", readme))
    assert lengths == {file.name: str(len(file.read_text().splitlines()))
                       for file in folder.glob("*.py") if file.name != "__init__.py"}


# -------------------------------------------------------------------- on a GPU
class TestOnAGpu:
    pytestmark = pytest.mark.gpu

    @pytest.mark.parametrize("setting", kernel_checks.settings(9, GPU_AXES), ids=str)
    def test_output_and_gradients_match_float64(self, setting):
        worst = kernel_checks.error_over_limit(setting, "cuda")
        assert max(worst.values()) <= 1, worst

    @pytest.mark.parametrize("heads", [(2, 2), (8, 1)])
    @pytest.mark.parametrize("D", [16, 32, 64, 128])
    @pytest.mark.parametrize("N", [512, 1000])
    @mask
    def test_every_form_matches_float64(self, options, N, D, heads):
        options = dict(options)
        setting = kernel_checks.Setting(
            9, N, D, heads, dtype="bfloat16", causal=options.pop("is_causal", True), **options
        )
        worst = kernel_checks.error_over_limit(setting, "cuda")
        assert max(worst.values()) <= 1, worst

    @pytest.mark.parametrize("HKV", [22000, 2750])  # groups of 8: packed in a window
    @mask
    def test_more_heads_than_a_grid_axis_holds(self, options, HKV):
        *inputs, do = _inputs(2, 16, 22000, HKV, 3, torch.float16, "cuda")
        got = _run(*inputs, do, **options)
        last = [x.detach()[-1:, -1:] for x in inputs[:3]] + [inputs[3].detach()[-1:]]
        if HKV != 22000:
            last[0] = inputs[0].detach()[-1:, -8:]
            last[3] = inputs[3].detach()[-8:]
        last = [x.clone().requires_grad_() for x in last]
        n = last[0].shape[1]
        want = _run(*last, do[-1:, -n:], **options)
        for x, y in itertools.islice(zip(got, want, strict=True), 4):  # dsink: sums over B
            assert torch.equal(x[-1:, -y.shape[1]:], y)

    @pytest.mark.parametrize("D", [16, 64])  # fetched through pointers; through descriptors
    @mask
    def test_offsets_past_two_to_the_31_are_right(self, options, D):
        # Rows 2**26 elements apart: row 100 starts past 2**32 elements.
        step = 2**26
        if torch.cuda.mem_get_info()[0] < 2 * step * 101 + 2**30:
            pytest.skip("needs 15 GB of free memory")
        storage = torch.empty(step * 100 + D * 4, device="cuda", dtype=torch.float16)
        far = [
            storage[D * i :].as_strided((1, 1, 101, D), (step * 128, step * 128, step, 1)).copy_(
                torch.randn(1, 1, 101, D, device="cuda")
            )
            for i in range(4)
        ]
        near = [x.clone(memory_format=torch.contiguous_format) for x in far]
        sink_logits = torch.zeros(1, device="cuda", requires_grad=True)
        for x in (*far[:3], *near[:3]):
            x.requires_grad_()
        got = _run(*far[:3], sink_logits, far[3], **options)
        want = _run(*near[:3], sink_logits, near[3], **options)
        assert all(map(torch.equal, got, want))

    @pytest.mark.parametrize("D", [64, 128])
    @mask
    def test_pointers_and_descriptors_agree(self, options, D):
        # The same numbers, once as the copy engine takes them and once beside an odd offset.
        inputs = _inputs(500, D, dtype=torch.bfloat16, device="cuda")
        odd = []
        for x in inputs:
            storage = torch.empty(x.numel() + 1, device="cuda", dtype=x.dtype)
            odd.append(storage[1:].view(x.shape).copy_(x.detach()))
        for x in odd[:4]:
            x.requires_grad_()
        got, want = _run(*odd, **options), _run(*inputs, **options)
        _close(got, want)

    @mask
    def test_a_call_keeps_no_more_than_output_and_lse(self, options):
        q, k, v, sink_logits, _ = _inputs(4096, dtype=torch.bfloat16, device="cuda")
        torch.cuda.synchronize()
        before = torch.cuda.memory_allocated()
        torch.cuda.reset_peak_memory_stats()
        o = attention(q, k, v, sink_logits=sink_logits, **options)
        lse_bytes = o.numel() // o.shape[3] * 4
        assert torch.cuda.max_memory_allocated() - before <= o.nbytes + lse_bytes + 4096
