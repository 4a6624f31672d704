"""Stage 1's second output, lse, and stage 2's row sum."""

import math

import torch

from grader.naming.rounding import CHOPPED, to_16_bits
from grader.naming.table import LN2, LOG2E, mistake, only


# ----------------------------------------------------------------------- lse
def lse(id, words, line="lse = m + log(l)", place="lse", **more):
    """As mistake, for stage 1's second output."""
    return mistake(id, words, line, place, kind="lse", slot="lse", stages=(1,), **more)


@lse("lse-is-the-max", "lse is the maximum alone, without the sum")
def _(m):
    m.lse_of = lambda top, total: top


@lse("lse-without-the-max", "lse is log(l) alone, without the maximum")
def _(m):
    m.lse_of = lambda top, total: torch.log(total)


@lse("lse-without-log", "lse is m + l: the logarithm is missing")
def _(m):
    m.lse_of = lambda top, total: top + total


@lse("lse-in-another-base", "log(l) is taken in another base",
     "lse = m + ln(l), a natural logarithm", each=((2,), (10,)))
def _(m, base):
    m.lse_of = lambda top, total: top + torch.log(total) / math.log(base)


@lse("lse-in-base-2", "all of lse is in base 2: it is multiplied by log2(e)",
     "lse = m + ln(l), a natural logarithm", each=((LOG2E,), (LN2,)))
def _(m, factor):
    m.lse_of = lambda top, total: (top + torch.log(total)) * factor


@lse("lse-times", "lse is m * log(l), a product instead of a sum")
def _(m):
    m.lse_of = lambda top, total: top * torch.log(total)


@lse("lse-minus-the-log", "lse is m - log(l)")
def _(m):
    m.lse_of = lambda top, total: top - torch.log(total)


@lse("lse-negative", "lse has the wrong sign")
def _(m):
    m.lse_of = lambda top, total: -(top + torch.log(total))


@lse("lse-of-the-sum-plus-something", "something is added to l before the logarithm",
     each=tuple((e,) for e in (1.0, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)))
def _(m, extra):
    m.lse_of = lambda top, total: top + torch.log(total + extra)


@lse("lse-of-the-last-tile", "lse has the sum of the last tile alone", tiles="mn")
def _(m):
    p, s = m.fwd, m.fwd.scores()
    start = torch.where(p.keep, p.j, 0).amax(1, keepdim=True) // m.BN * m.BN
    later = s.masked_fill(p.j < start, -torch.inf)
    m.lse_of = lambda top, total: torch.logsumexp(later, -1, keepdim=True)


@lse("lse-of-one-head", "every head gets the lse of head 0", place="", whole="all")
def _(m):
    only(m.HQ > 1)
    first = m.b * m.HQ
    m.after = lambda out: out | {"lse": out["lse"][first]}


@lse("lse-in-16-bits", "lse is rounded to 16 bits on its way", "lse in float32",
     each=((torch.float16,), (torch.bfloat16,)), rounds=True)
def _(m, dtype):
    m.lse_of = lambda top, total: (top + torch.log(total)).to(dtype).double()


@lse("lse-of-scaled-rows", "lse lacks a part: it is m + log(l) of the unscaled maximum")
def _(m):
    m.lse_of = lambda top, total: top / m.scale + torch.log(total)


# ------------------------------------------------------------------- row sum
def row_sum(id, words, line="y_i = sum_j x_ij w_j", place="sums", **more):
    """As mistake, for stage 2."""
    return mistake(id, words, line, place, kind="row sum", stages=(2,), **more)


@row_sum("w-ignored", "w is left out", slot="weights")
def _(m):
    m.w = torch.ones_like(m.w)


@row_sum("w-squared", "w counts twice", slot="weights")
def _(m):
    m.w = m.w**2


@row_sum("mean-not-sum", "the sum is divided by N", slot="finish")
def _(m):
    _times(m, 1.0 / m.N)


@row_sum("divided-by-tiles", "the sum is divided by the number of tiles", slot="finish", tiles="n",
         each=((True,), (False,)))
def _(m, whole):
    _times(m, 1.0 / -(-m.N // m.BN) if whole else min(m.BN / m.N, 1.0))


@row_sum("divided-by-weights", "the sum is divided by the sum of the weights", slot="finish")
def _(m):
    _times(m, 1.0 / float(m.w.sum()))


@row_sum("zeros", "the output is zero", slot="finish")
def _(m):
    _times(m, 0.0)


@row_sum("output-off-by-a-factor", "the output is {factor:.4g} times what it should be",
         slot="finish", fitted=True)
def _(m):
    only("y" in m.got)

    def fitted(y):
        m.found["factor"] = factor = float((m.got["y"] * y).sum() / y.square().sum())
        return y * factor
    m.after = fitted


def _times(m, factor: float) -> None:
    m.after = lambda y: y * factor


@row_sum("last-tile-only", "what earlier tiles summed is lost: acc is assigned, not added to",
         "acc += sum over the tile", slot="columns", tiles="n")
def _(m):
    m.columns = m.columns * (m.j >= (m.N - 1) // m.BN * m.BN)


@row_sum("last-column-tile-dropped", "the last tile of columns is skipped", "the walk takes every "
         "tile that holds a column", "walk", slot="columns", tiles="n", each=((False,), (True,)))
def _(m, ragged):
    end = m.N // m.BN * m.BN if ragged else (m.N - 1) // m.BN * m.BN
    m.columns = m.columns * (m.j < end)


@row_sum("walk-ends-a-column-early", "the walk ends at N - 1: a tile that begins there is left out",
         "the walk ends at N", "walk", slot="columns", tiles="n")
def _(m):
    only((m.N - 1) % m.BN == 0)
    m.columns = m.columns * (m.j < m.N - 1)


@row_sum("first-column-tile-only", "only the first tile of columns is walked",
         "the walk goes on to N", "walk", slot="columns", tiles="n")
def _(m):
    m.columns = m.columns * (m.j < m.BN)


@row_sum("first-column-tile-repeated", "every round reads the first tile of columns", "round t "
         "reads the columns of tile t", "load", slot="columns", tiles="n")
def _(m):
    m.columns = m.columns * (m.j < m.BN) * -(-m.N // m.BN)


@row_sum("step-of-the-wrong-block", "the walk steps by the wrong block: columns are summed several "
         "times", "the walk steps by as many columns as a tile has", "walk", slot="columns",
         tiles="mn")
def _(m):
    only(m.BM < m.BN)
    starts = torch.arange(0, m.N, m.BM)[:, None]
    m.columns = m.columns * ((m.j >= starts) & (m.j < starts + m.BN)).sum(0)


@row_sum("last-column-dropped", "the last column is masked away", "columns 0 ... N - 1 exist",
         "load", slot="columns")
def _(m):
    m.columns = m.columns * (m.j < m.N - 1)


@row_sum("columns-masked-by-rows", "columns are masked by the number of rows",
         "columns j < N exist, rows i < M", "load", slot="columns")
def _(m):
    only(m.M < m.N)
    m.columns = m.columns * (m.j < m.M)


@row_sum("masked-lanes-not-zero", "lanes past N read 1, not 0", "what lies outside reads 0: it "
         "leaves the sum alone", "load", slot="finish", tiles="n", padded=True)
def _(m):
    m.after = lambda y: y + float(-m.N % m.BN)


@row_sum("first-weights-repeated", "every tile is weighted with the first weights", "columns and "
         "weights of round t are those of tile t", "load", slot="weights", tiles="n")
def _(m):
    m.w = m.w[m.j % m.BN]


@row_sum("one-row-tile-read-by-all", "every program reads the first rows", "program t reads the "
         "rows of tile t", "load", slot="rows", tiles="m")
def _(m):
    m.x = m.x[torch.arange(m.M) % m.BM]


@row_sum("rows-not-written", "some rows are never written", "every row i < M is written, by one "
         "program", "rows", shows="nan", slot="rows", tiles="mn", padded=True,
         each=(("first only",), ("overlap",), ("last row",), ("ragged",), ("by columns",),
               ("columns apart",)))
def _(m, how):
    i, tiles = torch.arange(m.M), -(-m.M // m.BM)
    never = {"first only": i >= m.BM, "last row": i == m.M - 1,
             "overlap": i >= (tiles - 1) * (m.BM - 1) + m.BM,
             "ragged": i >= m.M // m.BM * m.BM,
             "columns apart": (i % m.BN >= m.BM) | (i // m.BN >= tiles),
             "by columns": i >= -(-m.N // m.BN) * m.BM}[how]
    only(bool(never.any()))
    m.after = lambda y: y.masked_fill(never, torch.nan)


@row_sum("product-in-16-bits", "the product is rounded to 16 bits before it is summed",
         "widen to float32 before multiplying", slot="rounding",
         each=((None,), (torch.float16,), (torch.bfloat16,)))
def _(m, dtype):
    dtype = dtype or m.case.dtype
    only(dtype != torch.float32)
    m.x, m.w = m.x.to(dtype).double(), m.w.to(dtype).double()
    m.round_product = lambda x: x.to(dtype).double()


@row_sum("tile-sum-in-16-bits", "the products of a tile are summed in 16 bits", "widen to float32 "
         "before multiplying", "sums", slot="rounding", tiles="n", rounds=True,
         each=((None, True), (None, False), (CHOPPED, True)))
def _(m, dtype, products):
    dtype = dtype or m.case.dtype
    only(m.case.dtype != torch.float32 and (dtype != CHOPPED or m.case.dtype == torch.bfloat16))
    if products:
        m.round_product = lambda x: to_16_bits(x, dtype)
    m.round_tile = lambda x: to_16_bits(x, dtype)


@row_sum("acc-in-16-bits", "acc is kept in 16 bits", "acc in float32, rounded once at the store",
         slot="rounding", tiles="n",
         each=((torch.float16,), (torch.bfloat16,), (CHOPPED,), (None,)), rounds=True)
def _(m, dtype):
    dtype = dtype or m.case.dtype
    only(dtype != torch.float32)
    m.round_acc = lambda x: to_16_bits(x, dtype)


@row_sum("wrong-strides", "{0} is read with other strides than its own: {1}",
         "the address of an element adds up index times stride, with its tensor's own", "load",
         slot="strides",
         each=(("x", "rows as if N apart"), ("x", "columns as if 1 apart"),
               ("x", "rows and columns exchanged"), ("x", "as if contiguous"),
               ("w", "as if contiguous"), ("w", "as if x's columns")))
def _(m, name, how):
    own = m.built.call.inputs[name]
    stride = {"rows as if N apart": (m.N, own.stride[-1]),
              "columns as if 1 apart": (own.stride[0], 1),
              "rows and columns exchanged": own.stride[::-1],
              "as if contiguous": (m.N, 1) if name == "x" else (1,),
              "as if x's columns": (m.built.call.inputs["x"].stride[1],)}[how]
    setattr(m, name, strided(own, stride))


def strided(sent, stride) -> torch.Tensor:
    """A tensor as it was sent, read with other strides."""
    last = sent.offset + sum(s * (n - 1) for s, n in zip(stride, sent.shape, strict=True))
    only(tuple(stride) != tuple(sent.stride) and last < sent.storage.numel())
    return sent.storage.as_strided(sent.shape, stride, sent.offset).double()
