"""The backward with one part in the place of another: what P is made from, dS, the products, and
what they sum over."""

import torch

from grader.naming.phases import OF_KEYS, OF_QUERIES, pairs
from grader.naming.table import BACKWARD, LN2, LOG2E, OWN_BACKWARD, backward, only

DQ, DKDV, BOTH = ("dq", "dq"), ("dk and dv", "dkdv"), ("the backward", "both")
GRADIENTS = {"dq": {"d_q"}, "dk": {"d_k"}, "dv": {"d_v"}, "dk and dv": {"d_k", "d_v"}}


def composed(id, words, line, place, slot="composed", spoils=None, **more):
    """As backward, of a part and a change."""
    return backward(id, words, line, place, slot, composed=True, spoils=spoils, **more)


def of_walk(words, walk, *_) -> set[str]:
    return {"dq": {"d_q"}, "dkdv": {"d_k", "d_v"}, "both": {"d_q", "d_k", "d_v"}}[walk]


def p_of(words, walk, *_) -> str:
    return {"dq": "dq P, dq walk", "dkdv": "dkdv P, dkdv calls", "both": "dq P, dkdv P"}[walk]


def products_of(words, walk, *_) -> str:
    return walk + " products"


def walk_of(m, walk):
    return {"dq": m.dq, "dkdv": m.dkv}[walk]


def walks_of(m, walk):
    return (m.dq, m.dkv) if walk == "both" else (walk_of(m, walk),)


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
          each=tuple((*walk, how) for walk in (DQ, DKDV, BOTH) for how in LSE_READ))
def _(m, words, walk, how):
    for p in walks_of(m, walk):
        p.lse = lambda lse: LSE_READ[how](lse, m.scale)


@composed("p-of-the-tile", "in {0}, P is the softmax of each tile alone, not of the row",
          "P = exp(S - lse)", p_of, stages=OWN_BACKWARD, spoils=of_walk, tiles="mn",
          each=(DQ, DKDV, BOTH))
def _(m, words, walk):
    for p in walks_of(m, walk):
        s = torch.nn.functional.pad(p.scores(), (0, -len(m.keys) % m.BN), value=-torch.inf)
        own = s.unflatten(2, (-1, m.BN)).logsumexp(-1, keepdim=True).expand(-1, -1, -1, m.BN)
        own = own.flatten(2)[..., :len(m.keys)]
        p.lse = lambda lse, own=own: own.masked_fill(own == -torch.inf, 0.0)


@composed("p-scale", "in {0}, the scores of P {2}", "P = exp(scale * Q K^T - lse)", p_of,
          stages=OWN_BACKWARD, spoils=of_walk, each=tuple((*walk, *how) for walk in (DQ, DKDV, BOTH)
          for how in (("are not scaled", "one"), ("are scaled twice", "root"),
                      ("lack log2(e)", LN2), ("have log2(e) twice", LOG2E),
                      ("have the wrong sign", -1.0), ("have half their scale", 0.5))))
def _(m, words, walk, how, factor):
    factor = {"one": 1 / m.scale, "root": m.scale}.get(factor, factor)
    for p in walks_of(m, walk):
        p.scale = m.scale * factor


@composed("p-positions", "in {0}, lse and delta belong to keys instead of queries: {2}",
          "P_ij = exp(S_ij - lse_i), dS_ij = P_ij (dP_ij - delta_i)",
          lambda words, walk, how: (products_of if how == "delta" else p_of)(words, walk),
          stages=OWN_BACKWARD,
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


@composed("only-counts", "only {1} gives to {0}: what was summed before is lost", "dV = dV + P^T dO"
          ", dK = dK + dS^T Q, over all query tiles and all heads of the group",
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
