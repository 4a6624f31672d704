"""The online softmax with one of its statistics taken at another moment, of another part, or in
another unit: what the weights subtract, alpha, what is carried on, both sums, the end."""

from dataclasses import replace

import torch

from grader.naming.mistakes.softmax import _in_own_dtype
from grader.naming.online import Online, rescaled
from grader.naming.rounding import CHOPPED, to_16_bits, to_32_bits
from grader.naming.table import LN2, LOG2E, mistake, only


def statistic(id, words, line, place="softmax", tiles="n", **more):
    """As mistake, for a change of the online softmax: the function gets a Model and makes it."""
    return mistake(id, words, line, place, slot="online", tiles=tiles, composed=True, **more)


TOPS = {"the maximum so far": lambda t: t.new, "the maximum before this tile": lambda t: t.old,
        "the maximum of this tile alone": lambda t: t.top}


def _finite(x, t):
    return torch.where(x == -torch.inf, t.new, x)


@statistic("weights-against", "the weights are exp(S - m) with {0} for m", "P = exp(S - m_new)",
           each=(("the maximum of this tile alone",), ("the smallest score of the tile",),
                 ("the mean score of the tile",)))
def _(m, which):
    against = {"the maximum of this tile alone": lambda t: _finite(t.top, t),
               "the smallest score of the tile": lambda t: torch.where(
                   t.s == -torch.inf, torch.inf, t.s).amin(-1, keepdim=True),
               "the mean score of the tile": lambda t: t.s.mean(-1, keepdim=True)}[which]
    m.online = Online(against=against)


@statistic("alpha-of", "alpha is exp(a - b) with {0} for a and {1} for b",
           "alpha = exp(m_old - m_new)",
           each=tuple((a, b) for a in TOPS for b in TOPS if a != b and (a, b) != (
               "the maximum before this tile", "the maximum so far")))
def _(m, a, b):
    def alpha(t):
        x = to_32_bits(torch.exp(TOPS[a](t) - TOPS[b](t)))
        return torch.where(t.old == -torch.inf, 0.0, x)
    m.online = Online(alpha_l=alpha, alpha_acc=alpha)


@statistic("alpha-power", "alpha is exp({1} (m_old - m_new)){0}", "alpha = exp(m_old - m_new)",
           each=tuple((where, name, which) for name in ("scale", "1 / scale", "2", "1 / 2", "ln 2 "
                                                        "scale", "log2(e) scale")
                      for where, which in (("", "both"), (", for l", "l"), (", for acc", "acc"))))
def _(m, words, power, which):
    factor = {"scale": m.scale, "1 / scale": 1 / m.scale, "2": 2.0, "1 / 2": 0.5,
              "ln 2 scale": LN2 * m.scale, "log2(e) scale": LOG2E * m.scale}[power]

    def alpha(t):
        return torch.where(t.old == -torch.inf, 0.0, torch.exp((t.old - t.new) * factor))
    m.online = Online(alpha_l=Online.alpha_l if which == "acc" else alpha,
                      alpha_acc=Online.alpha_acc if which == "l" else alpha)


@statistic("weights-in-another-unit", "the weights are exp({0}), though m is in the unit of alpha",
           "P = exp(S - m), with S and m in one unit", tiles="n", each=tuple((name,) for name in (
               "S - scale m", "S - scale log2(e) m", "S - log2(e) m", "S - ln 2 m", "S - m / scale",
               "S - 2 m", "S + m", "(S - m) ln 2", "(S - m) log2(e)", "scale (S - m)",
               "scale S - m", "S / scale - m", "S ln 2 - m", "S log2(e) - m")))
def _(m, formula):
    c = m.scale
    s_times, m_times = {
        "S - scale m": (1, c), "S - scale log2(e) m": (1, c * LOG2E), "S - log2(e) m": (1, LOG2E),
        "S - ln 2 m": (1, LN2), "S - m / scale": (1, 1 / c), "S - 2 m": (1, 2), "S + m": (1, -1),
        "(S - m) ln 2": (LN2, LN2), "(S - m) log2(e)": (LOG2E, LOG2E), "scale (S - m)": (c, c),
        "scale S - m": (c, 1), "S / scale - m": (1 / c, 1), "S ln 2 - m": (LN2, 1),
        "S log2(e) - m": (LOG2E, 1)}[formula]
    m.online = Online(weight_of=lambda s, top: torch.exp(s * s_times - top * m_times))


@statistic("max-carried", "what is carried on as the maximum is {0}", "m = m_new from tile to tile",
           each=(("the maximum before this tile",), ("the maximum of this tile alone",),
                 ("the smaller of both",), ("the sum of both",)))
def _(m, which):
    carried = {"the maximum before this tile": lambda t: torch.where(
                   t.old == -torch.inf, -torch.inf, t.old),
               "the maximum of this tile alone": lambda t: t.top,
               "the smaller of both": lambda t: torch.minimum(t.old, t.top),
               "the sum of both": lambda t: t.old + t.top}[which]
    m.online = Online(carried=carried)


@statistic("max-of", "the maximum is {0}", "m_new = max(m_old, rowmax(S_tile))",
           shows="overflow", each=tuple((how,) for how in (
               "scaled as a whole, though m_old is scaled", "the smaller of both",
               "max(m_old, S) with S not in base 2", "max(m_old, S) with S in base 2 twice",
               "max(m_old, S) with S scaled twice", "taken of the mean score",
               "taken of the sum of both", "taken of the first score of the tile",
               "taken of the smallest score of the tile", "0 or more")))
def _(m, how):
    c = m.scale
    top = {
        "scaled as a whole, though m_old is scaled":
            lambda t: torch.maximum(t.old * LOG2E, t.top / c) * c,
        "the smaller of both": lambda t: torch.where(t.old == -torch.inf, t.top,
                                                     torch.minimum(t.old, t.top)),
        "max(m_old, S) with S not in base 2": lambda t: torch.maximum(t.old, t.top * LN2),
        "max(m_old, S) with S in base 2 twice": lambda t: torch.maximum(t.old, t.top * LOG2E),
        "max(m_old, S) with S scaled twice": lambda t: torch.maximum(t.old, t.top * c),
        "taken of the mean score": lambda t: torch.maximum(t.old, torch.where(
            t.s == -torch.inf, 0.0, t.s).mean(-1, keepdim=True)),
        "taken of the sum of both": lambda t: torch.where(t.old == -torch.inf, t.top,
                                                          t.old + t.top),
        "taken of the first score of the tile": lambda t: torch.maximum(t.old, t.s[..., :1]),
        "taken of the smallest score of the tile": lambda t: torch.maximum(t.old, torch.where(
            t.s == -torch.inf, torch.inf, t.s).amin(-1, keepdim=True)),
        "0 or more": lambda t: torch.maximum(t.old, t.top).clamp(min=0.0)}[how]
    m.online = Online(maximum=top, to_values=_in_own_dtype(m))


@statistic("over-the-queries", "{0} over the queries of the tile, not over its keys",
           "m = max_j S_ij, l = sum_j P_ij: one number a query", tiles="mn", whole="rows",
           each=(("l sums",), ("the maximum is taken",)))
def _(m, which):
    only(m.BM == m.BN and m.rows.numel() == m.N and (m.NK > m.BN or m.case.stage > 1))
    m.take_rows(torch.arange(-(-m.N // m.BM) * m.BM))

    def crossed(x, reduce, fill):  # (P, R, T) -> (P, R, 1): row r gets column r of its tile
        x = torch.nn.functional.pad(x, (0, m.BN - x.shape[2]), value=fill)
        return reduce(x.unflatten(1, (-1, m.BM)), 2).flatten(1)[..., None]
    if which == "l sums":
        m.online = Online(sum_of=lambda w: crossed(w, torch.sum, 0.0))
    else:
        m.online = Online(maximum=lambda t: torch.maximum(
            t.old, crossed(t.s, torch.amax, -torch.inf)), to_values=_in_own_dtype(m))
    m.after = lambda out: {name: x[:, :m.N] for name, x in out.items()}


@statistic("l-of", "l adds up {0}", "l = alpha l + rowsum(P)", "sums", each=(
    ("the mean of the weights, not their sum",), ("the largest weight, not their sum",),
    ("squared weights",), ("one a key, not its weight",)))
def _(m, which):
    sum_of = {"the mean of the weights, not their sum":
              lambda w: torch.nn.functional.pad(w, (0, m.BN - w.shape[2])).mean(-1, keepdim=True),
              "the largest weight, not their sum": lambda w: w.amax(-1, keepdim=True),
              "squared weights": lambda w: w.square().sum(-1, keepdim=True),
              "one a key, not its weight": lambda w: (w > 0).double().sum(-1, keepdim=True)}[which]
    m.online = Online(sum_of=sum_of)


@statistic("late-alpha", "alpha multiplies the new tile's share as well, in {0}",
           "l = alpha l + rowsum(P), acc = alpha acc + P V", "sums", each=tuple(
               (which, first) for which in ("l", "l and acc") for first in ("spared", "lost")))
def _(m, which, first):
    def late(old, new, alpha, t):
        sums = alpha * (old + new)  # alpha is 0 in the first tile
        return torch.where(t.old == -torch.inf, new, sums) if first == "spared" else sums
    m.online = Online(add_l=late, add_acc=late if which == "l and acc" else rescaled)


@statistic("l-and-alpha-late", "{0}", "l and acc take the same alpha", "sums", each=(
    ("acc takes the alpha of the tile before", "acc"), ("l takes the alpha of the tile before",
                                                        "l")))
def _(m, words, which):
    before = {}

    def late(t):
        alpha = before.get(t.lo - m.BN, torch.ones_like(t.alpha))
        before[t.lo] = t.alpha
        return alpha
    m.online = replace(Online(), **{"alpha_" + which: late})


@statistic("normalised-early", "acc is divided by l after every tile{0}", "O = acc / l, once, "
           "after the last tile", "sums, normalise",
           each=((", and again at the end", True), (", and not at the end", False)))
def _(m, words, again):
    sums = {}

    def add_l(old, new, alpha, t):
        sums["l"] = rescaled(old, new, alpha, t)
        return sums["l"]
    m.online = Online(add_l=add_l,
                      add_acc=lambda *of: rescaled(*of) / sums["l"].sum(-1, keepdim=True))
    if not again:
        m.finish = lambda acc, total, top: acc


ENDS = {
    "multiplied by l": lambda acc, total, top: acc * total,
    "divided by l twice": lambda acc, total, top: acc / total**2,
    "divided by the root of l": lambda acc, total, top: acc / total.sqrt(),
    "divided by log(l)": lambda acc, total, top: acc / torch.log(total),
    "divided by lse": lambda acc, total, top: acc / (top + torch.log(total)),
    "divided by lse in base 2": lambda acc, total, top: acc / (top + torch.log(total)) * LN2,
    "divided by m in base 2": lambda acc, total, top: acc / top * LN2,
    "divided by exp(m)": lambda acc, total, top: acc / torch.exp(top),
    "divided by exp(lse)": lambda acc, total, top: acc / total / torch.exp(top),
    "divided by l + 1": lambda acc, total, top: acc / (total + 1),
    "divided by m + l": lambda acc, total, top: acc / (top + total),
    "multiplied by exp(m)": lambda acc, total, top: acc / total * torch.exp(top),
    "divided by l, and multiplied by the scale": None,
    "divided by the number of keys": None,
    "divided by max(l, 1)": lambda acc, total, top: acc / total.clamp(min=1.0),
}


@mistake("divided-by", "acc is {0} at the end", "O = acc / l", "normalise", slot="finish",
         composed=True, each=tuple((how,) for how in ENDS))
def _(m, how):
    m.finish = {"divided by l, and multiplied by the scale":
                lambda acc, total, top: acc / total * m.scale,
                "divided by the number of keys":
                lambda acc, total, top: acc / m.fwd.keep.double().sum(1)[:, None]}.get(
                    how, ENDS[how])


def _rounded_where(what, *_) -> str:
    """Where these numbers are made; what the inputs lose is lost wherever they are read."""
    if what.startswith(("the output", "l ", "acc ")):
        return "normalise, store" if "output" in what else "sums"
    return "scores, softmax" if "scores" in what or what[0] in "qk" else "softmax, sums"


@mistake("rounded-on-the-way", "{0} rounded to {1} on the way", "all of it in float32; only P and "
         "O are rounded, to the dtype of v", _rounded_where, slot="online", composed=True,
         rounds=True, tiles="n", each=tuple((what, words, dtype) for what in (
             "the scores Q K^T are", "the scaled scores are",
             "the scores, and again once scaled, are", "the maximum is", "alpha is",
             "the output is", "the weights of l and acc are", "l is", "acc is", "q is", "k is",
             "v is", "q with the scale is")
             for words, dtype in (("float16", torch.float16), ("bfloat16", torch.bfloat16),
                                  ("the dtype of the inputs", None),
                                  ("the dtype of the inputs", CHOPPED))))
def _(m, what, words, dtype):
    own = m.case.dtype
    only(dtype is not None or own != torch.float32)
    only(dtype != CHOPPED or own == torch.bfloat16)  # as Triton's interpreter rounds
    dtype = dtype or own
    only(dtype != own or what not in ("the output is", "q is", "k is", "v is"))

    def near(x):
        return to_16_bits(x, dtype)
    if what in ("the scores Q K^T are", "the scaled scores are"):
        unit = m.scale if "Q K^T" in what else 1.0
        m.fwd.changes.append(lambda s: near(s / unit) * unit)
        m.online = Online() if m.case.stage > 1 else None
    elif what.startswith("the scores, and"):
        unit = LOG2E if m.case.stage > 1 else 1.0
        factor = torch.tensor(m.scale * unit, dtype=torch.float64)
        factor = near(factor) if m.case.stage > 1 else factor  # Triton rounds the factor, too
        m.fwd.changes.append(lambda s: near(near(s / m.scale) * factor) / unit)
        m.online = Online() if m.case.stage > 1 else None
    elif what in ("q is", "k is", "v is"):
        m.inputs = m.inputs | {what[0]: near(m.inputs[what[0]])}
    elif what == "q with the scale is":
        m.inputs = m.inputs | {"q": near(m.inputs["q"] * m.scale)}
        m.set_scale(1.0)
    elif what == "the output is":
        m.after = lambda out: out | {"o": near(out["o"])}
    elif what in ("l is", "acc is"):
        only(m.case.stage == 1)
        name = "add_l" if what == "l is" else "add_acc"
        m.online = replace(Online(), **{name: lambda *sums: near(rescaled(*sums))})
    else:
        m.online = {
            "the maximum is": Online(maximum=lambda t: near(torch.maximum(t.old, t.top))),
            "alpha is": Online(alpha_l=lambda t: near(t.alpha), alpha_acc=lambda t: near(t.alpha)),
            "the weights of l and acc are": Online(weights=near)}[what]


@mistake("all-in-16-bits", "{0} kept in {1}", "scores, statistics and sums in float32",
         "scores, sums", slot="online", composed=True, rounds=True, tiles="n", stages=(1,),
         each=tuple((what, words, dtype) for what in (
             "scores, weights and all sums are", "scores and weights are", "weights and acc are",
             "the scores and acc are")
             for words, dtype in (("the dtype of the inputs", None), ("float16", torch.float16),
                                  ("bfloat16", torch.bfloat16))))
def _(m, what, words, dtype):
    only(dtype is not None or m.case.dtype != torch.float32)
    dtype = dtype or m.case.dtype

    def near(x):
        return to_16_bits(x, dtype)

    def sums(old, new, alpha, t):
        return near(near(near(alpha) * old) + near(new))
    scores = near
    if "scores" in what:
        m.fwd.changes.append(lambda s: near(near(s / m.scale) * m.scale))
    all_sums, acc_only = Online(add_l=sums, add_acc=sums), Online(add_acc=sums)
    with_weights = {"scores, weights and all sums are": replace(all_sums, weight_of=lambda s, top:
                                                                near(torch.exp(near(s - top)))),
                    "scores and weights are": Online(weights=scores),
                    "weights and acc are": replace(acc_only, weights=near),
                    "the scores and acc are": acc_only}
    m.online = with_weights[what]


# What the scores are multiplied with, in the place of scale = 1 / sqrt(D): of D, N and the scale c.
SCALES = {
    "sqrt(D)": lambda D, N, c: D**0.5, "D": lambda D, N, c: float(D),
    "D^(-1/4)": lambda D, N, c: D**-0.25, "1 / D^2": lambda D, N, c: D**-2.0,
    "1 / sqrt(N)": lambda D, N, c: N**-0.5, "1 / N": lambda D, N, c: 1.0 / N,
    "scale^2 log2(e)": lambda D, N, c: c * c * LOG2E, "scale^2 ln 2": lambda D, N, c: c * c * LN2,
    "scale log2(e)^2": lambda D, N, c: c * LOG2E**2, "scale ln 2^2": lambda D, N, c: c * LN2**2,
    "log2(e)": lambda D, N, c: LOG2E, "ln 2": lambda D, N, c: LN2, "-scale": lambda D, N, c: -c,
    "2 scale": lambda D, N, c: 2 * c, "scale / 2": lambda D, N, c: c / 2,
    "1 / scale": lambda D, N, c: 1 / c, "1 / sqrt(2 D)": lambda D, N, c: (2 * D)**-0.5,
    "scale^3": lambda D, N, c: c**3,
}


@mistake("scores-times", "the scores are multiplied by {0}, not by the scale", "S = scale * Q K^T",
         "scale, scores", slot="scale", composed=True, each=tuple((how,) for how in SCALES))
def _(m, how):
    scale = SCALES[how](m.D, m.N, m.scale)
    only(abs(scale - m.scale) > 1e-6)
    m.set_scale(scale)


# -------------------------------------------------------------- the log-sum-exp
MAXIMA = {"": 0.0, "m": 1.0, "m log2(e)": LOG2E, "m ln 2": LN2, "-m": -1.0, "m scale": None,
          "2 m": 2.0, "m ln 2 ln 2": LN2**2}
LOGARITHMS = {
    "": torch.zeros_like, "ln(l)": torch.log, "log2(l)": torch.log2, "log10(l)": torch.log10,
    "ln(l) ln 2": lambda x: torch.log(x) * LN2, "l": lambda x: x, "l ln 2": lambda x: x * LN2,
    "l log2(e)": lambda x: x * LOG2E, "(-ln(l))": lambda x: -torch.log(x),
    "(-log2(l))": lambda x: -torch.log2(x), "exp(l)": torch.exp, "1 / l": lambda x: 1 / x,
    "ln(l + 1)": lambda x: torch.log(x + 1), "2 ln(l)": lambda x: 2 * torch.log(x),
    "ln(l) scale": None,
}
LSE_PARTS = tuple((" + ".join(filter(None, (a, b))) or "0",) for a in MAXIMA for b in LOGARITHMS
                  if (a, b) != ("m", "ln(l)"))


def lse_of(what: str, scale: float):
    """m and l -> one of LSE_PARTS."""
    first, *rest = what.split(" + ", 1)
    if first not in MAXIMA or (not rest and first == "l + 1)"):
        first, rest = "", [what]
    a = scale if MAXIMA[first] is None else MAXIMA[first]
    b = rest[0] if rest and rest[0] != "0" else ""
    log = LOGARITHMS[b] or (lambda total: torch.log(total) * scale)
    return lambda top, total: a * top + log(total)


@mistake("lse-is", "lse is {0}", "lse = m + ln(l)", "lse", kind="lse", slot="lse", stages=(1,),
         composed=True, each=LSE_PARTS)
def _(m, what):
    m.lse_of = lse_of(what, m.scale)


# ------------------------------------------------------------- sink logits
@mistake("sink-logit-is", "the sink counts as exp({0})", "exp(sink_h) joins the denominator, once",
         "sink start", slot="sink logits", stages=(9,), composed=True,
         each=tuple((how,) for how in (
             "2 sink", "sink log2(e)", "sink + sink ln 2", "sink + sink log2(e)", "0", "sink / 2",
             "sink scale log2(e)", "sink / scale", "sink log2(e)^2", "1")))
def _(m, how):
    only(m.sink is not None)
    x, c = m.sink, m.scale
    m.sink = {"2 sink": 2 * x, "sink log2(e)": x * LOG2E, "sink + sink ln 2": x * (1 + LN2),
              "sink + sink log2(e)": x * (1 + LOG2E), "0": x * 0, "sink / 2": x / 2,
              "sink scale log2(e)": x * c * LOG2E, "sink / scale": x / c,
              "sink log2(e)^2": x * LOG2E**2, "1": x * 0 + 1}[how]


@statistic("sink-start", "the softmax begins with m = {0} and l = {1}, which are not one key with "
           "the logit sink", "m = sink, l = 1", "sink start", stages=(9,), each=tuple(
               (top, sum) for top in ("sink", "0", "-inf", "sink ln 2", "sink log2(e)")
               for sum in ("exp(sink)", "2^sink", "1", "sink", "0", "2")))
def _(m, top, total):
    only(m.sink is not None and (top, total) != ("sink", "1"))
    x = m.sink[:, None, None]
    start = {"sink": x, "0": x * 0, "-inf": x * 0 - torch.inf, "sink ln 2": x * LN2,
             "sink log2(e)": x * LOG2E}[top]
    first = {"exp(sink)": torch.exp(x), "2^sink": torch.exp(x * LN2), "1": x * 0 + 1, "sink": x,
             "0": x * 0, "2": x * 0 + 2}[total]
    only(top != "-inf" or total == "1")
    m.online = Online(begin=(start, first))

