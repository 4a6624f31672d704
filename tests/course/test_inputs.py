"""What a case is made into: a seed gives the same bytes, each family and layout what it says."""

from dataclasses import replace

import pytest
import torch

import reference
from grader.course import inputs
from grader.course.cases import Case

BASE = Case(7, "robust", 40, HQ=4, HKV=2, B=2, is_causal=True, window=9, sinks=2)


def test_a_seed_replays_the_same_bytes_and_another_does_not():
    first, again, other = (inputs.build(BASE, seed).tensors for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["q"], other["q"])


@pytest.mark.parametrize(("case", "name"), [
    (Case(2, "robust", 40, M=7, layout="guarded"), "w"),
    (Case(9, "robust", 40, is_causal=True, window=9, sinks=1, sink_logits=True, layout="guarded"),
     "sink_logits")])
def test_also_what_has_one_axis_lies_between_nan(case, name):
    sent = inputs.build(case, 1).call.inputs[name]
    assert sent.view().dim() == 1 and torch.isnan(sent.storage).any()


@pytest.mark.parametrize("layout", ["guarded", "transposed", "last"])
def test_views_are_right_and_nan_lies_everywhere_around_them(layout):
    t = torch.randn(2, 3, 5, 8).half()
    sent = inputs.lay_out(t, layout)
    assert torch.equal(sent.view(), t)
    assert int((~torch.isnan(sent.storage)).sum()) == t.numel()
    assert torch.isnan(sent.storage[0]) and torch.isnan(sent.storage[-1])


def test_a_far_key_is_beyond_32_bits_and_the_other_inputs_are_not():
    built = inputs.build(Case(3, "robust", 20, B=3, layout="far", apart="k"), 0)
    q, k = built.call.inputs["q"], built.call.inputs["k"]
    assert 2 * k.stride[0] == 2**31 and k.storage.numel() == built.tensors["k"].numel()
    assert torch.equal(k.view(), built.tensors["k"]) and q.stride == built.tensors["q"].stride()


def test_a_small_upstream_gradient_is_below_what_float16_holds():
    case = Case(8, "robust", 20, dtype=torch.float32, grads=("q",))
    small = inputs.build(replace(case, dout="small"), 0).dout.abs()
    assert 0 < small.mean() < 2.0**-24


def test_alike_values_have_a_coarse_dp_and_delta_and_a_fine_output():
    alike = Case(8, "robust", 100, D=64, HQ=4, HKV=4, is_causal=True, family="alike", dout="large",
                 grads=("q", "k", "v"))
    for seed in range(5):
        built = inputs.build(alike, seed)
        late = built.dout.double()[:, :, 50:]
        dp = late @ built.tensors["v"].double().mT
        assert 2048 < float(dp.min()) and float(dp.max()) < 4096
        exact = reference.attention(**built.tensors, **built.upstream, is_causal=True)
        assert float(exact["o"][:, :, 50:].max()) < 4 < 4.5 < float(late.mean())


def test_of_loud_gradients_only_the_product_with_o_passes_float16():
    loud = Case(8, "robust", 100, D=64, HQ=4, HKV=2, is_causal=True, family="alike", dout="loud",
                grads=("q", "k", "v"))
    for seed in range(5):
        built = inputs.build(loud, seed)
        exact = reference.attention(**built.tensors, **built.upstream, is_causal=True)
        assert float((exact["o"] * built.dout.double()).max()) > 65504
        assert float(max(exact[name].abs().max() for name in "qkv")) < 65504 / 2


def test_creeping_sums_pass_float16_and_those_of_all_cancel():
    creeping = Case(3, "robust", 128, family="creeping")
    v = inputs.build(creeping, 0).tensors["v"]
    assert bool(torch.isinf(v.double()[..., :8, :].sum(-2).half()).all())
    assert float(v.double().sum(-2).abs().max()) < 0.03 * float(v.double().abs().sum(-2).min())


def test_faint_products_lie_below_float16_and_their_sum_comes_back():
    faint = Case(2, "robust", 100, M=500, family="cancel", dout="faint", grads=("w",))
    built = inputs.build(faint, 0)
    terms = built.upstream["dy"].double()[:, None] * built.tensors["x"].double()
    tiny = torch.finfo(torch.float16).tiny
    assert float(terms.abs().max()) < tiny and bool((terms.half() != terms).any(0).all())
    halfway, whole = terms[:250].sum(0).abs(), terms.sum(0).abs()
    assert float(halfway.min()) > tiny and float(whole.median()) < 0.3 * float(halfway.median())


def test_a_transposed_view_has_heads_inside_positions():
    sent = inputs.lay_out(torch.randn(2, 3, 5, 8), "transposed")
    assert sent.stride[2] > sent.stride[1] > sent.stride[3] == 1
    x = inputs.lay_out(torch.randn(4, 6), "transposed")
    assert x.stride[0] == 1 and x.stride[1] > 4


@pytest.mark.parametrize("sign", ["+", "-"])
def test_shift_moves_all_logits_by_128(sign):
    case = Case(3, "robust", 30, D=64, HQ=1, HKV=1, family=f"shift{sign}")
    q, k = (inputs.build(case, 0).tensors[name].double() for name in "qk")
    logits = (q @ k.mT / 8).flatten()
    assert abs(logits.mean() - float(sign + "128")) < 2


def test_rising_raises_the_maximum_in_every_tile():
    case = Case(3, "robust", 256, D=32, family="rising")
    q, k = (inputs.build(case, 0).tensors[name].double() for name in "qk")
    tiles = (q @ k.mT / 32**0.5).unflatten(-1, (4, 64)).amax(-1)[0, 0]
    assert (tiles.diff(dim=-1) > 0).double().mean() > 0.95


def test_needles_put_most_weight_on_one_key_a_row():
    case = Case(3, "robust", 128, D=16, family="needles")
    q, k = (inputs.build(case, 0).tensors[name].double() for name in "qk")
    assert torch.softmax(q @ k.mT / 4, -1).amax(-1).mean() > 0.5


def test_real_activations_serve_any_number_of_heads():
    case = Case(5, "robust", 100, D=32, HQ=8, HKV=4, dtype=torch.float32, family="real")
    tensors = inputs.build(case, 0).tensors
    assert tensors["q"].shape == (1, 8, 100, 32) and tensors["k"].shape == (1, 4, 100, 32)
    assert torch.equal(tensors["q"][:, 6], tensors["q"][:, 0])


def test_refilled_inputs_have_new_values_in_the_same_layout():
    built = inputs.build(Case(3, "robust", 20, layout="transposed", refill=True), 0)
    old, new = built.call.inputs["q"], built.call.refill["q"]
    assert (old.shape, old.stride, old.offset) == (new.shape, new.stride, new.offset)
    assert not torch.equal(old.view(), new.view())


def test_an_expanded_gradient_has_one_number_behind_it():
    case = Case(8, "robust", 20, HQ=2, HKV=1, dout="expanded", grads=("q", "k", "v"))
    built = inputs.build(case, 0)
    assert built.call.douts["o"].storage.numel() == 1
    assert built.dout.shape == (1, 2, 20, 16)


def test_a_key_of_one_head_for_all_has_a_stride_of_0_and_makes_the_truth():
    built = inputs.build(Case(5, "robust", 20, HQ=4, HKV=2, layout="shared"), 0)
    k = built.call.inputs["k"].view()
    assert k.stride(1) == 0 and torch.equal(k, built.tensors["k"])
    assert torch.equal(k[:, 0], k[:, 1]) and k[:, 0].std() > 0.5


def test_arguments_that_are_left_out_are_those_with_a_default_alone():
    for number, fields, left in ((1, {}, 3), (3, {}, 3), (7, dict(window=128, sinks=4), 3),
                                 (8, {}, 3), (9, dict(window=9, sinks=0), 4)):
        call = inputs.build(Case(number, "robust", 20, bare=True, **fields), 0).call
        assert len(call.args) == left and not call.kwargs


def test_an_output_that_is_not_used_has_no_gradient_to_send():
    built = inputs.build(Case(1, "robust", 20, grads=("q",), unused="lse"), 0)
    assert set(built.call.douts) == {"o"} and set(built.upstream) == {"dout"}


def test_a_call_in_between_has_another_mask_or_scale_wherever_the_stage_has_any():
    for number, fields in ((1, {}), (6, dict(window=9)), (6, dict(window=1)), (8, {}),
                           (9, dict(window=9, sinks=4))):
        call = inputs.build(Case(number, "robust", 20, **fields), 0).call
        assert call.between != (call.args, call.kwargs)
    call = inputs.build(Case(3, "robust", 20), 0).call
    assert call.between == (call.args, call.kwargs)


def test_arguments_are_those_of_the_stage():
    swda = Case(9, "robust", 20, window=None, sinks=0, sink_logits=True, is_causal=True, scale=0.5)
    call = inputs.build(swda, 0).call
    assert call.args == ("@q", "@k", "@v", None, 0)
    assert call.kwargs == {"is_causal": True, "scale": 0.5, "sink_logits": "@sink_logits"}
    assert inputs.build(BASE, 0).call.kwargs == {"is_causal": True, "window_size": 9,
                                                "sink_size": 2}
    assert inputs.build(Case(1, "robust", 20), 0).call.args == ("@q", "@k", "@v", False)


def test_other_numbers_are_other_and_a_refilled_case_takes_those_of_its_refill():
    case = Case(3, "robust", 40, refill=True)
    built, other = inputs.build(case, 0), inputs.other_numbers(case, 0)
    assert torch.equal(other.tensors["q"], built.refilled["q"])
    case = replace(case, refill=False, family="real", D=32)
    built, other = inputs.build(case, 0), inputs.other_numbers(case, 0)
    assert not torch.equal(other.tensors["q"], built.tensors["q"])
    assert other.call.refill is None and other.call.repeats == 1 and other.seed == 0


def test_other_numbers_are_those_of_the_case_with_another_seed():
    case = Case(3, "robust", 40, grads=("q",))
    one, other = (inputs.other_numbers(case, 0) for _ in range(2))
    assert len({0, one.seed, other.seed}) == 3
    again = inputs.build(case, one.seed)
    assert torch.equal(again.tensors["q"], one.tensors["q"])
    assert torch.equal(again.dout, one.dout)
