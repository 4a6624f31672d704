"""Which program of the backward takes which head, where it stores what it made, and the gradient of
the sink logits."""

from types import SimpleNamespace

import torch

from grader.naming.mistakes.gradients import GRADIENTS, composed
from grader.naming.mistakes.programs import ADDRESSES, possible, written
from grader.naming.table import BACKWARD, LN2, LOG2E, only

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


@composed("dq-kv-head", "in dq, query head h reads {1} at head {0}", "query head h reads k and v "
          "at h // (HQ // HKV)", "dq kv head", stages=BACKWARD, spoils=lambda *_: {"d_q"},
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
                          group=heads // m.HKV, pairs=range(m.B * heads), got=m.got)
    possible(one, ADDRESSES[how])

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
