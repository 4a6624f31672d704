"""The online softmax, its end, its rounding, and learned sink logits."""

import math

import torch

from grader.naming.model import CHOPPED, Model, to_16_bits
from grader.naming.table import LN2, LOG2E, WINDOWED, mistake, only
from grader.naming.walks import INF, NotHere


# -------------------------------------------------------------------- softmax
@mistake("acc-not-rescaled", "acc is not multiplied by alpha when the maximum grows",
         "acc = alpha acc + P V, alpha = exp(m_old - m_new)", "rescale", slot="online", tiles="n",
         each=((None,), ("phase 2",)))
def _(m, where):
    _alpha(m, lambda a, old, new, lo: (_first(a, old), a), where)


@mistake("l-not-rescaled", "l is not multiplied by alpha when the maximum grows",
         "l = alpha l + rowsum(P), alpha = exp(m_old - m_new)", "rescale", slot="online",
         tiles="n")
def _(m):
    _alpha(m, lambda a, old, new, lo: (a, _first(a, old)))


@mistake("nothing-rescaled", "neither acc nor l is multiplied by alpha",
         "alpha = exp(m_old - m_new) for both", "rescale", slot="online", tiles="mn",
         each=((None,), ("phase 2",)))
def _(m, where):
    _alpha(m, lambda a, old, new, lo: (_first(a, old), _first(a, old)), where)


@mistake("alpha-inverted", "alpha is upside down: exp(m_new - m_old)",
         "alpha = exp(m_old - m_new), never above 1", "rescale", slot="online", tiles="n")
def _(m):
    def inverted(a, old, new, lo):
        a = torch.where(old == -INF, 0.0, torch.exp(new - old).float().double())
        return a, a
    _alpha(m, inverted)


@mistake("alpha-in-another-base", "alpha and the weights use different bases",
         "exp2 for both, or exp for both", "rescale", slot="online", tiles="n",
         each=((LN2,), (LOG2E,)))
def _(m, factor):
    def other(a, old, new, lo):
        a = torch.where(old == -INF, 0.0, torch.exp((old - new) * factor))
        return a, a
    _alpha(m, other)


@mistake("small-rescales-skipped", "alpha is left out where the maximum grows only little",
         "alpha = exp(m_old - m_new) every time", "rescale", slot="online", tiles="n",
         each=((0.01,), (0.01 * LN2,), (0.1,), (1.0,)))
def _(m, below):
    def skip(a, old, new, lo):
        a = torch.where(new - old < below, 1.0, a)
        return a, a
    _alpha(m, skip)


@mistake("rescaled-after-adding", "alpha multiplies the new tile's share as well",
         "acc = alpha acc + P V", "rescale", slot="online", tiles="n",
         each=(("spared",), ("lost",)))
def _(m, first_tile):
    m.online["late_alpha"] = first_tile


@mistake("alpha-on-the-new-sum", "alpha multiplies what is new, not what was summed before",
         "l = alpha l + rowsum(P), acc = alpha acc + P V", "rescale", slot="online", tiles="n",
         each=(("l",), ("acc",), ("both",)))
def _(m, which):
    m.online["new_alpha"] = which


@mistake("divided-by-the-max", "the output is divided by the maximum, not by the sum",
         "O = acc / l", slot="finish")
def _(m):
    m.finish = lambda acc, total, top: acc / top


def _first(alpha, old):
    """1, but for the first tile, where there is nothing to rescale."""
    return torch.where(old == -INF, alpha, torch.ones_like(alpha))


def _alpha(m: Model, change, where=None) -> None:
    p = m.fwd
    if m.NK + m.pad <= m.BN and m.sink is None:
        raise NotHere
    if where == "phase 2":
        if not m.causal:
            raise NotHere

        def some(a, old, new, tile):
            changed = change(a, old, new, tile)
            on = (tile * m.BN >= p.diag)[None]
            return tuple(torch.where(on, c, a) for c in changed)
        m.online["alpha"] = some
    else:
        m.online["alpha"] = change


@mistake("max-not-running", "the maximum is that of the tile, not the largest so far",
         "m_new = max(m_old, rowmax(S_tile))", "overflow", slot="online", tiles="mn",
         each=(("tile", None), ("tile", "none")))
def _(m, kind, alpha):
    m.online["max"] = kind
    if alpha:
        m.online["alpha"] = lambda a, old, new, lo: (_first(a, old), _first(a, old))


@mistake("max-of-the-first-tile", "the maximum stays that of the first tile",
         "m_new = max(m_old, rowmax(S_tile))", "overflow", slot="online", tiles="mn")
def _(m):
    m.online["max"] = "first"


@mistake("max-over-the-block", "one maximum serves all rows of the tile",
         "m is one number a row", "overflow", slot="online", tiles="mn", whole="all",
         each=(("block",), ("blocks",)))
def _(m, kind):
    if kind == "blocks" and m.case.stage > 1:  # of all heads: where one line computes them all
        raise NotHere
    m.online["max"] = kind


@mistake("max-of-magnitudes", "the maximum is that of |S|", "m = max(S), which may be negative",
         "overflow", slot="online", tiles="n")
def _(m):
    m.online["max"] = "abs"


@mistake("max-not-scaled", "the maximum of the raw scores is subtracted from the scaled ones",
         "both in the same units: scale them first", "overflow", slot="online", tiles="n",
         each=(("unscaled",), ("unscaled2",), ("unscaled2, q doubled",)))
def _(m, kind):
    m.online["max"] = kind


@mistake("max-of-hidden-keys", "the maximum is taken before the mask",
         "mask first, then the maximum", "overflow", slot="online", tiles="mn",
         each=(("hidden",), ("exist",), ("zero",)))
def _(m, kind):
    m.online["max"] = kind


@mistake("no-max", "no maximum is subtracted before exp", "P = exp(S - m)", "overflow",
         slot="online", tiles="n")
def _(m):
    m.online["max"] = "none"


@mistake("max-starts-at-zero", "m starts at 0 instead of -inf", "m = -inf before the first key",
         "overflow", slot="online", tiles="n")
def _(m):
    m.online["max"] = "start0"


@mistake("no-pivot", "-inf - (-inf) is NaN for a row that has seen no key yet",
         "subtract 0 where m is still -inf", "nan", slot="online", stages=WINDOWED, tiles="mn")
def _(m):
    m.online["pivot"] = False

    def alpha(a, old, new, tile):
        bad = torch.where((old == -INF) & (new == -INF), torch.nan, a)
        return bad, bad
    m.online["alpha"] = alpha


@mistake("weights-of-the-old-max", "the weights are taken against the old maximum",
         "P = exp(S - m_new)", "rescale", slot="online", tiles="n")
def _(m):
    m.online["weights"] = "old"


@mistake("mean-of-values", "all weights are alike: the output is the mean of the values",
         "P = softmax(S)", slot="scale")
def _(m):
    m.set_scale(0.0)


@mistake("not-normalised", "the output is not divided by l", "O = acc / l", slot="finish")
def _(m):
    m.finish = lambda acc, total, top: acc


@mistake("l-plus-something", "something is added to l before the division: {extra:.2g}",
         "O = acc / l", slot="finish", fitted=True)
def _(m):
    if m.got is None:
        raise NotHere

    def finish(acc, total, top):
        x = m.got
        good = torch.isfinite(x)
        if not bool(good.any()):
            raise NotHere
        extra = float(((acc - x * total) * x)[good].sum() / x.square()[good].sum())
        m.found["extra"] = extra
        return acc / (total + extra)
    m.finish = finish


@mistake("output-off-by-a-factor", "the output is {factor:.4g} times what it should be",
         "O = acc / l, nothing else", slot="finish", fitted=True)
def _(m):
    if m.got is None:
        raise NotHere

    def finish(acc, total, top):
        o = acc / total
        good = torch.isfinite(m.got) & torch.isfinite(o)
        factor = float((m.got * o)[good].sum() / o.square()[good].sum().clamp_min(1e-30))
        m.found["factor"] = factor
        return o * (factor if factor else 1.0)
    m.finish = finish


@mistake("values-scaled", "the values are multiplied by the scale as well: O / sqrt(D)",
         "O = softmax(S) V", slot="finish")
def _(m):
    m.value_factor = m.scale


@mistake("zeros", "the output is zero", "O = softmax(S) V", slot="finish")
def _(m):
    m.value_factor = 0.0


@mistake("copy-of-values", "row i of the output is value i: each query sees itself alone",
         "O = softmax(S) V", slot="mask", kind="mask")
def _(p):
    only(p, p.model.N == p.model.NK and not (p.model.case.stage == 9 and p.model.window is None))
    p.keep = p.keep & (p.i == p.j)


@mistake("some-sums-left-out", "l leaves out some columns of the tile", "l adds up every weight",
         slot="finish", each=((8, 7),))
def _(m, every, left):
    columns = torch.arange(m.NK) % every != left
    m.sum_keep = columns[None].double().expand(len(m.rows), -1)


@mistake("small-weights-dropped", "small weights do not reach the values", "O = sum_j P_ij v_j",
         "rescale", slot="online", tiles="n", each=((0.01,), (0.001,)))
def _(m, below):
    m.online["drop"] = below

# ------------------------------------------------------------------- rounding
@mistake("acc-in-16-bits", "acc is kept in 16 bits", "acc and l in float32, rounded once at the "
         "store", "numbers", slot="online", tiles="n",
         each=((torch.float16,), (torch.bfloat16,), (CHOPPED,), (None,)), rounds=True)
def _(m, dtype):
    m.online["round_acc"] = _or_own(m, dtype)


@mistake("l-in-16-bits", "l is kept in 16 bits", "acc and l in float32", "numbers", slot="online",
         tiles="n", rounds=True,
         each=tuple((dtype, lanes) for dtype in (torch.float16, torch.bfloat16, CHOPPED, None)
                    for lanes in (1, 8)))
def _(m, dtype, lanes):
    m.online["round_l"] = _or_own(m, dtype)
    m.online["lanes"] = lanes


def _or_own(m, dtype):
    """dtype, or that of the inputs."""
    if dtype is None and m.case.dtype == torch.float32:
        raise NotHere
    return dtype or m.case.dtype


@mistake("weights-in-16-bits", "the weights are rounded to 16 bits or fewer, though v has more",
         "round P to the dtype of v, no further", "numbers", slot="online", tiles="n",
         each=((torch.float16,), (torch.bfloat16,), (CHOPPED,), (256,)), rounds=True)
def _(m, dtype):
    if dtype == 256:
        m.online["round_p"] = lambda w: torch.round(w * 256) / 256
    elif m.case.dtype != torch.float32:
        raise NotHere
    else:
        m.online["round_p"] = lambda w: to_16_bits(w, dtype)


@mistake("scores-in-16-bits", "the scores are rounded to 16 bits before the softmax",
         "S in float32", "numbers", slot="scale",
         each=((torch.float16, True), (torch.float16, False), (torch.bfloat16, False)), rounds=True)
def _(m, dtype, raw):
    scores, unit = m.fwd.scores, m.scale if raw else 1.0
    m.fwd.scores = lambda: (scores() / unit).to(dtype).double() * unit


@mistake("inputs-in-fewer-bits", "inputs are rounded to fewer bits than they have",
         "tiles keep the dtype they were loaded in", "numbers", slot="inputs",
         each=(("v", torch.float16), ("qk", torch.float8_e4m3fn), ("v", torch.bfloat16),
               ("qk", torch.float16), ("qk", torch.bfloat16), ("qkv", torch.float16)))
def _(m, names, dtype):
    if m.case.dtype != torch.float32 and dtype != torch.float8_e4m3fn:
        raise NotHere
    m.inputs = m.inputs | {n: m.inputs[n].to(dtype).double() for n in names}

# ----------------------------------------------------------------- sink logits
@mistake("sink-logits-ignored", "the sink logits have no effect",
         "lse = log(exp(sink) + sum_j exp(S_ij))", "numbers", slot="sink logits", stages=(9,))
def _(m):
    _has_logits(m)
    m.sink = None


@mistake("sink-logit-wrong", "the sink logit {0}", "exp(sink_h) joins the denominator, once",
         "numbers", slot="sink logits", stages=(9,),
         each=(("is taken to be in base 2",), ("counts eight times",), ("is multiplied by the "
               "scale",), ("moves the maximum but does not join the sum",),
               ("is that of the key/value head",), ("is that of head 0",),
               ("has the wrong sign",)))
def _(m, how):
    _has_logits(m)
    b, h = m.pairs.unbind(1)
    logits = m.built.tensors["sink_logits"].double()
    if how == "is taken to be in base 2":
        m.sink = m.sink * LN2
    elif how == "counts eight times":
        m.sink = m.sink + math.log(8)
    elif how == "is multiplied by the scale":
        m.sink = m.sink * m.scale
    elif how == "has the wrong sign":
        m.sink = -m.sink
    elif how == "moves the maximum but does not join the sum":
        m.sink = None
    else:
        m.sink = logits[h // m.group if "key" in how else torch.zeros_like(h)]


@mistake("sink-logits-strides", "sink_logits are read as if they lay side by side",
         "a column of a matrix has a stride", "stride", slot="sink logits", stages=(9,))
def _(m):
    _has_logits(m)
    sent = m.built.call.inputs["sink_logits"]
    if sent.stride == (1,):
        raise NotHere
    near = sent.storage.as_strided(sent.shape, (1,), sent.offset).double()
    m.sink = near[m.pairs[:, 1]]


def _has_logits(m: Model) -> None:
    if m.sink is None:
        raise NotHere
