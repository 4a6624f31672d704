"""The gradients' factors, delta and the saved log-sum-exp, where the outputs are right."""

import torch

from grader.naming.model import best_factor
from grader.naming.table import LN2, LOG2E, OWN_BACKWARD, SAVED, backward, only

D_NAMES = {"q": "dq", "k": "dk", "v": "dv", "sink_logits": "d sink_logits"}
# dk's scale is given code in stages 8 and 9: what else scales dk stands where its products do.
FACTOR_PLACES = {"q": "dq scale, dq products", "k": "dkdv products", "v": "dkdv products",
                 "sink_logits": "dsink"}
for _name in "qk":
    @backward(f"d{_name}-unscaled", f"d{_name} lacks the factor scale",
              f"d{_name} = scale * dS{'' if _name == 'q' else '^T'} "
              f"{'K' if _name == 'q' else 'Q'}", f"d{_name} scale", f"factor d{_name}")
    def _(m, name=_name):
        m.factor[name] = 1.0

    @backward(f"d{_name}-scaled-twice", f"d{_name} has the factor scale twice",
              "the scale comes in once, after dS", FACTOR_PLACES[_name], f"factor d{_name}")
    def _(m, name=_name):
        m.factor[name] = m.scale**2

    @backward(f"d{_name}-in-base-2", f"d{_name} is multiplied by scale * log2(e)",
              "log2(e) belongs to the exponent, not to the gradient", FACTOR_PLACES[_name],
              f"factor d{_name}", each=((LOG2E,), (LN2,)))
    def _(m, factor, name=_name):
        m.factor[name] = m.scale * factor

    @backward(f"d{_name}-with-the-default-scale", f"d{_name}'s last factor is 1 / sqrt(D), though "
              "the caller gave a scale", "the caller's scale, wherever there is a scale",
              f"d{_name} scale", f"factor d{_name}")
    def _(m, name=_name):
        only(m.case.scale is not None)
        m.factor[name] = m.D**-0.5


@backward("dv-scaled", "dv is multiplied by the scale", "dV = P^T dO", "dkdv products", "factor dv")
def _(m):
    m.factor["v"] = m.scale


for _name in ("q", "k", "v", "sink_logits"):
    @backward(f"{D_NAMES[_name].replace(' ', '-')}-off-by-a-factor",
              D_NAMES[_name] + " is {factor:.4g} times what it should be",
              "every gradient has its one scale, and no other factor", FACTOR_PLACES[_name],
              f"factor {D_NAMES[_name]}", fitted=True)
    def _(m, name=_name):
        only("d_" + name in m.got)

        def fitted(out):
            right = out["d_" + name]
            m.found["factor"] = factor = best_factor(m.got["d_" + name], right)
            return out | {"d_" + name: right * factor}
        m.after = fitted

    @backward(f"{D_NAMES[_name].replace(' ', '-')}-zero", f"{D_NAMES[_name]} is zero",
              "each gradient has its own sum", FACTOR_PLACES[_name], f"factor {D_NAMES[_name]}")
    def _(m, name=_name):
        m.factor[name] = 0.0


@backward("own-scale-ignored-in-backward", "the backward takes 1 / sqrt(D), though the caller gave "
          "a scale", "one scale in forward and backward", "", "P")
def _(m):
    only(m.case.scale is not None)
    m.factor |= {"q": m.D**-0.5, "k": m.D**-0.5}
    m.dq.scale = m.dkv.scale = m.D**-0.5


def _deltas(words, where) -> str:
    """In one of the two, or not stored for the second, or in both, and so where it is made."""
    return {"dq": "dq products", "dk": "dkdv products, delta"}.get(where, "delta")


@backward("no-delta", "delta is left out: dS = P * dP{0}", "dS = P * (dP - delta)", _deltas,
          "delta", each=((" in dq and dk", "dqk"), (" in dq", "dq"), (" in dk", "dk")))
def _(m, words, where):
    _delta_times(m, 0.0, where)


@backward("delta-added", "delta is added, not subtracted: dS = P * (dP + delta){0}",
          "dS = P * (dP - delta)", _deltas, "delta",
          each=(("", "dqk"), (", in dq", "dq"), (", in dk", "dk"), (", everywhere", "all")))
def _(m, words, where):
    if where == "all":
        m.delta_of = lambda o, do: -(do * o).sum(-1, keepdim=True)
    _delta_times(m, -1.0, where)


def _delta_times(m, factor: float, where: str) -> None:
    if where in ("dq", "dqk"):
        m.dq.delta = lambda delta: delta * factor
    if where in ("dk", "dqk"):
        m.dkv.delta = lambda delta: delta * factor


# o and dO (P, R, D), and the scale -> what stands in delta's place, (P, R, 1).
OTHER_DELTAS = {
    "rowsum(dO)": lambda o, do, scale: do.sum(-1, keepdim=True),
    "rowmean(dO * O)": lambda o, do, scale: (do * o).mean(-1, keepdim=True),
    "rowsum(O)": lambda o, do, scale: o.sum(-1, keepdim=True),
    "rowsum(dO * O) with the scale": lambda o, do, scale: (do * o).sum(-1, keepdim=True) * scale,
    "rowsum(O * O)": lambda o, do, scale: (o * o).sum(-1, keepdim=True),
}


@backward("delta-of-something-else", "delta is {0}, not rowsum(dO * O)", "delta = rowsum(dO * O)",
          "delta", "delta", each=tuple((what,) for what in OTHER_DELTAS))
def _(m, what):
    m.delta_of = lambda o, do: OTHER_DELTAS[what](o, do, m.scale)


@backward("delta-of-another-row", "dk takes the delta of another query{0}",
          "delta_i belongs to query i", "delta", "delta",
          each=((", the one before", 1, "first"), (", the one after", -1, "last"),
                (", the one before", 1, "wrap"), (", the one after", -1, "wrap"),
                (", the one before", 1, "zero"), (", the one after", -1, "zero"),
                (", the one before", 1, "flat"), (", the one after", -1, "flat")))
def _(m, words, by, edge):
    def moved(delta):
        if edge == "flat":  # over the borders of heads
            flat = delta.flatten()
            return flat[(torch.arange(len(flat)) - by).clamp(0, len(flat) - 1)].view_as(delta)
        index = torch.arange(m.N) - by
        if edge == "wrap":
            return delta[:, index % m.N]
        there = index.clamp(0, m.N - 1)
        return delta[:, there] * ((index == there) | (edge != "zero"))[None, :, None]
    m.dkv.delta = moved


@backward("delta-of-another-head", "dk takes the delta of the group's first query head for all",
          "delta belongs to the query head, not to the group", "dkdv calls", "delta")
def _(m):
    only(m.group > 1)
    first = torch.arange(len(m.pairs)) // m.group * m.group
    m.dkv.delta = lambda delta: delta[first]


@backward("delta-without-the-sink", "delta is divided by the weight that the sink logit left over",
          "delta = rowsum(dO * O), sink logit or not", "delta, dsink", "delta", stages=(9,))
def _(m):
    only(m.sink is not None)
    lse = m.fwd.scores().logsumexp(-1, keepdim=True)
    part = torch.exp(lse - torch.logaddexp(lse, m.sink[:, None, None]))
    m.delta_of = lambda o, do: (do * o).sum(-1, keepdim=True) / part


@backward("statistics-of-another-head", "lse and delta of (b, h) are looked up at b * HKV + h",
          "lse and delta have HQ heads a batch entry", "dkdv calls", "P",
          each=(("dkv", "both"), ("all", "both"), ("dkv", "lse"), ("dkv", "delta")))
def _(m, where, which):
    only(m.B > 1 and m.group > 1)
    at = m.b * m.HKV + m.h
    if which in ("both", "delta"):
        m.dkv.delta = lambda delta: delta[at]
    if which in ("both", "lse"):
        m.dkv.lse = lambda lse: lse[at]


def saved(id, words, line, place="lse", **more):
    """As backward, for what is wrong in the saved log-sum-exp."""
    return backward(id, words, line, place, "P", **{"stages": SAVED} | more)


@saved("lse-in-two-bases", "the backward reads lse in another base than the forward wrote it",
       "P = exp(S - lse), all in one base", each=((LN2,), (LOG2E,)))
def _(m, factor):
    m.saved_lse = lambda top, total, lse: lse * factor


@saved("lse-half-in-another-base", "lse is the maximum in base {0} plus log(l) in base {1}",
       "lse = m + log(l), both in one base", each=(("2", "e", LN2), ("e", "2", LOG2E)))
def _(m, words, other, factor):
    m.saved_lse = lambda top, total, lse: top + torch.log(total) * factor


@saved("saved-lse-is-the-max", "lse leaves the sum out: P in the backward is not normalised",
       "lse = m + log(l)")
def _(m):
    m.saved_lse = lambda top, total, lse: top


@saved("saved-lse-without-the-max", "lse leaves the maximum out", "lse = m + log(l)")
def _(m):
    m.saved_lse = lambda top, total, lse: torch.log(total)


@saved("saved-lse-in-16-bits", "lse is saved in 16 bits", "lse in float32", rounds=True,
       each=tuple((dtype, unit) for dtype in (torch.float16, torch.bfloat16, None)
                  for unit in (LOG2E, 1.0)))
def _(m, dtype, unit):
    only(dtype is not None or m.case.dtype != torch.float32)
    dtype = dtype or m.case.dtype
    m.saved_lse = lambda top, total, lse: (lse * unit).to(dtype).double() / unit


@saved("saved-lse-without-the-sink", "the saved lse leaves the sink logit out",
       "lse = log(exp(sink) + sum_j exp(S_ij))", place="lse, sink start", stages=(9,))
def _(m):
    only(m.sink is not None)
    m.saved_lse = lambda top, total, lse: m.fwd.scores().logsumexp(-1, keepdim=True)


def _recomputed(where, *_) -> str:
    """P is made again from what the walk passes on."""
    return {"dq": "dq P, dq walk", "dk and dv": "dkdv P, dkdv calls"}.get(where, "dq P, dkdv P")


@saved("backward-scores-unscaled", "{0} recomputes P without the scale",
       "P = exp(scale * Q K^T - lse)", _recomputed, stages=OWN_BACKWARD,
       each=(("dq",), ("dk and dv",), ("the backward",)))
def _(m, where):
    for walk in _walks(m, where):
        walk.scale = 1.0


@saved("backward-in-two-bases", "{0} recomputes P with exp where exp2 belongs, or the other way",
       "exp(x) = exp2(x * log2(e))", _recomputed, stages=OWN_BACKWARD,
       each=tuple((w, f) for w in ("dq", "dk and dv", "the backward") for f in (LOG2E, LN2)))
def _(m, where, factor):
    for walk in _walks(m, where):
        walk.exponent = factor


def _walks(m, where: str):
    return {"dq": (m.dq,), "dk and dv": (m.dkv,), "the backward": (m.dq, m.dkv)}[where]


@saved("backward-without-lse", "{0} recomputes P without subtracting lse", "P = exp(S - lse)",
       _recomputed, stages=OWN_BACKWARD, each=(("dq", "dq"), ("dk and dv", "dkv")))
def _(m, words, walk):
    getattr(m, walk).lse = torch.zeros_like
