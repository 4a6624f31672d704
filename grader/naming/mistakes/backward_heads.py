"""The backward's heads and batch entries, the order of the gradients, and those of the sinks."""

import torch

from grader.naming.mistakes.addresses import restrided
from grader.naming.table import LN2, OF_A_GROUP, backward, only


@backward("group-sum-missing", "dk and dv are those of one query head of the group: {0}",
          "dK and dV are summed over the query heads of the group", "dkdv calls", "group",
          each=(("the first", 0), ("the last", -1)))
def _(m, words, which):
    only(m.group > 1)
    m.over_group = lambda parts: parts[:, :, which]


@backward("group-mean", "dk and dv are means over the group",
          "dK and dV are summed over the query heads of the group", "", "group")
def _(m):
    only(m.group > 1)
    m.over_group = lambda parts: parts.mean(2)


@backward("diagonal-of-one-head", "on the diagonal only the group's first head gives to dk and dv",
          "every head of the group has a diagonal", "dkdv calls", "group", tiles="n")
def _(m):
    only(m.group > 1 and m.causal)
    start = m.dkv.j // m.BN * m.BN
    on = (m.dkv.i < start + m.BN)[None] & (torch.arange(len(m.pairs)) % m.group > 0)[:, None, None]
    m.dkv.changes.append(lambda s: s.masked_fill(on, -torch.inf))


@backward("dkdv-heads-interleaved", "dk and dv add up query heads h, h + HKV, ...",
          "key/value head g serves the query heads g * group ... g * group + group - 1",
          "dkdv rows", "group")
def _(m):
    only(m.group > 1 and m.HKV > 1)
    m.dkv.k_at = m.dkv.v_at = (m.b, m.h % m.HKV)
    m.over_group = lambda parts: parts.flatten(1, 2).unflatten(1, (m.group, m.HKV)).sum(1)


@backward("dq-heads-interleaved", "dq reads key/value head h % HKV", OF_A_GROUP, "dq kv head", "dq",
          each=(("kv",), ("k",), ("v",)))
def _(m, which):
    only(m.group > 1 and m.HKV > 1)
    m.dq.k_at = (m.b, m.h % m.HKV) if "k" in which else m.dq.k_at
    m.dq.v_at = (m.b, m.h % m.HKV) if "v" in which else m.dq.v_at


@backward("dkdv-batch-miscounted", "the batch entry of dk and dv is found with the wrong number of "
          "heads", "head bh of all k and v belongs to batch entry floor(bh / HKV)", "dkdv rows",
          "group", each=(("hq",), ("zero",), ("all of the first",)))
def _(m, how):
    only(m.B > 1)
    b, kv = torch.cartesian_prod(torch.arange(m.B), torch.arange(m.HKV)).unbind(1)
    other = (b * m.HKV + kv) // m.HQ if how == "hq" else torch.zeros_like(b)
    only(not torch.equal(other, b))
    if how == "zero":
        m.dkv.k_at = m.dkv.v_at = (other.repeat_interleave(m.group), m.h // m.group)
    elif how == "all of the first":
        m.over_group = lambda parts: parts.sum(2)[:1].expand(m.B, -1, -1, -1)
    else:  # everything that the walk of (b, kv) reads is that of the other entry
        same = other * m.HKV + (b * m.HKV + kv) % m.HQ % m.HKV
        m.over_group = lambda parts: parts.sum(2).flatten(0, 1)[same].unflatten(0, (m.B, m.HKV))


@backward("gradients-in-the-wrong-order", "gradients come back in another order: {0}",
          "one gradient an argument, in the order of forward's arguments", "launch", "order",
          each=(("dq, dv, dk", ("q", "v", "k")), ("dk, dq, dv", ("k", "q", "v")),
                ("dv, dk, dq", ("v", "k", "q"))))
def _(m, words, order):
    only(m.group == 1 or order == ("q", "v", "k"))
    asked, m.needed = m.needed, m.needed | {"q", "k", "v"}
    m.after = lambda out: {n: x for n, x in (out | {
        "d_" + new: out["d_" + old] for new, old in zip("qkv", order, strict=True)}).items()
        if n[2:] in asked}


@backward("do-strides", "the gradient that arrives is read with strides not its own: {0}",
          "dO may be expanded or transposed: pass its strides on", "launch", "do",
          each=(("as if contiguous", "contiguous"), ("those of q", "q")))
def _(m, words, other):
    m.dout = restrided(m, "o", "all axes", other).double()


@backward("sink-gradient-positive", "the gradient of sink_logits lacks its minus sign",
          "d sink = -sum_i exp(sink - lse_i) delta_i", "dsink", "d sink", stages=(9,))
def _(m):
    m.factor["sink_logits"] = -1.0


# Model, the parts p_sink delta (B, HQ, N), and delta (B * HQ, N, 1) -> the sum, (HQ,).
SINK_SUMS = {
    "leaves out the weight exp(sink - lse)":
        lambda m, parts, delta: delta.view_as(parts).sum((0, 2)),
    "has the factor scale": lambda m, parts, delta: parts.sum((0, 2)) * m.scale,
    "is a mean over queries": lambda m, parts, delta: parts.mean(2).sum(0),
    "is a mean over the batch": lambda m, parts, delta: parts.sum(2).mean(0),
    "is that of the first batch entry": lambda m, parts, delta: parts[0].sum(-1),
    "is that of the last query tile":
        lambda m, parts, delta: parts[..., (m.N - 1) // m.BM * m.BM:].sum((0, 2)),
    "takes the logit to be in base 2": lambda m, parts, delta: (
        parts * torch.exp(m.sink * (LN2 - 1)).view(m.B, m.HQ, 1)).sum((0, 2)),
    "is a mean over batch and queries": lambda m, parts, delta: parts.mean((0, 2)),
}


@backward("sink-gradient-wrong", "the gradient of sink_logits {0}",
          "d sink = -sum over batch and queries of exp(sink - lse) delta", "dsink",
          "d sink", stages=(9,), tiles="m", each=tuple((how,) for how in SINK_SUMS))
def _(m, how):
    only(m.sink is not None)
    m.sink_sum = lambda parts, delta: SINK_SUMS[how](m, parts, delta)
