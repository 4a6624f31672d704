"""The name of a step's mistake: the variant of its formula that leaves what the step left.

A variant is a line: an id of naming/table.py, whose words are shown, and what is changed; or the id
with what is tried of it, (id, *more), which its words may need.  It is the name if it alone fits
every example that is wrong, and no other example speaks against it.
"""

import re

import numpy as np

from grader.steps.trial import LOG2E, Left, Trial, difference, same

NEAR = 1e-4  # relative to the largest numbers of a row


def name(answers: list[tuple[Trial, Left]]) -> tuple | None:
    """(id, *more) that fits all examples that have variants; None where none does, or several."""
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
    if fits and "right" in fits:  # where it is wrong no variant differs
        return None
    found = sorted(one if isinstance(one, tuple) else (one,) for one in (fits or set()) - against)
    return found[0] if len({id for id, *_ in found}) == 1 else None


def words(id: str, *more) -> tuple[str, ...]:
    """What the table of mistakes says of it: the mistake, and the rule that it breaks."""
    from grader.naming import mistakes  # noqa: F401, which fills the table
    from grader.naming.table import TABLE

    known, values = {mistake.id: mistake for mistake in TABLE}, map(str, more)
    found = known.get(id) or known[id.removeprefix("dq-")]
    if more:
        said = re.sub(r"\{[^}]*\}", lambda _: next(values, ""), found.words)
    else:  # nothing was tried that a gap would stand for
        said = re.sub(r"(:|,| in)? ?\{\d\}.*", "",
                      found.words.replace("{0} recomputes", "it computes"))
    return f"the mistake: {said}.", f"the rule: {found.line}."


def leaves(error: float = NEAR, free: np.ndarray | None = None, **wanted: np.ndarray):
    """-> whether a run left just these names' values.  free: rows that do not matter."""
    def fit(left: Left) -> bool:
        return all(difference(name, left.programs[0].get(name), value, error,
                              None if free is None else free.reshape(
                                  free.shape + (1,) * (np.ndim(value) - free.ndim))) is None
                   for name, value in wanted.items())
    return fit


def hands(scale: float, factor: float = LOG2E) -> dict:
    """Variants of what a walk hands on as scale_log2e.  factor: that of the scale."""
    def fit(value: float):
        return lambda left: bool(left.calls) and all(
            same(arguments["scale_log2e"], value) for _, arguments in left.calls
            if "scale_log2e" in arguments)
    return {"no-log2e": fit(scale), "log2e-twice": fit(scale * LOG2E**2),
            "no-scale": fit(factor), "scale-twice": fit(scale**2 * factor)}


def visits(right: list[tuple[int, bool]], given: dict, diagonal: int | None) -> dict:
    """Variants of the key tiles that a walk visits, and which of them are masked.

    right: first key and MASKED of those wanted; diagonal: where it begins, if there is one.
    """
    N, T = given["N"], given["BLOCK_N"]
    begins, whole = [at for at, _ in right], [at for at, masked in right if not masked]
    ragged = [at for at in begins if at + T > N]
    window = "window_size" in given
    others = {
        "first-window-tile-skipped" if window else "first-key-tile-skipped": begins[1:],
        "last-key-tile-skipped": begins[:-1],
        "first-key-tile-only": begins[:1],
        "last-full-tile-skipped": [at for at in begins if at not in whole[-1:]],
        "interior-skipped" if window else "last-tile-only": [at for at in begins
                                                             if at not in whole]}
    if diagonal is None:
        some = [*range(0, N // T, T)]
        others |= {"ragged-tail-skipped": [at for at in begins if at not in ragged],
                   "ragged-tail-twice": begins + ragged,
                   "walk-in-tiles": some + [N // T] * (N // T < N),
                   ("walk-in-tiles", "the loop alone"): some + ragged}
        masks = {"tail-unmasked": [(at, False) for at in begins]}
    else:
        late = [at for at in begins if at >= diagonal]
        others |= {"diagonal-skipped": begins[:len(begins) - len(late)],
                   ("diagonal-skipped", "but its first tile"): [at for at in begins
                                                                if at <= diagonal],
                   "diagonal-twice": begins + late}
        masks = {"diagonal-unmasked": [(at, masked and at < diagonal) for at, masked in right],
                 "left-edge-unmasked": [(at, masked and at >= diagonal) for at, masked in right]}

    def fit(wanted: list, with_masks: bool):
        def fits(left: Left) -> bool:
            made = [(arguments.get("start_n"), arguments.get("MASKED"))
                    for _, arguments in left.calls if "start_n" in arguments]
            if not all(np.size(one) == 1 and isinstance(one, int | np.ndarray | np.generic)
                       for visit in made for one in visit):
                return False
            found = sorted((int(at), bool(masked)) for at, masked in made if at < N)
            return (found if with_masks else [at for at, _ in found]) == sorted(wanted)
        return fits

    return {id: fit(wanted, False) for id, wanted in others.items()
            if sorted(wanted) != begins} | {
        id: fit(wanted, True) for id, wanted in masks.items() if sorted(wanted) != right}


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
        "window-inverted": lambda q, k, g: (k <= q) & (_age(q, k) >= g["window_size"]),
        ("window-inverted", 1): lambda q, k, g: (k <= q) & (_age(q, k) > g["window_size"]),
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
    """Variants of a mask.  sees: the name of what is right, in masks.py."""
    if not given.get("CAUSAL", True):
        sees = "all_keys"
    sees = {"either": "causal", "sinks_or_all": "sinks"}.get(sees, sees)
    return {id: keeps(np.broadcast_to(change(query, key, given), exists.shape), exists)
            for id, change in MASKS[sees].items()}


def softmax(s, m_i, l_i, acc, v, factor: float, base: float = 2.0,
            leave: tuple[str, ...] = ("m_new", "l_i", "acc")) -> dict:
    """Variants of the online softmax of one tile, in its own units, of what it leaves.

    In float32, where large numbers overflow alike.  Rows that have seen nothing are free.
    """
    s, m_i, factor, base = np.float32(s), np.float32(m_i), np.float32(factor), np.float32(base)

    def power(x):
        return np.power(base, x)

    def tile(new=np.maximum, weight=lambda t, m: power(t - m[..., None]),
             alpha=lambda old, m: power(old - m), total=lambda a, r: l_i * a + r,
             sums=lambda a, pv: acc * a[..., None] + pv):
        with np.errstate(all="ignore"):
            scaled = s * factor
            m = np.broadcast_to(new(m_i, scaled.max(-1)), m_i.shape)
            p, a = weight(scaled, m), alpha(m_i, m)
            made = {"m_new": m, "p": p, "alpha": a, "l_i": total(a, p.sum(-1)),
                    "acc": sums(a, p @ v)}
        return leaves(free=m_i == -np.inf, **{name: made[name] for name in leave})

    def other(x):  # the other base
        return np.exp(x) if base == 2 else np.exp2(x)

    def small(old, m):
        return np.where(power(old - m) > 0.99, np.float32(1), power(old - m))

    return {
        "right": tile(),
        "alpha-inverted": tile(alpha=lambda old, m: power(m - old)),
        "nothing-rescaled": tile(alpha=lambda old, m: np.ones_like(m)),
        "acc-not-rescaled": tile(sums=lambda a, pv: acc + pv),
        "l-not-rescaled": tile(total=lambda a, r: l_i + r),
        "rescaled-after-adding": tile(sums=lambda a, pv: (acc + pv) * a[..., None]),
        "alpha-on-the-new-sum": tile(total=lambda a, r: l_i + a * r,
                                     sums=lambda a, pv: acc + a[..., None] * pv),
        ("alpha-on-the-new-sum", "l"): tile(total=lambda a, r: l_i + a * r),
        ("alpha-on-the-new-sum", "acc"): tile(sums=lambda a, pv: acc + a[..., None] * pv),
        "small-rescales-skipped": tile(alpha=small),
        "last-tile-only": tile(total=lambda a, r: r, sums=lambda a, pv: pv),
        ("last-tile-only", "l"): tile(total=lambda a, r: r),
        ("last-tile-only", "acc"): tile(sums=lambda a, pv: pv),
        "alpha-in-another-base": tile(alpha=lambda old, m: other(old - m)),
        "log2e-twice" if base == 2 else "no-log2e": tile(
            weight=lambda t, m: other(t - m[..., None]), alpha=lambda old, m: other(old - m)),
        "weights-of-the-old-max": tile(weight=lambda t, m: power(t - m_i[..., None])),
        "max-not-scaled": tile(new=lambda old, top: np.maximum(old, s.max(-1))),
        "max-not-running": tile(new=lambda old, top: top),
        "max-of-the-first-tile": tile(new=lambda old, top: np.where(old == -np.inf, top, old)),
        "max-over-the-block": tile(new=lambda old, top: np.maximum(
            old, top.max(-1, keepdims=True))),
        "max-of-magnitudes": tile(new=lambda old, top: np.maximum(
            old, np.where(s == -np.inf, s, abs(s * factor)).max(-1))),
        "max-of-hidden-keys": tile(new=lambda old, top: np.maximum(
            old, np.where(s == -np.inf, 0, s * factor).max(-1))),
        "no-max": tile(new=lambda old, top: np.zeros_like(old)),
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
