"""Checks the arithmetic of one key tile: scores (3.4), online softmax (3.5), and copies."""

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
)

FACTOR = 0.36  # stands for scale * LOG2E
HIDDEN = -1e5  # lower scores count as -inf
LOWEST = -1e20  # what is lower is below all scores


def not_infinite(s: np.ndarray, hidden: np.ndarray) -> Wrong | None:
    """Advice on hidden scores that are low, but not so low that no score is lower."""
    low = s[hidden][s[hidden] > LOWEST]
    return Wrong((f"hidden scores are {low[0]:.5g}, and not -inf: a real score may be as low, and "
                  "in a row that sees no key all keys would count alike",), note=True) \
        if low.size else None


def scores(factor: float = 1.0) -> StepSpec:
    """s must be q k^T times factor, and -inf where MASKED and not keep."""
    def make(seed: int, dtype: str, masked: bool, size: float = 3.0) -> Example:
        random, (M, N, D) = randoms(seed), (16, 32, 16)
        q, k = (size * random(M, D)).astype(dtype), random(N, D).astype(dtype)
        keep = random(M, N) < 0.5 if masked else np.ones((M, N), bool)
        want = q.astype(np.float64) @ k.astype(np.float64).T * factor
        reshaped = q.astype(np.float64) @ k.astype(np.float64).reshape(D, N) * factor

        def check(left: Observed) -> Wrong | None:
            s = left.programs[0]["s"]
            if isinstance(s, np.ndarray) and s.dtype.kind == "f" and np.isnan(s).any():
                found = difference("s", s, np.where(keep, want, -np.inf), free=~np.isnan(s))
                return found and replace(found, id="zero-times-inf")
            if np.shape(s) == (M, N) and isinstance(s, np.ndarray) and s.dtype.kind == "f":
                seen = ~(s.astype(np.float64) < HIDDEN)  # float16 has no such numbers
                if (~keep & seen).any():
                    at = tuple(np.argwhere(~keep & seen)[0])
                    return Wrong((f"s[{at[0]}, {at[1]}] is {s[at]:.5g}, but keep is False there: "
                                  "want -inf.",), name="s", want="-inf", got=number(s[at]))
            return difference("s", s, np.where(keep, want, -np.inf), free=~keep) \
                or not_infinite(s, ~keep)

        return Example(f"q of shape {q.shape}, k of shape {k.shape}, {dtype}, MASKED={masked}",
                       {"q": q, "k": k, "keep": keep, "MASKED": masked, "scale_log2e": FACTOR,
                        "N": 64 + N, "D": D, "BLOCK_N": N, "start_n": 64,
                        "query": np.arange(200, 200 + M, dtype=np.int32),
                        "key": np.arange(64, 64 + N, dtype=np.int32)}, check,
                       variants=lambda: {id: named.leaves(
                         ROUNDED if dtype == "float16" else named.NEAR, s=s) for id, s in (
                             ("keep-not-applied", want),
                             ("hidden-scores-zero", np.where(keep, want, 0)),
                             ("k-reshaped", np.where(keep, reshaped, -np.inf)))})

    return StepSpec(("s",), lambda: [make(1, "float32", True), make(2, "float32", False),
                                     make(3, "float16", True), make(4, "float32", False, 3e4)],
                    ("MASKED", "D", "BLOCK_N"))


def row(m_i: np.ndarray, top: np.ndarray, at: tuple[int, ...]) -> str:
    """What is special about a row: compares its maximum so far with its largest score here."""
    old, new = m_i[at[:m_i.ndim]], top[at[:m_i.ndim]]
    if new == -np.inf:
        return "all keys of this tile are hidden"
    if old == -np.inf:
        return "no key was seen before this tile"
    if old > new:
        return "m_i stays the maximum: it is above all scores of this tile"
    if new - old < 0.01:
        return "the maximum grows by less than 0.01"
    return "the scores are far below those of the other rows" if new < np.median(top) - 99 else ""


def online_softmax(factor: float = FACTOR, base: float = 2.0, first_row_sees: bool = True
                   ) -> StepSpec:
    """l_i base^m_new and acc base^m_new must be the old ones plus this tile's share.

    factor: by which the scores are still to be multiplied.  Any m_new is right as long as nothing
    overflows.  first_row_sees: after this tile every row has seen a key.
    """
    def make(words: str, seed: int, dtype: str = "float32", old: float = 0, new: float = 0,
             seen: bool = True, weight: float = 1) -> Example:
        """old, new: rough maximum so far and of the new scores, in base 2; seen: only some rows
        have seen no key; weight: of the sums before."""
        random, (M, N, D) = randoms(seed), (16, 32, 64)
        s, v = random(M, N) * 3 + new / FACTOR, random(N, D).astype(dtype)
        m_i = random(M) + old
        if dtype == "float32":
            m_i[:4], m_i[4:8] = -np.inf, m_i[4:8] + 9  # no key seen; a maximum that stays
            s[8] -= 600  # far below the other rows
            m_i[8], m_i[9] = s[8].max() * FACTOR - 1, s[9].max() * FACTOR - 0.005
            if not seen:
                m_i[:] = -np.inf
        s[::3, -5:] = -np.inf
        l_i, acc = weight * (np.abs(random(M)) + 1), weight * random(M, D)
        if not first_row_sees:
            s[2:6], s[8:10] = -np.inf, -np.inf
        l_i[m_i == -np.inf], acc[m_i == -np.inf] = 0, 0
        top = np.maximum(m_i, s.max(1) * factor).astype(np.float64)
        top[~np.isfinite(top)] = 0
        p = np.power(base, s.astype(np.float64) * factor - top[:, None])
        alpha = np.power(base, m_i - top)
        want_l = l_i * alpha + p.sum(1)
        want_acc = acc * alpha[:, None] + p @ v.astype(np.float64)

        def check(left: Observed) -> Wrong | None:
            names = left.programs[0]
            m_new, error = names["m_new"], ROUNDED if abs(old) + abs(new) > 99 else EXACT
            if not isinstance(m_new, np.ndarray) or m_new.shape != (M,):
                return difference("m_new", m_new, top)
            if (high := (want_l == 0) & ~(m_new < -1000)).any():
                at = int(np.flatnonzero(high)[0])
                return Wrong((f"m_new[{at}] is {m_new[at]:.5g}, but that row has not seen a key "
                              "yet: it should be -inf, or a very low score.",), id="blind-row-max",
                             name="m_new", want="-inf", got=number(m_new[at]))
            with np.errstate(all="ignore"):
                back = np.power(base, m_new.astype(np.float64) - top)
                back[(m_new == -np.inf) & (want_l == 0)] = 1  # no key seen yet: all is 0

                def level(name, axes):
                    value = names[name]
                    fits = isinstance(value, np.ndarray) and value.ndim == axes
                    return value * back.reshape((-1,) + (1,) * (axes - 1)) if fits else value

                found = first(difference("l_i", level("l_i", 1), want_l, error),
                              difference("acc", level("acc", 2), want_acc, error))
                if found is None:
                    return None
                blind = want_l == 0
                if not first_row_sees and any(
                        isinstance(x, np.ndarray) and len(x) == M and np.isnan(x[blind]).any()
                        and not np.isnan(x[~blind]).any() for x in (names["l_i"], names["acc"])):
                    return replace(found, id="no-pivot")
                plain = first(difference("m_new", m_new, np.where(want_l > 0, top, -np.inf)),
                              difference("l_i", names["l_i"], want_l, error),
                              difference("acc", names["acc"], want_acc, error))
            return replace(plain or found, others=tuple(found.names))

        return Example(f"s of shape {s.shape}, v in {dtype}; {words}", {
            "s": s, "m_i": m_i.astype(np.float32), "l_i": l_i.astype(np.float32), "acc": acc,
            "v": v, "scale_log2e": FACTOR, "MASKED": True,
            "keep": np.isfinite(s), "N": 400, "BLOCK_N": N, "D": D, "start_n": 64,
            "query": np.arange(200, 200 + M, dtype=np.int32),
            "key": np.arange(64, 64 + N, dtype=np.int32)}, check,
            variants=None if dtype == "float16" else lambda: named.softmax(
                s, m_i, l_i, acc, v, factor, base),
            about=lambda at: row(m_i, s.max(1) * factor, at),
            exact=lambda left: difference("m_new", left.programs[0]["m_new"], top,
                                          free=want_l == 0) is None)

    return StepSpec(("m_new", "l_i", "acc"), lambda: [
        make("some rows have seen no key yet, and in others this tile does not raise the maximum",
             4),
        make("scores about 200, in base 2", 5, old=200, new=200),
        make("scores about 200 above m_i", 6, new=200),
        make("m_i 200 above every score", 9, old=200),
        make("a first tile with scores about -200", 7, new=-200, seen=False),
        make("a first tile with scores about -3,000", 10, new=-3000, seen=False),
        make("float16 values, large sums", 8, "float16", old=3, weight=4000),
    ], ("MASKED", "D", "BLOCK_N"))


SCORES = scores()
