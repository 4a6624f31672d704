"""attention_varlen: every packed sequence against float64 on its own, and what it refuses."""

import itertools
import random

import pytest
import torch

import reference
import sink_attn
from sink_attn import entry, policy
from tests import kernel_checks

# Every pair of values of two axes meets in some case.  Eight heads a group: another form.
CPU_AXES = {
    "lengths": ((1,), (0, 65, 1), (33, 0, 0, 5), (17, 64, 1, 0), (1, 1, 1, 30)),
    "D": (16, 40),
    "heads": ((1, 1), (4, 2), (8, 1)),
    "window_size": (1, 17, 5000, None),
    "sink_size": (0, 4),
    "dtype": (torch.float16, torch.float32),
    "layout": ("dense", "strided", "columns"),
    "sink_logits": (False, True),
    "is_causal": (True, False),
}
LIMITS = {torch.float16: 2e-3, torch.bfloat16: 1.6e-2, torch.float32: 1e-5}
IN_TF32 = 4e-3  # how a GPU multiplies float32


def _borders(lengths, device):
    return torch.tensor([0, *itertools.accumulate(lengths)], dtype=torch.int32, device=device)


def _place(x, layout):
    """x (T, H, D), laid out otherwise, in storage full of NaN."""
    return kernel_checks.place(x.transpose(0, 1)[None], layout)[0].transpose(0, 1)


def _inputs(lengths, D=16, heads=(4, 2), dtype=torch.float32, layout="dense", device="cpu"):
    """q, k, v, sink_logits, do; heads of queries and of keys."""
    torch.manual_seed(0)
    HQ, HKV = heads
    leaves = [_place(torch.randn(sum(lengths), H, D, device=device).to(dtype), layout)
              for H in (HQ, HKV, HKV, HQ)]
    *leaves, do = leaves
    sink_logits = torch.randn(HQ, device=device)
    return *(x.requires_grad_() for x in (*leaves, sink_logits)), do


def _run(
    q, k, v, sink_logits, do, cu_seqlens, longest, attend=sink_attn.attention_varlen, **options
):
    """o and the gradients; sink_logits may be None."""
    o = attend(q, k, v, cu_seqlens, cu_seqlens, longest, sink_logits=sink_logits, **options)
    leaves = [x for x in (q, k, v, sink_logits) if x is not None]
    return o, *torch.autograd.grad(o, leaves, do)


def _truth(q, k, v, sink_logits, do, lengths, **options):
    """What _run returns, in float64, from each sequence on its own."""
    parts = []
    for row in zip(*(x.detach().split(lengths) for x in (q, k, v, do)), strict=True):
        if len(row[0]):
            q, k, v, do = (x.transpose(0, 1)[None] for x in row)
            parts.append(reference.attention(q, k, v, dout=do, sink_logits=sink_logits, **options))
    want = [torch.cat([part[name][0].transpose(0, 1) for part in parts]) for name in "oqkv"]
    if sink_logits is not None:
        want.append(sum(part["sink_logits"] for part in parts))
    return want


def _worst(setting: dict, device: str) -> dict[str, float]:
    """The error of o and of every gradient over its limit; NaN is not below 1."""
    options = dict(setting)
    lengths, dtype = options.pop("lengths"), options["dtype"]
    shape = {name: options.pop(name) for name in ("D", "heads", "dtype", "layout")}
    q, k, v, sink_logits, do = _inputs(lengths, **shape, device=device)
    if not options.pop("sink_logits"):
        sink_logits = None
    if not options["is_causal"]:
        options["window_size"] = None
    longest = max(lengths) + len(lengths) % 2  # need not be exact
    got = _run(q, k, v, sink_logits, do, _borders(lengths, device), longest, **options)
    sink_logits = None if sink_logits is None else sink_logits.detach()
    want = _truth(q, k, v, sink_logits, do, lengths, **options)
    limit = IN_TF32 if device == "cuda" and dtype == torch.float32 else LIMITS[dtype]
    # A lone token's dq and dk are 0: errors are measured against numbers of size 0.1 at least.
    return {
        name: ((x - y).norm() / torch.maximum(y.norm(), torch.tensor(0.1 * y.numel() ** 0.5))
               / limit).item()
        for name, x, y in zip(("o", "dq", "dk", "dv", "dsink"), got, want, strict=False)
    }


# ---------------------------------------------------------------------- numbers
@pytest.mark.interpreter
@pytest.mark.parametrize("setting", kernel_checks.all_pairs(CPU_AXES), ids=str)
def test_output_and_gradients_match_float64(setting, device):
    worst = _worst(setting, device)
    assert all(error <= 1 for error in worst.values()), worst


@pytest.mark.interpreter
@pytest.mark.parametrize("options", [
    dict(is_causal=False), dict(), dict(window_size=17), dict(window_size=17, sink_size=3),
], ids=str)
def test_a_query_sees_keys_of_its_own_sequence_alone(options, device):
    # With one-hot v, o is the attention matrix; with one-hot do, dv is its transpose.
    lengths = [1, 0, 70, 2, 55]
    T = sum(lengths)
    q, k = torch.zeros(2, T, 1, T, device=device)
    v = torch.eye(T, device=device)[:, None].requires_grad_()
    cu_seqlens = _borders(lengths, device)
    o = sink_attn.attention_varlen(q, k, v, cu_seqlens, cu_seqlens, 70, **options)
    (dv,) = torch.autograd.grad(o, v, torch.eye(T, device=device)[:, None])
    masks = [reference.keep_mask(n, n, **{"is_causal": True} | options) for n in lengths]
    want = torch.block_diag(*masks).bool()
    assert torch.equal((o[:, 0] > 0).cpu(), want) and torch.equal((dv[:, 0].T > 0).cpu(), want)


@pytest.mark.interpreter
@pytest.mark.parametrize("heads", [(1, 1), (8, 1)])
def test_a_sequence_of_nan_disturbs_no_other(heads, device):
    lengths = [20, 9, 40]
    q, k, v, sink_logits, do = _inputs(lengths, heads=heads, device=device)
    with torch.no_grad():
        for x in (q, k, v, do):
            x[20:29] = torch.nan
    got = _run(q, k, v, None, do, _borders(lengths, device), 40, window_size=12)
    assert all(torch.isfinite(x[:20]).all() and torch.isfinite(x[29:]).all() for x in got)


@pytest.mark.interpreter
def test_the_scale_is_what_was_asked_for(device):
    q, k, v, _, do = _inputs([30, 12], device=device)
    cu_seqlens = _borders([30, 12], device)
    o = sink_attn.attention_varlen(q, k, v, cu_seqlens, cu_seqlens, 30, scale=0.7)
    (want, *_) = _truth(q * (0.7 * 4), k, v, None, do, [30, 12], is_causal=True)  # D = 16
    assert (o - want).norm() <= 2e-3 * want.norm()


# ---------------------------------------------------------------------- refused
@pytest.mark.interpreter
@pytest.mark.parametrize(("changed", "message"), [
    (dict(q=torch.randn(1, 4, 9, 16)), r"want q \(T, HQ, D\), k and v \(T, HKV, D\), not empty"),
    (dict(q=torch.randn(0, 4, 16)), "not empty; got"),
    (dict(k=torch.randn(9, 3, 16)), "want q"),
    (dict(cu_seqlens_q=[0, 9.0]), r"want cu_seqlens \(S \+ 1,\), int32, at least one sequence"),
    (dict(cu_seqlens_k=[0]), "at least one sequence; got"),
    (dict(cu_seqlens_q=[1, 9]), r"want cu_seqlens that begin with 0 and never fall; got \[1, 9\]"),
    (dict(cu_seqlens_q=[0, 5, 4, 9]), r"never fall; got \[0, 5, 4, 9\]"),
    (dict(cu_seqlens_q=[0, 5]), "want cu_seqlens that end with T = 9; got 5"),
    (dict(cu_seqlens_k=[0, 4, 9]), "want cu_seqlens_k of the length of cu_seqlens_q, 2; got 3"),
    (dict(cu_seqlens_q=[0, 3, 9], cu_seqlens_k=[0, 4, 9]), r"want cu_seqlens_k equal to .* got"),
    (dict(max_seqlen=8), "want max_seqlen >= 9, the longest sequence; got 8"),
    (dict(max_seqlen=None), "want an integer max_seqlen >= 1; got None"),
    (dict(window_size=0), "want an integer window_size >= 1"),
    (dict(sink_logits=torch.zeros(3)), r"want sink_logits \(HQ,\) = \(4,\)"),
], ids=lambda x: "" if isinstance(x, str) else "-".join(x))
def test_what_is_no_packing_is_refused(changed, message, device):
    arguments = dict(
        q=torch.randn(9, 4, 16), k=torch.randn(9, 2, 16), v=torch.randn(9, 2, 16),
        cu_seqlens_q=[0, 9], max_seqlen=9,
    ) | changed
    arguments.setdefault("cu_seqlens_k", arguments["cu_seqlens_q"])
    for name in ("cu_seqlens_q", "cu_seqlens_k"):
        x = torch.tensor(arguments[name])
        arguments[name] = x if x.is_floating_point() else x.int()
    arguments = {n: x.to(device) if torch.is_tensor(x) else x for n, x in arguments.items()}
    with pytest.raises(ValueError, match=message):
        sink_attn.attention_varlen(**arguments)


@pytest.mark.interpreter
def test_borders_are_read_once_and_again_when_they_have_changed(device, monkeypatch):
    q, k, v, *_ = _inputs([5, 4], device=device)
    cu_seqlens = _borders([5, 4], device)
    read = []
    tolist = torch.Tensor.tolist
    monkeypatch.setattr(torch.Tensor, "tolist", lambda x: read.append(x.shape) or tolist(x))
    for _ in range(2):
        sink_attn.attention_varlen(q, k, v, cu_seqlens, cu_seqlens, 5)
    assert len(read) == 1
    cu_seqlens[1] = 1
    with pytest.raises(ValueError, match="want max_seqlen >= 8, the longest sequence; got 5"):
        sink_attn.attention_varlen(q, k, v, cu_seqlens, cu_seqlens, 5)


@pytest.mark.interpreter
def test_borders_that_change_in_inference_mode_are_read_again(device):
    q, k, v, *_ = _inputs([5, 4], device=device)
    with torch.inference_mode():
        cu_seqlens = _borders([5, 4], device)
        sink_attn.attention_varlen(q, k, v, cu_seqlens, cu_seqlens, 5)
        cu_seqlens[1] = 1
        with pytest.raises(ValueError, match="want max_seqlen >= 8, the longest sequence; got 5"):
            sink_attn.attention_varlen(q, k, v, cu_seqlens, cu_seqlens, 5)


@pytest.mark.interpreter
def test_as_many_rows_in_fewer_or_more_sequences_are_other_sequences(device):
    for lengths in ([20, 20, 0], [20, 13, 7], [20, 20], [10, 20, 5, 5], [20, 20, 0]):
        q, k, v, sink_logits, do = _inputs(lengths, device=device)
        got = _run(q, k, v, sink_logits, do, _borders(lengths, device), 20)
        want = _truth(q, k, v, sink_logits, do, lengths, is_causal=True)
        for x, y in zip(got, want, strict=True):
            assert (x.cpu() - y.cpu()).norm() <= 4e-3 * y.norm().clamp(min=1)


# ------------------------------------------------------------- one by one
@pytest.mark.parametrize("lengths, window, long", [
    ([16384], None, True), ([2048] * 8, None, False), ([32768, 10], None, True),
    ([2048] * 4, 128, False), ([], None, False), ([49152], 128, True), ([45000], 128, False),
])
def test_a_few_long_sequences_are_worth_calls_of_their_own(lengths, window, long):
    T, longest = sum(lengths), max(lengths, default=1)
    assert policy.are_long(lengths, T, longest, 64, 64, True, window) is long


@pytest.mark.interpreter
@pytest.mark.parametrize("options", [dict(), dict(is_causal=False), dict(window_size=9)], ids=str)
def test_one_by_one_gives_the_same(options, device, monkeypatch):
    lengths = [70, 0, 33, 1]
    inputs = *_inputs(lengths, device=device), _borders(lengths, device), 70
    want = _run(*inputs, **options)
    calls, attend = [], entry._attention

    def counted(q, *others):
        calls.append(q.shape[2])
        return attend(q, *others)

    monkeypatch.setattr(policy, "LONG", 0.0)
    monkeypatch.setattr(policy, "GLUON", {})
    monkeypatch.setattr(entry, "_not_for_gluon", lambda q, sink_size: "")
    monkeypatch.setattr(entry, "_attention", counted)
    for x, y in zip(_run(*inputs, **options), want, strict=True):
        assert x.dtype == y.dtype and (x - y).float().norm() <= 4e-3 * y.float().norm()
    assert calls == [104, 70, 33, 1]


# ----------------------------------------------------------- PyTorch's machinery
@pytest.mark.interpreter
def test_the_operators_are_what_pytorch_wants_of_one(device):
    q, k, v, sink_logits, do = _inputs([5, 0, 7], device=device)
    inputs = [x.transpose(0, 1)[None] for x in (q, k, v)]
    inputs += [sink_logits, _borders([5, 0, 7], device)]
    options = 7, True, 4, 0, True, 0.25, False
    torch.library.opcheck(entry._forward_operator, (*inputs, *options, None, "bnhd"))
    with torch.no_grad():
        outputs = entry._forward(*inputs, *options, ("triton", "triton"))
        torch.library.opcheck(entry._backward_operator, (
            *inputs, *outputs, do.transpose(0, 1)[None], None, *options, None, [True] * 4,
        ))


def _one_graph_for_packings(backend, packings, device, **shape) -> None:
    """Compiled once, for other lengths and as many sequences; the numbers are those of a call."""
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    compiled = torch.compile(
        sink_attn.attention_varlen, fullgraph=True, dynamic=True, backend=backend)
    for lengths in packings:
        inputs = *_inputs(lengths, **shape, device=device), _borders(lengths, device), max(lengths)
        want = _run(*inputs, window_size=17)
        for x, y in zip(_run(*inputs, compiled, window_size=17), want, strict=True):
            assert x.dtype == y.dtype and (x - y).float().norm() <= 4e-3 * y.float().norm()
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] == 1


@pytest.mark.interpreter
def test_one_graph_serves_every_packing(device):
    _one_graph_for_packings("aot_eager", [[9, 20, 1], [40, 0, 33]], device)


# -------------------------------------------------------------------- on a GPU
def _drawn(seed: int) -> dict:
    """A setting of some sequences, most of them short, as data sets have."""
    draw = random.Random(seed)
    lengths = tuple(int(draw.choice((0, 1, 2, 64, draw.expovariate(1 / 200))))
                    for _ in range(draw.randint(1, 40)))
    setting = dict(
        lengths=(*lengths, draw.randint(1, 2000)), D=draw.choice((16, 40, 64, 80, 128)),
        heads=draw.choice(((1, 1), (4, 4), (8, 2), (6, 1), (8, 1), (64, 8))),
        window_size=draw.choice((1, 17, 128, 200, 5000, None)),
        sink_size=draw.choice((0, 0, 1, 4, 70)), dtype=draw.choice(list(LIMITS)),
        layout=draw.choice(("dense", "strided", "columns")), sink_logits=draw.random() < 0.5,
        is_causal=draw.random() < 0.8,
    )
    # What is 0, or one sum that may come out near 0, has no size to measure an error against: dq
    # and dk of queries that see one key, and the gradient of a single sink logit.
    if setting["window_size"] == 1 and not setting["sink_size"]:
        setting["window_size"] = 2
    if setting["heads"] == (1, 1):
        setting["sink_logits"] = False
    return setting


class TestOnAGpu:
    pytestmark = pytest.mark.gpu

    @pytest.mark.parametrize("seed", range(200))
    def test_output_and_gradients_match_float64(self, seed):
        setting = _drawn(seed)
        worst = _worst(setting, "cuda")
        assert all(error <= 1 for error in worst.values()), (setting, worst)

    def test_torch_compile_has_one_graph_for_every_packing(self):
        _one_graph_for_packings(
            "inductor", [[90, 200, 1], [400, 0, 330]], "cuda", D=64, heads=(64, 8),
            dtype=torch.bfloat16,
        )

    def test_a_cuda_graph_replays_with_new_inputs_and_borders(self):
        lengths = [300, 0, 1, 399]
        inputs = _inputs(lengths, 64, (64, 8), torch.bfloat16, device="cuda")
        cu_seqlens = _borders(lengths, "cuda")
        side = torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            _run(*inputs, cu_seqlens, 500, window_size=128)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            got = _run(*inputs, cu_seqlens, 500, window_size=128)
        for lengths in ([300, 0, 1, 399], [100, 100, 0, 500]):
            with torch.no_grad():
                for x in inputs:
                    x.copy_(torch.randn_like(x))
                cu_seqlens.copy_(_borders(lengths, "cuda"))
            graph.replay()
            want = _run(*inputs, cu_seqlens, 500, window_size=128)
            assert all(map(torch.equal, got, want))
