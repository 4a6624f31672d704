"""Which keys a query sees, with a window and with sinks."""

import torch

from grader.naming.table import SINKS, WINDOWED, count_pairs, mistake, only
from grader.naming.walks import INF, NotHere, Pass, round_up


# ------------------------------------------------------------------- windows
def _windowed(p: Pass) -> None:
    only(p, p.model.window is not None)


@mistake("window-plus-one", "the window is one key too wide: query i sees W + 1 keys",
         "query i sees keys i - W + 1 ... i", "window", kind="mask", stages=WINDOWED)
def _(p):
    _windowed(p)
    p.keep = p.rule(window=p.model.window + 1)


@mistake("window-minus-one", "the window is one key too narrow: query i sees W - 1 keys",
         "query i sees keys i - W + 1 ... i", "window", kind="mask", stages=WINDOWED)
def _(p):
    _windowed(p)
    p.keep = p.rule(window=p.model.window - 1)


@mistake("half-the-window", "the window is half as long",
         "query i sees keys i - W + 1 ... i", "window", kind="mask", stages=WINDOWED,
         each=((0,), (1,)))
def _(p, more):
    _windowed(p)
    p.keep = p.rule(window=p.model.window // 2 + more)


@mistake("window-ignored", "there is no window: query i sees keys 0 ... i",
         "query i sees keys i - W + 1 ... i", "window", kind="mask", stages=WINDOWED)
def _(p):
    _windowed(p)
    p.keep = p.rule(window=None)


@mistake("window-hard-coded", "the window is a fixed number, not window_size",
         "query i sees keys i - window_size + 1 ... i", "window", kind="mask", stages=WINDOWED,
         each=((128,), (64,), (32,), (256,)))
def _(p, size):
    _windowed(p)
    only(p, size != p.model.window)
    p.keep = p.rule(window=size)


@mistake("window-capped", "a window longer than 128 is cut to 128",
         "query i sees keys i - window_size + 1 ... i", "window", kind="mask", stages=WINDOWED,
         each=((128,), (64,), (256,)))
def _(p, size):
    _windowed(p)
    p.keep = p.rule(window=min(size, p.model.window))


@mistake("window-rounded", "the window is rounded up to a multiple of a tile",
         "query i sees keys i - W + 1 ... i", "window", kind="mask", stages=WINDOWED,
         each=((16,), (32,), (64,), (128,)))
def _(p, step):
    _windowed(p)
    p.keep = p.rule(window=round_up(p.model.window, step))


@mistake("no-window-is-a-window", "window_size=None is taken for a number",
         "window_size=None: no window", "window", kind="mask", stages=(9,),
         each=((128,), (1,), (0,), (64,)))
def _(p, size):
    only(p, p.model.window is None and p.model.causal)
    p.keep = p.rule(window=size)


@mistake("window-symmetric", "the window looks both ways: |i - j| < W",
         "query i sees keys i - W + 1 ... i, none after it", "window", kind="mask",
         stages=WINDOWED, tiles="mn", each=((True,), (False,)))
def _(p, walked):
    _windowed(p)
    near = ((p.i - p.j).abs() < p.model.window) & p.exists
    near = near | (p.keep & (p.j < p.model.sinks))
    p.keep = near & p.walked if walked else near


@mistake("window-without-causal", "the window has no upper end: keys after the query are seen",
         "query i sees keys i - W + 1 ... i, none after it", "window", kind="mask",
         stages=WINDOWED, tiles="mn", each=((True,), (False,)))
def _(p, walked):
    _windowed(p)
    keep = p.rule(causal=False)
    p.keep = keep & p.walked if walked else keep


@mistake("window-one-place-early", "the window is one place too early: keys i - W ... i - 1",
         "query i sees keys i - W + 1 ... i", "window", kind="mask", stages=WINDOWED,
         each=((0,), (1,)))
def _(p, spared):
    _windowed(p)
    keep = (p.j < p.i) & (p.j >= p.i - p.model.window)
    p.keep = keep | ((p.i < spared) & (p.j == p.i)) | (p.keep & (p.j < p.model.sinks))


@mistake("window-by-tiles", "the window has no lower end a row: it begins with the tile",
         "the left edge needs the mask, row by row", "window", kind="mask", stages=WINDOWED,
         tiles="mn")
def _(p):
    _windowed(p)
    p.keep = p.keep | (p.rule(window=None) & p.walked)


@mistake("mask-forgotten", "nothing is masked: all tiles that are walked enter whole",
         "tiles that the mask cuts need it, element by element", "window", kind="mask",
         stages=WINDOWED, tiles="mn")
def _(p):
    _windowed(p)
    only(p, p.model.window < p.model.N)
    p.keep = p.walked & p.exists


@mistake("left-edge-unmasked", "the tiles on the window's left edge enter whole",
         "a tile that the window's edge cuts needs the mask", "window", kind="mask",
         stages=WINDOWED, tiles="mn")
def _(p):
    _windowed(p)
    p.keep = p.keep | ((p.j >= p.first) & (p.j < p.inner) & p.exists)


@mistake("first-window-tile-skipped", "the walk begins one tile after the window's first",
         "first = max(start_m - W + 1, 0) // BLOCK_N * BLOCK_N", "window", kind="mask",
         stages=WINDOWED, tiles="mn", each=(("tile",), ("tile, but from 0",), ("up",)))
def _(p, how):
    _windowed(p)
    m = p.model
    start = p.first + m.BN
    if how == "tile, but from 0":
        start = torch.where(p.first > 0, start, 0)
    elif how == "up":
        start = round_up((p.tile_start - m.window + 1).clamp(min=0), m.BN)
    start = torch.minimum(start, p.diag)
    sunk = p.j < torch.minimum(round_up(p.first.clamp(max=m.sinks), m.BN), start)
    p.keep = p.keep & ((p.j >= start) | sunk)


@mistake("window-walk-off-by-one", "the walk's first tile is found with a key too late: start_m - W"
         " + 2", "first = max(start_m - W + 1, 0) // BLOCK_N * BLOCK_N", "window", kind="mask",
         stages=WINDOWED, tiles="mn")
def _(p):
    _windowed(p)
    m = p.model
    start = (p.tile_start - m.window + 2).clamp(min=0) // m.BN * m.BN
    sunk = p.j < round_up(start.clamp(max=m.sinks), m.BN)
    p.keep = p.keep & ((p.j >= start) | sunk)


@mistake("interior-too-early", "tiles that the window leaves halfway are walked without a mask",
         "inner = cdiv(max(start_m + BLOCK_M - W, 0), BLOCK_N) * BLOCK_N", "window", kind="mask",
         stages=WINDOWED, tiles="mn", each=(("one",), ("down",), ("first row",), ("before it",)))
def _(p, how):
    _windowed(p)
    m = p.model
    last = p.tile_start + m.BM - m.window
    inner = {"one": round_up((last - 1).clamp(min=0), m.BN),
             "down": last.clamp(min=0) // m.BN * m.BN,
             "first row": round_up((p.tile_start - m.window + 1).clamp(min=0), m.BN),
             "before it": round_up((p.tile_start - m.window).clamp(min=0), m.BN)}[how]
    inner = torch.minimum(torch.maximum(inner, p.first), p.diag)
    p.keep = p.keep | ((p.j >= inner) & (p.j < p.diag))


@mistake("interior-skipped", "the tiles that need no mask are left out",
         "three walks: left edge, interior, diagonal", "window", kind="mask", stages=WINDOWED,
         tiles="mn")
def _(p):
    _windowed(p)
    p.keep = p.keep & ~((p.j >= torch.maximum(p.inner, p.first)) & (p.j < p.diag))


@mistake("left-edge-past-the-diagonal", "with a short window the left edge runs into the diagonal, "
         "whose tiles count twice", "inner = min(inner, diag)", "window", kind="mask",
         stages=WINDOWED, tiles="mn")
def _(p):
    _windowed(p)
    m = p.model
    inner = round_up((p.tile_start + m.BM - m.window).clamp(min=0), m.BN)
    again = p.keep & (p.j >= p.diag) & (p.j < inner)
    count_pairs(p, p.keep.double() + again)

# --------------------------------------------------------------------- sinks
def _sunk(p: Pass) -> None:
    only(p, p.model.window is not None and p.model.sinks > 0)


@mistake("sinks-ignored", "the sinks are hidden: only the window is seen",
         "keys j < S stay visible to every later query", "sinks", kind="mask", stages=SINKS)
def _(p):
    _sunk(p)
    p.keep = p.rule(sinks=0)


@mistake("sinks-plus-one", "there is one sink too many: key S is one, too",
         "keys j < S stay visible", "sinks", kind="mask", stages=SINKS)
def _(p):
    _windowed(p)
    p.keep = p.rule(sinks=p.model.sinks + 1)


@mistake("sinks-minus-one", "there is one sink too few: key S - 1 is none",
         "keys j < S stay visible", "sinks", kind="mask", stages=SINKS)
def _(p):
    _sunk(p)
    p.keep = p.rule(sinks=p.model.sinks - 1)


@mistake("first-key-is-no-sink", "key 0 is no sink", "keys 0 ... S - 1 stay visible", "sinks",
         kind="mask", stages=SINKS)
def _(p):
    _sunk(p)
    p.keep = p.keep & ((p.j > 0) | (p.i - p.j < p.model.window))


@mistake("sinks-not-causal", "sinks are seen by queries that come before them",
         "a sink is visible to later queries only", "sinks", kind="mask", stages=SINKS,
         tiles="mn")
def _(p):
    _sunk(p)
    p.keep = p.keep | ((p.j < p.model.sinks) & p.exists & p.walked)


@mistake("gap-between-sinks-and-window", "a sink is hidden from the query that stands W after it",
         "key < S or query - key < W, without a gap", "sinks", kind="mask", stages=SINKS)
def _(p):
    _sunk(p)
    p.keep = p.keep & (p.i - p.j != p.model.window)


@mistake("sinks-or-window-not-both", "a key that is a sink and in the window is hidden",
         "a union: a key in both is simply visible", "sinks", kind="mask", stages=SINKS,
         each=((False,), (True,)))
def _(p, spared):
    _sunk(p)
    p.keep = p.keep & ~((p.j < p.model.sinks) & (p.i - p.j < p.model.window)
                        & ((p.j != p.i) | (not spared)))


@mistake("sinks-and-window", "only keys that are both sinks and in the window are seen",
         "a union, not an intersection", "sinks", kind="mask", stages=SINKS)
def _(p):
    _sunk(p)
    p.keep = p.keep & (p.j < p.model.sinks) & (p.i - p.j < p.model.window)


@mistake("sinks-twice", "a key that is a sink and in the window counts twice",
         "a union: a key in both counts once", "sinks", kind="mask", stages=SINKS, tiles="mn",
         each=(("window",), ("walk",), ("always",), ("one",)))
def _(p, how):
    _sunk(p)
    m = p.model
    if how == "one":  # the sinks' walk takes in the tile that the window's begins with
        reach = round_up(torch.minimum(p.first + 1, torch.tensor(m.sinks)), m.BN)
        again = p.keep & (p.j < reach) & (p.j >= p.first)
    elif how == "walk":  # the sinks' walk reaches into the window's tiles, whole
        reach = round_up(torch.full_like(p.i, min(m.sinks, m.NK)), m.BN)
        again = p.keep & (p.j < reach) & (p.j >= p.first)
    else:
        again = p.keep & (p.j < m.sinks)
        if how == "window":
            again = again & (p.i - p.j < m.window)
    count_pairs(p, p.keep.double() + again)


@mistake("sink-walk-twice", "the walk over the sinks is taken twice",
         "each key counts once", "sinks", kind="mask", stages=SINKS, tiles="mn")
def _(p):
    _sunk(p)
    count_pairs(p, p.keep.double() + (p.keep & (p.j < p.sink_end)))


@mistake("sinks-of-the-window", "the sinks are counted among the W keys of the window",
         "a window of W keys, and S sinks beside it", "sinks", kind="mask", stages=SINKS)
def _(p):
    _sunk(p)
    p.keep = p.rule(window=p.model.window - p.model.sinks)


@mistake("sinks-rounded", "the sinks are rounded up to a whole tile or a multiple of 16",
         "keys j < S stay visible, no more", "sinks", kind="mask", stages=SINKS,
         each=((16,), (32,), (64,), (128,)))
def _(p, step):
    _windowed(p)
    p.keep = p.rule(sinks=round_up(p.model.sinks, step))


@mistake("sink-phase-unmasked", "the last tile of the walk over the sinks enters whole",
         "the sinks' last tile needs the mask", "sinks", kind="mask", stages=SINKS, tiles="mn")
def _(p):
    _sunk(p)
    p.keep = p.keep | ((p.j < p.sink_end) & p.exists)


@mistake("window-and-sinks-swapped", "window and sinks change places", "window_size is W, "
         "sink_size is S", "sinks", kind="mask", stages=SINKS)
def _(p):
    _windowed(p)
    m = p.model
    if m.sinks == m.window:
        raise NotHere
    p.keep = p.rule(window=max(m.sinks, 1), sinks=m.window)


@mistake("sinks-hard-coded", "the number of sinks is a fixed number, not sink_size",
         "keys j < sink_size stay visible", "sinks", kind="mask", stages=SINKS,
         each=((4,), (1,), (8,), (16,)))
def _(p, count):
    _windowed(p)
    only(p, count != p.model.sinks)
    p.keep = p.rule(sinks=count)


@mistake("no-sinks-is-default", "sink_size=0 is taken for the default", "sink_size=0: no sinks",
         "sinks", kind="mask", stages=SINKS, each=((4,), (1,)))
def _(p, count):
    _windowed(p)
    p.keep = p.rule(sinks=p.model.sinks or count)


@mistake("sinks-capped", "there are no more sinks than the window is long",
         "keys j < S stay visible, whatever W", "sinks", kind="mask", stages=SINKS)
def _(p):
    _sunk(p)
    p.keep = p.rule(sinks=min(p.model.sinks, p.model.window))


@mistake("no-sink-phase", "sinks before the window's first tile are not seen: their walk is "
         "missing, too short, or its sums are lost", "sinks before the window's first tile need a "
         "walk of their own; m, l and acc go on from it", "sinks", kind="mask",
         stages=SINKS, tiles="mn", each=(("all",), ("S=1",), ("short",), ("down",), ("one tile",)))
def _(p, how):
    _sunk(p)
    m = p.model
    end = p.sink_end
    if how == "S=1" or how == "short":
        end = round_up((torch.minimum(p.first, torch.tensor(m.sinks)) - 1).clamp(min=0), m.BN)
    elif how == "down":
        end = torch.minimum(p.first, torch.tensor(m.sinks)) // m.BN * m.BN
    elif how == "one tile":
        end = end.clamp(max=m.BN)
    else:
        end = torch.zeros_like(end)
    p.keep = p.keep & ((p.j >= p.first) | (p.j < end))


@mistake("two-softmaxes", "sinks and window each have a softmax of their own, and are added "
         "without rescaling", "one maximum and one sum over both walks", "sinks", slot="online",
         stages=SINKS, tiles="mn")
def _(m):
    p = m.fwd
    _sunk(p)
    before = p.keep & (p.j < p.first)
    s = p.scores()
    tops = [s.masked_fill(~part, -INF).amax(-1, keepdim=True) for part in (before, ~before)]
    pivot = torch.where(before, tops[0], tops[1])
    shift = torch.where(pivot > -INF, torch.maximum(*tops) - pivot, 0.0)
    scores = p.scores
    p.scores = lambda: scores() + shift
