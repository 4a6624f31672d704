"""The gradients, where the outputs are right."""

import torch

from grader.naming.mistakes.addresses import restrided
from grader.naming.model import CHOPPED
from grader.naming.table import BACKWARD, LN2, LOG2E, count_pairs, in_window, mistake
from grader.naming.walks import INF, NotHere, Pass, round_up


# ------------------------------------------------------------------ backward
def backward(id, words, line, symptom, slot="", stages=BACKWARD, **more):
    """As mistake, for gradients where the outputs are right."""
    return mistake(id, words, line, symptom, kind="backward", slot=slot or id, stages=stages,
                   **more)


D_NAMES = {"q": "dq", "k": "dk", "v": "dv", "sink_logits": "d sink_logits"}
for _name in "qk":
    @backward(f"d{_name}-unscaled", f"d{_name} lacks the factor scale",
              f"d{_name} = scale * dS{'' if _name == 'q' else '^T'} "
              f"{'K' if _name == 'q' else 'Q'}", f"d_{_name}", f"factor d{_name}")
    def _(m, name=_name):
        m.factor[name] = 1.0

    @backward(f"d{_name}-scaled-twice", f"d{_name} has the factor scale twice",
              "the scale comes in once, after dS", f"d_{_name}", f"factor d{_name}")
    def _(m, name=_name):
        m.factor[name] = m.scale**2

    @backward(f"d{_name}-in-base-2", f"d{_name} is multiplied by scale * log2(e)",
              "log2(e) belongs to the exponent, not to the gradient", f"d_{_name}",
              f"factor d{_name}", each=((LOG2E,), (LN2,)))
    def _(m, factor, name=_name):
        m.factor[name] = m.scale * factor

    @backward(f"d{_name}-with-the-default-scale", f"d{_name}'s last factor is 1 / sqrt(D), though "
              "the caller gave a scale", "the caller's scale, wherever there is a scale",
              f"d_{_name}", f"factor d{_name}")
    def _(m, name=_name):
        if m.case.scale is None:
            raise NotHere
        m.factor[name] = m.D**-0.5


@backward("dv-scaled", "dv is multiplied by the scale", "dV = P^T dO", "d_v", "factor dv")
def _(m):
    m.factor["v"] = m.scale


for _name in ("q", "k", "v", "sink_logits"):
    @backward(f"{D_NAMES[_name].replace(' ', '-')}-off-by-a-factor",
              D_NAMES[_name] + " is {factor:.4g} times what it should be",
              "every gradient has its one scale, and no other factor", f"d_{_name}",
              f"factor {D_NAMES[_name]}", fitted=True)
    def _(m, name=_name):
        if "d_" + name not in m.all_got:
            raise NotHere
        m.fit = name

    @backward(f"{D_NAMES[_name].replace(' ', '-')}-zero", f"{D_NAMES[_name]} is zero",
              "each gradient has its own sum", f"d_{_name}", f"factor {D_NAMES[_name]}")
    def _(m, name=_name):
        m.factor[name] = 0.0


@backward("own-scale-ignored-in-backward", "the backward takes 1 / sqrt(D), though the caller gave "
          "a scale", "one scale in forward and backward", "numbers", "P")
def _(m):
    if m.case.scale is None:
        raise NotHere
    m.factor |= {"q": m.D**-0.5, "k": m.D**-0.5}
    m.dq.scale = m.dkv.scale = m.D**-0.5


@backward("no-delta", "delta is left out: dS = P * dP{0}", "dS = P * (dP - delta)", "d_q", "delta",
          each=((" in dq and dk", "dqk"), (" in dq", "dq"), (" in dk", "dk")))
def _(m, words, where):
    for name in ("dq", "dk"):
        if name == where or where == "dqk":
            m.delta[name] = 0.0


@backward("delta-added", "delta is added, not subtracted: dS = P * (dP + delta){0}",
          "dS = P * (dP - delta)", "d_q", "delta",
          each=(("", "dqk"), (", in dq", "dq"), (", in dk", "dk"), (", everywhere", "all")))
def _(m, words, where):
    if where == "all":
        m.delta_of = lambda m, o, do: -(do * o).sum(-1, keepdim=True)
    for name in ("dq", "dk"):
        if name == where or where == "dqk":
            m.delta[name] = -1.0


@backward("delta-of-something-else", "delta is {0}, not rowsum(dO * O)", "delta = rowsum(dO * O)",
          "d_q", "delta", each=(("rowsum(dO)",), ("rowmean(dO * O)",), ("rowsum(O)",),
                                ("rowsum(dO * O) with the scale",), ("rowsum(O * O)",)))
def _(m, what):
    m.delta_of = {
        "rowsum(dO)": lambda m, o, do: do.sum(-1, keepdim=True),
        "rowmean(dO * O)": lambda m, o, do: (do * o).mean(-1, keepdim=True),
        "rowsum(O)": lambda m, o, do: o.sum(-1, keepdim=True),
        "rowsum(O * O)": lambda m, o, do: (o * o).sum(-1, keepdim=True),
        "rowsum(dO * O) with the scale":
            lambda m, o, do: (do * o).sum(-1, keepdim=True) * m.scale}[what]


@backward("delta-of-another-row", "dk takes the delta of another query{0}",
          "delta_i belongs to query i", "d_k", "delta",
          each=((", the one before", 1, "first"), (", the one after", -1, "last"),
                (", the one before", 1, "wrap"), (", the one after", -1, "wrap"),
                (", the one before", 1, "zero"), (", the one after", -1, "zero"),
                (", the one before", 1, "flat"), (", the one after", -1, "flat")))
def _(m, words, by, edge):
    def moved(delta, m):
        index = torch.arange(m.N) - by
        if edge == "flat":  # over the borders of heads
            flat = delta.flatten()
            return flat[(torch.arange(len(flat)) - by).clamp(0, len(flat) - 1)].view_as(delta)
        if edge == "wrap":
            return delta[:, index % m.N]
        out = delta[:, index.clamp(0, m.N - 1)]
        if edge == "zero":
            out = out * ((index >= 0) & (index < m.N))[None, :, None]
        return out
    m.delta_at = moved


@backward("delta-of-another-head", "dk takes the delta of the group's first query head for all",
          "delta belongs to the query head, not to the group", "d_k", "delta")
def _(m):
    if m.group == 1:
        raise NotHere
    first = torch.arange(len(m.pairs)) // m.group * m.group
    m.delta_at = lambda delta, m: delta[first]


@backward("delta-without-the-sink", "delta is divided by the weight that the sink logit left over",
          "delta = rowsum(dO * O), sink logit or not", "d_q", "delta", stages=(9,))
def _(m):
    if m.sink is None:
        raise NotHere
    lse = m.fwd.scores().logsumexp(-1, keepdim=True)
    part = torch.exp(lse - torch.logaddexp(lse, m.sink[:, None, None]))
    m.delta_of = lambda m, o, do: (do * o).sum(-1, keepdim=True) / part


@backward("statistics-of-another-head", "lse and delta of (b, h) are looked up at b * HKV + h",
          "lse and delta have HQ heads a batch entry", "d_k", "P",
          each=(("dkv", "both"), ("all", "both"), ("dkv", "lse"), ("dkv", "delta")))
def _(m, where, which):
    if m.B == 1 or m.group == 1:
        raise NotHere
    b, h = m.pairs.unbind(1)
    at = b * m.HKV + h
    raise_lse = which in ("both", "lse")
    if which in ("both", "delta"):
        m.delta_at = lambda delta, m: delta[at]
    if raise_lse:
        scores, right = m.dkv.scores, {}
        saved = m.saved_lse

        def remember(top, total, value):
            right["lse"] = value
            return saved(top, total, value)
        m.saved_lse = remember
        m.dkv.scores = lambda: scores() + right["lse"] - right["lse"][at]


def saved(id, words, line, each=((),), **more):
    """As backward, for what is wrong in the saved log-sum-exp."""
    return backward(id, words, line, "numbers", "P", each=each, **more)


@saved("lse-in-two-bases", "the backward reads lse in another base than the forward wrote it",
       "P = exp(S - lse), all in one base", each=((LN2,), (LOG2E,)))
def _(m, factor):
    m.saved_lse = lambda top, total, lse: lse * factor


@saved("lse-half-in-another-base", "the maximum in base 2 plus log(l) in base e",
       "lse2 = m + log2(l)", each=((LN2,), (LOG2E,)))
def _(m, factor):
    m.saved_lse = lambda top, total, lse: top + torch.log(total) * factor


@saved("saved-lse-is-the-max", "lse leaves the sum out: P in the backward is not normalised",
       "lse = m + log(l)")
def _(m):
    m.saved_lse = lambda top, total, lse: top


@saved("saved-lse-without-the-max", "lse leaves the maximum out", "lse = m + log(l)")
def _(m):
    m.saved_lse = lambda top, total, lse: torch.log(total)


@saved("saved-lse-in-16-bits", "lse is saved in 16 bits", "lse in float32",
       rounds=True,
       each=tuple((dtype, unit) for dtype in (torch.float16, torch.bfloat16, None)
                  for unit in (LOG2E, 1.0)))
def _(m, dtype, unit):
    if dtype is None and m.case.dtype == torch.float32:
        raise NotHere
    dtype = dtype or m.case.dtype
    m.saved_lse = lambda top, total, lse: (lse * unit).to(dtype).double() / unit


@saved("saved-lse-without-the-sink", "the saved lse leaves the sink logit out",
       "lse = log(exp(sink) + sum_j exp(S_ij))", stages=(9,))
def _(m):
    if m.sink is None:
        raise NotHere
    m.saved_lse = lambda top, total, lse: m.fwd.scores().logsumexp(-1, keepdim=True)


@saved("backward-scores-unscaled", "{0} recomputes P without the scale",
       "P = exp(scale * Q K^T - lse)", each=(("dq",), ("dk and dv",), ("the backward",)))
def _(m, where):
    for name, walk in (("dq", m.dq), ("dk and dv", m.dkv)):
        if where in (name, "the backward"):
            walk.scale = 1.0


@saved("backward-in-two-bases", "{0} recomputes P with exp where exp2 belongs, or the other way",
       "exp(x) = exp2(x * log2(e))",
       each=tuple((w, f) for w in ("dq", "dk and dv", "the backward") for f in (LOG2E, LN2)))
def _(m, where, factor):
    for name, walk in (("dq", "dq"), ("dk and dv", "dkv")):
        if where in (name, "the backward"):
            m.exp_base[walk] = factor


@saved("backward-without-lse", "{0} recomputes P without subtracting lse", "P = exp(S - lse)",
       each=(("dq", "dq"), ("dk and dv", "dkv")))
def _(m, words, walk):
    m.no_lse = walk


@backward("dp-with-k", "dP is made with k, not with v, in {0}", "dP = dO V^T", "d_q", "P",
          each=(("dq", "dq"), ("dk and dv", "dkv")))
def _(m, words, walk):
    m.dp_with = walk


@backward("ds-without-p", "dS lacks its factor P in {0}", "dS = P * (dP - delta)", "d_q", "P",
          tiles="mn", each=tuple((words, walk, hidden) for words, walk in
                                 (("dq", "dq"), ("dk and dv", "dkv")) for hidden in (False, True)))
def _(m, words, walk, hidden):
    """hidden: it was P that hid keys, too."""
    m.no_p = walk
    if hidden:
        there = getattr(m, walk)
        m.no_p_keep = there.walked & (there.j < m.NK)


@backward("dv-not-normalised", "dv is made of exp(S), not of P", "dV = P^T dO", "d_v", "dv")
def _(m):
    m.dv_from = "exp"


@backward("dv-from-ds", "dv is made of dS, not of P", "dV = P^T dO", "d_v", "dv")
def _(m):
    m.dv_from = "ds"


@backward("dv-unmasked", "dv counts hidden queries: the mask is applied to dS alone",
          "P is 0 where hidden, before dV", "d_v", "dv", tiles="mn")
def _(m):
    m.dv_from = "unmasked"


@backward("dk-from-p", "dk is made of P, not of dS", "dK = scale * dS^T Q", "d_k", "dk")
def _(m):
    m.dk_from = "p"


@backward("dk-from-do", "dk is made with dO in the place of Q", "dK = scale * dS^T Q", "d_k", "dk",
          each=(("ds*do",), ("p*do",)))
def _(m, what):
    m.dk_from = what


@backward("dq-from-p", "dq is made of P, not of dS", "dQ = scale * dS K", "d_q", "dq")
def _(m):
    m.dq_from = "p"


@backward("dq-in-16-bits", "the sum of dq is kept in 16 bits", "dQ adds up in float32", "d_q", "dq",
          tiles="n", each=((torch.float16,), (torch.bfloat16,), (CHOPPED,)), rounds=True)
def _(m, dtype):
    m.round_dq = dtype


@backward("dk-not-transposed", "dk is made with dS, not its transpose", "dK = scale * dS^T Q",
          "d_k", "dk", tiles="n")
def _(m):
    m.dk_from = "tiles"


@backward("o-strides", "the backward reads o with strides not its own: {0}",
          "o is contiguous: its own strides, not those of q", "numbers", "o",
          each=(("those of q", "q"), ("those of k", "k")))
def _(m, words, other):
    sent = m.built.call.inputs[other]
    shape = (m.B, m.HQ, m.N, m.D)
    if sent.stride == torch.empty(shape, device="meta").stride():
        raise NotHere

    def misread(o):
        flat = o.contiguous().flatten()
        last = sum(s * (n - 1) for s, n in zip(sent.stride, shape, strict=True))
        if last >= len(flat):
            raise NotHere
        return flat.as_strided(shape, sent.stride).flatten(0, 1)
    m.o_of = misread


@backward("dk-without-dq", "where q needs no gradient, delta is not computed, and dk needs it",
          "delta is for dq and dk alike", "d_k", "delta")
def _(m):
    if "q" in m.case.grads:
        raise NotHere
    m.delta_of = lambda m, o, do: torch.full_like(o[..., :1], torch.nan)


@backward("dq-of-the-last-tile", "dq is overwritten by every key tile", "dQ adds up over all key "
          "tiles", "d_q", "dq", tiles="mn", each=(("of the row",), ("of the query tile",)))
def _(m, which):
    p = m.dq
    last = torch.where(p.keep, p.j, 0).amax(1, keepdim=True) // m.BN * m.BN
    p.keep = p.keep & (p.j >= (last if which == "of the row" else p.end - m.BN))


@backward("dkdv-of-the-last-tile", "dk and dv are overwritten by every query tile",
          "dK and dV add up over all query tiles", "d_k", "dkdv", tiles="m")
def _(m):
    p = m.dkv
    last = torch.where(p.keep, p.i, 0).amax(0, keepdim=True)
    p.keep = p.keep & (p.i >= last // m.BM * m.BM)


def query_walk(id, words, line, tiles="mn", each=((),), stages=BACKWARD):
    """As backward, for the walk of dk and dv over the queries of a key tile."""
    return backward(id, words, line, "d_k", "dkdv mask", tiles=tiles, each=each, stages=stages)


def _key_tile(p: Pass):
    return p.j // p.model.BN * p.model.BN


@query_walk("dkdv-last-query-tile-forgotten", "a ragged last query tile gives nothing to dk and dv",
            "the walk over queries ends at N", each=((False,), (True,)))
def _(m, own_spared):
    p, whole = m.dkv, m.N // m.BM * m.BM
    if whole == m.N:
        raise NotHere
    p.keep = p.keep & ((p.i < whole) | ((_key_tile(p) + m.BN > whole) & own_spared))


@query_walk("dkdv-one-query-tile", "one query tile is walked on the diagonal, where BLOCK_N holds "
            "several", "the diagonal of BLOCK_N keys takes BLOCK_N / BLOCK_M query tiles")
def _(m):
    p = m.dkv
    if m.BM >= m.BN or not m.causal:
        raise NotHere
    inside = (p.i >= _key_tile(p) + m.BM) & (p.i < _key_tile(p) + m.BN)
    p.keep = p.keep & ~inside


@query_walk("dkdv-ragged-diagonal-forgotten", "the diagonal of a ragged last key tile is not "
            "walked", "the walk over queries begins at the key tile's first row",
            each=((False,), (True,)))
def _(m, part):
    p, whole = m.dkv, m.N // (m.BM if part else m.BN) * (m.BM if part else m.BN)
    if whole == m.N:
        raise NotHere
    p.keep = p.keep & ~((_key_tile(p) + m.BN > m.N) & (p.i >= whole))


@query_walk("dkdv-diagonal-twice", "the diagonal is walked twice, once unmasked",
            "each query tile belongs to one phase")
def _(m):
    p = m.dkv
    if not m.causal:
        raise NotHere
    start = _key_tile(p)
    again = (p.i >= start) & (p.i < start + m.BN) & in_window(p)
    count_pairs(p, p.keep.double() + again)


@query_walk("dkdv-diagonal-skipped", "the walk over queries begins after the diagonal",
            "the walk over queries begins at the key tile's first row")
def _(m):
    p = m.dkv
    if not m.causal:
        raise NotHere
    p.keep = p.keep & (p.i >= _key_tile(p) + m.BN)


@query_walk("dkdv-from-the-diagonal", "without a causal mask dk and dv still begin at the diagonal",
            "is_causal=False: the walk over queries begins at 0")
def _(m):
    p = m.dkv
    if m.causal:
        raise NotHere
    p.keep = p.keep & (p.i >= _key_tile(p))


@query_walk("dkdv-walk-too-short", "the walk over queries ends too early: {0}",
            "the tile's last key is seen until its own window ends", stages=(9,),
            each=(("with the window of the first key",), ("a query short",),
                  ("the right edge is left out",), ("the right edge is left out, of sinks too",),
                  ("tiles of sinks end with their window",),
                  ("tiles that are only partly sinks end with their window",)))
def _(m, how):
    p = m.dkv
    if m.window is None:
        raise NotHere
    start = _key_tile(p)
    last_key = (start + m.BN - 1).clamp(max=m.N - 1)
    if how == "with the window of the first key":
        end = round_up(start + m.window, m.BM)
    elif how == "a query short":
        end = round_up(start + m.BN - 1 + m.window - 1, m.BM)
    elif how.startswith("the right edge is left out"):
        end = torch.maximum((start + m.window) // m.BM * m.BM, start + m.BN)
    elif how == "tiles of sinks end with their window":
        end = torch.where(start < m.sinks, round_up(start + m.BN - 1 + m.window, m.BM), 1 << 30)
    else:
        end = torch.where((start < m.sinks) & (last_key >= m.sinks),
                          round_up(start + m.BN - 1 + m.window, m.BM), 1 << 30)
    if "sinks" not in how:
        end = torch.where(start < m.sinks, 1 << 30, end)
    p.keep = p.keep & (p.i < end)


@query_walk("dkdv-walk-too-long", "queries that no longer see a key are walked without a mask: {0}",
            "the walk without a mask ends where the tile's first key leaves a window", stages=(9,),
            each=(("one query",), ("a tile of sinks to its end",)))
def _(m, how):
    p = m.dkv
    if m.window is None:
        raise NotHere
    start = _key_tile(p)
    if how == "one query":
        outer = torch.maximum((start + m.window + 1) // m.BM * m.BM, start + m.BN)
        more = (p.i < outer) & (p.i >= start + m.BN)
    else:
        more = (start < m.sinks) & (p.i >= start + m.BN)
    p.keep = p.keep | (more & p.exists & (p.j <= p.i))


@backward("group-sum-missing", "dk and dv are those of one query head of the group: {0}",
          "dK and dV are summed over the query heads of the group", "d_k", "group",
          each=(("the first", 0), ("the last", -1)))
def _(m, words, which):
    if m.group == 1:
        raise NotHere
    m.over_group = lambda parts: parts[:, :, which]


@backward("group-mean", "dk and dv are means over the group",
          "dK and dV are summed over the query heads of the group", "d_k", "group")
def _(m):
    if m.group == 1:
        raise NotHere
    m.over_group = lambda parts: parts.mean(2)


@backward("diagonal-of-one-head", "on the diagonal only the group's first head gives to dk and dv",
          "every head of the group has a diagonal", "d_k", "group", tiles="n")
def _(m):
    if m.group == 1 or not m.causal:
        raise NotHere
    walk, scores = m.dkv, m.dkv.scores
    start = walk.j // m.BN * m.BN
    on = (walk.i < start + m.BN)[None] & (torch.arange(len(m.pairs)) % m.group > 0)[:, None, None]
    walk.scores = lambda: scores().masked_fill(on, -INF)


@backward("dkdv-heads-interleaved", "dk and dv add up query heads h, h + HKV, ...",
          "key/value head g serves the query heads g * group ... g * group + group - 1", "d_k",
          "group")
def _(m):
    if m.group == 1 or m.HKV == 1:
        raise NotHere
    b, h = m.pairs.unbind(1)
    m.dkv.k_at = m.dkv.v_at = (b, h % m.HKV)
    m.over_group = lambda parts: parts.flatten(1, 2).unflatten(1, (m.group, m.HKV)).sum(1)


@backward("dq-heads-interleaved", "dq reads key/value head h % HKV", "query head h reads "
          "h // (HQ // HKV), in the backward too", "d_q", "dq", each=(("kv",), ("k",), ("v",)))
def _(m, which):
    if m.group == 1 or m.HKV == 1:
        raise NotHere
    b, h = m.pairs.unbind(1)
    m.dq.k_at = (b, h % m.HKV) if "k" in which else m.dq.k_at
    m.dq.v_at = (b, h % m.HKV) if "v" in which else m.dq.v_at


@backward("dkdv-batch-miscounted", "the batch entry of dk and dv is found with the wrong number of "
          "heads", "b = bh // HKV where bh counts key/value heads", "d_k", "group",
          each=(("hq",), ("zero",), ("all of the first",)))
def _(m, how):
    if m.B == 1:
        raise NotHere
    b, kv = torch.cartesian_prod(torch.arange(m.B), torch.arange(m.HKV)).unbind(1)
    other = (b * m.HKV + kv) // m.HQ if how == "hq" else torch.zeros_like(b)
    if bool((other == b).all()):
        raise NotHere
    if how == "zero":
        m.dkv.k_at = m.dkv.v_at = (other.repeat_interleave(m.group), m.pairs[:, 1] // m.group)
        return
    if how == "all of the first":
        m.over_group = lambda parts: parts.sum(2)[:1].expand(m.B, -1, -1, -1)
        return
    # Everything that the walk of (b, kv) reads is that of the other entry.
    flat = (b * m.HKV + kv) % m.HQ % m.HKV
    same = other * m.HKV + flat
    m.over_group = lambda parts: parts.sum(2).flatten(0, 1)[same].unflatten(0, (m.B, m.HKV))


@backward("gradients-in-the-wrong-order", "gradients come back in another order: {0}",
          "one gradient an argument, in the order of forward's arguments", "numbers", "order",
          each=(("dq, dv, dk", ("q", "v", "k")), ("dk, dq, dv", ("k", "q", "v")),
                ("dv, dk, dq", ("v", "k", "q"))))
def _(m, words, order):
    if m.group > 1 and order != ("q", "v", "k"):
        raise NotHere
    m.order = order


@backward("do-strides", "the gradient that arrives is read with strides not its own: {0}",
          "dO may be expanded or transposed: pass its strides on", "numbers", "do",
          each=(("as if contiguous", "contiguous"), ("those of q", "q")))
def _(m, words, other):
    m.dout = restrided(m, "o", "all axes", other).double()


@backward("sink-gradient-positive", "the gradient of sink_logits lacks its minus sign",
          "d sink = -sum_i exp(sink - lse_i) delta_i", "d_sink_logits", "d sink", stages=(9,))
def _(m):
    m.factor["sink_logits"] = -1.0


@backward("sink-gradient-wrong", "the gradient of sink_logits {0}",
          "d sink = -sum over batch and queries of exp(sink - lse) delta", "d_sink_logits",
          "d sink", stages=(9,), tiles="m",
          each=(("leaves out the weight exp(sink - lse)",), ("has the factor scale",),
                ("is a mean over queries",), ("is a mean over the batch",),
                ("is that of the first batch entry",), ("is that of the last query tile",),
                ("takes the logit to be in base 2",), ("is a mean over batch and queries",)))
def _(m, how):
    if m.sink is None:
        raise NotHere
    shape = (m.B, m.HQ, m.N)
    m.sink_of = {
        "leaves out the weight exp(sink - lse)":
            lambda m, each, delta: delta.view(shape).sum((0, 2)),
        "has the factor scale": lambda m, each, delta: each.sum((0, 2)) * m.scale,
        "is a mean over queries": lambda m, each, delta: each.mean(2).sum(0),
        "is a mean over the batch": lambda m, each, delta: each.sum(2).mean(0),
        "is a mean over batch and queries": lambda m, each, delta: each.mean((0, 2)),
        "is that of the first batch entry": lambda m, each, delta: each[0].sum(-1),
        "is that of the last query tile":
            lambda m, each, delta: each[..., (m.N - 1) // m.BM * m.BM:].sum((0, 2)),
        "takes the logit to be in base 2":
            lambda m, each, delta: (each * torch.exp(m.sink * (LN2 - 1)).view(
                m.B, m.HQ, 1)).sum((0, 2))}[how]
