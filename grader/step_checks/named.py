"""Names a step's mistake: the variant of its formula that gives the same values as the step.

A variant is one line: an id of mistakes.toml and the changed formula.  The id may come with the
value that was tried, (id, *more), for the mistake's words.  It is the name if it alone fits every
wrong example and contradicts no other.  None in place of a formula: this example cannot tell.
"""

import functools

import numpy as np

from grader.step_checks import mistakes
from grader.step_checks.examples import LOG2E, Example, Observed, difference, same
from grader.step_checks.mistakes import plain

NEAR = 1e-4  # relative to the largest numbers of a row
SAID = {  # mistakes that only a step on its own can show -> words
    "phase-left-out": "the loop over {0} is missing or empty, or its sums are lost",
    "phase-too-late": "the loop over {0} begins too late",
    "phase-too-short": "the loop over {0} ends too early",
    "phase-too-long": "the loop over {0} runs too far",
    "phase-too-early": "the loop over {0} begins too early",
    "phase-twice": "the loop over {0} runs twice",
    "phase-unmasked": "the loop over {0} is not masked",
    "border-wrong": "`{0}` {1}",
}


def name(answers: list[tuple[Example, Observed]]) -> tuple | None:
    """The only (id, *more) that fits all examples that have variants, or None."""
    fits, against, order = None, set(), {}
    for one, left in answers:
        if one.variants is None:
            continue
        with np.errstate(all="ignore"):
            variants = {id: fit(left) for id, fit in one.variants().items()}
            found = one.check(left)
        order |= variants
        against |= {id for id, fit in variants.items() if fit is not None and not fit}
        if found is not None and not found.note:
            here = {id for id, fit in variants.items() if fit}
            fits = here if fits is None else fits & here
    if fits and "right" in fits:  # where the step is wrong, the variants do not differ
        return None
    left = [one if isinstance(one, tuple) else (one,) for one in order
            if one in (fits or ()) and one not in against]
    left = [one for one in left if not is_part(one[0])] or left[:1]  # the likeliest part
    return left[0] if len({id for id, *_ in left}) == 1 else None


def words(id: str | None, *more) -> tuple[str, str]:
    """What is said of it: the mistake, and the rule that it breaks; "" where nothing is."""
    if id is None or " " in id:  # the warm-ups use whole sentences
        return id or "", ""
    if is_part(id):  # the tiles that it should visit say the rule
        return SAID[plain(id)].format(*more) * bool(more[-1]), ""
    if not {id, plain(id)} & mistakes.known().keys():
        return "", ""
    return mistakes.said(id, *more), mistakes.of(id).rule


def is_part(id: str | None) -> bool:
    """Whether it only says which part of a loop is wrong, not how."""
    return id is not None and plain(id) in SAID


def is_of_heads(id: str) -> bool:
    """Whether a query head reads the wrong key/value head."""
    return mistakes.of(id).rule == mistakes.of("heads-not-mapped").rule


def leaves(error: float = NEAR, free: np.ndarray | None = None, **wanted: np.ndarray):
    """-> a function: did a run leave just these values?  free: rows that do not matter."""
    def overflown(got, want):
        """got, but want where one of them is not finite, in rows that overflow in both: the order
        of a sum, which the processor decides, may make one number there NaN, inf or finite."""
        if not isinstance(got, np.ndarray) or got.dtype.kind != "f" or got.shape != np.shape(want):
            return got
        both = [(np.isnan(x) | (x == np.inf)).any(-1, keepdims=True) for x in (got, want)]
        return np.where(both[0] & both[1] & ~np.isfinite(got + want), want, got)

    def fit(left: Observed) -> bool:
        return all(difference(name, overflown(left.programs[0].get(name), value), value, error,
                              None if free is None else free.reshape(
                                  free.shape + (1,) * (np.ndim(value) - free.ndim))) is None
                   for name, value in wanted.items())
    return fit


def hands(scale: float, factor: float = LOG2E) -> dict:
    """Variants of what a loop passes on as scale_log2e.  factor: the right factor of the scale."""
    def fit(value: float):
        return lambda left: bool(left.calls) and all(
            same(arguments["scale_log2e"], value) for _, arguments in left.calls
            if "scale_log2e" in arguments)
    return {"no-log2e": fit(scale), "log2e-twice": fit(scale * LOG2E**2),
            "no-scale": fit(factor), "scale-twice": fit(scale**2 * factor)}


def keeps(wrong: np.ndarray, exists: np.ndarray):
    """-> a function: is keep just this, where a query exists?"""
    def fit(left: Observed) -> bool:
        keep = left.programs[0].get("keep")
        if not isinstance(keep, np.ndarray | bool):
            return False
        try:
            return not ((np.broadcast_to(keep, wrong.shape) != wrong) & exists).any()
        except ValueError:
            return False
    return fit


# Wrong masks, by the name of the right one: (query, key, given) -> booleans.
def _none(query, key, given):
    return np.ones(np.broadcast_shapes(query.shape, key.shape), bool)


def _age(query, key):
    return query - key


MASKS = {
    "all_keys": {
        "tail-unmasked": _none,
        "last-key-dropped": lambda q, k, g: (k < g["N"] - 1) & (q > -1),
        "always-causal": lambda q, k, g: k <= q},
    "causal": {
        "causal-ignored": _none,
        "strictly-causal": lambda q, k, g: k < q,
        "next-key-visible": lambda q, k, g: k <= q + 1,
        "mask-reversed": lambda q, k, g: k >= q},
    "window": {
        "window-plus-one": lambda q, k, g: (k <= q) & (_age(q, k) <= g["window_size"]),
        "window-minus-one": lambda q, k, g: (k <= q) & (_age(q, k) < g["window_size"] - 1),
        "half-the-window": lambda q, k, g: (k <= q) & (_age(q, k) < g["window_size"] // 2),
        "window-ignored": lambda q, k, g: k <= q,
        "window-by-tiles": lambda q, k, g: (k <= q) & (q.min() - k < g["window_size"]),
        "window-inverted": lambda q, k, g: (k <= q) & (_age(q, k) >= g["window_size"]),
        ("window-inverted", 1): lambda q, k, g: (k <= q) & (_age(q, k) > g["window_size"]),
        "window-symmetric": lambda q, k, g: abs(_age(q, k)) < g["window_size"],
        "window-without-causal": lambda q, k, g: _age(q, k) < g["window_size"],
        "strictly-causal": lambda q, k, g: (k < q) & (_age(q, k) < g["window_size"]),
        "window-one-place-early": lambda q, k, g: (k < q) & (_age(q, k) <= g["window_size"])},
}


def _sinks(window: dict) -> dict:
    """The window's mistakes in a mask with sinks, and those of the sinks."""
    def joined(change):
        return lambda q, k, g: change(q, k, g) | ((k <= q) & (k < g["sink_size"]))

    return {id: joined(change) for id, change in window.items()} | {
        ("strictly-causal", "of the sinks"): lambda q, k, g: (k < q) & (
            (_age(q, k) < g["window_size"]) | (k < g["sink_size"])),
        "sinks-ignored": lambda q, k, g: (k <= q) & (_age(q, k) < g["window_size"]),
        **{id: lambda q, k, g, more=more: (k <= q) & (
            (_age(q, k) < g["window_size"]) | (k < g["sink_size"] + more))
           for id, more in (("sinks-plus-one", 1), ("sinks-minus-one", -1))},
        "sinks-not-causal": lambda q, k, g: (k <= q) & (_age(q, k) < g["window_size"]) | (
            k < g["sink_size"]),
        "sinks-and-window": lambda q, k, g: (k <= q) & (_age(q, k) < g["window_size"]) & (
            k < g["sink_size"]),
        "sinks-or-window-not-both": lambda q, k, g: (k <= q) & (
            (_age(q, k) < g["window_size"]) ^ (k < g["sink_size"])),
        "window-and-sinks-swapped": lambda q, k, g: (k <= q) & (
            (_age(q, k) < g["sink_size"]) | (k < g["window_size"]))}


MASKS["sinks"] = _sinks(MASKS["window"])


def masks(sees: str, query, key, given: dict, exists: np.ndarray) -> dict:
    """Variants of a mask.  sees: the name of the right one in masks.py."""
    if not given.get("CAUSAL", True):
        sees = "all_keys"
    sees = {"either": "causal", "sinks_or_all": "sinks"}.get(sees, sees)
    return {id: keeps(np.broadcast_to(change(query, key, given), exists.shape), exists)
            for id, change in MASKS[sees].items()}


class Tile:
    """One tile's online softmax, with a change, in the step's own units.

    s (..., R, T): scores, -inf for hidden keys; factor: by which they are still to be multiplied;
    m_i, l_i (..., R), acc (..., R, D): the values before; raw: as s, before the mask; 0 for hidden
    keys where it is not known.  In float32, so that large numbers overflow as in the step.
    """

    def __init__(self, s, m_i, l_i, acc, v, factor: float, base: float, changes: dict, raw=None):
        self.s, self.m_i, self.l_i, self.acc = np.float32(s), np.float32(m_i), l_i, acc
        self.base, self.factor = np.float32(base), np.float32(factor)
        self.scaled = self.s * np.float32(factor)
        self.raw = (np.where(self.s == -np.inf, np.float32(0), self.scaled) if raw is None
                    else np.float32(raw) * np.float32(factor))
        for name, right in (("new", self.new), ("weight", self.weight), ("alpha", self.alpha),
                            ("total", self.total), ("sums", self.sums), ("pivot", self.pivot)):
            setattr(self, name, functools.partial(changes[name], self) if name in changes
                    else right)
        with np.errstate(all="ignore"):
            m = np.broadcast_to(self.new(self.scaled.max(-1)), self.m_i.shape)
            self.m = self.pivot(m)
            p, a = self.weight(self.m), self.alpha(self.m)
            self.l = self.total(a, p.sum(-1))
            self.left = {"m_new": m, "p": p, "alpha": a, "l_i": self.l, "acc": self.sums(a, p @ v)}

    def power(self, x):
        return np.power(self.base, x)

    def other(self, x):
        """x in the other base."""
        return np.exp(x) if self.base == 2 else np.exp2(x)

    @property
    def softmax(self):
        """Of this tile alone."""
        p = self.power(self.scaled - self.scaled.max(-1, keepdims=True))
        return p / p.sum(-1, keepdims=True)

    def new(self, top):
        return np.maximum(self.m_i, top)

    def pivot(self, m):
        """What is subtracted for m: nothing in a row that has seen no key."""
        return np.where(m == -np.inf, np.float32(0), m)

    def weight(self, m):
        return self.power(self.scaled - m[..., None])

    def alpha(self, m):
        return self.power(self.m_i - m)

    def total(self, a, r):
        return self.l_i * a + r

    def sums(self, a, pv):
        return self.acc * a[..., None] + pv


NORMALISED = "normalised-each-tile"  # mostly it is then missing at the end

# Changes of a tile's online softmax, by the name of the mistake.
UPDATES = {
    "alpha-inverted": dict(alpha=lambda t, m: t.power(m - t.m_i)),
    "nothing-rescaled": dict(alpha=lambda t, m: np.ones_like(m)),
    "acc-not-rescaled": dict(sums=lambda t, a, pv: t.acc + pv),
    "l-not-rescaled": dict(total=lambda t, a, r: t.l_i + r),
    "rescaled-after-adding": dict(sums=lambda t, a, pv: (t.acc + pv) * a[..., None]),
    NORMALISED: dict(sums=lambda t, a, pv: t.acc + pv / t.l[..., None]),
    (NORMALISED, "with alpha"): dict(sums=lambda t, a, pv: t.acc * a[..., None]
                                     + pv / t.l[..., None]),
    "alpha-on-the-new-sum": dict(total=lambda t, a, r: t.l_i + a * r,
                                 sums=lambda t, a, pv: t.acc + a[..., None] * pv),
    ("alpha-on-the-new-sum", "l"): dict(total=lambda t, a, r: t.l_i + a * r),
    ("alpha-on-the-new-sum", "acc"): dict(sums=lambda t, a, pv: t.acc + a[..., None] * pv),
    "small-rescales-skipped": dict(alpha=lambda t, m: np.where(
        t.power(t.m_i - m) > 0.99, np.float32(1), t.power(t.m_i - m))),
    "last-tile-only": dict(total=lambda t, a, r: r, sums=lambda t, a, pv: pv),
    ("last-tile-only", "l"): dict(total=lambda t, a, r: r),
    ("last-tile-only", "acc"): dict(sums=lambda t, a, pv: pv),
    "alpha-in-another-base": dict(alpha=lambda t, m: t.other(t.m_i - m)),
    ("alpha-in-another-base", "the weights"): dict(
        weight=lambda t, m: t.other(t.scaled - m[..., None])),
    "weights-of-the-old-max": dict(weight=lambda t, m: t.power(t.scaled - t.m_i[..., None])),
    "softmax-of-the-tile": dict(weight=lambda t, m: t.softmax),
    "exponentials-divided": dict(alpha=lambda t, m: t.power(t.m_i) / t.power(m)),
    ("exponentials-divided", "the weights"): dict(
        weight=lambda t, m: t.power(t.scaled) / t.power(m)[..., None]),
    ("exponentials-divided", "both"): dict(
        weight=lambda t, m: t.power(t.scaled) / t.power(m)[..., None],
        alpha=lambda t, m: t.power(t.m_i) / t.power(m)),
    ("max-scaled-twice", "the earlier one"): dict(
        new=lambda t, top: np.maximum(t.m_i * t.factor, top)),
    "max-scaled-twice": dict(weight=lambda t, m: t.power(t.scaled - t.factor * m[..., None])),
    "max-not-scaled": dict(new=lambda t, top: np.maximum(t.m_i, t.s.max(-1))),
    "max-not-running": dict(new=lambda t, top: top),
    ("max-not-running", " subtracted from a tile's scores"): dict(
        new=lambda t, top: top, alpha=lambda t, m: np.ones_like(m)),
    ("max-not-running", " in alpha"): dict(alpha=lambda t, m: t.power(t.m_i - t.scaled.max(-1))),
    "max-of-the-first-tile": dict(new=lambda t, top: np.where(t.m_i == -np.inf, top, t.m_i)),
    "max-over-the-block": dict(new=lambda t, top: np.maximum(t.m_i, top.max(-1, keepdims=True))),
    "max-of-magnitudes": dict(new=lambda t, top: np.maximum(
        t.m_i, np.where(t.s == -np.inf, t.s, abs(t.scaled)).max(-1))),
    "max-of-hidden-keys": dict(new=lambda t, top: np.maximum(
        t.m_i, t.raw.max(-1))),
    "no-pivot": dict(pivot=lambda t, m: m),
    "no-max": dict(new=lambda t, top: np.zeros_like(t.m_i)),
}


def softmax(s, m_i, l_i, acc, v, factor: float, base: float = 2.0,
            leave: tuple[str, ...] = ("m_new", "l_i", "acc")) -> dict:
    """Variants of what one tile's online softmax leaves.  Rows that have seen no key are free."""
    blind = np.maximum(m_i, s.max(-1)) == -np.inf

    def tile(**changes):
        made = Tile(s, m_i, l_i, acc, v, factor, base, changes).left
        return leaves(free=blind, **{name: made[name] for name in leave})

    both = dict(weight=lambda t, m: t.other(t.scaled - m[..., None]),
                alpha=lambda t, m: t.other(t.m_i - m))
    return {"right": tile(), "log2e-twice" if base == 2 else "no-log2e": tile(**both)} | {
        id: tile(**changes) for id, changes in UPDATES.items()}


SINK_LOGITS = {  # (the logit, the scale) -> what is used instead
    "sink-logits-ignored": lambda sink, scale: sink - np.inf,
    ("sink-logit-wrong", "is taken to be in base 2"): lambda sink, scale: sink / LOG2E,
    ("sink-logit-wrong", "is counted twice: l starts at exp(sink) although m already holds it"):
        lambda sink, scale: 2 * sink,
    ("sink-logit-wrong", "is multiplied by the scale"): lambda sink, scale: sink * scale,
}


def statistics(m, l_i) -> dict[str, np.ndarray]:
    """Variants of lse = m + log(l), with m in base e."""
    ln = np.log(np.asarray(l_i, np.float64))
    return {"lse-is-the-max": m, "lse-without-the-max": ln, "lse-without-log": m + l_i,
            "lse-times": m * ln, "lse-minus-the-log": m - ln, "lse-negative": -m - ln,
            "lse-in-base-2": (m + ln) / np.log(2), "lse-log-of-both": np.log(m + l_i)}


def unlike(p, dp, delta) -> dict:
    """Variants of dS = P * (dP - delta)."""
    return {"no-delta": p * dp, "delta-added": p * (dp + delta[..., None]),
            "ds-without-p": dp - delta[..., None]}


def products(p, ds, dp, delta, q, k, do, given: dict, transposed: bool) -> dict:
    """Variants of what a tile adds to dq, or to dk and dv."""
    dq, dk, dv = (given[name] for name in ("dq", "dk", "dv"))
    others = unlike(p, dp, delta)
    if not transposed:
        return {id: leaves(dq=dq + other @ k) for id, other in others.items()} | {
            "dq-from-p": leaves(dq=dq + p @ k), "dq-of-the-last-tile": leaves(dq=ds @ k)}
    right = {"dv": dv + p.T @ do, "dk": dk + ds.T @ q}
    return {id: leaves(**right | {"dk": dk + other.T @ q}) for id, other in others.items()} | {
        "dk-from-p": leaves(**right | {"dk": dk + p.T @ q}),
        "dk-from-do": leaves(**right | {"dk": dk + ds.T @ do}),
        "dv-from-ds": leaves(**right | {"dv": dv + ds.T @ do}),
        "dkdv-of-the-last-tile": leaves(dv=p.T @ do, dk=ds.T @ q)}
