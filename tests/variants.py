"""Honest and mistaken attentions in PyTorch, for the tests of the verdict rule.

attend() is a flash-like computation with switches.  Honest variants are other ways to be right;
mistakes are one-line slips the grader must reject.
"""

import torch

import reference

LOG2E = 1.4426950408889634
TILE = 48

HONEST = {
    "as the formula says": {},
    "P and dS stay in float32": {"round_p": False},
    "q scaled by log2(e) / sqrt(D) and rounded": {"prescale": True},
    "scale folded into dS before it is rounded": {"scale_ds": True},
}

FORWARD = {
    "last key dropped": {"drop_last": True},
    "output x 1.04": {"out_factor": 1.04},
    "scale x 1.04": {"scale_factor": 1.04},
    "no scale": {"scale_factor": None},
    "l + 1": {"l_plus": 1.0},
    "exp2 without log2(e)": {"scale_factor": 1 / LOG2E},
    "no max subtraction": {"no_max": True},
    "max starts at 0": {"max_floor": 0.0},
    "accumulator not rescaled": {"keep_acc": True},
    "sum not rescaled": {"keep_l": True},
    "last tile dropped": {"drop_tail": True},
    "keys in 8 bits": {"float8": True},
}
CAUSAL = {
    "strictly before": {"shift_causal": -1},
    "one key ahead": {"shift_causal": 1},
    "mask filled with -80": {"fill": -80.0},
    "causal mask ignored": {"mask": {"is_causal": False, "window_size": None}},
}
GROUPED = {
    "query head h reads h % HKV": {"heads": "modulo"},
    "every head reads the first": {"heads": "first"},
}
WINDOW = {
    "W + 1": {"window": 1},
    "W - 1": {"window": -1},
    "window ignored": {"mask": {"window_size": None}},
    "always W = 128": {"mask": {"window_size": 128}},
}
SINKS = {
    "no sinks": {"mask": {"sink_size": 0}},
    "S + 1": {"sinks": 1},
    "S - 1": {"sinks": -1},
    "sinks in the window counted twice": {"twice": True},
}
BACKWARD = {
    "dk x 1.04": {"dk_factor": 1.04},
    "dq without the scale": {"dq_factor": None},
    "no delta": {"delta": "none"},
    "delta is rowsum(do)": {"delta": "do"},
    "one head of the group in dk and dv": {"group": "last"},
    "group mean": {"group": "mean"},
    "dv from unrounded, unnormalised P": {"dv_from_s": True},
    "last row forgotten in dk and dv": {"drop_query": True},
}
BACKWARD_WINDOW = {
    "W + 1 in the backward": {"backward_window": 1},
    "W - 1 in the backward": {"backward_window": -1},
}


def attend(q, k, v, *, dout=None, dlse=None, is_causal=False, window_size=None, sink_size=0,
           scale=None, sink_logits=None, mask=None, **switch):
    """-> o, lse and, with dout, d_q, d_k, d_v, d_sink_logits, as a submission would return them."""
    (_, HQ, NQ, D), (_, HKV, NK, _) = q.shape, k.shape
    dtype, group = q.dtype, HQ // HKV
    scale = D**-0.5 if scale is None else scale
    options = {"is_causal": is_causal, "window_size": window_size, "sink_size": sink_size}
    options |= mask or {}
    if options["window_size"] is not None:
        options["window_size"] += switch.get("window", 0)
    options["sink_size"] += switch.get("sinks", 0)
    keep = _keep(NQ, NK, options, switch)

    def rounded(t):
        return t.to(dtype).float() if switch.get("round_p", True) else t

    heads = torch.arange(HQ) // group
    if switch.get("heads") == "modulo":
        heads = torch.arange(HQ) % HKV
    if switch.get("heads") == "first":
        heads = torch.zeros(HQ, dtype=torch.long)
    qf, kf, vf = q.float(), k.float()[:, heads], v.float()[:, heads]
    if switch.get("float8"):
        kf = kf.to(torch.float8_e4m3fn).float()
    factor = switch.get("scale_factor", 1.0)
    factor = 1 / scale if factor is None else factor
    left, right = qf, scale * LOG2E * factor
    if switch.get("prescale"):
        left, right = rounded(qf * right), 1.0
    s = (left @ kf.mT * right).masked_fill(~keep, switch.get("fill", -torch.inf))
    if switch.get("twice"):
        both = torch.arange(NK) < sink_size
        both = both & (torch.arange(NQ)[:, None] - torch.arange(NK) < (window_size or NK)) & keep
        s = s + both.float()  # log2(2)

    m = torch.full_like(s[..., :1], switch.get("max_floor", -torch.inf))
    l_i, acc = torch.zeros_like(m), torch.zeros_like(qf)
    if sink_logits is not None:
        m = (sink_logits.float() * LOG2E).view(1, HQ, 1, 1).expand_as(m)
        l_i = torch.ones_like(m)
    for lo in range(0, NK, TILE):
        tile = s[..., lo:lo + TILE]
        m_new = torch.maximum(m, tile.amax(-1, keepdim=True))
        if switch.get("no_max"):
            m_new = torch.zeros_like(m)
        pivot = m_new.masked_fill(m_new == -torch.inf, 0.0)
        p, alpha = torch.exp2(tile - pivot), torch.exp2(m - pivot)
        if switch.get("no_max"):
            alpha = torch.ones_like(m)
        l_i = p.sum(-1, keepdim=True) + (l_i if switch.get("keep_l") else alpha * l_i)
        old = acc if switch.get("keep_acc") else alpha * acc
        acc, m = old + rounded(p) @ vf[..., lo:lo + TILE, :], m_new
    l_i = l_i + switch.get("l_plus", 0.0)
    o = (acc / l_i * switch.get("out_factor", 1.0)).to(dtype)
    lse = (m + torch.log2(l_i)) / LOG2E
    out = {"o": o, "lse": lse[..., 0]}
    if dout is None:
        return out

    if "backward_window" in switch:
        options["window_size"] += switch["backward_window"]
        keep = _keep(NQ, NK, options, switch)
        s = (left @ kf.mT * right).masked_fill(~keep, -torch.inf)
    do = dout.float()
    delta = {"none": torch.zeros_like(lse), "do": do.sum(-1, keepdim=True)}.get(
        switch.get("delta"), (do * o.float()).sum(-1, keepdim=True))
    delta = delta if dlse is None else delta - dlse[..., None]
    p = torch.exp2(s - lse * LOG2E)
    ds = p * (do @ vf.mT - delta)
    if switch.get("scale_ds"):
        ds, scale = rounded(ds * scale), 1.0
    ds = rounded(ds)
    dq = ds @ kf * (scale if switch.get("dq_factor", 1.0) else 1.0)
    rows = slice(0, NQ - 1) if switch.get("drop_query") else slice(0, NQ)
    dk = ds[..., rows, :].mT @ qf[..., rows, :] * scale * switch.get("dk_factor", 1.0)
    weights = torch.exp2(s - m) if switch.get("dv_from_s") else rounded(p)
    dv = weights[..., rows, :].mT @ do[..., rows, :]

    def over_group(t):
        t = t.unflatten(1, (HKV, group))
        reduced = {"last": t[:, :, -1], "mean": t.mean(2)}
        return reduced.get(switch.get("group"), t.sum(2)).to(dtype)

    out |= {"d_q": dq.to(dtype), "d_k": over_group(dk), "d_v": over_group(dv)}
    if sink_logits is not None:
        p_sink = torch.exp(sink_logits.float().view(1, HQ, 1, 1) - lse)
        out["d_sink_logits"] = -(p_sink * delta).sum((0, 2, 3)).to(sink_logits.dtype)
    return out


def _keep(NQ, NK, options, switch):
    keep = reference.keep_mask(NQ, NK, **options)
    if switch.get("shift_causal"):
        late = torch.arange(NK) > torch.arange(NQ)[:, None] + switch["shift_causal"]
        early = torch.arange(NK) == torch.arange(NQ)[:, None] + 1
        keep = (keep | early) & ~late if switch["shift_causal"] > 0 else keep & ~late
    if switch.get("drop_last"):
        keep = keep & (torch.arange(NK) != NK - 1)
    if switch.get("drop_tail"):
        keep = keep & (torch.arange(NK) < max(NK // 64, 1) * 64)
    return keep
