"""Which keys a query sees, with a window and with sinks."""

import torch

from grader.naming.table import SINKS, WINDOWED, mask, mistake, only
from grader.naming.tiles import round_up


# ------------------------------------------------------------------- windows
def windowed(id, words, line, place="mask", slot="window", stages=WINDOWED, **more):
    """As mask, where there is a window."""
    return mask(id, words, line, place, slot=slot, stages=stages,
                here=lambda p: p.window is not None, **more)


@windowed("window-plus-one", "the window is one key too wide: query i sees W + 1 keys",
          "query i sees keys i - W + 1 ... i")
def _(p):
    p.keep = p.rule(window=p.window + 1)


@windowed("window-minus-one", "the window is one key too narrow: query i sees W - 1 keys",
          "query i sees keys i - W + 1 ... i")
def _(p):
    p.keep = p.rule(window=p.window - 1)


@windowed("half-the-window", "the window is half as long", "query i sees keys i - W + 1 ... i",
          each=((0,), (1,)))
def _(p, more):
    p.keep = p.rule(window=p.window // 2 + more)


@windowed("window-ignored", "there is no window: query i sees keys 0 ... i",
          "query i sees keys i - W + 1 ... i")
def _(p):
    p.keep = p.rule(window=None)


@windowed("window-inverted", "the window is the wrong way round: keys that have left it are seen",
          "query i sees keys i - W + 1 ... i", tiles="mn", each=((0,), (1,)))
def _(p, more):
    outside = (p.j <= p.i) & (p.i - p.j >= p.window + more)
    interior = (p.j >= p.inner) & (p.j < p.diag)  # where nothing is masked
    p.keep = p.walked & p.exists & (outside | interior | (p.keep & (p.j < p.sinks)))


@windowed("window-hard-coded", "the window is a fixed number, not the one that was passed",
          "query i sees keys i - W + 1 ... i, for the W that was passed",
          each=((128,), (64,), (32,), (256,)))
def _(p, size):
    only(size != p.window)
    p.keep = p.rule(window=size)


@windowed("window-capped", "a window longer than 128 is cut to 128", "query i sees keys i - W + 1 "
          "... i, for the W that was passed", each=((128,), (64,), (256,)))
def _(p, size):
    p.keep = p.rule(window=min(size, p.window))


@windowed("window-rounded", "the window is rounded up to a multiple of a tile",
          "query i sees keys i - W + 1 ... i", each=((16,), (32,), (64,), (128,)))
def _(p, step):
    p.keep = p.rule(window=round_up(p.window, step))


@mask("no-window-is-a-window", "no window (None) is taken for a number", "without a window query i "
      "sees keys 0 ... i", "", slot="window", stages=(9,), each=((128,), (1,), (0,), (64,)))
def _(p, size):
    only(p.window is None and p.causal)
    p.keep = p.rule(window=size)


@windowed("window-symmetric", "the window looks both ways: |i - j| < W",
          "query i sees keys i - W + 1 ... i, none after it", tiles="mn", each=((True,), (False,)))
def _(p, walked):
    near = ((p.i - p.j).abs() < p.window) & p.exists
    near = near | (p.keep & (p.j < p.sinks))
    p.keep = near & p.walked if walked else near


@windowed("window-without-causal", "the window has no upper end: keys after the query are seen",
          "query i sees keys i - W + 1 ... i, none after it", tiles="mn", each=((True,), (False,)))
def _(p, walked):
    keep = p.rule(causal=False)
    p.keep = keep & p.walked if walked else keep


@windowed("window-one-place-early", "the window is one place too early: keys i - W ... i - 1",
          "query i sees keys i - W + 1 ... i", each=((0,), (1,)))
def _(p, spared):
    keep = (p.j < p.i) & (p.j >= p.i - p.window)
    p.keep = keep | ((p.i < spared) & (p.j == p.i)) | (p.keep & (p.j < p.sinks))


@windowed("window-by-tiles", "the window has no lower end a row: it begins with the tile",
          "the left edge needs the mask, row by row", tiles="mn")
def _(p):
    p.keep = p.keep | (p.rule(window=None) & p.walked)


@windowed("mask-forgotten", "nothing is masked: all tiles that are walked enter whole",
          "tiles that the mask cuts need it, element by element", "mask, scores", tiles="mn")
def _(p):
    only(p.window < p.N)
    p.keep = p.walked & p.exists


@windowed("left-edge-unmasked", "the tiles on the window's left edge enter whole",
          "a tile that the window's edge cuts needs the mask", "walk", tiles="mn")
def _(p):
    p.keep = p.keep | ((p.j >= p.first) & (p.j < p.inner) & p.exists)


@windowed("first-window-tile-skipped", "the walk begins one tile after the window's first", "the "
          "walk begins with the tile that holds the first key of the first row's window",
          "borders, walk", tiles="mn", each=(("tile",), ("tile, but from 0",), ("up",)))
def _(p, how):
    start = {"tile": p.first + p.BN,
             "tile, but from 0": torch.where(p.first > 0, p.first + p.BN, 0),
             "up": round_up((p.tile_start - p.window + 1).clamp(min=0), p.BN)}[how]
    start = torch.minimum(start, p.diag)
    sunk = p.j < torch.minimum(p.sink_end, start)
    p.keep = p.keep & ((p.j >= start) | sunk)


@windowed("window-walk-off-by-one", "the walk's first tile is found with a key too late: start - W "
          "+ 2", "the first row's window begins at key start - W + 1", "borders", tiles="mn")
def _(p):
    start = (p.tile_start - p.window + 2).clamp(min=0) // p.BN * p.BN
    sunk = p.j < round_up(start.clamp(max=p.sinks), p.BN)
    p.keep = p.keep & ((p.j >= start) | sunk)


@windowed("interior-too-early", "tiles that the window leaves halfway are walked without a mask",
          "a tile without a mask lies in the window of every row, of the last one too", "borders",
          tiles="mn", each=(("one",), ("down",), ("first row",), ("before it",)))
def _(p, how):
    last = p.tile_start + p.BM - p.window
    inner = {"one": round_up((last - 1).clamp(min=0), p.BN),
             "down": last.clamp(min=0) // p.BN * p.BN,
             "first row": round_up((p.tile_start - p.window + 1).clamp(min=0), p.BN),
             "before it": round_up((p.tile_start - p.window).clamp(min=0), p.BN)}[how]
    inner = torch.minimum(torch.maximum(inner, p.first), p.diag)
    p.keep = p.keep | ((p.j >= inner) & (p.j < p.diag))


@windowed("interior-skipped", "the tiles that need no mask are left out",
          "three walks: left edge, interior, diagonal", "walk", tiles="mn")
def _(p):
    p.keep = p.keep & ~((p.j >= torch.maximum(p.inner, p.first)) & (p.j < p.diag))


@windowed("left-edge-past-the-diagonal", "with a short window the left edge runs into the "
          "diagonal, whose tiles count twice", "each tile belongs to one phase: the left edge ends "
          "where the diagonal begins", "borders", tiles="mn")
def _(p):
    inner = round_up((p.tile_start + p.BM - p.window).clamp(min=0), p.BN)
    p.count_again(p.keep & (p.j >= p.diag) & (p.j < inner))


# --------------------------------------------------------------------- sinks
def with_sinks(id, words, line, place="mask", **more):
    """As mask, where there are sinks."""
    return mask(id, words, line, place, slot="sinks", stages=SINKS, here=_has_sinks, **more)


def _has_sinks(p) -> bool:
    return p.window is not None and p.sinks > 0


@with_sinks("sinks-ignored", "the sinks are hidden: only the window is seen",
            "keys j < S stay visible to every later query")
def _(p):
    p.keep = p.rule(sinks=0)


@windowed("sinks-plus-one", "there is one sink too many: key S is one, too",
          "keys j < S stay visible", slot="sinks", stages=SINKS)
def _(p):
    p.keep = p.rule(sinks=p.sinks + 1)


@with_sinks("sinks-minus-one", "there is one sink too few: key S - 1 is none",
            "keys j < S stay visible")
def _(p):
    p.keep = p.rule(sinks=p.sinks - 1)


@with_sinks("sinks-by-queries", "queries i < S see everything before them: the sinks are told by "
            "the query's position", "keys j < S stay visible")
def _(p):
    p.keep = (p.j <= p.i) & ((p.i - p.j < p.window) | (p.i < p.sinks))


@with_sinks("first-key-is-no-sink", "key 0 is no sink", "keys 0 ... S - 1 stay visible")
def _(p):
    p.keep = p.keep & ((p.j > 0) | (p.i - p.j < p.window))


@with_sinks("sinks-not-causal", "sinks are seen by queries that come before them",
            "a sink is visible to later queries only", tiles="mn")
def _(p):
    p.keep = p.keep | ((p.j < p.sinks) & p.exists & p.walked)


@with_sinks("gap-between-sinks-and-window", "a sink is hidden from the query that stands W after "
            "it", "key < S or query - key < W, without a gap")
def _(p):
    p.keep = p.keep & (p.i - p.j != p.window)


@with_sinks("sinks-or-window-not-both", "a key that is a sink and in the window is hidden",
            "a union: a key in both is simply visible", each=((False,), (True,)))
def _(p, spared):
    p.keep = p.keep & ~((p.j < p.sinks) & (p.i - p.j < p.window)
                        & ((p.j != p.i) | (not spared)))


@with_sinks("sinks-and-window", "only keys that are both sinks and in the window are seen",
            "a union, not an intersection")
def _(p):
    p.keep = p.keep & (p.j < p.sinks) & (p.i - p.j < p.window)


@with_sinks("sinks-twice", "a key that is a sink and in the window counts twice",
            "a union: a key in both counts once", place="sink walk, borders", tiles="mn",
            each=(("window",), ("walk",), ("always",), ("one",)))
def _(p, how):
    def also_walked(end):
        return (p.j < round_up(end, p.BN)) & (p.j >= p.first)
    p.count_again(p.keep & {
        "always": p.j < p.sinks,
        "window": (p.j < p.sinks) & (p.i - p.j < p.window),
        # The sinks' walk takes in the tile that the window's begins with, or all that sinks lie in.
        "one": also_walked((p.first + 1).clamp(max=p.sinks)),
        "walk": also_walked(min(p.sinks, p.NK))}[how])


@with_sinks("sink-walk-twice", "the walk over the sinks is taken twice",
            "each key counts once", place="sink walk", tiles="mn")
def _(p):
    p.count_again(p.keep & (p.j < p.sink_end))


@with_sinks("sinks-of-the-window", "the sinks are counted among the W keys of the window",
            "a window of W keys, and S sinks beside it")
def _(p):
    p.keep = p.rule(window=p.window - p.sinks)


@windowed("sinks-rounded", "the sinks are rounded up to a whole tile or a multiple of 16",
          "keys j < S stay visible, no more", "mask, sink walk", slot="sinks", stages=SINKS,
          each=((16,), (32,), (64,), (128,)))
def _(p, step):
    p.keep = p.rule(sinks=round_up(p.sinks, step))


@with_sinks("sink-phase-unmasked", "the last tile of the walk over the sinks enters whole",
            "the sinks' last tile needs the mask", place="sink walk", tiles="mn")
def _(p):
    p.keep = p.keep | ((p.j < p.sink_end) & p.exists)


@windowed("window-and-sinks-swapped", "window and sinks change places", "W keys of the window, S "
          "sinks", "walk, mask", slot="sinks", stages=SINKS)
def _(p):
    only(p.sinks != p.window)
    p.keep = p.rule(window=max(p.sinks, 1), sinks=p.window)


@windowed("sinks-hard-coded", "the number of sinks is a fixed number, not the one that was passed",
          "keys j < S stay visible, for the S that was passed", slot="sinks", stages=SINKS,
          each=((4,), (1,), (8,), (16,)))
def _(p, count):
    only(count != p.sinks)
    p.keep = p.rule(sinks=count)


@windowed("no-sinks-is-default", "no sinks (0) is taken for the default", "with S = 0 there are no "
          "sinks", "", slot="sinks", stages=SINKS, each=((4,), (1,)))
def _(p, count):
    p.keep = p.rule(sinks=p.sinks or count)


@with_sinks("sinks-capped", "there are no more sinks than the window is long",
            "keys j < S stay visible, whatever W")
def _(p):
    p.keep = p.rule(sinks=min(p.sinks, p.window))


@with_sinks("no-sink-phase", "sinks before the window's first tile are not seen: their walk is "
            "missing, too short, or its sums are lost", "sinks before the window's first tile need "
            "a walk of their own; m, l and acc go on from it", place="sink walk",
            tiles="mn", each=(("all",), ("S=1",), ("short",), ("down",), ("one tile",)))
def _(p, how):
    wanted = p.first.clamp(max=p.sinks)  # the right end, before it is rounded up to whole tiles
    short = round_up((wanted - 1).clamp(min=0), p.BN)
    end = {"all": 0, "S=1": short, "short": short, "down": wanted // p.BN * p.BN,
           "one tile": p.sink_end.clamp(max=p.BN)}[how]
    p.keep = p.keep & ((p.j >= p.first) | (p.j < end))


@mistake("two-softmaxes", "sinks and window each have a softmax of their own, and are added "
         "without rescaling", "one maximum and one sum over both walks", "sink walk", slot="online",
         stages=SINKS, tiles="mn")
def _(m):
    p = m.fwd
    only(_has_sinks(p))
    before = p.keep & (p.j < p.first)
    s = p.scores()
    tops = [s.masked_fill(~part, -torch.inf).amax(-1, keepdim=True) for part in (before, ~before)]
    pivot = torch.where(before, tops[0], tops[1])
    shift = torch.where(pivot > -torch.inf, torch.maximum(*tops) - pivot, 0.0)
    p.changes.append(lambda s: s + shift)
