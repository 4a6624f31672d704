"""Scores: their scale, their base, what is multiplied with what."""

import torch

from grader.naming.table import BACKWARD, CAUSAL, LN2, LOG2E, mistake, only
from grader.naming.tiles import round_up


# -------------------------------------------------------------------- scores
@mistake("no-scale", "the scores are not divided by sqrt(D)", "S = Q K^T / sqrt(D)", "scale",
         slot="scale")
def _(m):
    m.set_scale(1.0)


@mistake("scale-twice", "the scores are divided by D: the scale is applied twice",
         "S = Q K^T / sqrt(D), not / D", "scale", slot="scale")
def _(m):
    m.set_scale(m.scale**2)


@mistake("scale-of-padded-width", "the scale is that of D rounded up to a power of two", "scale = "
         "1 / sqrt(D), with D itself", "scale", slot="scale")
def _(m):
    width = max(16, 1 << (m.D - 1).bit_length())
    only(m.D != width)
    m.set_scale(width**-0.5)


@mistake("scale-hard-coded", "the scale is a fixed number that fits one head dimension only",
         "scale = 1 / sqrt(D), for the D of this call", "scale", slot="scale",
         each=((16,), (32,), (64,), (128,)))
def _(m, width):
    only(m.D != width)
    m.set_scale(width**-0.5)


@mistake("own-scale-ignored", "the scale that the caller gave is not used",
         "S = softmax_scale * Q K^T", "scale", slot="scale", stages=BACKWARD)
def _(m):
    only(m.case.scale is not None)
    m.set_scale(m.D**-0.5)


@mistake("no-log2e", "exp2 is used without log2(e): softmax(S ln 2)",
         "exp(x) = exp2(x * log2(e))", "scale, softmax", slot="scale")
def _(m):
    m.set_scale(m.scale * LN2)


@mistake("log2e-twice", "log2(e) counts twice, or stands inside exp: softmax(S log2(e))",
         "exp(x) = exp2(x * log2(e)); exp itself wants no log2(e)", "scale, softmax", slot="scale")
def _(m):
    m.set_scale(m.scale * LOG2E)


@mistake("scores-off-by-a-factor", "every score is multiplied by {factor:.4g}",
         "S = scale * Q K^T, nothing else", "scale, scores, softmax", slot="scale",
         each=((1.0,), (2.0,), (0.5,)), fitted=True)
def _(m, start):
    """The factor by Gauss-Newton steps, from start."""
    only("o" in m.got)
    x, right, factor = m.got["o"], m.scale, start

    def output(scale):
        m.fwd.scale = scale
        acc, total, _ = m.sums()
        return acc / total
    for _ in range(6):
        o = output(right * factor)
        slope = (output(right * factor * 1.001) - o) / (0.001 * factor)
        good = torch.isfinite(x) & torch.isfinite(slope)
        step = float(((x - o) * slope)[good].sum() / slope.square()[good].sum().clamp_min(1e-30))
        factor = min(max(factor + step, factor / 2), factor * 2)
    only(factor != 1.0 and (start != 1.0 or abs(factor - 1) <= 0.5))
    m.set_scale(right * factor)
    m.found["factor"] = factor


@mistake("scale-differs-by-phase", "the scores of one phase are scaled unlike those of the other",
         "one scale, with log2(e), for every tile", "walk", slot="scale", stages=CAUSAL, tiles="mn",
         each=tuple((phase, factor) for phase in (1, 2) for factor in (LN2, LOG2E, "root", "one")))
def _(m, phase, factor):
    only(m.causal)
    factor = {"root": m.scale, "one": 1 / m.scale}.get(factor, factor)
    before = m.fwd.j < m.fwd.diag
    there = before if phase == 1 else ~before
    m.fwd.changes.append(lambda s: torch.where(there, s * factor, s))


@mistake("scale-by-keys", "the scores are divided by the root of the number of keys in the tile",
         "S = Q K^T / sqrt(D): D is the width of a row, not the number of rows", "scale",
         slot="scale", tiles="n")
def _(m):
    count = (m.NK - m.keys // m.BN * m.BN).clamp(max=m.BN).double()
    m.q_factor = 1.0 / m.scale  # the usual one is taken out
    m.inputs = m.inputs | {"k": m.inputs["k"] / count.sqrt()[:, None]}


@mistake("scale-by-rows", "the scores are divided by the root of the number of rows in the tile",
         "S = Q K^T / sqrt(D): D is the width of a row, not the number of rows", "scale",
         slot="scale", tiles="m")
def _(m):
    count = (m.N - m.rows // m.BM * m.BM).clamp(max=m.BM).double()
    m.q_factor = (count.sqrt() * m.scale).reciprocal()[:, None]


@mistake("k-reshaped", "k is reshaped to (D, keys), not transposed", "S = Q K^T", "scores",
         slot="inputs", tiles="n", padded=True)
def _(m):
    k = m.inputs["k"]
    if m.case.stage == 1:  # a tile has as many rows as there are left, and any width may be
        tiles = [k[:, :, lo:lo + m.BN] for lo in range(0, m.NK, m.BN)]
        mixed = [x.reshape(*x.shape[:2], m.D, x.shape[2]).mT for x in tiles]
        m.inputs = m.inputs | {"k": torch.cat(mixed, 2)}
        return
    only(m.D & (m.D - 1) == 0)
    padded = torch.nn.functional.pad(k, (0, 0, 0, -m.NK % m.BN))
    tiles = padded.unflatten(2, (-1, m.BN))
    mixed = tiles.reshape(*tiles.shape[:3], m.D, m.BN).mT.flatten(2, 3)
    m.inputs = m.inputs | {"k": mixed[:, :, :m.NK]}


@mistake("scores-transposed", "the tile of scores is transposed: K Q^T", "S = Q K^T", "scores",
         slot="inputs", tiles="n", whole="rows")
def _(m):
    only(m.NK == m.N)
    p, n = m.fwd, round_up(m.N, m.BN)
    more = torch.nn.functional.pad
    q, k = more(m.q, (0, 0, 0, n - m.N)), more(p.k(), (0, 0, 0, n - m.N))
    tiles = (k @ q.mT * p.scale).view(-1, n // m.BN, m.BN, n // m.BN, m.BN)
    s = tiles.permute(0, 3, 2, 1, 4).reshape(-1, n, n)[:, :m.N, :m.N]
    p.changes.append(lambda _: s.masked_fill(~p.keep, -torch.inf))


@mistake("q-k-swapped", "q and k change places: softmax(S^T) V", "S = Q K^T", "scores",
         slot="inputs")
def _(m):
    _swap(m, "q", "k")


@mistake("k-v-swapped", "k and v change places", "O = softmax(Q K^T) V", "kv head", slot="inputs")
def _(m):
    _swap(m, "k", "v")


@mistake("q-v-swapped", "q and v change places", "O = softmax(Q K^T) V", "scores", slot="inputs")
def _(m):
    _swap(m, "q", "v")


@mistake("values-are-keys", "the values are read from k: softmax(S) K", "O = softmax(S) V",
         "kv head", slot="inputs")
def _(m):
    m.inputs = m.inputs | {"v": m.inputs["k"]}


@mistake("keys-are-values", "the keys are read from v: S = Q V^T", "S = Q K^T", "kv head",
         slot="inputs")
def _(m):
    m.inputs = m.inputs | {"k": m.inputs["v"]}


@mistake("keys-are-queries", "the keys are read from q: S = Q Q^T", "S = Q K^T",
         "scores, kv head", slot="inputs")
def _(m):
    only(m.inputs["q"].shape == m.inputs["k"].shape)
    m.inputs = m.inputs | {"k": m.inputs["q"]}


def _swap(m, a, b):
    only(m.inputs[a].shape == m.inputs[b].shape)
    m.inputs = m.inputs | {a: m.inputs[b], b: m.inputs[a]}
