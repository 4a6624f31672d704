"""Checks masks: which keys each query sees (3.6, 4.6, 6.8, 7.8, 8.18, 9.21 and copies)."""

from collections.abc import Callable

import numpy as np

from grader.step_checks import evidence, named
from grader.step_checks.examples import Example, Observed, StepSpec, Wrong, unlike

Sees = Callable[[np.ndarray, np.ndarray, dict], np.ndarray]


def all_keys(query, key, given):
    return np.broadcast_to(key < given["N"], np.broadcast_shapes(query.shape, key.shape))


def causal(query, key, given):
    return key <= query


def window(query, key, given):
    return (key <= query) & (query - key < given["window_size"])


def sinks(query, key, given):
    return (key <= query) & ((query - key < given["window_size"]) | (key < given["sink_size"]))


def either(query, key, given):
    return (causal if given["CAUSAL"] else all_keys)(query, key, given)


def sinks_or_all(query, key, given):
    return (sinks if given["CAUSAL"] else all_keys)(query, key, given)


def mask(sees: Sees, examples: list[dict], constants: tuple[str, ...] = (),
         transposed: bool = False) -> StepSpec:
    """keep must be sees(query, key, given) for every query that exists.

    examples: what is given besides query and key, with their first positions as _query and _key.
    """
    def make(example: dict, turned: bool) -> Example:
        given = {name: value for name, value in example.items() if name[0] != "_"}
        query = np.arange(example["_query"], example["_query"] + 16, dtype=np.int32)
        key = np.arange(example["_key"], example["_key"] + 32, dtype=np.int32)
        query, key = (query[None], key[:, None]) if turned else (query[:, None], key[None])
        wanted = sees(query, key, given)
        exists = np.broadcast_to(query < given.get("N", 1 << 30), wanted.shape)

        def check(left: Observed) -> Wrong | None:
            keep = left.programs[0]["keep"]
            if not isinstance(keep, np.ndarray | bool) or np.asarray(keep).dtype != bool:
                kind = keep if isinstance(keep, str) else getattr(
                    keep, "dtype", type(keep).__name__)
                return unlike("keep", "booleans", kind)
            try:
                got = np.broadcast_to(keep, wanted.shape)
            except ValueError:
                more = ": query and key have two axes each already" * (np.ndim(keep) > 2)
                return unlike("keep", f"booleans that broadcast to {wanted.shape}",
                              f"shape {np.shape(keep)}", more=more)
            wrong = (got != wanted) & exists
            if not wrong.any():
                return None
            at = tuple(np.argwhere(wrong)[0])
            i, j = np.broadcast_to(query, wanted.shape)[at], np.broadcast_to(key, wanted.shape)[at]
            verb, should = ("does not see", "visible") if wanted[at] else ("sees", "hidden")
            return Wrong((f"Query {i} {verb} key {j}, which should be {should} "
                          f"({wrong.sum()} of {wrong.size} pairs are wrong).",),
                         _drawn(got, wanted, exists, turned), want=should,
                         got="hidden" if wanted[at] else "visible",
                         drawn=evidence.mask(*(x.T if turned else x for x in (
                             wanted, np.where(exists, got, wanted))), (query.min(), key.min())))

        words = ", ".join(f"{name}={value}" for name, value in given.items())
        return Example(f"queries {query.min()}-{query.max()}, keys {key.min()}-{key.max()}"
                       + f", {words}" * bool(words), {**given, "query": query, "key": key}, check,
                       variants=lambda: named.masks(sees.__name__, query, key, given, exists))

    return StepSpec(("keep",), lambda: [make(example, turned) for example in examples
                                        for turned in ((False, True) if transposed else (False,))],
                    constants)


def _drawn(got, wanted, exists, turned: bool) -> tuple[str, ...]:
    """A row per query: x seen, . hidden, ! wrongly seen, ? wrongly hidden."""
    signs = np.where(got, np.where(wanted, "x", "!"), np.where(wanted, "?", "."))
    signs = np.where(exists, signs, " ")
    return ("a row per query: x visible, . hidden, ! wrongly visible, ? wrongly hidden",
            *("".join(row) for row in (signs.T if turned else signs)))


TILES = [dict(_query=32, _key=32), dict(_query=48, _key=32), dict(_query=0, _key=0),
         dict(_query=64, _key=0)]
WINDOWS = [tile | dict(window_size=W) for tile, W in (
    (TILES[0], 7), (TILES[1], 20), (TILES[2], 1), (TILES[3], 50), (TILES[3], 40))]
SINKS = [example | dict(sink_size=S) for example, S in zip(
    WINDOWS, (4, 40, 5, 9, 0), strict=True)]
LENGTHS = [dict(N=40, _query=16, _key=16), dict(N=40, _query=32, _key=32),
           dict(N=70, _query=0, _key=32), dict(N=7, _query=0, _key=0),
           dict(N=64, _query=48, _key=32)]
MASKS = {
    3: mask(all_keys, LENGTHS), 4: mask(causal, TILES), 6: mask(window, WINDOWS),
    7: mask(sinks, SINKS),
    8: mask(either, [example | dict(CAUSAL=flag) for example in LENGTHS for flag in (True, False)],
            ("CAUSAL",), transposed=True),
    9: mask(sinks_or_all, [example | dict(N=90, CAUSAL=True) for example in SINKS]
            + [example | dict(CAUSAL=False, window_size=90, sink_size=0) for example in LENGTHS],
            ("CAUSAL",), transposed=True),
}
