"""What sink_attn.attention asks of the kernels, and which: without running any."""

import sys
from types import SimpleNamespace

import pytest
import torch

import sink_attn
from sink_attn import entry, flash_attn, policy


def on_a_gpu(D: int = 64, dtype=torch.bfloat16, is_cuda: bool = True) -> SimpleNamespace:
    """Stands in for q."""
    device = torch.device("cuda" if is_cuda else "cpu")
    return SimpleNamespace(shape=(1, 8, 4096, D), dtype=dtype, is_cuda=is_cuda, device=device)


K = SimpleNamespace(shape=(1, 2, 4096, 64))


@pytest.fixture
def hopper(monkeypatch) -> list:
    """Gluon may run, and is picked; what policy.pick was asked."""
    asked = []
    monkeypatch.setattr(entry, "no_gluon", lambda device: "")
    monkeypatch.setattr(policy, "pick", lambda *work: asked.append(work) or "gluon")
    return asked


def picked(q, kernel=None, sink_size=0, deterministic=False):
    return entry.picked(q, K, kernel, None, True, 128, sink_size, deterministic)


def test_the_table_chooses_forward_and_backward_apart(hopper):
    assert picked(on_a_gpu()) == ("gluon", "gluon")
    assert sorted(hopper) == [(name, 2, 4096, 64, True, 128) for name in ("backward", "forward")]
    assert picked(on_a_gpu(), deterministic=True) == ("gluon", "triton")  # its dq may vary
    for kernel in ("triton", "gluon"):
        assert picked(on_a_gpu(), kernel) == (kernel, kernel)


@pytest.mark.parametrize("q, sink_size, why", [
    (on_a_gpu(D=32), 0, "want D 64 or 128; got 32"),
    (on_a_gpu(dtype=torch.float32), 0, "want float16 or bfloat16; got torch.float32"),
    (on_a_gpu(), 4, "want no sink tokens; got sink_size=4"),
    (on_a_gpu(is_cuda=False), 0, "want CUDA tensors; got cpu")])
def test_what_gluon_cannot_do_is_triton_s_or_refused(hopper, q, sink_size, why):
    assert picked(q, sink_size=sink_size) == ("triton", "triton")
    with pytest.raises(ValueError, match=f"kernel='gluon': {why}"):
        picked(q, "gluon", sink_size)


def test_gluon_runs_on_hopper_alone(monkeypatch):
    entry.no_gluon.cache_clear()
    try:
        for capability in ((8, 0), (9, 1), (10, 0)):
            monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device, got=capability:
                                got)
            assert str(capability) in entry.no_gluon(capability)  # anything tells devices apart
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
        monkeypatch.setitem(sys.modules, "sink_attn.attention_hopper_launch", SimpleNamespace(
            backward=None))
        assert entry.no_gluon("Hopper") == ""
    finally:
        entry.no_gluon.cache_clear()


@pytest.fixture
def asked(monkeypatch) -> list[dict]:
    """The options of every call that reaches the kernels."""
    found = []
    names = ("max_seqlen", "is_causal", "window_size", "sink_size", "deterministic", "scale",
             "return_lse", "kernels", "o_layout")

    def forward(q, k, v, sink_logits, cu_seqlens, *options):
        found.append(dict(zip(names, options, strict=True)) | {"dtype": q.dtype})
        return q.clone(), q[..., 0].float()

    monkeypatch.setattr(entry, "_forward", forward)
    monkeypatch.setattr(entry, "INTERPRETED", True)
    return found


Q = torch.randn(1, 2, 5, 16)


def test_options_reach_the_kernels_as_they_are_said(asked):
    sink_attn.attention(Q, Q, Q)
    assert asked[-1] == {"max_seqlen": None, "is_causal": True, "window_size": None, "sink_size": 0,
                         "deterministic": False, "scale": 0.25, "return_lse": False,
                         "kernels": ("triton", "triton"), "o_layout": "bhnd",
                         "dtype": torch.float32}
    sink_attn.attention(Q, Q, Q, window_size=3, sink_size=2, softmax_scale=0.5, deterministic=True)
    assert [asked[-1][name] for name in ("window_size", "sink_size", "scale", "deterministic")] == [
        3, 2, 0.5, True]


def test_pytorchs_own_setting_decides_where_deterministic_is_not_said(asked):
    torch.use_deterministic_algorithms(True)
    try:
        sink_attn.attention(Q, Q, Q)
        sink_attn.attention(Q, Q, Q, deterministic=False)
    finally:
        torch.use_deterministic_algorithms(False)
    assert [one["deterministic"] for one in asked] == [True, False]


@pytest.mark.parametrize("return_lse", [False, True])
@pytest.mark.parametrize("wanted", [False, True])
def test_lse_is_returned_only_where_it_is_asked_for(asked, return_lse, wanted):
    got = sink_attn.attention(Q.clone().requires_grad_(wanted), Q, Q, return_lse=return_lse)
    o, lse = got if return_lse else (got, None)
    assert o.shape == Q.shape and o.requires_grad == wanted and (lse is None) != return_lse


@pytest.mark.parametrize("name", ["q", "k", "v", "sinks"])
def test_autograd_is_asked_only_where_an_input_wants_a_gradient(asked, monkeypatch, name):
    monkeypatch.setattr(entry, "AttentionFunction", SimpleNamespace(
        apply=lambda *given: "with a graph"))
    given = {**dict.fromkeys("qkv", Q), "sinks": torch.zeros(2)}
    given[name] = given[name].clone().requires_grad_()
    q, k, v, sinks = given.values()
    assert sink_attn.attention(q, k, v, sink_logits=sinks) == "with a graph"
    with torch.no_grad():
        assert torch.equal(sink_attn.attention(q, k, v, sink_logits=sinks), Q)
    assert len(asked) == 1


PACKED = torch.randn(5, 2, 16)
ENDS = torch.tensor([0, 2, 5], dtype=torch.int32)


@pytest.mark.parametrize("other", [ENDS, ENDS.clone()])
def test_packed_sequences_come_back_as_they_were_packed(asked, other):
    o = sink_attn.attention_varlen(PACKED, PACKED, PACKED, ENDS, other, 3)
    assert torch.equal(o, PACKED)
    o, lse = sink_attn.attention_varlen(PACKED, PACKED, PACKED, ENDS, other, 4, scale=0.5,
                                        return_lse=True)
    assert torch.equal(o, PACKED) and torch.equal(lse, PACKED[..., 0].T)
    assert [one["max_seqlen"] for one in asked] == [3, 4] and asked[-1]["scale"] == 0.5


def test_the_longer_of_flash_attentions_two_lengths_counts(asked):
    for lengths in ((2, 3), (3, 2)):
        sink_attn.flash_attn_varlen_func(*[PACKED] * 3, ENDS, ENDS, *lengths)
    assert [one["max_seqlen"] for one in asked] == [3, 3]


def test_a_deterministic_backward_is_asked_for_by_flash_attentions_names(asked):
    sink_attn.flash_attn_func(*[Q] * 3, deterministic=True)
    sink_attn.flash_attn_varlen_func(*[PACKED] * 3, ENDS, ENDS, 3, 3, deterministic=True)
    assert [one["deterministic"] for one in asked] == [True, True]


@pytest.mark.parametrize("window_size, keys", [
    ((0, 0), 1), ((127, 0), 128), ((127, -1), 128), ((-1, 0), None), ((-1, -1), None),
    ((None, None), None)])
def test_a_query_sees_its_own_key_and_those_left_of_it(window_size, keys):
    assert flash_attn._window(0.0, True, window_size) == keys


@pytest.mark.parametrize(("q", "ends", "others", "most", "message"), [
    (PACKED[None], ENDS, ENDS, 3, r"want q \(T, HQ, D\)"),
    (PACKED[:0], ENDS, ENDS, 3, "not empty"),
    (PACKED, ENDS.long(), ENDS, 3, r"want cu_seqlens \(S \+ 1,\), int32"),
    (PACKED, ENDS[:1], ENDS[:1], 3, "at least one sequence"),
    (PACKED, ENDS[None], ENDS, 3, "want cu_seqlens"),
    (PACKED, ENDS.to("meta"), ENDS, 3, "want one device; got q cpu, cu_seqlens meta"),
    (PACKED, ENDS, ENDS[1:], 3, "want cu_seqlens_k of the length of cu_seqlens_q, 3; got 2"),
    (PACKED, ENDS, torch.tensor([0, 3, 5], dtype=torch.int32), 3, "want cu_seqlens_k equal"),
    (PACKED, ENDS, ENDS, 0, "want an integer max_seqlen >= 1; got 0"),
    (PACKED, ENDS, ENDS, 2, "want max_seqlen >= 3, the longest sequence; got 2")])
def test_what_is_no_packing_is_refused_before_a_kernel_runs(asked, q, ends, others, most, message):
    with pytest.raises(ValueError, match=message):
        sink_attn.attention_varlen(q, q, q, ends, others, most)
    assert asked == []


def test_autocast_casts_the_input_and_no_dtype_that_is_refused(asked):
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert sink_attn.attention(Q, Q, Q).dtype == torch.bfloat16
        with pytest.raises(TypeError, match="got torch.float64"):
            sink_attn.attention(*[Q.double()] * 3)
    assert asked[-1]["dtype"] == torch.bfloat16


@pytest.mark.parametrize(("options", "message"), [
    (dict(kernel="cuda"), "want kernel None, 'triton' or 'gluon'; got 'cuda'"),
    (dict(softmax_scale=float("inf")), "want softmax_scale > 0 and finite; got inf"),
    (dict(softmax_scale=-1.0), "want softmax_scale > 0 and finite; got -1.0"),
    (dict(sink_logits=torch.zeros(2, device="meta")), "want one device; got q cpu, sinks meta"),
    (dict(sink_size=1.0), "want an integer sink_size >= 0; got 1.0"),
    (dict(window_size=2.5), "want an integer window_size >= 1, or None; got 2.5"),
    (dict(window_size=0), "want an integer window_size >= 1, or None; got 0"),
    (dict(kernel="gluon"), "kernel='gluon': want D 64 or 128; got 16")])
def test_what_no_kernel_could_honour_is_refused_before_any_runs(asked, options, message):
    with pytest.raises(ValueError, match=message):
        sink_attn.attention(Q, Q, Q, **options)
    assert asked == []


def test_tensors_on_two_devices_or_on_the_wrong_one_are_refused(asked, monkeypatch):
    with pytest.raises(ValueError, match="want one device; got cpu, meta, cpu"):
        sink_attn.attention(Q, Q.to("meta"), Q)
    monkeypatch.setattr(entry, "INTERPRETED", False)
    with pytest.raises(ValueError, match="want CUDA tensors, or TRITON_INTERPRET=1"):
        sink_attn.attention(Q, Q, Q)
    assert asked == []


# ------------------------------------------------------------ between the kernels
def test_lse_is_in_base_2_between_triton_kernels_and_natural_elsewhere(monkeypatch):
    lse, given = torch.ones(1, 2, 5), []
    monkeypatch.setattr(entry.launcher, "forward", lambda *what: (Q, lse))
    options = (None, True, None, 0, False, 0.25)
    for return_lse, factor in ((False, 1.0), (True, entry.LN2)):
        o, got = entry._forward(Q, Q, Q, None, None, *options, return_lse, ("triton", "triton"))
        assert o is Q and torch.equal(got, lse * factor)
    monkeypatch.setattr(entry.launcher, "backward", lambda *what: given.append(what))
    for forward, return_lse, factor in (("triton", False, 1.0), ("triton", True, 1 / entry.LN2),
                                        ("gluon", False, 1 / entry.LN2)):
        entry._backward(Q, Q, Q, None, None, Q, lse, None, None, *options, return_lse,
                        (forward, "triton"), (True,) * 4)
        q, k, v, sinks, cu, o, got, do, dlse, *rest = given[-1]
        assert torch.equal(got, lse * factor)
        assert torch.equal(do, torch.zeros_like(Q)) and dlse is None
        assert rest == [None, True, None, 0, 0.25, (True,) * 4, None]


def test_gluons_backward_gets_lse_in_base_e(monkeypatch):
    lse, given = torch.ones(1, 2, 5), []
    monkeypatch.setitem(sys.modules, "sink_attn.attention_hopper_launch", SimpleNamespace(
        backward=lambda *what: given.append(what)))
    for forward, factor in (("triton", entry.LN2), ("gluon", 1.0)):
        entry._backward(Q, Q, Q, None, None, Q, lse, Q, None, None, True, 7, 0, True, 0.25, False,
                        (forward, "gluon"), (True,) * 4)
        q, k, v, sinks, o, got, do, *rest = given[-1]
        assert torch.equal(got, lse * factor) and rest == [True, 0.25, 7, True, True, None]


def test_the_gradient_of_lse_reaches_the_kernels_contiguous(monkeypatch):
    given = []
    monkeypatch.setattr(entry.launcher, "backward", lambda *what: given.append(what))
    dlse = torch.ones(1, 5, 2).transpose(1, 2)
    entry._backward(Q, Q, Q, None, None, Q, dlse, Q, dlse, None, True, None, 0, False, 0.25, True,
                    ("triton", "triton"), (True,) * 4)
    assert given[-1][8].is_contiguous() and given[-1][7] is Q


@pytest.mark.parametrize(("borders", "max_seqlen", "T", "message"), [
    ([1, 5], 9, 5, r"want cu_seqlens that begin with 0 and never fall; got \[1, 5\]"),
    ([0, 4, 3, 5], 9, 5, "never fall"),
    ([0, 3], 9, 5, "want cu_seqlens that end with T = 5; got 3"),
    ([0, 1, 5], 3, 5, "want max_seqlen >= 4, the longest sequence; got 3")])
def test_borders_that_lead_outside_the_tensors_are_refused(borders, max_seqlen, T, message):
    with pytest.raises(ValueError, match=message):
        entry._read_sequences(torch.tensor(borders, dtype=torch.int32), max_seqlen, T)


def test_both_borders_must_be_the_same():
    borders = torch.tensor([[0, 2, 5], [0, 2, 5]], dtype=torch.int32)
    assert entry._read_sequences(borders, 3, 5) == [2, 3]
    borders[1, 1] = 3  # in place: it is read again
    with pytest.raises(ValueError, match="want cu_seqlens_k equal to cu_seqlens_q"):
        entry._read_sequences(borders, 3, 5)
