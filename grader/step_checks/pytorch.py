"""Checks of stage 1, in PyTorch: the same arithmetic without kernels (1.1 to 1.8)."""

import math
from dataclasses import replace

import numpy as np

from grader.step_checks import named
from grader.step_checks.examples import (
    EXACT,
    ROUNDED,
    Example,
    Observed,
    StepSpec,
    Wrong,
    difference,
    first,
    number,
    randoms,
    same,
    unlike,
)
from grader.step_checks.softmax import HIDDEN, not_infinite, row

B, H, M, N, D = 2, 3, 5, 7, 6
TILE = 128  # the stage's BLOCK_M and BLOCK_N
ROWS, KEYS = slice(2, 2 + M), slice(1, 1 + N)  # these tiles' rows and keys, of NQ and NK
NQ, NK = ROWS.stop, KEYS.stop  # the tiles are the last ones: BLOCK_M may reach past them
SIZES = {"B": B, "H": H, "rows": M, "D": D}  # what the forward knows beside its tiles


def entry(leaves: tuple[str, ...], *examples) -> StepSpec:
    return StepSpec(leaves, lambda: [one() for one in examples], kernel=False)


def whole(name: str, tile: np.ndarray, rows: slice) -> dict[str, np.ndarray]:
    """A tile, and the whole tensor of which it has these rows."""
    x = randoms(len(name) + rows.stop)(*tile.shape[:2], rows.stop, D)
    x[:, :, rows] = tile
    return {f"{name}_tile": tile, name: x}


def matches(words: str, given: dict, error: float = EXACT, variants=None,
            **wanted: np.ndarray) -> Example:
    """An example in which every name must be near what is wanted."""
    def check(left: Observed) -> Wrong | None:
        return first(*(difference(name, left.programs[0][name], value, error)
                       for name, value in wanted.items()))

    return Example(words, given, check, variants=variants)


def scores(start_m: int, start_n: int, is_causal: bool, size: float = 1.0) -> Example:
    random = randoms(start_m + start_n)
    q, k = size * random(B, H, M, D), random(B, H, N, D)
    want = q.astype(np.float64) @ k.swapaxes(-1, -2) / np.sqrt(D)
    hidden = np.zeros((M, N), bool)
    if is_causal:
        hidden = (start_n + np.arange(N))[None] > (start_m + np.arange(M))[:, None]

    def check(left: Observed) -> Wrong | None:
        for name in {"q", "k"} & {*left.changed}:
            return Wrong((f"{name} itself is changed in place, and the next tile gets the changed "
                          f"{name}: make a new tensor.",), name=name)
        s = left.programs[0]["s"]
        found = difference("s", s, np.where(hidden, -np.inf, want), free=hidden)
        if not isinstance(s, np.ndarray) or s.shape != want.shape or s.dtype.kind != "f":
            return found
        if np.isnan(s).any():
            return found and replace(found, id="zero-times-inf")
        seen = np.broadcast_to(hidden, want.shape) & ~(s.astype(np.float64) < HIDDEN)
        if seen.any():
            at = tuple(np.argwhere(seen)[0])
            return Wrong((f"Query {start_m + at[2]} must not see key {start_n + at[3]}, but s is "
                          f"{s[at]:.5g} there: want -inf.",), want="-inf", got=number(s[at]))
        return found or not_infinite(s, np.broadcast_to(hidden, want.shape))

    def variants() -> dict:
        raw, none = q.astype(np.float64) @ k.swapaxes(-1, -2), np.zeros((M, N), bool)
        row, column = np.arange(M)[:, None], np.arange(N)[None]
        query, key = start_m + row, start_n + column
        masks = {"causal-ignored": none, "strictly-causal": key >= query,
                 "next-key-visible": key > query + 1, "mask-reversed": key < query,
                 ("mask-reversed", "and without the diagonal"): key <= query,
                 "query-positions-of-the-tile": key > row,
                 "key-positions-of-the-tile": column > query,
                 "positions-of-the-tile": column > row} if is_causal else {
                     "always-causal": key > query}
        reshaped = q.astype(np.float64) @ k.reshape(B, H, D, N) / np.sqrt(D)
        scaled = {"no-scale": raw, "scale-twice": raw / D, "k-reshaped": reshaped,
                  "scale-rounded": raw / math.isqrt(D)}
        return {id: named.leaves(s=np.where(hidden, -np.inf, s)) for id, s in scaled.items()} | {
            id: named.leaves(s=np.where(other, -np.inf, want)) for id, other in masks.items()} | {
            ("hidden-scores-zero", where): named.leaves(s=np.where(zero, 0, want))
            for where, zero in (("", hidden), ("tril", is_causal & (column > row)))}

    return Example(f"q of shape {q.shape}, k of shape {k.shape}, start_m={start_m}, "
                   f"start_n={start_n}, is_causal={is_causal}", {"q": q, "k": k, "start_m": start_m,
                                              "start_n": start_n, "is_causal": is_causal}, check,
                   variants=variants)


def key_end(start_m: int, NQ: int, NK: int, is_causal: bool) -> Example:
    needed = min(start_m + TILE, NQ) if is_causal else NK

    def check(left: Observed) -> Wrong | None:
        end = left.programs[0]["end"]
        if isinstance(end, tuple | str | None) or np.size(end) != 1:
            return unlike("end", "one number", end)
        end = int(end)
        if end < needed:
            return Wrong((f"end is {end} and should be {needed}: the loop stops before key "
                          f"{needed - 1}, which is visible.",), name="end", want=str(needed),
                         got=str(end))
        if -(-end // TILE) * TILE > -(-NK // TILE) * TILE:
            return Wrong((f"end is {end} and should be {needed}: the tile at "
                          f"{(end - 1) // TILE * TILE} has no keys.",), name="end",
                         want=str(needed), got=str(end))
        if -(-end // TILE) > -(-needed // TILE):
            return Wrong((f"no query sees a key from {needed} on, and end is {end}",),
                         note=True)
        return None

    def variants() -> dict:
        wrong = {"end-before-the-diagonal": {start_m}} if is_causal and start_m < needed else {}
        if not is_causal:
            wrong["end-always-causal"] = {min(start_m + TILE, at) for at in (np.inf, NQ, NK)}
        return {id: lambda left, ends=ends: any(same(left.programs[0]["end"], one) for one in ends)
                for id, ends in wrong.items()}

    return Example(f"start_m={start_m}, NQ={NQ}, NK={NK}, is_causal={is_causal}",
                   {"start_m": start_m, "NQ": NQ, "NK": NK, "is_causal": is_causal}, check,
                   variants=variants)


ROWS_OF = (  # words, seed, rough maximum so far and of the new scores, whether keys were seen
    ("a row that has seen nothing", 11, 0, 0, True), ("scores about 200", 12, 200, 200, True),
    ("scores about 200 above m_i", 13, 0, 200, True),
    ("m_i about 200 above the scores", 14, 200, 0, True),
    ("a first tile with scores about -200", 15, 0, -200, False))


def weights(words: str, seed: int, old: float, new: float, seen: bool, both: bool) -> Example:
    """1.3: p exp(m_new) and alpha exp(m_new) must be right, for any m_new.  both: run 1.4 after it;
    then l_i and acc must be right."""
    random = randoms(seed)
    s, m_i = 2 * random(B, H, M, N) + new, random(B, H, M) + old
    l_i, acc, v = np.abs(random(B, H, M)) + 1, random(B, H, M, D), random(B, H, N, D)
    s[..., 1, -2:] = -np.inf
    if seen:
        m_i[..., 0] = -np.inf
        s[..., 2, :] -= 600
        m_i[..., 2], m_i[..., 3] = s[..., 2, :].max(-1) - 1, s[..., 3, :].max(-1) - 0.005
    else:
        m_i[:] = -np.inf
    l_i[m_i == -np.inf], acc[m_i == -np.inf] = 0, 0
    top = np.maximum(m_i, s.max(-1)).astype(np.float64)
    p, alpha = np.exp(s - top[..., None]), np.exp(m_i - top)
    wanted = {"p": p, "alpha": alpha}
    if both:
        wanted = {"l_i": alpha * l_i + p.sum(-1), "acc": alpha[..., None] * acc + p @ v}
    error = ROUNDED if old or new else EXACT

    def check(left: Observed) -> Wrong | None:
        made = left.programs[0]
        plain = [difference(name, made[name], value, error)
                 for name, value in ({} if both else {"m_new": top} | wanted).items()]
        if found := next((difference(name, made[name], value, error)
                          for name, value in ({"m_new": top} | wanted).items()
                          if not isinstance(made[name], np.ndarray)
                          or made[name].shape != value.shape), None):
            return found
        with np.errstate(all="ignore"):
            back = np.exp(made["m_new"].astype(np.float64) - top)
            found = first(*(difference(name, made[name] * back.reshape(
                back.shape + (1,) * (value.ndim - 3)), value, error)
                for name, value in wanted.items()))
        return found and replace(first(*plain) or found, others=tuple(found.names))

    given = SIZES | {"s": s, "m_i": m_i, "l_i": l_i, "acc": acc, "start_n": TILE,
                     **whole("v", v, slice(TILE, TILE + N))}
    return Example(f"s of shape {s.shape}; {words}", given, check,
                   variants=lambda: named.softmax(
                     s, m_i, l_i, acc, v, 1.0, np.e, leave=("m_new", *wanted)),
                   exact=lambda left: difference("m_new", left.programs[0]["m_new"], top,
                                                 free=top == -np.inf) is None,
                   about=lambda at: row(m_i, s.max(-1), at))


def sums() -> Example:
    random = randoms(3)
    p, alpha, v = np.abs(random(B, H, M, N)), np.abs(random(B, H, M)), random(B, H, N, D)
    l_i, acc = np.abs(random(B, H, M)), random(B, H, M, D)
    a, r, pv = alpha[..., None], p.sum(-1), p @ v
    total, o = alpha * l_i + r, a * acc + pv

    def variants() -> dict:
        return {"nothing-rescaled": named.leaves(l_i=l_i + r, acc=acc + pv),
                "acc-not-rescaled": named.leaves(l_i=total, acc=acc + pv),
                "l-not-rescaled": named.leaves(l_i=l_i + r, acc=o),
                "rescaled-after-adding": named.leaves(l_i=total, acc=a * (acc + pv)),
                "alpha-on-the-new-sum": named.leaves(l_i=l_i + alpha * r, acc=acc + a * pv),
                ("alpha-on-the-new-sum", "l"): named.leaves(l_i=l_i + alpha * r, acc=o),
                ("alpha-on-the-new-sum", "acc"): named.leaves(l_i=total, acc=acc + a * pv),
                "weights-averaged": named.leaves(l_i=alpha * l_i + p.mean(-1), acc=o),
                "last-tile-only": named.leaves(l_i=r, acc=pv),
                ("last-tile-only", "l"): named.leaves(l_i=r, acc=o),
                ("last-tile-only", "acc"): named.leaves(l_i=total, acc=pv)}

    return matches(f"p of shape {p.shape}, alpha of shape {alpha.shape}", {
        "p": p, "alpha": alpha, "l_i": l_i, "acc": acc, "m_i": random(B, H, M),
        "m_new": random(B, H, M), "s": random(B, H, M, N), "start_n": TILE, **SIZES,
        **whole("v", v, slice(TILE, TILE + N))},
        variants=variants, l_i=alpha * l_i + p.sum(-1), acc=alpha[..., None] * acc + p @ v)


def finish(seed: int, size: float) -> Example:
    random = randoms(seed)
    acc, l_i = random(B, H, M, D), 1 + size * np.abs(random(B, H, M))
    m_i, ln = size * random(B, H, M), np.log(l_i.astype(np.float64))

    def variants() -> dict:
        return {id: named.leaves(o_tile=acc / l_i[..., None], lse_tile=wrong)
                for id, wrong in named.statistics(m_i, l_i).items()} | {
            "not-normalised": named.leaves(o_tile=acc, lse_tile=m_i + ln),
            "divided-by-the-max": named.leaves(o_tile=acc / m_i[..., None], lse_tile=m_i + ln)}

    return matches(f"acc of shape {acc.shape}, l_i and m_i of shape {l_i.shape}", {
        "acc": acc, "l_i": l_i, "m_i": m_i, "m_new": m_i, "alpha": np.abs(random(B, H, M)),
        "p": np.abs(random(B, H, M, N)), "s": random(B, H, M, N), **SIZES},
        variants=variants, o_tile=acc / l_i[..., None], lse_tile=m_i + ln)


def shift() -> Example:
    random = randoms(5)
    do, o, dlse = random(B, H, M, D), random(B, H, M, D), random(B, H, NQ)
    delta = (do * o).sum(-1)
    return matches(f"do_tile of shape {do.shape}, dlse of shape {dlse.shape}, rows 2-6", {
        "dlse": dlse, "m": ROWS, "start_m": 2, "D": D, "NQ": NQ, **whole("do", do, ROWS),
        **whole("o", o, ROWS), **whole("q", random(B, H, M, D), ROWS)},
        variants=lambda: {
            "dlse-left-out": named.leaves(shift=delta),
            "delta-of-all-rows": named.leaves(shift=(do @ o.swapaxes(-1, -2)).sum(-1)
                                              - dlse[..., ROWS])},
        shift=delta - dlse[..., ROWS])


def again() -> Example:
    random = randoms(6)
    s, lse = random(B, H, M, N), random(B, H, NQ) + 5
    s[..., 0, 3:] = -np.inf

    def variants() -> dict:
        p = np.exp(s)
        return {"backward-without-lse": named.leaves(p=p),
                "backward-divided-by-lse": named.leaves(p=p / lse[..., ROWS, None]),
                "backward-softmax-of-the-tile": named.leaves(p=p / p.sum(-1, keepdims=True)),
                "lse-of-the-keys": named.leaves(p=np.exp(s - lse[..., None, :])),
                "lse-of-the-first-rows": named.leaves(p=np.exp(s - lse[..., :M, None]))}

    return matches(f"s of shape {s.shape}, lse of shape {lse.shape}, rows 2-6", {
        "s": s, "lse": lse, "m": ROWS, "n": KEYS, "start_m": 2, "start_n": 1,
        "scale": 0.5}, p=np.exp(s.astype(np.float64) - lse[..., ROWS, None]), variants=variants)


def shares() -> Example:
    random = randoms(7)
    p, shift = np.abs(random(B, H, M, N)), random(B, H, M)
    q, do, k, v = random(B, H, M, D), random(B, H, M, D), random(B, H, N, D), random(B, H, N, D)
    dq, dk, dv = random(B, H, NQ, D), random(B, H, NK, D), random(B, H, NK, D)
    dp = do @ v.swapaxes(-1, -2)

    ds, turned = p * (dp - shift[..., None]), (0, 1, 3, 2)

    def left(ds=ds, **shares) -> dict[str, np.ndarray]:
        """What the step leaves with this dS, and these shares in place of its own."""
        made = {name: x.copy() for name, x in (("dv", dv), ("dk", dk), ("dq", dq))}
        shares = {"dv": p.transpose(turned) @ do, "dk": 0.5 * ds.transpose(turned) @ q,
                  "dq": 0.5 * ds @ k} | shares
        for name, rows in (("dv", KEYS), ("dk", KEYS), ("dq", ROWS)):
            made[name][:, :, rows] += shares[name]
        return made

    def variants() -> dict:
        others = {
            "dk-from-p": dict(dk=0.5 * p.transpose(turned) @ q),
            "dk-from-do": dict(dk=0.5 * ds.transpose(turned) @ do),
            "dv-from-ds": dict(dv=ds.transpose(turned) @ do), "dq-from-p": dict(dq=0.5 * p @ k),
            "dk-unscaled": dict(dk=ds.transpose(turned) @ q), "dq-unscaled": dict(dq=ds @ k),
            ("dk-unscaled", "as dq"): dict(dk=ds.transpose(turned) @ q, dq=ds @ k)}
        return {id: named.leaves(**left(other)) for id, other in named.unlike(
            p, dp, shift).items()} | {id: named.leaves(**left(**shares))
                                      for id, shares in others.items()}

    return matches("queries 2-6, keys 1-7, scale=0.5", {
        "p": p, "shift": shift, "m": ROWS, "n": KEYS, "scale": 0.5, "dq": dq, "dk": dk, "dv": dv,
        "start_m": 2, "start_n": 1, "D": D, **whole("q", q, ROWS), **whole("do", do, ROWS),
        **whole("k", k, KEYS), **whole("v", v, KEYS)},
        variants=variants, **left())


ENTRIES = {
    "1.1": entry(("s",), lambda: scores(4, 2, True), lambda: scores(4, 2, False),
                 lambda: scores(0, 0, True), lambda: scores(3, 3, True),
                 lambda: scores(3001, 3000, True, 3e4)),
    "1.2": entry(("end",), *(lambda row=row: key_end(*row) for row in (
        (0, 300, 300, True), (128, 300, 300, True), (256, 300, 300, True), (0, 50, 50, True),
        (128, 300, 300, False), (0, 300, 500, False), (256, 300, 100, False),
        (128, 256, 256, True)))),
    "1.3": entry(("m_new", "p", "alpha"), *(lambda row=row: weights(*row, both=False)
                                            for row in ROWS_OF)),
    "1.4": entry(("l_i", "acc"), sums),
    "1.5": entry(("o_tile", "lse_tile"), lambda: finish(4, 3), lambda: finish(5, 0.1)),
    "1.6": entry(("shift",), shift), "1.7": entry(("p",), again),
    "1.8": entry(("dq", "dk", "dv"), shares),
}
# Run together: what 1.3 leaves for 1.4 is free.
BOTH = entry(("m_new", "l_i", "acc"), *(lambda row=row: weights(*row, both=True)
                                        for row in ROWS_OF))
