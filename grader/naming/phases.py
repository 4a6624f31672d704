"""The phases of a walk: which pairs of query and key each of them visits."""

import torch

from grader.naming.table import only

# What a phase is called -> walk -> (R, K) bool.
OF_KEYS = {
    "on the diagonal": lambda p: _causal(p) & (p.j >= p.diag) & (p.j < p.end),
    "before the diagonal": lambda p: _causal(p) & (p.j >= p.inner) & (p.j < p.diag),
    "on the window's left edge": lambda p: _windowed(p) & (p.j >= p.first) & (p.j < p.inner),
    "of the sinks' phase": lambda p: _windowed(p) & (p.j < p.sink_end) & (p.j < p.first),
    "that need the mask": lambda p: _windowed(p) & p.walked & ((p.j < p.inner) | (p.j >= p.diag)),
    "that hang over the end": lambda p: (p.j >= p.NK // p.BN * p.BN) & p.walked,
    "that lie inside": lambda p: _not_causal(p) & (p.j < p.NK // p.BN * p.BN),
}
OF_QUERIES = {
    "on the diagonal": lambda p: _causal(p) & (p.i >= p.start) & (p.i < p.start + p.BN),
    "after the diagonal": lambda p: _causal(p) & (p.i >= p.start + p.BN) & (p.i < p.outer),
    "on the window's right edge": lambda p: _windowed(p) & (p.i >= p.outer) & p.walked_by_keys,
    "that need the mask": lambda p: p.walked_by_keys & ((p.i < p.inner_query) | (p.i >= p.outer)),
    "that hang over the end": lambda p: (p.i >= p.N // p.BM * p.BM) & p.walked_by_keys,
    "that lie inside": lambda p: _not_causal(p) & (p.i < p.N // p.BM * p.BM),
}
FIRST_AND_LAST = {
    "that come first": lambda p: p.j < p.BN,
    "that come after the first": lambda p: (p.j >= p.BN) & p.walked,
    "that come last": lambda p: (p.j >= p.end - p.BN) & p.walked,
    "that come before the last": lambda p: (p.j < p.end - p.BN) & p.walked,
}
NAMES = tuple(dict.fromkeys((*OF_KEYS, *OF_QUERIES)))
SOME_OF_KEYS = (*OF_KEYS, *FIRST_AND_LAST)


def pairs(p, name: str) -> torch.Tensor:
    """(R, K) bool: the pairs of this phase; raises NotHere where it has none."""
    table = OF_QUERIES if p.over_queries else OF_KEYS | FIRST_AND_LAST
    only(name in table)
    found = table[name](p)
    only(bool(found.any()))
    return found


def _causal(p):
    only(p.causal)
    return True


def _not_causal(p):
    only(not p.causal)
    return True


def _windowed(p):
    only(p.causal and p.window is not None)
    return True


# --------------------------------------------------- where they begin and end, and what is masked
def of_whole(p) -> dict[str, tuple]:
    """Without a causal mask: name -> begin, end, masked; tensors (R, 1) or (1, K)."""
    zero = p.j * 0 if p.over_queries else p.i * 0
    length, tile = (p.N, p.BM) if p.over_queries else (p.NK, p.BN)
    if p.stage == 1:
        return {"walk": (zero, zero + length, True)}
    whole = zero + length // tile * tile
    return {"whole tiles": (zero, whole, False), "ragged tile": (whole, zero + length, True)}


def of_causal(p, **borders) -> dict[str, tuple]:
    """With a causal mask, the same.  borders: those that are not where they should be."""
    if p.over_queries:
        last, inner = borders.get("last", p.last), borders.get("inner", p.inner_query)
        outer = borders.get("outer", p.outer)
        return {"diagonal": (p.start, inner, True), "interior": (inner, outer, False),
                "right edge": (outer, last, True)}
    zero = p.i * 0
    if p.stage == 1:
        return {"walk": (zero, p.end, True)}
    first, diag = borders.get("first", p.first), borders.get("diag", p.diag)
    inner = borders.get("inner", p.inner)
    found = {"interior": (inner, diag, False), "diagonal": (diag, p.end, True)}
    if p.window is not None:
        end = borders.get("sink_end", first.clamp(max=p.sinks))
        found |= {"left edge": (first, inner, True), "sinks' phase": (zero, end, True)}
    return found
