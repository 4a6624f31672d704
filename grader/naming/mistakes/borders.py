"""Where the phases of a walk begin and end: one border somewhere else than it should be.

A phase begins at one border and ends at another.  Each of them may be taken for another one, lie a
tile or a key off, be the number of a tile, or come from another formula; what the walk then visits,
and how often, follows.
"""

import torch

from grader.naming.phases import of_causal, of_whole
from grader.naming.table import ATTENTION, SINKS, WINDOWED, mistake, only
from grader.naming.tiles import round_up

SHIFTS = {  # words -> border and tile -> another one
    "a tile early": lambda x, tile: x - tile,
    "a tile late": lambda x, tile: x + tile,
    "two tiles late": lambda x, tile: x + 2 * tile,
    "one place early": lambda x, tile: x - 1,
    "one place late": lambda x, tile: x + 1,
    "at the number of a tile, not at a position": lambda x, tile: x // tile,
}
ROUNDED = {
    "rounded down to a tile": lambda x, tile: x // tile * tile,
    "rounded up to a tile": round_up,
    "not rounded": lambda x, tile: x,
}


def count(p, phases) -> None:
    """Let p count the pairs that these phases visit: (begin, end, masked); (R, 1) or (1, K)."""
    place, tile = (p.i, p.BM) if p.over_queries else (p.j, p.BN)
    visible, total = p.rule(), 0.0
    for begin, end, masked in phases:
        end = begin + round_up((end - begin).clamp(min=0), tile)
        seen = (place >= begin) & (place < end)
        total = total + (seen & (visible if masked else p.exists)).double()
    if torch.equal(total, visible.double()):
        only(False)
    p.count_pairs(total)


def border(id, words, line, each, place="borders, walk", **more):
    """As mistake, for walks over keys or queries: the function gets a walk and gives its phases."""
    def add(phases_of):
        def change(p, *values):
            count(p, phases_of(p, *values))
        mistake(id, words, line, place, kind="mask", slot="mask", composed=True, each=each,
                tiles="mn", **more)(change)
        return phases_of  # for another list of places
    return add


# --------------------------------------------------------------- any border, moved
ENDS = ("begins", "ends")
ONCE = "the phases of the walk meet, and together visit each tile once"
PLACES = {  # words -> walk and its phases by name -> where that is
    "key 0": lambda p, phases: 0,
    "the window's first tile": lambda p, phases: phases["left edge"][0],
    "the first tile that all rows see whole": lambda p, phases: phases["left edge"][1],
    "the tile of the first row": lambda p, phases: phases["diagonal"][0],
    "the end of the sequence": lambda p, phases: p.N,
    "the last whole tile's end": lambda p, phases: p.NK // p.BN * p.BN,
    "the last sink": lambda p, phases: p.sinks,
    "N less a tile": lambda p, phases: max(p.NK - p.BN, 0),
    "the key after the first row": lambda p, phases: p.tile_start + 1,
}
QUERY_PLACES = {
    "query 0": lambda p, phases: 0,
    "the key tile's first row": lambda p, phases: phases["diagonal"][0],
    "the end of the diagonal": lambda p, phases: phases["diagonal"][1],
    "the last query that sees all keys": lambda p, phases: phases["interior"][1],
    "the last query that sees any key": lambda p, phases: phases["right edge"][1],
    "the end of the sequence": lambda p, phases: p.N,
    "BLOCK_M after the tile's first row":
        lambda p, phases: phases["diagonal"][0] + p.BM,
}
OF_KEYS = ("walk", "whole tiles", "ragged tile", "sinks' phase", "left edge", "interior",
           "diagonal")
OF_QUERIES = ("interior", "right edge", "diagonal", "whole tiles", "ragged tile")


def _moved(p, name, which, how, places):
    phases = of_whole(p) if not p.causal else of_causal(p)
    only(name in phases)
    begin, end, masked = phases[name]
    at, tile = (begin, end)[ENDS.index(which)], p.BM if p.over_queries else p.BN
    try:
        new = SHIFTS[how](at, tile) if how in SHIFTS else at * 0 + places[how](p, phases)
    except KeyError:  # there is no such border here
        only(False)
    new = new.clamp(min=0)
    phases[name] = (new, end, masked) if which == "begins" else (begin, new, masked)
    return phases.values()


@border("phase-border-elsewhere", "the {0} {1} at {2}", ONCE, walks=("dq",), stages=ATTENTION,
        each=tuple((phase, end, how) for phase in OF_KEYS for end in ENDS for how in PLACES))
@border("phase-border-moved", "the {0} {1} {2}", ONCE, walks=("dq",), stages=ATTENTION,
        each=tuple((phase, end, how) for phase in OF_KEYS for end in ENDS for how in SHIFTS))
def _(p, name, which, how):
    only(not p.over_queries)
    return _moved(p, name, which, how, PLACES)


@border("query-border-elsewhere", "the {0} of the queries {1} at {2}", ONCE, walks=("dkv",),
        stages=(8, 9), in_forward=False,
        each=tuple((phase, end, how) for phase in OF_QUERIES for end in ENDS
                   for how in QUERY_PLACES))
@border("query-border-moved", "the {0} of the queries {1} {2}", ONCE, walks=("dkv",),
        stages=(8, 9), in_forward=False,
        each=tuple((phase, end, how) for phase in OF_QUERIES for end in ENDS for how in SHIFTS))
def _(p, name, which, how):
    return _moved(p, name, which, how, QUERY_PLACES)


@border("diagonal-border", "the diagonal of the queries ends, and the interior begins, {0}",
        "both meet at start_n + BLOCK_N", place="borders", walks=("dkv",), stages=(8, 9),
        in_forward=False, each=(("BLOCK_M after the tile's first row",), ("at query 0",),
                                *((how,) for how in SHIFTS)))
def _(p, how):
    only(p.causal)
    at = SHIFTS[how](p.inner_query, p.BM) if how in SHIFTS else p.start + p.BM
    at = at * 0 if how == "at query 0" else at
    outer = torch.maximum(p.whole_end, at)
    return of_causal(p, inner=at, outer=outer).values()


# ----------------------------------------------------------- borders by other formulas
FIRST_KEYS = {
    f"start_m {text}": (lambda p, a=a, b=b, c=c: p.tile_start + a * p.BM - b * p.window + c)
    for text, a, b, c in (("- W - 1", 0, 1, -1), ("- W", 0, 1, 0), ("- W + 1", 0, 1, 1),
                          ("- W + 2", 0, 1, 2), ("+ BLOCK_M - W - 1", 1, 1, -1),
                          ("+ BLOCK_M - W", 1, 1, 0), ("+ BLOCK_M - W + 1", 1, 1, 1),
                          ("- BLOCK_M - W + 1", -1, 1, 1), ("", 0, 0, 0))}
NUMBER = "divided by the tile, not multiplied again"
KEY_ROUNDED = {f"{words}": change for words, change in ROUNDED.items()}
KEY_ROUNDED[NUMBER + ", rounded down"] = lambda x, tile: x // tile
KEY_ROUNDED[NUMBER + ", rounded up"] = lambda x, tile: (x + tile - 1) // tile


def one_changed(right: tuple, *choices) -> tuple[tuple, ...]:
    """Every choice in the place of the right one, one at a time."""
    return tuple((*right[:at], choice, *right[at + 1:]) for at, own in enumerate(choices)
                 for choice in own if choice != right[at])


@border("window-walk-border", "the walk over the window begins at {0}, {1}",
        "it begins at start_m - W + 1, rounded down to a tile, and not below 0",
        walks=("dq",), stages=WINDOWED,
        each=one_changed(("start_m - W + 1", "rounded down to a tile"), FIRST_KEYS, KEY_ROUNDED))
def _(p, formula, how):
    only(p.causal and p.window is not None and not p.over_queries)
    first = KEY_ROUNDED[how](FIRST_KEYS[formula](p).clamp(min=0), p.BN)
    return of_causal(p, first=first).values()


@border("interior-border", "the interior begins at {0}, {1}{2}",
        "it begins at start_m + BLOCK_M - W, rounded up to a tile, and at most at the diagonal",
        walks=("dq",), stages=WINDOWED,
        each=one_changed(("start_m + BLOCK_M - W", "rounded up to a tile", ""), FIRST_KEYS,
                         KEY_ROUNDED, (", even past the diagonal",)))
def _(p, formula, how, past):
    only(p.causal and p.window is not None and not p.over_queries)
    inner = KEY_ROUNDED[how](FIRST_KEYS[formula](p).clamp(min=0), p.BN)
    return of_causal(p, inner=inner if past else torch.minimum(inner, p.diag)).values()


SINK_ENDS = {
    "the last sink, even past the window's first tile": lambda p: p.first * 0 + p.sinks,
    "the last sink but one": lambda p: (p.first.clamp(max=p.sinks) - 1).clamp(min=0),
    "a key after the last sink": lambda p: p.first.clamp(max=p.sinks + 1),
    "the last whole tile of sinks": lambda p: p.first.clamp(max=p.sinks // p.BN * p.BN),
    "the last sink or the interior": lambda p: p.inner.clamp(max=p.sinks),
    "the last sink or the diagonal": lambda p: p.diag.clamp(max=p.sinks),
    "the last sink or start_m - W + 1":
        lambda p: (p.tile_start - p.window + 1).clamp(min=0, max=p.sinks),
    "the end of one tile": lambda p: p.first.clamp(max=min(p.sinks, p.BN)),
    "the end of two tiles": lambda p: p.first.clamp(max=min(p.sinks, 2 * p.BN)),
    "the window's first tile": lambda p: p.first,
    "the larger of the last sink and the window's first tile": lambda p: p.first.clamp(min=p.sinks),
}


@border("sinks-border", "the walk over the sinks ends at {0}",
        "it ends at the last sink, or at the window's first tile if that comes first",
        place="walk, borders", walks=("dq",), stages=SINKS, each=tuple((how,) for how in SINK_ENDS))
def _(p, how):
    only(p.causal and p.window is not None and not p.over_queries)
    return of_causal(p, sink_end=SINK_ENDS[how](p)).values()


# ------------------------------------------------- the walk over queries, with a window
LAST_QUERIES = {
    f"start_n {text}": (lambda p, a=a, b=b, c=c: p.start + a * p.BN + b * p.window + c)
    for text, a, b, c in (("+ W", 0, 1, 0), ("+ W - 1", 0, 1, -1), ("+ W + 1", 0, 1, 1),
                          ("+ BLOCK_N + W - 1", 1, 1, -1), ("+ BLOCK_N + W - 2", 1, 1, -2),
                          ("+ BLOCK_N + W", 1, 1, 0), ("+ BLOCK_N", 1, 0, 0))}
LAST_QUERIES["N"] = lambda p: p.start * 0 + p.N
WITH_SINKS = {
    "tiles with any sink go to N": lambda p: p.start < p.sinks,
    "tiles with nothing but sinks go to N": lambda p: p.start + p.BN <= p.sinks,
    "tiles after the first sink's go to N": lambda p: p.start <= p.sinks,
    "no tile goes to N for its sinks": lambda p: p.start < 0,
    "every tile goes to N if there are sinks": lambda p: p.start < (p.N if p.sinks else 0),
}


@border("last-query-border", "the walk over the queries ends at {0}; {1}",
        "it ends at start_n + BLOCK_N - 1 + W, or at N if the tile holds a sink",
        walks=("dkv",), stages=(9,), in_forward=False,
        each=one_changed(("start_n + BLOCK_N + W - 1", "tiles with any sink go to N"),
                         LAST_QUERIES, WITH_SINKS))
def _(p, formula, sinks):
    only(p.causal and p.window is not None)
    last = LAST_QUERIES[formula](p).clamp(max=p.N)
    return of_causal(p, last=torch.where(WITH_SINKS[sinks](p), p.N, last)).values()


@border("right-edge-border", "the right edge begins at {0}, {1}; {2}{3}",
        "it begins at start_n + W, rounded down to a tile, after the diagonal, or at N if all keys "
        "of the tile are sinks", walks=("dkv",), stages=(9,), in_forward=False,
        each=one_changed(("start_n + W", "rounded down to a tile",
                          "tiles with nothing but sinks go to N", ""), LAST_QUERIES, ROUNDED,
                         WITH_SINKS, (", even before the diagonal's end",)))
def _(p, formula, how, sinks, before):
    only(p.causal and p.window is not None)
    outer = torch.where(WITH_SINKS[sinks](p), p.N, LAST_QUERIES[formula](p).clamp(max=p.N))
    outer = ROUNDED[how](outer, p.BM)
    return of_causal(p, outer=outer if before else torch.maximum(outer, p.inner_query)).values()
