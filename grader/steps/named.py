"""The name of a step's mistake: the variant of its formula that leaves what the step left.

A variant is a line: an id of naming/table.py, whose words are shown, and what is changed.  It is
the name if it alone fits every example that is wrong, and no other example speaks against it.
"""

import re

import numpy as np

from grader.steps.trial import LOG2E, Left, Trial, difference, same

SCALES = {"no_log2e": 1.0, "log2e_twice": LOG2E**2}  # what the scale is multiplied with
NEAR = 1e-4  # relative to the largest numbers of a row


def name(answers: list[tuple[Trial, Left]]) -> str | None:
    """The id that fits all examples that have variants; None where none does, or several do."""
    fits, against = None, set()
    for one, left in answers:
        if one.variants is None:
            continue
        with np.errstate(all="ignore"):
            variants = {id: fit(left) for id, fit in one.variants().items()}
            found = one.check(left)
        against |= {id for id, fit in variants.items() if not fit}
        if found is not None and not found.note:
            here = {id for id, fit in variants.items() if fit}
            fits = here if fits is None else fits & here
    left_over = (fits or set()) - against
    return left_over.pop() if len(left_over) == 1 else None


def words(id: str) -> str:
    """What the table of mistakes says of it, without what was tried there: here nothing was."""
    from grader.naming import mistakes  # noqa: F401, which fills the table
    from grader.naming.table import TABLE

    said = next((mistake.words for mistake in TABLE
                 if mistake.id in (id, id.removeprefix("dq-"))), id)
    return re.sub(r"(:|,| in)? ?\{\d\}.*", "", said.replace("{0} recomputes", "it computes"))


def leaves(error: float = NEAR, **wanted: np.ndarray):
    """-> whether a run left just these names' values."""
    def fit(left: Left) -> bool:
        return all(difference(name, left.programs[0].get(name), value, error) is None
                   for name, value in wanted.items())
    return fit


def hands(scale: float, **factors: float):
    """Variants of what a walk hands on as scale_log2e."""
    def fit(factor: float):
        return lambda left: bool(left.calls) and all(
            same(arguments["scale_log2e"], scale * factor) for _, arguments in left.calls
            if "scale_log2e" in arguments)
    return {id.replace("_", "-"): fit(factor) for id, factor in factors.items()}


def keeps(wrong: np.ndarray, exists: np.ndarray):
    """-> whether keep is just this, where a query exists."""
    def fit(left: Left) -> bool:
        keep = left.programs[0].get("keep")
        if not isinstance(keep, np.ndarray | bool):
            return False
        try:
            return not ((np.broadcast_to(keep, wrong.shape) != wrong) & exists).any()
        except ValueError:
            return False
    return fit


# What a query sees instead, by the name of what it should see: (query, key, given) -> booleans.
def _none(query, key, given):
    return np.ones(np.broadcast_shapes(query.shape, key.shape), bool)


def _age(query, key):
    return query - key


MASKS = {
    "all_keys": {
        "tail-unmasked": _none,
        "last-key-dropped": lambda q, k, g: (k < g["N"] - 1) & (q > -1)},
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
        "window-symmetric": lambda q, k, g: abs(_age(q, k)) < g["window_size"],
        "window-without-causal": lambda q, k, g: _age(q, k) < g["window_size"],
        "strictly-causal": lambda q, k, g: (k < q) & (_age(q, k) < g["window_size"]),
        "window-one-place-early": lambda q, k, g: (k < q) & (_age(q, k) <= g["window_size"])},
}


def _sinks(window: dict) -> dict:
    """The window's mistakes where there are sinks, and those of the sinks."""
    def joined(change):
        return lambda q, k, g: change(q, k, g) | ((k <= q) & (k < g["sink_size"]))

    return {id: joined(change) for id, change in window.items()} | {
        "sinks-and-window": lambda q, k, g: (k <= q) & (_age(q, k) < g["window_size"]) & (
            k < g["sink_size"]),
        "sinks-or-window-not-both": lambda q, k, g: (k <= q) & (
            (_age(q, k) < g["window_size"]) ^ (k < g["sink_size"])),
        "window-and-sinks-swapped": lambda q, k, g: (k <= q) & (
            (_age(q, k) < g["sink_size"]) | (k < g["window_size"]))}


MASKS["sinks"] = _sinks(MASKS["window"])


def masks(sees: str, query, key, given: dict, exists: np.ndarray) -> dict:
    """Variants of a mask.  sees: the name of what is right, in masks.py."""
    if not given.get("CAUSAL", True):
        sees = "all_keys"
    sees = {"either": "causal", "sinks_or_all": "sinks"}.get(sees, sees)
    return {id: keeps(np.broadcast_to(change(query, key, given), exists.shape), exists)
            for id, change in MASKS[sees].items()}


def softmax(s, m_i, l_i, acc, v, factor: float, base: float = 2.0) -> dict:
    """Variants of the online softmax of one tile, in its own units."""
    s, m_i, v = (np.asarray(x, np.float64) for x in (s, m_i, v))

    def power(x):
        return np.power(base, x)

    def tile(new=np.maximum, weight=lambda t, m: power(t - m[..., None]),
             alpha=lambda old, m: power(old - m), total=lambda a, r: l_i * a + r,
             sums=lambda a, pv: acc * a[..., None] + pv):
        scaled = s * factor
        m = new(m_i, scaled.max(-1))
        p, a = weight(scaled, m), alpha(m_i, m)
        return leaves(m_new=m, l_i=total(a, p.sum(-1)), acc=sums(a, p @ v))

    def other(x):  # the other base
        return np.exp(x) if base == 2 else np.exp2(x)

    return {
        "alpha-inverted": tile(alpha=lambda old, m: power(m - old)),
        "nothing-rescaled": tile(alpha=lambda old, m: np.ones_like(m)),
        "acc-not-rescaled": tile(sums=lambda a, pv: acc + pv),
        "l-not-rescaled": tile(total=lambda a, r: l_i + r),
        "rescaled-after-adding": tile(sums=lambda a, pv: (acc + pv) * a[..., None]),
        "alpha-on-the-new-sum": tile(total=lambda a, r: l_i + a * r,
                                     sums=lambda a, pv: acc + a[..., None] * pv),
        "last-tile-only": tile(total=lambda a, r: r, sums=lambda a, pv: pv),
        "alpha-in-another-base": tile(alpha=lambda old, m: other(old - m)),
        "log2e-twice": tile(weight=lambda t, m: other(t - m[..., None]),
                            alpha=lambda old, m: other(old - m)),
        "weights-of-the-old-max": tile(weight=lambda t, m: power(t - m_i[..., None])),
    }


def products(p, ds, dp, delta, q, k, do, given: dict, transposed: bool) -> dict:
    """Variants of what a tile adds to dq, or to dk and dv."""
    dq, dk, dv = (given[name] for name in ("dq", "dk", "dv"))
    unlike = {"no-delta": p * dp, "delta-added": p * (dp + delta[:, None]),
              "ds-without-p": dp - delta[:, None]}
    if not transposed:
        return {id: leaves(dq=dq + other @ k) for id, other in unlike.items()} | {
            "dq-from-p": leaves(dq=dq + p @ k), "dq-of-the-last-tile": leaves(dq=ds @ k)}
    right = {"dv": dv + p.T @ do, "dk": dk + ds.T @ q}
    return {id: leaves(**right | {"dk": dk + other.T @ q}) for id, other in unlike.items()} | {
        "dk-from-p": leaves(**right | {"dk": dk + p.T @ q}),
        "dk-from-do": leaves(**right | {"dk": dk + ds.T @ do}),
        "dv-from-ds": leaves(**right | {"dv": dv + ds.T @ do}),
        "dkdv-of-the-last-tile": leaves(dv=p.T @ do, dk=ds.T @ q)}
