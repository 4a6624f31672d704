"""The backward put together with one part in the place of another: what P is made from, dS, the
products, what they sum over, where statistics and gradients are stored."""

from types import SimpleNamespace

import torch

from grader.naming.mistakes.programs import ADDRESSES, written
from grader.naming.mistakes.statistics import LSE_PARTS, lse_of
from grader.naming.phases import OF_KEYS, OF_QUERIES, pairs
from grader.naming.rounding import to_16_bits
from grader.naming.table import BACKWARD, LN2, LOG2E, OWN_BACKWARD, SAVED, backward, only

DQ, DKDV = ("dq", "dq"), ("dk and dv", "dkdv")
GRADIENTS = {"dq": {"d_q"}, "dk": {"d_k"}, "dv": {"d_v"}, "dk and dv": {"d_k", "d_v"}}


def composed(id, words, line, place, slot="composed", spoils=None, **more):
    """As backward, of a part and a change."""
    return backward(id, words, line, place, slot, composed=True, spoils=spoils, **more)


def of_walk(words, walk, *_) -> set[str]:
    return {"dq": {"d_q"}, "dkdv": {"d_k", "d_v"}}[walk]


def p_of(words, walk, *_) -> str:
    return {"dq": "dq P, dq walk", "dkdv": "dkdv P, dkdv calls"}[walk]


def products_of(words, walk, *_) -> str:
    return walk + " products"


def walk_of(m, walk):
    return {"dq": m.dq, "dkdv": m.dkv}[walk]


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
                           pairs=m.pairs, rows=m.rows)


@composed("saved-lse-elsewhere", "lse is stored {0}", "row i of head bh is number bh * N + i",
          "lse", stages=SAVED, tiles="m",
          each=tuple((how, reverse) for how in LSE_ADDRESSES for reverse in (True, False)))
def _(m, how, reverse):
    one = _one_number(m)
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


# ------------------------------------------------------------------------- P again
# Lse, and S's scale -> what P = exp(S - ...) subtracts.
LSE_READ = {
    "lse ln 2": lambda lse, c: lse * LN2, "lse log2(e)": lambda lse, c: lse * LOG2E,
    "lse scale": lambda lse, c: lse * c, "lse / scale": lambda lse, c: lse / c,
    "lse scale log2(e)": lambda lse, c: lse * c * LOG2E, "2 lse": lambda lse, c: lse * 2,
    "exp(lse)": lambda lse, c: torch.exp(lse), "log(lse)": lambda lse, c: torch.log(lse),
    "-lse": lambda lse, c: -lse, "the lse of the row before":
    lambda lse, c: torch.cat([lse[:, :1], lse[:, :-1]], 1),
    "the lse of head 0": lambda lse, c: lse[:1].expand_as(lse),
    "the lse of the row after": lambda lse, c: torch.cat([lse[:, 1:], lse[:, -1:]], 1),
}


@composed("p-subtracts", "in {0}, P is exp(S - x) with {2} for x", "P = exp(S - lse)", p_of,
          stages=OWN_BACKWARD, spoils=of_walk,
          each=tuple((*walk, how) for walk in (DQ, DKDV) for how in LSE_READ))
def _(m, words, walk, how):
    walk_of(m, walk).lse = lambda lse: LSE_READ[how](lse, m.scale)


@composed("p-scale", "in {0}, the scores of P {2}", "P = exp(scale * Q K^T - lse)", p_of,
          stages=OWN_BACKWARD, spoils=of_walk, each=tuple((*walk, *how) for walk in (DQ, DKDV)
          for how in (("are not scaled", "one"), ("are scaled twice", "root"),
                      ("lack log2(e)", LN2), ("have log2(e) twice", LOG2E),
                      ("have the wrong sign", -1.0), ("have half their scale", 0.5))))
def _(m, words, walk, how, factor):
    factor = {"one": 1 / m.scale, "root": m.scale}.get(factor, factor)
    walk_of(m, walk).scale = m.scale * factor


@composed("p-positions", "in {0}, lse and delta belong to keys instead of queries: {2}",
          "P_ij = exp(S_ij - lse_i), dS_ij = P_ij (dP_ij - delta_i)", p_of, stages=OWN_BACKWARD,
          tiles="n", spoils=of_walk, each=tuple((*walk, how) for walk in (DQ, DKDV)
                                                for how in ("lse", "delta")))
def _(m, words, walk, how):
    """In a square tile the number in place c goes with column c."""
    only(m.N == m.NK and m.BM == m.BN)
    p = walk_of(m, walk)
    i, j = p.i, p.j
    at = i // m.BM * m.BM + j % m.BN  # (R, K)
    padding = torch.inf if how == "lse" else 0.0

    def across(x):
        x = torch.cat([x[..., 0], x.new_full((len(x), 1), padding)], 1)
        return x[:, at.clamp(max=m.N)]
    setattr(p, how, across)


# ------------------------------------------------------------------------------ dS
DS = {
    "P * dP": lambda p, dp, delta, c: p * dp,
    "P * dP - delta": lambda p, dp, delta, c: p * dp - delta,
    "P * (delta - dP)": lambda p, dp, delta, c: p * (delta - dp),
    "P * (dP + delta)": lambda p, dp, delta, c: p * (dp + delta),
    "P * dP * delta": lambda p, dp, delta, c: p * dp * delta,
    "P * delta": lambda p, dp, delta, c: p * delta,
    "P - delta": lambda p, dp, delta, c: p - delta,
    "dP": lambda p, dp, delta, c: dp,
    "dP - delta": lambda p, dp, delta, c: dp - delta,
    "dP - P * delta": lambda p, dp, delta, c: dp - p * delta,
    "P * P * (dP - delta)": lambda p, dp, delta, c: p * p * (dp - delta),
    "P * (dP - delta / scale)": lambda p, dp, delta, c: p * (dp - delta / c),
    "P * (dP - scale delta)": lambda p, dp, delta, c: p * (dp - delta * c),
    "P * (scale dP - delta)": lambda p, dp, delta, c: p * (c * dp - delta),
    "P * (1 - P) * (dP - delta)": lambda p, dp, delta, c: p * (1 - p) * (dp - delta),
    "P * dP * (1 - P)": lambda p, dp, delta, c: p * (1 - p) * dp,
    "P * (dP - rowsum(P * dP) of the tile)": None,
    "P + (dP - delta)": lambda p, dp, delta, c: p + (dp - delta),
    "P * (dP - 2 delta)": lambda p, dp, delta, c: p * (dp - 2 * delta),
    "P / (dP - delta)": lambda p, dp, delta, c: p / (dp - delta),
    "P * dP - P * P * delta": lambda p, dp, delta, c: p * (dp - p * delta),
    "P": lambda p, dp, delta, c: p,
}


def ds_spoils(words, walk, *_) -> set[str]:
    return {"d_q"} if walk == "dq" else {"d_k"}


@composed("ds-is", "in {0}, dS is {2}", "dS = P * (dP - delta)", products_of, spoils=ds_spoils,
          stages=OWN_BACKWARD, tiles="mn",
          each=tuple((*walk, how) for walk in (DQ, DKDV) for how in DS))
def _(m, words, walk, how):
    p = walk_of(m, walk)
    if DS[how] is not None:
        visited = p.walked_by_keys if p.over_queries else p.walked
        p.ds_of = lambda w, dp, delta: DS[how](w, dp, delta, m.scale) * visited
        return

    def of_the_tile(w, dp, delta):
        share = torch.nn.functional.pad(w * dp, (0, -w.shape[2] % m.BN)).unflatten(2, (-1, m.BN))
        inner = share.sum(-1, keepdim=True).expand_as(share).flatten(2)[..., :w.shape[2]]
        return w * (dp - inner)
    p.ds_of = of_the_tile


@composed("ds-is-everywhere", "dS is {0}", "dS = P * (dP - delta)",
          "dq products, dkdv products", spoils=lambda how: {"d_q", "d_k"}, stages=OWN_BACKWARD,
          tiles="mn", each=tuple((how,) for how in DS))
def _(m, how):
    only(DS[how] is not None)
    for p in (m.dq, m.dkv):
        visited = p.walked_by_keys if p.over_queries else p.walked
        p.ds_of = lambda w, dp, delta, v=visited: DS[how](w, dp, delta, m.scale) * v


@composed("dp-of", "in {0}, dP is made of {2}", "dP = dO V^T", products_of, spoils=ds_spoils,
          stages=OWN_BACKWARD, each=tuple((*walk, how) for walk in (DQ, DKDV) for how in (
              "dO and K", "Q and V", "O and V", "Q and K")))
def _(m, words, walk, how):
    p = walk_of(m, walk)
    left, right = how.split(" and ")
    if right == "K":
        p.dp_with = p.k
    if left != "dO":
        x = m.q if left == "Q" else m.right[0]
        p.dp_of = lambda do: x


# ------------------------------------------------------------------------ products
PRODUCTS = {"P": lambda w, m: w.p, "dS": lambda w, m: w.ds, "dP": lambda w, m: w.dp,
            "P * dP": lambda w, m: w.p * w.dp, "dP - delta": lambda w, m: w.dp - w.delta,
            "exp(S)": lambda w, m: w.p * torch.exp(w.lse),
            "scale P": lambda w, m: w.p * m.scale, "P * delta": lambda w, m: w.p * w.delta}
ROWS = {"dO": lambda w, m: w.do, "Q": lambda w, m: m.q, "O": lambda w, m: m.right[0],
        "scale Q": lambda w, m: m.q * m.scale}
KEYS = {"K": lambda w, m: m.dq.k(), "V": lambda w, m: m.dq.v()}


@composed("dv-is", "dv is made of {0}", "dV = P^T dO", "dkdv products", spoils=lambda *_: {"d_v"},
          stages=OWN_BACKWARD, each=tuple((f"{x}^T {y}", x, y) for x in PRODUCTS for y in ROWS
                                          if (x, y) != ("P", "dO")))
def _(m, words, x, y):
    m.dkv.d_v = lambda w: PRODUCTS[x](w, m).mT @ ROWS[y](w, m)


@composed("dk-is", "dk is made of {0}", "dK = scale * dS^T Q", "dkdv products",
          spoils=lambda *_: {"d_k"}, stages=OWN_BACKWARD,
          each=tuple((f"{x}^T {y}", x, y) for x in PRODUCTS for y in ROWS if (x, y) != ("dS", "Q")))
def _(m, words, x, y):
    m.dkv.d_k = lambda w: PRODUCTS[x](w, m).mT @ ROWS[y](w, m)


@composed("dq-is", "dq is made of {0}", "dQ = scale * dS K", "dq products",
          spoils=lambda *_: {"d_q"}, stages=OWN_BACKWARD,
          each=tuple((f"{x} {y}", x, y) for x in PRODUCTS for y in KEYS if (x, y) != ("dS", "K")))
def _(m, words, x, y):
    m.dq.d_q = lambda w: PRODUCTS[x](w, m) @ KEYS[y](w, m)


def in_tiles(m, x):
    """x (P, R, K), each square tile transposed in its place."""
    only(m.BM == m.BN)
    tiles = torch.nn.functional.pad(x, (0, -x.shape[2] % m.BN, 0, -m.N % m.BN))
    tiles = tiles.unflatten(2, (-1, m.BN)).unflatten(1, (-1, m.BN)).transpose(2, 4)
    return tiles.flatten(3, 4).flatten(1, 2)[:, :m.N, :x.shape[2]]


@composed("not-transposed", "{0} {1}", "dV = P^T dO, dK = scale * dS^T Q, dQ = scale * dS K",
          lambda name, *_: "dq products" if name == "dq" else "dkdv products", stages=OWN_BACKWARD,
          spoils=lambda name, *_: GRADIENTS[name], tiles="mn",
          each=(("dv", "is made with P, not its transpose"),
                ("dk", "is made with dS, not its transpose"),
                ("dq", "is made with the transpose of dS")))
def _(m, name, words):
    if name == "dq":
        m.dq.d_q = lambda w: in_tiles(m, w.ds) @ m.dq.k()[:, :w.ds.shape[2]]
    elif name == "dk":
        m.dkv.d_k = lambda w: in_tiles(m, w.ds).mT @ m.q
    else:
        m.dkv.d_v = lambda w: in_tiles(m, w.p).mT @ w.do


@composed("dp-transposed", "in {0}, the tile of dP is transposed", "dP = dO V^T", products_of,
          spoils=ds_spoils, stages=OWN_BACKWARD, tiles="mn", each=(DQ, DKDV))
def _(m, words, walk):
    walk_of(m, walk).ds_of = lambda p, dp, delta: p * (in_tiles(m, dp) - delta)


# ------------------------------------------------------------- what is summed, and once
def _keep_pairs(m, name, pairs_of_p, heads=None):
    """Only these pairs (R, K) give to this gradient; heads (P,): likewise."""
    weight = pairs_of_p.double()
    weight = weight if heads is None else weight * heads.double()[:, None, None]
    if name == "dq":
        m.dq.d_q = lambda w: (w.ds * weight) @ m.dq.k()
    if name in ("dk", "dk and dv"):
        m.dkv.d_k = lambda w: (w.ds * weight).mT @ m.q
    if name in ("dv", "dk and dv"):
        m.dkv.d_v = lambda w: (w.p * weight).mT @ w.do


LAST = {
    "the last query tile": lambda m, p: p.i >= _last(m, p, 0),
    "the last query tile of the group's last head": lambda m, p: p.i >= _last(m, p, 0),
    "the diagonal of the group's last head": lambda m, p: _diagonal(m, p),
    "the diagonal": lambda m, p: _diagonal(m, p),
    "the group's last head": lambda m, p: p.i >= 0,
    "the group's first head": lambda m, p: p.i >= 0,
    "the first query tile": lambda m, p: p.i < m.BM,
    "the ragged query tile of the group's last head":
        lambda m, p: p.i >= m.N // m.BM * m.BM,
}


def _last(m, p, axis):
    seen = torch.where(p.keep, p.i, 0).amax(axis, keepdim=True)
    return seen // m.BM * m.BM


def _diagonal(m, p):
    only(p.causal)
    start = p.j // m.BN * m.BN
    return (p.i >= start) & (p.i < start + m.BN)


@composed("only-counts", "only {1} gives to {0}: what was summed before is lost", "dV = dV + P^T dO, "
          "dK = dK + dS^T Q, over all query tiles and all heads of the group",
          "dkdv products, dkdv calls", spoils=lambda name, _: GRADIENTS[name], tiles="mn",
          stages=OWN_BACKWARD, each=tuple((name, how) for name in ("dv", "dk", "dk and dv")
                                          for how in LAST))
def _(m, name, how):
    place = torch.arange(len(m.pairs)) % m.group
    heads = None
    if "head" in how:
        heads = place == (0 if "first head" in how else m.group - 1)
        only(m.group > 1 or how.startswith(("the last query", "the diag", "the ragged")))
    _keep_pairs(m, name, LAST[how](m, m.dkv), heads)


@composed("dq-only-counts", "only {0} gives to dq: what was summed before is lost",
          "dQ = dQ + dS K, over all key tiles", "dq products, dq walk", tiles="mn",
          spoils=lambda _: {"d_q"}, stages=OWN_BACKWARD, each=(
              ("the last key tile",), ("the first key tile",), ("the ragged key tile",),
              ("the tile before the diagonal",)))
def _(m, how):
    p = m.dq
    last = torch.where(p.keep, p.j, 0).amax(1, keepdim=True) // m.BN * m.BN
    _keep_pairs(m, "dq", {
        "the last key tile": p.j >= last, "the first key tile": p.j < m.BN,
        "the ragged key tile": p.j >= m.NK // m.BN * m.BN,
        "the tile before the diagonal": (p.j >= p.diag - m.BN) & (p.j < p.diag)}[how])


@composed("phase-gives-nothing", "in the tiles {1}: nothing is added to {0}",
          "every tile adds its share to dq, dk and dv",
          lambda name, _: "dq walk" if name == "dq" else "dkdv calls", tiles="mn", stages=BACKWARD,
          spoils=lambda name, _: GRADIENTS[name],
          each=(*((name, phase) for name in ("dk", "dv") for phase in OF_QUERIES),
                *(("dq", phase) for phase in OF_KEYS)))
def _(m, name, phase):
    p = m.dq if name == "dq" else m.dkv
    _keep_pairs(m, name, ~pairs(p, phase))


@composed("phase-p", "in the tiles {2}, in {0}: {3}", "P = exp(S - lse), dS = P (dP - delta), for "
          "every tile", p_of, tiles="mn", stages=BACKWARD, spoils=of_walk, each=tuple(
              (*walk, phase, words, factor) for walk, phases in ((DQ, OF_KEYS), (DKDV, OF_QUERIES))
              for phase in phases for words, factor in (
                  ("the scores are not scaled", "one"), ("the scores are scaled twice", "root"),
                  ("the scores lack log2(e)", LN2), ("the scores have log2(e) twice", LOG2E),
                  ("delta is left out", 0.0))))
def _(m, words, walk, phase, what, factor):
    p = walk_of(m, walk)
    there = pairs(p, phase)
    if factor == 0.0:
        p.ds_of = lambda w, dp, delta: w * (dp - delta * ~there)
        return
    factor = {"one": 1 / m.scale, "root": m.scale}.get(factor, factor)
    p.changes.append(lambda s: torch.where(there, s * factor, s))


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


# ------------------------------------------------------- programs of dq, and of dk and dv
HEADS = {f"b = {b}, h = {h}": (b, h) for b, h in (
    ("bh // HQ", "bh % HKV"), ("bh // HKV", "bh % HKV"), ("bh // HKV", "bh % HQ"),
    ("bh % HQ", "bh // HQ"), ("bh % HKV", "bh // HKV"), ("bh // HQ", "bh % HQ"),
    ("bh % B", "bh // B"), ("bh // B", "bh % B"), ("0", "bh % HQ"), ("0", "bh % HKV"),
    ("bh // HKV", "0"), ("bh // HQ", "0"), ("bh // HQ", "bh // HQ"), ("bh // HKV", "bh // HKV"),
    ("bh", "bh % HKV"), ("bh // HKV", "bh"), ("bh // HKV", "bh % B"), ("bh // N", "bh % HKV"))}


def _heads(m, how, bh):
    sizes = {"HQ": m.HQ, "HKV": m.HKV, "B": m.B, "N": m.N}

    def of(text):
        left, *rest = text.split()
        if left == "0" or not rest:
            return bh * (left != "0")
        return bh // sizes[rest[1]] if rest[0] == "//" else bh % sizes[rest[1]]
    return tuple(of(text) for text in HEADS[how])


@composed("dkdv-heads-split", "in dk and dv, a program takes {0}", "b = bh // HKV, kv_head = "
          "bh % HKV", "dkdv rows", stages=BACKWARD, spoils=lambda _: {"d_k", "d_v"},
          each=tuple((how,) for how in HEADS))
def _(m, how):
    bh = torch.arange(m.B * m.HKV)
    b, kv = _heads(m, how, bh)
    flat = b * m.HKV + kv
    only(int(flat.max()) < m.B * m.HKV and not torch.equal(flat, bh))
    m.over_group = lambda parts: parts.sum(2).flatten(0, 1)[flat].unflatten(0, (m.B, m.HKV))


@composed("dq-heads-split", "in dq, a program takes {0}", "b = bh // HQ, h = bh % HQ", "dq rows",
          stages=BACKWARD, spoils=lambda _: {"d_q", "d_k", "d_sink_logits"},
          each=tuple((how,) for how in HEADS))
def _(m, how):
    bh = m.b * m.HQ + m.h
    b, h = _heads(m, how, bh)
    flat = b * m.HQ + h
    only(int(flat.max()) < m.B * m.HQ and not torch.equal(flat, bh) and m.sink is None)
    kv = b * m.HKV + h // m.group
    only(int(kv.max()) < m.B * m.HKV)
    m.dq.q_of = m.dq_of = flat
    m.dq.k_at = m.dq.v_at = kv // m.HKV, kv % m.HKV


@composed("dq-kv-head", "in dq, query head h reads {1} at head {0}", "query head h reads k and v at "
          "h // (HQ // HKV)", "dq kv head", stages=BACKWARD, spoils=lambda *_: {"d_q"},
          each=tuple((how, names) for how in ("h % HKV", "0", "h % group", "h // HKV",
                                              "HKV - 1 - h // group", "h", "b", "bh // group")
                     for names in ("k and v", "k", "v")))
def _(m, how, names):
    h = {"h % HKV": m.h % m.HKV, "0": m.h * 0, "h % group": m.h % m.group, "h // HKV":
         m.h // m.HKV, "HKV - 1 - h // group": m.HKV - 1 - m.h // m.group, "h": m.h, "b": m.b,
         "bh // group": (m.b * m.HQ + m.h) // m.group}[how]
    flat = m.b * m.HKV + h
    only(int(flat.max()) < m.B * m.HKV and not torch.equal(flat, m.b * m.HKV + m.h // m.group))
    at = flat // m.HKV, flat % m.HKV
    m.dq.k_at = at if "k" in names else m.dq.k_at
    m.dq.v_at = at if names != "k" else m.dq.v_at


@composed("gradient-elsewhere", "{0} is stored {1}", "row i of head bh is row bh * N + i, D wide",
          lambda name, *_: "dq walk" if name == "dq" else "dkdv rows", stages=BACKWARD, tiles="m",
          spoils=lambda name, *_: GRADIENTS[name],
          each=tuple((name, how, reverse) for name in ("dq", "dk and dv") for how in ADDRESSES
                     for reverse in (True, False)))
def _(m, name, how, reverse):
    heads = m.HQ if name == "dq" else m.HKV
    one = SimpleNamespace(B=m.B, HQ=heads, HKV=m.HKV, N=m.N, D=m.D, BM=m.BM, rows=m.rows,
                          group=heads // m.HKV, pairs=range(m.B * heads))

    def after(out):
        return out | {n: written(one, out[n].flatten(0, 1), ADDRESSES[how], reverse).view(
            out[n].shape) for n in GRADIENTS[name] if n in out}
    m.after = after


PARTS_OF_GRADIENTS = {
    "the first tile's rows": lambda m, i, b, h: i < m.BM,
    "the last tile's rows": lambda m, i, b, h: i >= (m.N - 1) // m.BM * m.BM,
    "the rows after the first tile": lambda m, i, b, h: i >= m.BM,
    "the rows of ragged tiles": lambda m, i, b, h: i >= m.N // m.BM * m.BM,
    "the last row": lambda m, i, b, h: i == m.N - 1,
    "the first row": lambda m, i, b, h: i == 0,
    "the heads after the first": lambda m, i, b, h: h > 0,
    "the batch entries after the first": lambda m, i, b, h: b > 0,
    "the last head": lambda m, i, b, h: h == h.max(),
}


@composed("gradient-in-part", "{1} of {0} are never written", "every row of every head is stored",
          lambda name, _: "dq walk, dq rows" if name == "dq" else "dkdv rows", stages=BACKWARD,
          tiles="m", spoils=lambda name, _: GRADIENTS[name],
          each=tuple((name, how) for name in ("dq", "dk", "dv", "dk and dv")
                     for how in PARTS_OF_GRADIENTS))
def _(m, name, how):
    def after(out):
        found = dict(out)
        for n in GRADIENTS[name]:
            if n not in out:
                continue
            x = out[n]
            b, h, i = (torch.arange(size).view(shape) for size, shape in zip(
                x.shape[:3], ((-1, 1, 1, 1), (1, -1, 1, 1), (1, 1, -1, 1)), strict=True))
            never = PARTS_OF_GRADIENTS[how](m, i, b, h).expand(x.shape)
            only(bool(never.any()))
            found[n] = x.masked_fill(never, torch.nan)
        return found
    m.after = after


# -------------------------------------------------------------------- the sink logits
SINK_PARTS = {
    "sum_i exp(sink - lse_i) delta_i without its sign": lambda m, p, d, lse: -p * d,
    "-sum_i exp(sink - lse_i), without delta": lambda m, p, d, lse: p,
    "-sum_i exp(lse_i - sink) delta_i": lambda m, p, d, lse: d / p,
    "-sum_i exp(sink) delta_i": lambda m, p, d, lse: p * torch.exp(lse) * d,
    "-sum_i exp(-lse_i) delta_i": lambda m, p, d, lse: torch.exp(-lse) * d,
    "-sum_i (sink - lse_i) delta_i": lambda m, p, d, lse: torch.log(p) * d,
    "-sum_i exp(sink - lse_i) delta_i^2": lambda m, p, d, lse: p * d * d,
    "-sum_i exp(sink - lse_i)^2 delta_i": lambda m, p, d, lse: p * p * d,
    "-sum_i p (1 - p) delta_i": lambda m, p, d, lse: p * (1 - p) * d,
    "-sum_i exp(sink - lse_i ln 2) delta_i": lambda m, p, d, lse: p * torch.exp(
        lse * (1 - LN2)) * d,
    "-sum_i exp(sink - lse_i log2(e)) delta_i": lambda m, p, d, lse: p * torch.exp(
        lse * (1 - LOG2E)) * d,
    "-sum_i exp((sink - lse_i) ln 2) delta_i": lambda m, p, d, lse: p**LN2 * d,
    "-sum_i exp((sink - lse_i) log2(e)) delta_i": lambda m, p, d, lse: p**LOG2E * d,
    "-sum_i exp(sink log2(e) - lse_i) delta_i": lambda m, p, d, lse: torch.exp(
        (torch.log(p) + lse) * LOG2E - lse) * d,
    "-sum_i exp(sink ln 2 - lse_i ln 2) delta_i": lambda m, p, d, lse: p**LN2 * d,
    "0": lambda m, p, d, lse: p * 0,
    "-sum_i exp(sink scale - lse_i) delta_i": lambda m, p, d, lse: torch.exp(
        (torch.log(p) + lse) * m.scale - lse) * d,
}


@composed("sink-gradient-is", "the gradient of sink_logits is {0}",
          "d sink = -sum_i exp(sink - lse_i) delta_i, over batch and queries", "dsink", stages=(9,),
          spoils=lambda _: {"d_sink_logits"}, each=tuple((how,) for how in SINK_PARTS))
def _(m, how):
    only(m.sink is not None)

    def parts_of(parts, delta):
        lse, d = m.right[1].view_as(parts), delta.view_as(parts)
        p = torch.exp(m.sink[:, None, None] - m.right[1]).view_as(parts)
        return SINK_PARTS[how](m, p, d, lse).sum((0, 2))
    m.sink_sum = parts_of
