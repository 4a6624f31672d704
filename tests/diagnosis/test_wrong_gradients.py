"""A mistake of a backward is named by the gradients that it gives, and nothing else is."""

import math
from dataclasses import replace

import pytest
import torch

import reference
from grader.course.cases import Case
from grader.course.inputs import build
from grader.diagnosis import wrong_gradients
from grader.diagnosis.samples import Sample

CASE = Case(8, "probe", 40, D=16, B=2, HQ=4, HKV=2, dtype=torch.float32, is_causal=True,
            grads=("q", "k", "v"))


def sample(case=CASE, **changes) -> Sample:
    """A backward head by head.  changes: of ds, from p, dp and delta; of p, from s and lse; of dq
    and dk, from ds, k, q and the scale; heads: which ones of a group are added up."""
    built = build(case, 1)
    q, k, v = (built.tensors[name].double() for name in "qkv")
    do, group, scale = built.upstream["dout"].double(), case.HQ // case.HKV, case.D**-0.5
    truth = Sample.of(built, {}, "cpu").exact.truth
    got = {name: torch.zeros_like(x) for name, x in truth.items()} | {
        "o": truth["o"], "lse": truth["lse"]}
    keep = reference.keep_mask(case.N, case.N, case.is_causal)
    change = {"ds": lambda p, dp, delta: p * (dp - delta), "p": lambda s, lse: torch.exp(s - lse),
              "dq": lambda ds, k: ds @ k * scale, "dk": lambda ds, q: ds.mT @ q * scale,
              "heads": lambda h: True} | changes
    for b in range(case.B):
        for h in range(case.HQ):
            kv = h // group
            s = (q[b, h] @ k[b, kv].mT * scale).masked_fill(~keep, -torch.inf)
            p = change["p"](s, truth["lse"][b, h][:, None])
            delta = (do[b, h] * truth["o"][b, h]).sum(-1, keepdim=True)
            ds = change["ds"](p, do[b, h] @ v[b, kv].mT, delta)
            got["d_q"][b, h] = change["dq"](ds, k[b, kv])
            if change["heads"](h):
                got["d_k"][b, kv] += change["dk"](ds, q[b, h])
                got["d_v"][b, kv] += p.mT @ do[b, h]
    return Sample.of(built, {name: x.float() for name, x in got.items()}, "cpu")


def test_right_gradients_have_no_mistake():
    assert not sample().wrong and wrong_gradients.name([sample()]) == ("", "", "")


@pytest.mark.parametrize(("changes", "mistake"), [
    ({"ds": lambda p, dp, delta: p * dp}, "no-delta"),
    ({"ds": lambda p, dp, delta: p * (dp + delta)}, "delta-added"),
    ({"ds": lambda p, dp, delta: (dp - delta) * (p > 0)}, "ds-without-p"),
    ({"p": lambda s, lse: torch.exp2(s - lse)}, "backward-in-two-bases"),
    ({"p": lambda s, lse: torch.exp((s - lse) / math.log(2))}, "backward-in-two-bases"),
    ({"p": lambda s, lse: torch.exp(s)}, "backward-without-lse"),
    ({"p": lambda s, lse: torch.exp(s - lse / math.log(2))}, "lse-in-base-2"),
    ({"dq": lambda ds, k: ds @ k, "dk": lambda ds, q: ds.mT @ q}, "effect-unscaled"),
    ({"dq": lambda ds, k: ds @ k}, "dq-unscaled"),
    ({"dk": lambda ds, q: ds.mT @ q}, "dk-unscaled"),
    ({"heads": lambda h: h % 2}, "group-not-summed"),
    ({"heads": lambda h: h % 2 == 0}, "group-not-summed"),
    ({"dk": lambda ds, q: ds.mT @ q / 8}, "group-averaged")])
def test_a_mistake_is_named_by_the_gradients_that_it_gives(changes, mistake):
    assert wrong_gradients.name([sample(**changes)])[0] == mistake


@pytest.mark.parametrize(("change", "mistake"), [
    (lambda m, l_i: m, "lse-is-the-max"), (lambda m, l_i: torch.log(l_i), "lse-without-the-max"),
    (lambda m, l_i: (m + torch.log(l_i)) / math.log(2), "lse-in-base-2"),
    (lambda m, l_i: m - torch.log(l_i), "lse-minus-the-log"), (lambda m, l_i: m + 1, "")])
def test_a_mistake_of_lse_is_named_by_what_came_back(change, mistake):
    right = sample(replace(CASE, is_causal=False))
    q, k = (right.built.tensors[name].double() for name in "qk")
    s = q @ k.repeat_interleave(2, 1).mT / 4
    m = s.amax(-1)
    lse = change(m, torch.exp(s - m[..., None]).sum(-1))
    wrong = Sample.of(right.built, right.got | {"lse": lse.float()}, "cpu")
    assert wrong_gradients.name([wrong])[0] == mistake


GROUPS = replace(CASE, grads=())


@pytest.mark.parametrize(("change", "said"), [
    (lambda q, k, v: (q, k, k), "o is the softmax times k, not v"),
    (lambda q, k, v: (q, k[:1].expand_as(k), v),
     "every batch entry reads k from batch entry 0"),
    (lambda q, k, v: (q, k[:1].expand_as(k), v[:1].expand_as(v)),
     "every batch entry reads k and v from batch entry 0"),
    (lambda q, k, v: (q, k, v[:, [0, 0]]), "every query head reads v from key/value head 0"),
    (lambda q, k, v: (q, k, v[:, [1, 0]]), "")])
def test_tensors_that_o_is_wrongly_made_of_are_named(change, said):
    built = build(GROUPS, 1)
    q, k, v = change(*(built.tensors[name].double() for name in "qkv"))
    o = reference.attention(q, k, v, is_causal=True)["o"].float()
    assert wrong_gradients.name([Sample.of(built, {"o": o}, "cpu")])[1] == said


def test_a_scale_that_is_not_taken_from_the_caller_is_named():
    built = build(replace(GROUPS, scale=0.4), 1)
    o = reference.attention(**built.tensors, is_causal=True)["o"].float()
    assert wrong_gradients.name([Sample.of(built, {"o": o}, "cpu")])[0] == "scale-ignored"


@pytest.mark.parametrize(("change", "said"), [
    (lambda share: -share.sum((0, 2)), "it has the wrong sign"),
    (lambda share: share.sum(2).mean(0), "it is a mean over the batch, not its sum"),
    (lambda share: share[0].sum(1), "only batch entry 0 counts"),
    (lambda share: share[:, :, 32:].sum((0, 2)), "only the last tile of queries counts"),
    (lambda share: share.sum((0, 2)) * 1.5, None)])
def test_a_mistake_of_the_gradient_of_sink_logits_is_named(change, said):
    right = sample(replace(CASE, stage=9, sink_logits=True,
                           grads=("q", "k", "v", "sink_logits")))
    p = torch.exp(right.built.tensors["sink_logits"].double()[:, None] - right.truth("lse"))
    share = -p * (right.built.upstream["dout"].double() * right.truth("o")).sum(-1)
    got = right.got | {"d_sink_logits": change(share).float()}
    wrong = Sample.of(right.built, got, "cpu")
    assert wrong.wrong == ["d_sink_logits"]
    assert wrong_gradients.name([wrong])[1] == (
        f"the gradient of sink_logits: {said}" if said else "")


def test_a_mistake_in_one_kernel_is_said_to_be_there():
    both, right = sample(ds=lambda p, dp, delta: p * dp), sample()
    got = right.got | {"d_q": both.got["d_q"]}
    id, words, _ = wrong_gradients.name([Sample.of(right.built, got, "cpu")])
    assert id == "dq-no-delta"
    assert words.startswith("in the code that computes dq, delta is missing")


def test_a_share_of_o_that_autograd_takes_for_constant_has_a_name():
    with_sinks = replace(CASE, stage=9, sink_logits=True)
    wrong = sample(with_sinks, ds=lambda p, dp, delta: p * (dp - delta / p.sum(-1, keepdim=True)))
    assert wrong_gradients.name([wrong])[0] == "sink-share-constant"
    assert wrong_gradients.name([sample(with_sinks)])[0] == ""


def test_gradients_that_no_known_mistake_gives_have_no_name():
    assert wrong_gradients.name([sample(ds=lambda p, dp, delta: p * (dp - delta) ** 2)])[0] == ""


def test_in_16_bits_a_mistake_is_found_within_their_rounding():
    rough = sample(replace(CASE, dtype=torch.bfloat16), dk=lambda ds, q: ds.mT @ q)
    rough = Sample.of(rough.built, {name: x.bfloat16() for name, x in rough.got.items()}, "cpu")
    assert wrong_gradients.name([rough])[0] == "dk-unscaled"


def of_heads(whole: bool, *summed: str) -> Sample:
    """A backward that takes head h % HKV for query head h's, in all of it or where these are
    summed."""
    right, case = sample(HEADS), HEADS
    q, k, v = (right.built.tensors[name].double() for name in "qkv")
    do, own = right.built.upstream["dout"].double(), torch.arange(case.HQ) // (case.HQ // case.HKV)
    other = torch.arange(case.HQ) % case.HKV
    read, scale = (other if whole else own), case.D**-0.5
    keep = reference.keep_mask(case.N, case.N, case.is_causal)
    p = torch.exp(q @ k[:, read].mT * scale - right.truth("lse")[..., None]) * keep
    delta = (do * right.truth("o")).sum(-1, keepdim=True)
    ds = p * (do @ v[:, read].mT - delta)
    got = {name: torch.zeros_like(right.truth(name)) for name in ("d_k", "d_v")}
    for name, x in (("d_k", ds.mT @ q * scale), ("d_v", p.mT @ do)):
        for h in range(case.HQ):
            got[name][:, (other if whole or name in summed else own)[h]] += x[:, h]
    got |= {"o": right.truth("o"), "lse": right.truth("lse"), "d_q": ds @ k[:, read] * scale}
    return Sample.of(right.built, {name: x.float() for name, x in got.items()}, "cpu")


HEADS = replace(CASE, HQ=6)


@pytest.mark.parametrize(("whole", "summed", "said"), [
    (True, (), "in the backward, query head h reads key/value head h % HKV"),
    (False, ("d_k",), "in dk, the share of query head h is added to key/value head h % HKV;"),
    (False, ("d_k", "d_v"),
     "in dk and dv, the share of query head h is added to key/value head h % HKV;")])
def test_a_backward_that_confuses_heads_is_named(whole, summed, said):
    assert wrong_gradients.name([of_heads(whole, *summed)])[1].startswith(said)


def test_the_lse_of_one_head_in_all_of_them_is_named():
    right = sample()
    got = {"o": right.truth("o"), "lse": right.truth("lse")[:, :1].expand(-1, CASE.HQ, -1)}
    found = wrong_gradients.name([Sample.of(right.built, got, "cpu")])
    assert found == ("effect-lse-of-another", "every head has the lse of head 0", "")
