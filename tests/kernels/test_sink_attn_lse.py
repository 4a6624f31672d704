"""return_lse=True: lse and the gradient that comes back through it, against float64."""

import itertools
import random

import pytest
import torch

import reference
import sink_attn
from sink_attn import attention_hopper_launch, entry, kept, policy
from tests import kernel_checks

# Every pair of values of two axes meets in some case.
CPU_AXES = {
    "N": (1, 65, 130),
    "D": (16, 40, 65, 128),
    "heads": ((1, 1), (4, 2), (8, 1)),
    "mask": ((False, None, 0), (True, None, 0), (True, 17, 0), (True, 20, 4)),
    "sink_logits": (False, True),
    "dtype": (torch.float16, torch.float32),
    "layout": ("dense", "strided", "columns"),
    "through": ("both", "lse", "expanded lse"),
}
LIMITS = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 1e-5}
IN_TF32 = 4e-3  # how a GPU multiplies float32
NAMES = ("o", "lse", "dq", "dk", "dv", "dsink")


def _inputs(N=70, D=16, heads=(4, 2), dtype=torch.float32, layout="dense", device="cpu", B=2):
    """q, k, v, sink_logits, do, dlse."""
    torch.manual_seed(0)
    HQ, HKV = heads
    q, k, v, do = (
        kernel_checks.place(torch.randn(B, H, N, D, device=device).to(dtype), layout)
        for H in (HQ, HKV, HKV, HQ)
    )
    leaves = [x.requires_grad_() for x in (q, k, v, torch.randn(HQ, device=device))]
    return *leaves, do, torch.randn(B, HQ, N, device=device)


def _run(q, k, v, sink_logits, do, dlse, attend=sink_attn.attention, **options):
    """o, lse and the gradients; do is None where only lse is differentiated."""
    o, lse = attend(q, k, v, sink_logits=sink_logits, return_lse=True, **options)
    leaves = [x for x in (q, k, v, sink_logits) if x is not None]
    outputs, back = ([lse], [dlse]) if do is None else ([o, lse], [do, dlse])
    return o, lse, *torch.autograd.grad(outputs, leaves, back)


def _truth(q, k, v, sink_logits, do, dlse, **options):
    """What _run returns, in float64."""
    want = reference.attention(
        *(x.detach() for x in (q, k, v)), dout=torch.zeros_like(q) if do is None else do,
        dlse=dlse, sink_logits=None if sink_logits is None else sink_logits.detach(), **options,
    )
    names = ("o", "lse", "q", "k", "v", "sink_logits")
    return [want[name].detach() for name in names if name in want]


def _errors(got, want, limit) -> dict[str, float]:
    """Each over its limit; NaN is not below 1.  What is all but 0 is measured against 0.1."""
    return {
        name: ((x - y).norm() / torch.maximum(y.norm(), torch.tensor(0.1 * y.numel() ** 0.5))
               / limit).item()
        for name, x, y in zip(NAMES, got, want, strict=False)
    }


def _worst(setting: dict, device: str, **options) -> dict[str, float]:
    setting = dict(setting)
    through = setting.pop("through")
    is_causal, window_size, sink_size = setting.pop("mask")
    with_logits = setting.pop("sink_logits")
    q, k, v, sink_logits, do, dlse = _inputs(**setting, device=device)
    inputs = q, k, v, sink_logits if with_logits else None, do if through == "both" else None, dlse
    if through == "expanded lse":
        inputs = *inputs[:-1], dlse[:1, :, :1].expand(dlse.shape)
    mask = dict(is_causal=is_causal, window_size=window_size, sink_size=sink_size)
    got, want = _run(*inputs, **mask, **options), _truth(*inputs, **mask)
    assert got[1].dtype == torch.float32 and got[1].shape == q.shape[:3]
    in_tf32 = device == "cuda" and setting["dtype"] == torch.float32
    return _errors(got, want, IN_TF32 if in_tf32 else LIMITS[setting["dtype"]])


# ---------------------------------------------------------------------- numbers
@pytest.mark.interpreter
@pytest.mark.parametrize("setting", kernel_checks.all_pairs(CPU_AXES), ids=str)
def test_lse_and_every_gradient_through_it_match_float64(setting, device):
    worst = _worst(setting, device)
    assert all(error <= 1 for error in worst.values()), worst


@pytest.mark.interpreter
def test_o_rescaled_by_lse_is_attention_with_sink_logits(device):
    # Where lse has no gradient, q and k get a part of theirs, without a word.
    q, k, v, sink_logits, do, _ = _inputs(layout="strided", device=device)
    o, lse = sink_attn.attention(q, k, v, window_size=20, return_lse=True)
    o = o * torch.sigmoid(lse - sink_logits[None, :, None])[..., None]
    got = [o, *torch.autograd.grad(o, (q, k, v, sink_logits), do)]
    o = sink_attn.attention(q, k, v, window_size=20, sink_logits=sink_logits)
    want = [o, *torch.autograd.grad(o, (q, k, v, sink_logits), do)]
    limit = IN_TF32 if device == "cuda" else 1e-5
    assert all((x - y).norm() <= limit * y.norm() for x, y in zip(got, want, strict=True))


@pytest.mark.interpreter
def test_asking_for_lse_changes_nothing_else(device):
    *inputs, do, _ = _inputs(device=device)
    (*leaves, sink_logits), options = inputs, dict(window_size=20)
    with torch.no_grad():
        o, lse = sink_attn.attention(*leaves, sink_logits=sink_logits, return_lse=True, **options)
        assert torch.equal(o, sink_attn.attention(*leaves, sink_logits=sink_logits, **options))
    assert not lse.requires_grad
    found = []
    for return_lse in (True, False):
        out = sink_attn.attention(
            *leaves, sink_logits=sink_logits, return_lse=return_lse, **options)
        o = out[0] if return_lse else out
        found.append([o, *torch.autograd.grad(o, inputs, do)])
    for x, y in zip(*found, strict=True):
        assert (x - y).norm() <= 1e-5 * y.norm()


@pytest.mark.interpreter
@pytest.mark.parametrize("one_by_one", [False, True])
def test_packed_sequences_have_an_lse_each(one_by_one, device, monkeypatch):
    if one_by_one:
        monkeypatch.setattr(policy, "LONG", 0.0)
        monkeypatch.setattr(policy, "GLUON", {})
        monkeypatch.setattr(entry, "_not_for_gluon", lambda q, sink_size: "")
    lengths = [30, 0, 1, 39]
    borders = torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)
    q, k, v, sink_logits, do, dlse = (
        x.detach() if x.dim() == 1 else x.detach()[0] for x in _inputs(device=device))

    def attend(q, k, v, **options):
        q, k, v = (x.transpose(0, 1) for x in (q, k, v))
        o, lse = sink_attn.attention_varlen(q, k, v, borders, borders, 39, **options)
        return o.transpose(0, 1), lse

    leaves = [x.requires_grad_() for x in (q, k, v, sink_logits)]
    got = _run(*leaves, do, dlse, attend, window_size=17)
    parts = zip(*(x.split(lengths, 1) for x in (q, k, v)), do.split(lengths, 1),
                dlse.split(lengths, 1), strict=True)
    each = [_truth(*(x[None] for x in part[:3]), sink_logits, *(x[None] for x in part[3:]),
                   is_causal=True, window_size=17) for part in parts if part[0].shape[1]]
    want = [torch.cat([x[0] for x in tensors], 1) for tensors in list(zip(*each, strict=True))[:5]]
    want.append(sum(tensors[5] for tensors in each))
    worst = _errors(got, want, IN_TF32 if device == "cuda" else 1e-5)
    assert all(error <= 1 for error in worst.values()), worst


# ----------------------------------------------------------- PyTorch's machinery
@pytest.mark.interpreter
def test_the_operators_with_lse_are_what_pytorch_wants_of_one(device):
    *inputs, do, dlse = _inputs(20, device=device)
    arguments = None, True, 7, 0, False, 0.25, True
    torch.library.opcheck(entry._forward_operator, (*inputs, None, *arguments, None, "bhnd"))
    with torch.no_grad():
        o, lse = entry._forward(*inputs, None, *arguments, ("triton", "triton"))
        for back in ((do, dlse), (None, dlse), (do, None)):
            torch.library.opcheck(
                entry._backward_operator,
                (*inputs, None, o, lse, *back, *arguments, None, [True, False, True, True]),
            )


def _one_graph(backend, through, device, **shape) -> None:
    """Compiled once, for two lengths; what it gives is what a plain call gives."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(sink_attn.attention, fullgraph=True, dynamic=True, backend=backend)
    for N in (70, 133):
        *inputs, do, dlse = _inputs(N, **shape, device=device)
        back = do if through == "both" else None, dlse
        got, want = (_run(*inputs, *back, attend, window_size=17)
                     for attend in (compiled, sink_attn.attention))
        assert all((x - y).norm() <= 4e-3 * y.norm() + 1e-6 for x, y in zip(got, want, strict=True))
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.interpreter
@pytest.mark.parametrize("through", ["both", "lse"])
def test_one_graph_gives_lse_and_its_gradient(through, device):
    _one_graph("aot_eager", through, device)


@pytest.mark.interpreter
def test_fake_tensors_have_the_shape_and_dtype_of_lse(device):
    inputs = _inputs(20, device=device)
    want = _run(*inputs)
    with torch._subclasses.FakeTensorMode() as mode:
        got = _run(*(mode.from_tensor(x) for x in inputs))
    for x, y in zip(got, want, strict=True):
        assert (x.shape, x.stride(), x.dtype) == (y.shape, y.stride(), y.dtype)


def test_a_kept_gluon_launch_tells_a_gradient_of_lse_from_none(monkeypatch):
    launched = []
    monkeypatch.setattr(kept, "launch", lambda key, *args, **options: launched.append(key))
    monkeypatch.setattr(kept, "describe", lambda *args: None)
    *leaves, _, do, dlse = _inputs(64, D=64, dtype=torch.float16)
    q, k, v = (x.detach() for x in leaves)
    for given in (None, dlse, dlse.flatten()[1:]):  # 16 bytes, and 4, from a border
        attention_hopper_launch.backward(q, k, v, None, q, dlse, do, True, 0.1, dlse=given)
    first = launched[::len(launched) // 3]
    assert len(set(first)) == len(first) == 3


# -------------------------------------------------------------------- on a GPU
def _drawn(seed: int) -> tuple[dict, dict]:
    draw = random.Random(seed)
    window = draw.choice((2, 17, 128, 200, 5000))
    setting = dict(
        N=draw.choice((2, 64, 65, 500, 1000, 1024)), D=draw.choice((16, 40, 64, 80, 128)),
        heads=draw.choice(((4, 4), (8, 2), (6, 1), (8, 1), (16, 2))),
        mask=draw.choice(((False, None, 0), (True, None, 0), (True, window, 0), (True, window, 4))),
        sink_logits=draw.random() < 0.5, dtype=draw.choice(list(LIMITS)),
        layout=draw.choice(("dense", "strided", "columns")),
        through=draw.choice(("both", "both", "lse", "expanded lse")),
    )
    return setting, dict(deterministic=draw.random() < 0.3)


class TestOnAGpu:
    pytestmark = pytest.mark.gpu

    @pytest.mark.parametrize("seed", range(100))
    def test_lse_and_every_gradient_through_it_match_float64(self, seed):
        setting, options = _drawn(seed)
        worst = _worst(setting, "cuda", **options)
        assert all(error <= 1 for error in worst.values()), (setting, options, worst)

    @pytest.mark.parametrize("deterministic", [False, True])
    @pytest.mark.parametrize("mask", [(False, None, 0), (True, None, 0), (True, 100, 0)], ids=str)
    @pytest.mark.parametrize("D", [64, 128])
    def test_gluon_s_lse_and_gradients_match_float64(self, D, mask, deterministic):
        if reason := entry.no_gluon(torch.device("cuda", 0)):
            pytest.skip(reason)
        for N, through, with_logits in itertools.product(
            (65, 1000), ("both", "lse", "expanded lse"), (False, True)
        ):
            setting = dict(N=N, D=D, heads=(8, 2), mask=mask, sink_logits=with_logits,
                           dtype=torch.bfloat16, layout="strided", through=through)
            worst = _worst(setting, "cuda", kernel="gluon", deterministic=deterministic)
            assert all(error <= 1 for error in worst.values()), (setting, worst)

    @pytest.mark.parametrize("kernel", ["triton", "gluon"])
    @pytest.mark.parametrize("asked", [(False, True), (True, False)], ids=str)
    def test_what_is_kept_of_a_call_does_not_lose_lse_s_gradient_in_the_next(self, kernel, asked):
        if kernel == "gluon" and (reason := entry.no_gluon(torch.device("cuda", 0))):
            pytest.skip(reason)
        *leaves, _, do, dlse = _inputs(200, D=64, dtype=torch.bfloat16, device="cuda")
        kept.forget()
        for with_lse in asked:
            o, lse = sink_attn.attention(*leaves, return_lse=True, kernel=kernel)
            outputs, back = ([o, lse], [do, dlse]) if with_lse else ([o], [do])
            got = [o, lse, *torch.autograd.grad(outputs, leaves, back)]
            want = _truth(*leaves, None, do, dlse if with_lse else None, is_causal=True)
            worst = _errors(got, want, LIMITS[torch.bfloat16])
            assert all(error <= 1 for error in worst.values()), (with_lse, worst)

    @pytest.mark.parametrize("through", ["both", "lse"])
    @pytest.mark.parametrize("D", [32, 64])  # on a Hopper: Triton's kernels, Gluon's
    def test_torch_compile_gives_lse_and_its_gradient(self, D, through):
        _one_graph("inductor", through, "cuda", D=D, dtype=torch.bfloat16)
