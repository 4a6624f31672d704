"""The online softmax, its end, its rounding, and learned sink logits."""

import math

import torch

from grader.naming.model import Model, best_factor
from grader.naming.online import Online, Tile, as_it_is, rescaled
from grader.naming.rounding import CHOPPED, to_16_bits, to_32_bits
from grader.naming.table import LN2, LOG2E, WINDOWED, mask, mistake, only


def online(id, words, line, place="sums", tiles="n", **more):
    """As mistake, for a change of Online."""
    return mistake(id, words, line, place, slot="online", tiles=tiles, **more)


# ------------------------------------------------------------------ rescaling
@online("acc-not-rescaled", "acc is not multiplied by alpha when the maximum grows",
        "acc = alpha acc + P V, alpha = exp(m_old - m_new)", each=((None,), ("phase 2",)))
def _(m, where):
    m.online = Online(alpha_acc=_alpha(m, none_but_the_first, where))


@online("l-not-rescaled", "l is not multiplied by alpha when the maximum grows",
        "l = alpha l + rowsum(P), alpha = exp(m_old - m_new)")
def _(m):
    m.online = Online(alpha_l=_alpha(m, none_but_the_first))


@online("nothing-rescaled", "neither acc nor l is multiplied by alpha",
        "alpha = exp(m_old - m_new) for both", "softmax, sums", tiles="mn",
        each=((None,), ("phase 2",)))
def _(m, where):
    _both_alphas(m, none_but_the_first, where)


@online("alpha-inverted", "alpha is upside down: exp(m_new - m_old)",
        "alpha = exp(m_old - m_new), never above 1", "softmax")
def _(m):
    _both_alphas(m, lambda t: torch.where(
        t.old == -torch.inf, 0.0, to_32_bits(torch.exp(t.new - t.old))))


@online("alpha-in-another-base", "alpha and the weights use different bases",
        "exp2 for both, or exp for both", "softmax", each=((LN2,), (LOG2E,)))
def _(m, factor):
    _both_alphas(m, lambda t: torch.where(
        t.old == -torch.inf, 0.0, torch.exp((t.old - t.new) * factor)))


@online("small-rescales-skipped", "alpha is left out where the maximum grows only little",
        "alpha = exp(m_old - m_new) every time", "softmax",
        each=((0.01,), (0.01 * LN2,), (0.1,), (1.0,)))
def _(m, below):
    _both_alphas(m, lambda t: torch.where(t.new - t.old < below, 1.0, t.alpha))


@online("rescaled-after-adding", "alpha multiplies the new tile's share as well",
        "acc = alpha acc + P V", each=(("spared",), ("lost",)))
def _(m, first_tile):
    def late(acc, share, alpha, t):
        sums = to_32_bits(alpha * (acc + share))
        return torch.where(t.old == -torch.inf, share, sums) if first_tile == "spared" else sums
    m.online = Online(add_acc=late)


@online("alpha-on-the-new-sum", "alpha multiplies what is new, not what was summed before",
        "l = alpha l + rowsum(P), acc = alpha acc + P V", each=(("l",), ("acc",), ("both",)))
def _(m, which):
    def swapped(old, new, alpha, t):
        return old + alpha * new
    m.online = Online(add_l=rescaled if which == "acc" else swapped,
                      add_acc=rescaled if which == "l" else swapped)


@mistake("divided-by-the-max", "the output is divided by the maximum, not by the sum",
         "O = acc / l", "normalise", slot="finish")
def _(m):
    m.finish = lambda acc, total, top: acc / top


def none_but_the_first(t: Tile):
    """alpha is 1, but for the first tile, where there is nothing to rescale."""
    return torch.where(t.old == -torch.inf, t.alpha, torch.ones_like(t.alpha))


def _alpha(m: Model, wrong, where=None):
    """A wrong alpha(tile), everywhere or in phase 2 alone."""
    only(m.NK + m.pad > m.BN or m.sink is not None)
    if where is None:
        return wrong
    only(m.causal)
    return lambda t: torch.where((t.lo >= m.fwd.diag)[None], wrong(t), t.alpha)


def _both_alphas(m: Model, wrong, where=None) -> None:
    alpha = _alpha(m, wrong, where)
    m.online = Online(alpha_l=alpha, alpha_acc=alpha)


# ---------------------------------------------------------------- the maximum
def maximum(id, words, line, tiles="mn", **more):
    """As mistake, for the maximum that is subtracted; the function says tile -> m.

    Small weights lose digits where they are rounded for their product with v.
    """
    def add(maximum_of):
        def change(m, *values):
            m.online = Online(maximum=maximum_of(m, *values), to_values=_in_own_dtype(m))
        return online(id, words, line, "softmax", tiles, shows="overflow", **more)(change)
    return add


def _in_own_dtype(m: Model):
    """Rounds weights as a kernel does for their product with v; stage 1 need not."""
    return as_it_is if m.case.stage == 1 else lambda w: w.to(m.case.dtype).double()


@online("max-not-running", "the maximum is that of the tile, not the largest so far",
        "m_new = max(m_old, rowmax(S_tile))", "softmax", shows="overflow", tiles="mn",
        each=(("tile", None), ("tile", "none")))
def _(m, kind, rescaling):
    alpha = none_but_the_first if rescaling == "none" else Online.alpha_l
    m.online = Online(maximum=lambda t: t.top, to_values=_in_own_dtype(m),
                      alpha_l=alpha, alpha_acc=alpha)


@maximum("max-of-the-first-tile", "the maximum stays that of the first tile",
         "m_new = max(m_old, rowmax(S_tile))")
def _(m):
    return lambda t: torch.where(t.old == -torch.inf, t.top, t.old)


@maximum("max-over-the-block", "one maximum serves all rows of the tile", "m is one number a row",
         whole="all", each=(("block",), ("blocks",)))
def _(m, kind):
    only(kind == "block" or m.case.stage == 1)  # of all heads: where one line computes them all

    def of_the_block(t):
        highest = torch.empty_like(t.top)
        for start in range(0, m.N, m.BM):
            rows = slice(start, start + m.BM)
            most = t.top[:, rows].amax((1,) if kind == "block" else (0, 1), keepdim=True)
            if start + m.BM > m.N and m.case.stage > 1:  # rows past the end score 0
                most = most.clamp(min=0.0)
            highest[:, rows] = most
        return torch.maximum(t.old, highest)
    return of_the_block


@maximum("max-of-magnitudes", "the maximum is that of |S|", "m = max(S), which may be negative",
         tiles="n")
def _(m):
    return lambda t: torch.maximum(
        t.old, torch.where(t.s > -torch.inf, t.s.abs(), t.s).amax(-1, keepdim=True))


# What the scores are multiplied with beside the scale: log2(e) where exp2 follows.
UNITS = {"unscaled": 1.0, "unscaled2": LOG2E, "unscaled2, q doubled": LOG2E / 2}


@maximum("max-not-scaled", "the maximum of the raw scores is subtracted from the scaled ones",
         "both in the same units: scale them first", tiles="n", each=tuple((u,) for u in UNITS))
def _(m, unit):
    return lambda t: torch.maximum(t.old, t.top / (m.fwd.scale * UNITS[unit]))


@maximum("max-of-hidden-keys", "the maximum is taken before the mask",
         "mask first, then the maximum", each=(("hidden",), ("exist",), ("zero",)))
def _(m, which):
    if which == "zero":  # a padded or hidden key's 0 joins the maximum
        return lambda t: torch.maximum(t.old, torch.where(
            (t.s == -torch.inf) & t.walked, 0.0, t.s).amax(-1, keepdim=True))
    seen = m.fwd.walked if which == "hidden" else m.fwd.walked & (m.keys < m.NK)
    raw = (m.fwd.products() * m.fwd.scale).masked_fill(~seen, -torch.inf)
    return lambda t: torch.maximum(t.old, raw[..., t.lo:t.lo + m.BN].amax(-1, keepdim=True))


@maximum("no-max", "no maximum is subtracted before exp", "P = exp(S - m)", tiles="n")
def _(m):
    return lambda t: torch.zeros_like(t.old)


@online("max-starts-at-zero", "m starts at 0 instead of -inf", "m = -inf before the first key",
        "softmax", shows="overflow")
def _(m):
    m.online = Online(start=0.0, to_values=_in_own_dtype(m))


@online("no-pivot", "-inf - (-inf) is NaN for a row that has seen no key yet",
        "subtract 0 where m is still -inf", "softmax", shows="nan", stages=WINDOWED, tiles="mn")
def _(m):
    def alpha(t):
        return torch.where((t.old == -torch.inf) & (t.new == -torch.inf), torch.nan, t.alpha)
    m.online = Online(pivot=as_it_is, alpha_l=alpha, alpha_acc=alpha)


@online("weights-of-the-old-max", "the weights are taken against the old maximum",
        "P = exp(S - m_new)", "softmax")
def _(m):
    m.online = Online(against=lambda t: torch.where(t.old > -torch.inf, t.old, t.new))


# -------------------------------------------------------------------- the end
@mistake("mean-of-values", "all weights are alike: the output is the mean of the values",
         "P = softmax(S)", "scores, softmax", slot="scale")
def _(m):
    m.set_scale(0.0)


@mistake("not-normalised", "the output is not divided by l", "O = acc / l", "normalise",
         slot="finish")
def _(m):
    m.finish = lambda acc, total, top: acc


@mistake("l-plus-something", "something is added to l before the division: {extra:.2g}",
         "O = acc / l", "normalise, sums", slot="finish", fitted=True)
def _(m):
    only("o" in m.got)

    def finish(acc, total, top):
        x = m.got["o"]
        good = torch.isfinite(x)
        only(bool(good.any()))
        extra = float(((acc - x * total) * x)[good].sum() / x.square()[good].sum())
        m.found["extra"] = extra
        return acc / (total + extra)
    m.finish = finish


@mistake("output-off-by-a-factor", "the output is {factor:.4g} times what it should be",
         "O = acc / l, nothing else", "normalise", slot="finish", fitted=True)
def _(m):
    only("o" in m.got)

    def finish(acc, total, top):
        o = acc / total
        m.found["factor"] = factor = best_factor(m.got["o"], o)
        return o * (factor if factor else 1.0)
    m.finish = finish


@mistake("values-scaled", "the values are multiplied by the scale as well: O / sqrt(D)",
         "O = softmax(S) V", "sums, normalise", slot="finish")
def _(m):
    m.value_factor = m.scale


@mistake("zeros", "the output is zero", "O = softmax(S) V", "normalise, sums", slot="finish")
def _(m):
    m.value_factor = 0.0


@mask("copy-of-values", "row i of the output is value i: each query sees itself alone",
      "O = softmax(S) V", "mask, walk", slot="mask")
def _(p):
    only(p.N == p.NK and not (p.stage == 9 and p.window is None))
    p.keep = p.keep & (p.i == p.j)


@mistake("some-sums-left-out", "l leaves out some columns of the tile", "l adds up every weight",
         "sums", slot="finish", each=((8, 7),))
def _(m, every, left):
    columns = torch.arange(m.NK) % every != left
    m.sum_keep = columns[None].double().expand(len(m.rows), -1)


@online("small-weights-dropped", "small weights do not reach the values", "O = sum_j P_ij v_j",
        each=((0.01,), (0.001,)))
def _(m, below):
    m.online = Online(to_values=lambda w: torch.where(w > below, w, 0.0))


# ------------------------------------------------------------------- rounding
@online("acc-in-16-bits", "acc is kept in 16 bits", "acc and l in float32, rounded once at the "
        "store",
        each=((torch.float16,), (torch.bfloat16,), (CHOPPED,), (None,)), rounds=True)
def _(m, dtype):
    m.online = Online(add_acc=_rounded(m, dtype), to_values=_in_own_dtype(m))


@online("l-in-16-bits", "l is kept in 16 bits", "acc and l in float32", rounds=True,
        each=tuple((dtype, lanes) for dtype in (torch.float16, torch.bfloat16, CHOPPED, None)
                   for lanes in (1, 8)))
def _(m, dtype, lanes):
    m.online = Online(add_l=_rounded(m, dtype), lanes=lanes)


def _rounded(m: Model, dtype):
    """A sum that is rounded after every tile, to dtype or that of the inputs."""
    only(dtype is not None or m.case.dtype != torch.float32)
    return lambda *sums: to_16_bits(rescaled(*sums), dtype or m.case.dtype)


@online("weights-in-16-bits", "the weights are rounded to 16 bits or fewer, though v has more",
        "round P to the dtype of v, no further", "softmax",
        each=((torch.float16,), (torch.bfloat16,), (CHOPPED,), (256,)), rounds=True)
def _(m, dtype):
    only(dtype == 256 or m.case.dtype == torch.float32)
    m.online = Online(weights=lambda w: torch.round(w * 256) / 256 if dtype == 256
                      else to_16_bits(w, dtype))


@mistake("scores-in-16-bits", "the scores are rounded to 16 bits before the softmax",
         "S in float32", "scores", slot="scale",
         each=((torch.float16, True), (torch.float16, False), (torch.bfloat16, False)), rounds=True)
def _(m, dtype, raw):
    unit = m.scale if raw else 1.0
    m.fwd.changes.append(lambda s: (s / unit).to(dtype).double() * unit)


def _whose_digits(names, _) -> str:
    return {"v": "sums", "qk": "scores"}.get(names, "load")


@mistake("inputs-in-fewer-bits", "inputs are rounded to fewer bits than they have",
         "tiles keep the dtype they were loaded in", _whose_digits, slot="inputs",
         each=(("v", torch.float16), ("qk", torch.float8_e4m3fn), ("v", torch.bfloat16),
               ("qk", torch.float16), ("qk", torch.bfloat16), ("qkv", torch.float16)))
def _(m, names, dtype):
    only(m.case.dtype == torch.float32 or dtype == torch.float8_e4m3fn)
    m.inputs = m.inputs | {n: m.inputs[n].to(dtype).double() for n in names}


# ----------------------------------------------------------------- sink logits
@mistake("sink-logits-ignored", "the sink logits have no effect",
         "lse = log(exp(sink) + sum_j exp(S_ij))", "sink start", slot="sink logits", stages=(9,))
def _(m):
    only(m.sink is not None)
    m.sink = None


# Model and the logits (HQ,) -> the logit of each pair of batch entry and head, (P,).
SINK_LOGITS = {
    "is taken to be in base 2": lambda m, logits: m.sink * LN2,
    "counts twice: l begins at exp(sink) beside an m that holds it": lambda m, logits: 2 * m.sink,
    "counts eight times": lambda m, logits: m.sink + math.log(8),
    "is multiplied by the scale": lambda m, logits: m.sink * m.scale,
    "moves the maximum but does not join the sum": lambda m, logits: None,
    "is that of the key/value head": lambda m, logits: logits[m.h // m.group],
    "is that of head 0": lambda m, logits: logits[torch.zeros_like(m.h)],
    "has the wrong sign": lambda m, logits: -m.sink,
}


@mistake("sink-logit-wrong", "the sink logit {0}", "exp(sink_h) joins the denominator, once",
         "sink start", slot="sink logits", stages=(9,), each=tuple((how,) for how in SINK_LOGITS))
def _(m, how):
    only(m.sink is not None)
    m.sink = SINK_LOGITS[how](m, m.built.tensors["sink_logits"].double())


@mistake("sink-logits-strides", "sink_logits are read as if they lay side by side",
         "a column of a matrix has a stride", "", slot="sink logits", stages=(9,))
def _(m):
    only(m.sink is not None)
    sent = m.built.call.inputs["sink_logits"]
    only(sent.stride != (1,))
    near = sent.storage.as_strided(sent.shape, (1,), sent.offset).double()
    m.sink = near[m.h]
