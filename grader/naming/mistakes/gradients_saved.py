"""What one kernel saves and another one reads, lse and delta: of what, and where they lie."""

from types import SimpleNamespace

import torch

from grader.naming.mistakes.gradients import composed
from grader.naming.mistakes.programs import ADDRESSES, possible, written
from grader.naming.mistakes.statistics import LSE_PARTS, lse_of
from grader.naming.rounding import to_16_bits
from grader.naming.table import BACKWARD, LN2, LOG2E, OWN_BACKWARD, SAVED, only


# ------------------------------------------------------------------- the saved lse
@composed("saved-lse-is", "lse is saved as {0}", "lse = m + ln(l)", "lse", stages=SAVED,
          each=LSE_PARTS)
def _(m, what):
    of = lse_of(what, m.scale)
    m.saved_lse = lambda top, total, lse: of(top, total)


LSE_ADDRESSES = tuple(
    how for how in ADDRESSES if "D" not in how.split() and "N * D" not in how and "row * D" not in
    how and "columns" not in how and "padded" not in how) + ("without the head: at row * D",
                                                            "without N: at (bh + row) * D")


def _one_number(m):
    """A model as programs see its tensors with one number a row."""
    return SimpleNamespace(B=m.B, HQ=m.HQ, HKV=m.HKV, N=m.N, D=1, BM=m.BM, group=m.group,
                           pairs=m.pairs, rows=m.rows, got=m.got)


@composed("saved-lse-elsewhere", "lse is stored {0}", "row i of head bh is number bh * N + i",
          "lse", stages=SAVED, tiles="m",
          each=tuple((how, reverse) for how in LSE_ADDRESSES for reverse in (True, False)))
def _(m, how, reverse):
    one = _one_number(m)
    possible(one, ADDRESSES[how])
    m.saved_lse = lambda top, total, lse: written(one, lse, ADDRESSES[how], reverse)


@composed("saved-lse-in-part", "lse is not stored for {0}", "lse of every row is stored", "lse",
          stages=SAVED, tiles="m", each=(
              ("any row",), ("the last row",), ("the first row",), ("the ragged last tile",),
              ("the first tile",), ("the last tile",), ("heads after the first",),
              ("batch entries after the first",), ("all heads but the first of a group",),
              ("rows after the first tile",)))
def _(m, what):
    i, b, h = m.rows[None, :, None], m.b[:, None, None], m.h[:, None, None]
    never = {"any row": i >= 0, "the last row": i == m.N - 1, "the first row": i == 0,
             "the ragged last tile": i >= m.N // m.BM * m.BM, "the first tile": i < m.BM,
             "the last tile": i >= (m.N - 1) // m.BM * m.BM, "heads after the first": h > 0,
             "batch entries after the first": b > 0, "rows after the first tile": i >= m.BM,
             "all heads but the first of a group": h % m.group > 0}[what]
    only(bool(never.any()))
    m.saved_lse = lambda top, total, lse: lse.masked_fill(never, torch.nan)


@composed("saved-lse-rounded", "lse is rounded to {0}", "lse in float32", "lse", stages=SAVED,
          rounds=True, each=(("a whole number", 1.0), ("a tenth", 0.1), ("a hundredth", 0.01)))
def _(m, words, unit):
    m.saved_lse = lambda top, total, lse: torch.round(lse / unit) * unit


# --------------------------------------------------------------------------- delta
DELTAS = {
    "rowsum(dO * Q)": lambda m, o, do: (do * m.q).sum(-1, keepdim=True),
    "rowsum(Q * O)": lambda m, o, do: (m.q * o).sum(-1, keepdim=True),
    "rowsum(dO) rowsum(O)": lambda m, o, do: do.sum(-1, keepdim=True) * o.sum(-1, keepdim=True),
    "rowmax(dO * O)": lambda m, o, do: (do * o).amax(-1, keepdim=True),
    "rowsum(dO * O) / l": lambda m, o, do: (do * o).sum(-1, keepdim=True) / m.right_sums[1],
    "rowsum(dO * acc), not normalised": lambda m, o, do: (do * o).sum(-1, keepdim=True)
    * m.right_sums[1],
    "rowsum(dO * O) / scale": lambda m, o, do: (do * o).sum(-1, keepdim=True) / m.scale,
    "rowsum(dO^2)": lambda m, o, do: (do * do).sum(-1, keepdim=True),
    "rowsum(dO + O)": lambda m, o, do: (do + o).sum(-1, keepdim=True),
    "rowsum(dO - O)": lambda m, o, do: (do - o).sum(-1, keepdim=True),
    "rowsum(dO * O) log2(e)": lambda m, o, do: (do * o).sum(-1, keepdim=True) * LOG2E,
    "rowsum(dO * O) ln 2": lambda m, o, do: (do * o).sum(-1, keepdim=True) * LN2,
    "rowsum(|dO * O|)": lambda m, o, do: (do * o).abs().sum(-1, keepdim=True),
    "one sum over the whole head": lambda m, o, do: (do * o).sum((1, 2), keepdim=True).expand(
        -1, m.N, 1),
    "rowsum(dO * O) without the last column": lambda m, o, do: (do * o)[..., :-1].sum(
        -1, keepdim=True),
    "one sum over the tile": lambda m, o, do: _tile_sums(m, do * o),
    "twice rowsum(dO * O)": lambda m, o, do: 2 * (do * o).sum(-1, keepdim=True),
}


def _tile_sums(m, x):
    x = torch.nn.functional.pad(x, (0, 0, 0, -m.N % m.BM)).unflatten(1, (-1, m.BM))
    return x.sum((2, 3))[..., None, None].expand(-1, -1, m.BM, 1).flatten(1, 2)[:, :m.N]


@composed("delta-is", "delta is {0}", "delta = rowsum(dO * O)", "delta", tiles="m",
          stages=OWN_BACKWARD, spoils=lambda how: {"d_q", "d_k", "d_sink_logits"},
          each=tuple((how,) for how in DELTAS))
def _(m, how):
    m.delta_of = lambda o, do: DELTAS[how](m, o, do)


@composed("delta-rounded", "delta is made of numbers rounded to {0}", "delta in float32", "delta",
          stages=OWN_BACKWARD, spoils=lambda *_: {"d_q", "d_k", "d_sink_logits"}, rounds=True,
          each=tuple((words, dtype, what) for words, dtype in (
              ("the dtype of o", None), ("float16", torch.float16), ("bfloat16", torch.bfloat16))
              for what in ("product", "sum", "both")))
def _(m, words, dtype, what):
    dtype = dtype or m.case.dtype
    only(dtype != torch.float32)

    def near(x, when):
        return to_16_bits(x, dtype) if what in (when, "both") else x
    m.delta_of = lambda o, do: near(near(do * o, "product").sum(-1, keepdim=True), "sum")


@composed("delta-elsewhere", "delta is stored {0}", "delta of row i of head bh is number bh * N + "
          "i", "delta", stages=BACKWARD, tiles="m", spoils=lambda *_: {"d_k"},
          each=tuple((how, reverse) for how in LSE_ADDRESSES for reverse in (True, False)))
def _(m, how, reverse):
    one = _one_number(m)
    possible(one, ADDRESSES[how])
    m.dkv.delta = lambda delta: written(one, delta, ADDRESSES[how], reverse)


@composed("delta-in-part", "delta is not stored for {0}", "delta of every row is stored", "delta",
          stages=BACKWARD, tiles="m", spoils=lambda *_: {"d_k"}, each=(
              ("any row",), ("the last row",), ("the ragged last tile",), ("the first tile",),
              ("the last tile",), ("heads after the first",), ("rows after the first tile",),
              ("batch entries after the first",), ("all heads but the first of a group",)))
def _(m, what):
    i, b, h = m.rows[None, :, None], m.b[:, None, None], m.h[:, None, None]
    never = {"any row": i >= 0, "the last row": i == m.N - 1,
             "the ragged last tile": i >= m.N // m.BM * m.BM, "the first tile": i < m.BM,
             "the last tile": i >= (m.N - 1) // m.BM * m.BM, "heads after the first": h > 0,
             "batch entries after the first": b > 0, "rows after the first tile": i >= m.BM,
             "all heads but the first of a group": h % m.group > 0}[what]
    only(bool(never.any()))
    m.dkv.delta = lambda delta: delta.masked_fill(never, torch.nan)


@composed("dlse-in-delta", "what dS subtracts is {0}", "dS = P * (dP - rowsum(dO * O) + dlse)",
          "delta", stages=(1,), spoils=lambda *_: {"d_q", "d_k"}, each=(
              ("rowsum(dO * O) alone, without dlse",), ("rowsum(dO * O) + dlse",),
              ("dlse - rowsum(dO * O)",), ("dlse alone",), ("-dlse alone",),
              ("rowsum(dO * O) - scale dlse",), ("rowsum(dO * O) - dlse / scale",),
              ("rowsum(dO * O) dlse",), ("rowsum(dO * O) - 2 dlse",), ("rowsum(dO * O - dlse)",),
              ("rowmean(dO * O) - dlse",), ("rowsum(dO) - dlse",), ("rowsum(O) - dlse",)))
def _(m, how):
    only(m.dlse is not None)
    m.with_dlse = {
        "rowsum(dO * O) alone, without dlse": lambda d, x: d,
        "rowsum(dO * O) + dlse": lambda d, x: d + x, "dlse - rowsum(dO * O)": lambda d, x: x - d,
        "dlse alone": lambda d, x: x, "-dlse alone": lambda d, x: -x,
        "rowsum(dO * O) - scale dlse": lambda d, x: d - m.scale * x,
        "rowsum(dO * O) - dlse / scale": lambda d, x: d - x / m.scale,
        "rowsum(dO * O) dlse": lambda d, x: d * x,
        "rowsum(dO * O) - 2 dlse": lambda d, x: d - 2 * x,
        "rowsum(dO * O - dlse)": lambda d, x: d - m.D * x,
    }.get(how, m.with_dlse)
    parts = {"rowmean(dO * O) - dlse": lambda o, do: (do * o).mean(-1, keepdim=True),
             "rowsum(dO) - dlse": lambda o, do: do.sum(-1, keepdim=True),
             "rowsum(O) - dlse": lambda o, do: o.sum(-1, keepdim=True)}
    m.delta_of = parts.get(how, m.delta_of)


@composed("dlse-elsewhere", "in {0}, dlse is {1}", "dS = P * (dP - delta + dlse): dlse_i for row i",
          "dq products, dkdv products", stages=(1,), spoils=lambda *_: {"d_q", "d_k"},
          each=(("dq and dk", "added outside P: dS = P * (dP - delta) + dlse"),
                ("dq and dk", "that of row 0"), ("dq and dk", "that of head 0")))
def _(m, words, how):
    only(m.dlse is not None)
    x = m.dlse
    if how.startswith("added"):
        for p in (m.dq, m.dkv):
            p.ds_of = lambda w, dp, delta: w * (dp - delta - x) + x
    else:
        other = x[:, :1].expand_as(x) if "row" in how else x[:1].expand_as(x)
        m.with_dlse = lambda delta, dlse: delta - other
