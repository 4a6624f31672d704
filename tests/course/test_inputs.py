"""What a case is made into: a seed gives the same bytes, each family and layout what it says."""

import math
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


@pytest.mark.parametrize(("shape", "layout", "stride", "offset"), [
    ((2, 3, 5, 8), "guarded", (120, 40, 8, 1), 64),
    ((2, 3, 5, 8), "transposed", (120, 8, 24, 1), 64),
    ((2, 3, 5, 8), "packed", (360, 8, 72, 1), 64),  # one of three in each row
    ((2, 3, 5, 8), "cached", (320, 80, 8, 1), 64),  # 5 of 10 rows, 3 of 4 heads
    ((2, 3, 5, 8), "wide", (240, 80, 16, 1), 64),
    ((2, 3, 5, 8), "gapped", (416, 104, 13, 1), 64),
    ((2, 3, 5, 8), "odd", (320, 80, 8, 1), 65),
    ((2, 3, 5, 8), "last", (240, 80, 16, 2), 64), ((2, 3, 5, 8), "third", (360, 120, 24, 3), 64),
    ((4, 6), "transposed", (1, 7), 64), ((4, 6), "gapped", (11, 1), 64),
    ((4, 6), "odd", (6, 1), 65), ((4, 6), "last", (12, 2), 64),
    ((6,), "last", (2,), 64), ((6,), "odd", (1,), 65),
    ((2, 3, 5, 8), "dense", (120, 40, 8, 1), 0), ((2, 3, 5, 8), "expanded", (40, 0, 8, 1), 0),
    ((4, 6), "expanded", (0, 1), 0)])
def test_a_layout_has_its_strides_and_its_first_element(shape, layout, stride, offset):
    sent = inputs.lay_out(torch.randn(1, *shape[1:]).expand(shape), layout)
    assert (sent.shape, sent.stride, sent.offset) == (shape, stride, offset)


@pytest.mark.parametrize(("layout", "last"), [
    ("views", (1, 1, 1)), ("mixed", (1, 1, 1)), ("last", (2, 3, 2)), ("odd.dense.last", (1, 1, 2))])
def test_tensors_of_one_shape_have_strides_of_their_own(layout, last):
    sent = inputs.build(Case(3, "robust", 40, HQ=2, HKV=2, B=2, layout=layout), 0).call.inputs
    assert tuple(sent[name].stride[-1] for name in "qkv") == last
    assert len({(sent[name].stride, sent[name].offset) for name in "qkv"}) == (
        2 if layout == "last" else 3)


def test_x_and_w_have_layouts_of_their_own():
    sent = inputs.build(Case(2, "robust", 40, M=7, layout="mixed"), 0).call.inputs
    assert (sent["x"].stride[0], sent["w"].stride) == (1, (2,))
    sent = inputs.build(Case(2, "robust", 40, M=7, layout="dense.last"), 0).call.inputs
    assert (sent["x"].stride, sent["w"].stride) == ((40, 1), (2,))


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


def logits(case: Case) -> torch.Tensor:
    """Of the first head: queries x keys."""
    q, k = (inputs.build(case, 0).tensors[name][0, 0].double() for name in "qk")
    return q @ k.mT * case.D**-0.5


@pytest.mark.parametrize(("family", "first", "last"), [
    ("deep", -1024, -1024), ("abyss", -20000, -20000), ("peak", 20000, 20000), ("rising", 0, 40),
    ("steep", 0, 400), ("falling", 200, 0), ("signs", -200, 60), ("easing", 40, 0)])
def test_scores_lie_where_their_family_says_at_the_first_and_last_key(family, first, last):
    found = logits(Case(3, "robust", 160, D=64, family=family)).mean(0)
    for at, wanted in ((0, first), (-1, last)):
        assert abs(found[at] - wanted) < 1 + 0.001 * abs(wanted)


@pytest.mark.parametrize(("family", "std"), [("easing", 0.5), ("cancel", 0.25), ("alike", 0.25)])
def test_queries_are_small_where_weights_must_be_nearly_equal(family, std):
    q = inputs.build(Case(3, "robust", 160, D=64, family=family), 0).tensors["q"][..., 1:]
    assert abs(q.double().std() - std) < 0.02 and len(q.unique()) > 1000


def test_each_row_of_levels_has_a_level_of_its_own():
    found = logits(Case(3, "robust", 160, D=64, dtype=torch.float32, family="levels")).mean(1)
    assert abs(found[0]) < 1 and abs(found[-1] - 400) < 1 and (found.diff() > 0).all()


@pytest.mark.parametrize(("dtype", "power"), [(torch.float16, 18.5), (torch.bfloat16, 16)])
def test_one_heavy_key_outweighs_each_of_the_others_by_far(dtype, power):
    case = Case(3, "robust", 40, dtype=dtype, family="heavy")
    found = logits(case) / torch.log(torch.tensor(2.0))
    assert (abs(found[:, 0] - found[:, 1] - power) < 0.1).all() and (found[:, 1:] == 0).all()


@pytest.mark.parametrize(("case", "scale"), [
    (Case(3, "robust", 400, D=64, family="hot"), 4),
    (Case(8, "robust", 400, D=64, family="hot", grads=("q",)), 2)])
def test_hot_queries_are_as_large_as_right_gradients_allow(case, scale):
    found = inputs.build(case, 0).tensors
    assert abs(found["q"].double().std() - scale) < 0.1 and abs(found["k"].double().std() - 1) < 0.1


@pytest.mark.parametrize(("case", "edges"), [
    (Case(3, "robust", 100, D=64, family="needles"), lambda i: (i, 99, 64)),
    (Case(4, "robust", 100, D=64, is_causal=True, family="needles"), lambda i: (i, i + 1, i - 1)),
    (Case(7, "robust", 100, D=64, is_causal=True, window=9, sinks=4, family="needles"),
     lambda i: (i, i + 1, i - 1, i - 8, i - 9, 3, 4))])
def test_needles_point_at_both_sides_of_every_edge_of_the_mask(case, edges):
    (high, found), v = logits(case).max(1), inputs.build(case, 0).tensors["v"][0, 0]
    assert abs(high.mean() - 8) < 0.5  # the others are far below
    assert [int(found[i]) for i in range(20, 60)] == [
        edges(i)[i % len(edges(i))] for i in range(20, 60)]
    assert (v.sum(1) == 1).all() and all(v[j, j % 64] == 1 for j in range(100))


@pytest.mark.parametrize("case", [Case(3, "robust", 200, D=64, family="cancel"),
                                  Case(2, "robust", 200, M=9, family="cancel")])
def test_sums_that_cancel_grow_for_half_the_way_and_come_back(case):
    found = inputs.build(case, 0).tensors
    terms = found["v"][0, 0].double() if "v" in found else (
        found["x"].double() * found["w"].double()).mT
    half, whole = terms[:100].sum(0).abs(), terms.sum(0).abs()
    assert half.mean() > 8 * whole.mean()


@pytest.mark.parametrize(("family", "size"), [("randn", 1), ("hot", 30), ("faint", 2.0**-10)])
def test_x_is_as_large_as_its_family_says(family, size):
    found = inputs.build(Case(2, "robust", 400, M=99, family=family), 0).tensors
    assert abs(found["x"].double().std() / size - 1) < 0.05


def test_in_stage_2_the_last_column_alone_decides_where_weights_are_one_hot():
    w = inputs.build(Case(2, "robust", 40, M=7, family="needles"), 0).tensors["w"]
    assert w.nonzero().tolist() == [[39]] and w[39] == 1


SINKS = Case(9, "robust", 40, D=64, HQ=64, HKV=1, is_causal=True, window=9, sink_logits=True)


@pytest.mark.parametrize(("changes", "dtype", "mean", "std"), [
    ({}, torch.float16, 0, 1), ({"layout": "views"}, torch.float32, 0, 1),
    ({"level": True}, torch.float32, 0, 0),
    ({"level": True, "family": "shift+"}, torch.float32, 0, 0),
    ({"level": True, "dtype": torch.float32, "family": "shift+"}, torch.float32, 128, 1),
    ({"level": True, "dtype": torch.float32, "family": "shift-"}, torch.float32, -128, 1)])
def test_sink_logits_are_random_or_zero_or_as_large_as_the_scores(changes, dtype, mean, std):
    found = inputs.build(replace(SINKS, **changes), 0).tensors["sink_logits"]
    assert found.dtype == dtype and abs(float(found.mean()) - mean) < 0.5
    assert abs(float(found.double().std()) - std) < 0.3


def test_rising_raises_the_maximum_in_every_tile():
    case = Case(3, "robust", 256, D=32, family="rising")
    q, k = (inputs.build(case, 0).tensors[name].double() for name in "qk")
    tiles = (q @ k.mT / 32**0.5).unflatten(-1, (4, 64)).amax(-1)[0, 0]
    assert (tiles.diff(dim=-1) > 0).double().mean() > 0.95


@pytest.mark.parametrize("family", ["rising", "falling", "shift-"])
@pytest.mark.parametrize(("dtype", "most"), [(torch.float16, 0.004), (torch.bfloat16, 0.03)])
@pytest.mark.parametrize("D", [16, 17, 32, 48, 64, 128])
def test_planted_scores_stay_if_q_is_rounded_after_scaling(D, dtype, most, family):
    case = Case(3, "robust", 64, D=D, dtype=dtype, family=family)
    q, k = (inputs.build(case, 0).tensors[name][0, 0, :, :2].double() for name in "qk")
    for factor in D**-0.5, D**-0.5 / math.log(2):
        rounded = (q * factor).to(dtype).double() / factor
        assert ((rounded - q) @ k.mT).abs().max() * D**-0.5 < most


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


@pytest.mark.parametrize(("dout", "stride"), [
    ("shared", (320, 0, 16, 1)), ("transposed", (640, 16, 32, 1)), ("last", (1280, 640, 32, 2)),
    ("dense", (640, 320, 16, 1)), ("large", (640, 320, 16, 1))])
def test_the_gradient_of_the_output_has_the_layout_asked_for(dout, stride):
    case = Case(8, "robust", 20, HQ=2, HKV=1, B=2, dout=dout, grads=("q", "k", "v"))
    assert inputs.build(case, 0).call.douts["o"].stride == stride


@pytest.mark.parametrize(("case", "late"), [
    (Case(3, "standard", 20), True), (Case(3, "robust", 20), False),
    (Case(3, "robust", 20, repeats=2), True), (Case(3, "robust", 20, refill=True), True)])
def test_outputs_are_read_late_where_unfinished_work_would_show(case, late):
    assert inputs.build(case, 0).call.late == late


def test_cases_of_the_contract_run_on_few_multiprocessors():
    few, many = (inputs.build(Case(3, "robust", 20, by_contract=by), 0).call.multiprocessors
                 for by in (True, False))
    assert few < many


@pytest.mark.parametrize(("case", "entry"), [
    (Case(2, "robust", 20, M=7), ""),
    (Case(2, "robust", 20, M=7, grads=("x",)), "weighted_row_sum"),
    (Case(8, "robust", 20, grads=("q",)), "")])
def test_only_gradients_of_row_sums_have_an_entry_of_their_own(case, entry):
    assert inputs.build(case, 0).call.entry == entry


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
    built = inputs.build(Case(1, "robust", 20, grads=("q",), unused="o"), 0)
    assert set(built.call.douts) == {"lse"} and not built.upstream["dout"].any()


def test_a_call_in_between_has_another_mask_or_scale_wherever_the_stage_has_any():
    for number, fields in ((1, {}), (6, dict(window=9)), (6, dict(window=1)), (8, {}),
                           (9, dict(window=9, sinks=4))):
        call = inputs.build(Case(number, "robust", 20, **fields), 0).call
        assert call.between != (call.args, call.kwargs)
    call = inputs.build(Case(3, "robust", 20), 0).call
    assert call.between == (call.args, call.kwargs)


@pytest.mark.parametrize(("window", "sinks", "others"), [(9, 4, (2, 2)), (9, 2, (2, 3)),
                                                         (1, 4, (5, 2))])
def test_a_call_in_between_changes_window_sinks_and_scale(window, sinks, others):
    call = inputs.build(Case(9, "robust", 20, window=window, sinks=sinks, is_causal=True), 0).call
    args, kwargs = call.between
    assert args[3:] == others and kwargs["scale"] == 2 * 16**-0.5 and kwargs["is_causal"]


def test_arguments_are_those_of_the_stage():
    swda = Case(9, "robust", 20, window=None, sinks=0, sink_logits=True, is_causal=True, scale=0.5)
    call = inputs.build(swda, 0).call
    assert call.args == ("@q", "@k", "@v", None, 0)
    assert call.kwargs == {"is_causal": True, "scale": 0.5, "sink_logits": "@sink_logits"}
    assert inputs.build(BASE, 0).call.kwargs == {"is_causal": True, "window_size": 9,
                                                "sink_size": 2}
    assert inputs.build(Case(1, "robust", 20), 0).call.args == ("@q", "@k", "@v", False)


def test_other_numbers_are_other_and_a_refilled_case_takes_those_of_its_refill():
    case = Case(3, "robust", 40, refill=True, repeats=3)
    built, other = inputs.build(case, 0), inputs.other_numbers(case, 0)
    assert torch.equal(other.tensors["q"], built.refilled["q"])
    assert other.call.refill is None and other.call.repeats == 1
    case = replace(case, refill=False, family="real", D=32)
    built, other = inputs.build(case, 0), inputs.other_numbers(case, 0)
    assert not torch.equal(other.tensors["q"], built.tensors["q"])
    assert other.seed == 0


def test_other_numbers_are_those_of_the_case_with_another_seed():
    case = Case(3, "robust", 40, grads=("q",))
    one, other = (inputs.other_numbers(case, 0) for _ in range(2))
    assert len({0, one.seed, other.seed}) == 3
    again = inputs.build(case, one.seed)
    assert torch.equal(again.tensors["q"], one.tensors["q"])
    assert torch.equal(again.dout, one.dout)
