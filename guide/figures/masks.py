"""Which keys a query sees, and what that makes of the tiles: all from the mask of reference.py."""

from matplotlib.patches import Rectangle

from guide.figures.pen import Pen
from guide.worked import dkdv_walk, dq_walk, kinds


def _tiles(pen, axis, N, block, title, **mask):
    """One map: a small square a pair, coloured by what its tile is, and the tiles' borders."""
    from reference import keep_mask

    keep = keep_mask(N, N, mask.get("causal", True), mask.get("window"), mask.get("sinks", 0))
    for i, row in enumerate(kinds(N, block, **mask)):
        for j, kind in enumerate(row):
            x, y = j * block, i * block
            axis.add_patch(Rectangle((x, y), block, block, facecolor=pen.skipped, linewidth=0))
            for a in range(y, min(y + block, N)):
                seen = [b for b in range(x, min(x + block, N)) if keep[a, b]]
                colour = getattr(pen, kind)
                for b in seen:
                    if b - 1 not in seen:  # one rectangle for neighbours
                        end = next(e for e in range(b, N + 1) if e not in seen)
                        axis.add_patch(Rectangle((b, a), end - b, 1, facecolor=colour,
                                                 edgecolor=colour, linewidth=0.3))
                        pen.hatch(axis, b, a, end - b, 1, kind)
            axis.add_patch(Rectangle((x, y), block, block, facecolor="none", edgecolor=pen.faint,
                                     linewidth=0.7))
    pen.write(axis, N / 2, -1.1, title)


def _row_of_maps(pen, maps, N=24, block=4):
    figure, axes = pen.canvas(N + 1, N + 3, len(maps), across=2 if len(maps) == 4 else 3)
    for axis, (title, mask) in zip(axes, maps.items(), strict=True):
        axis.set(xlim=(-0.7, N + 0.3), ylim=(N + 0.4, -2.4))
        _tiles(pen, axis, N, block, title, **mask)
    return figure


def masks_all(pen: Pen):
    """Four mask maps side by side: no mask, causal, window, window with sinks; tiles whole, cut
    or skipped."""
    return _row_of_maps(pen, {"stage 3: no mask": {"causal": False}, "4, 5: causal": {},
                              "6: window": {"window": 10},
                              "7, 9: and sinks": {"window": 10, "sinks": 2}})


def mask_causal(pen: Pen):
    """The causal mask in tiles: whole tiles below the diagonal, cut tiles on it, none above; beside
    it the same with a length that is no multiple of the tile."""
    figure, axes = pen.canvas(26, 28, 3, across=3)
    for axis, (N, block) in zip(axes, ((24, 8), (24, 4), (22, 8)), strict=True):
        axis.set(xlim=(-0.7, 25), ylim=(25, -2.4))
        _tiles(pen, axis, N, block, f"N = {N}, tiles of {block}")
    return figure


def mask_window(pen: Pen):
    """A window that is wider than two tiles, one as wide as one tile, one narrower than a tile."""
    return _row_of_maps(pen, {"W = 12": {"window": 12}, "W = 4": {"window": 4},
                              "W = 3": {"window": 3}})


def mask_sinks(pen: Pen):
    """Window and sinks: the sinks' tile is visited by every query tile, and cut by the mask."""
    return _row_of_maps(pen, {"W = 8, no sinks": {"window": 8}, "W = 8, Z = 2": {
        "window": 8, "sinks": 2}, "W = 8, Z = 5": {"window": 8, "sinks": 5}})


def mask_columns(pen: Pen):
    """The mask of stage 9 seen from one tile of keys: diagonal, interior and right edge, down the
    queries."""
    figure, axis = pen.canvas(46, 34 if pen.narrow else 26)
    if pen.narrow:
        axis.set(xlim=(-13, 33), ylim=(33.5, -2.5))
    else:
        axis.set(xlim=(-9, 37), ylim=(25.5, -2.5))
    _tiles(pen, axis, 24, 4, "W = 10, Z = 2" + ": a program of dkdv owns a column of tiles" * (
        not pen.narrow), window=10, sinks=2)
    for j, colour in ((0, "d"), (2, "b")):
        axis.add_patch(Rectangle((4 * j, 4 * j), 4, 24 if j == 0 else 13, facecolor="none",
                                 edgecolor=getattr(pen, colour), linewidth=2))
    for y, below, text in ((10, 26.5, "diagonal: first ... inner"),
                           (14, 29, "interior: inner ... outer"),
                           (19, 31.5, "right edge: outer ... last")):
        pen.write(axis, *((0, below) if pen.narrow else (25, y)), text, colour="b", ha="left")
    pen.write(axis, -0.8, 2, "holds sinks:\nlast = N", colour="d", ha="right")
    return figure


def walks(pen: Pen):
    """The tiles that a program of dq visits, and one of dkdv, numbered in the order of the walk."""
    N, block = 24, 4
    figure, axes = pen.canvas(26, 27, 2)
    for axis, title, walk, own in (
            (axes[0], "dq owns query tile 3", dq_walk(12, N, block, N, 0), 12),
            (axes[1], "dkdv owns key tile 2", dkdv_walk(8, N, block, N, 0), 8)):
        axis.set(xlim=(-1, 25), ylim=(24.6, -2.4))
        _tiles(pen, axis, N, block, title)
        for k, (start, _) in enumerate(walk, 1):
            x, y = (start, own) if axis is axes[0] else (own, start)
            pen.box(axis, x + 0.6, y + 0.6, 2.8, 2.8, str(k), size=9)
    return figure
