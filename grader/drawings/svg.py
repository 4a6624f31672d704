"""Draws masks, tiles, memory and rooflines as SVG, in one colour code, from plain numbers.

The markup is in drawings.html, which escapes all words, and drawings.css says what each class looks
like.  draw.patterns() is needed once per document: hatching, for colour alone carries no meaning.
"""

import itertools
import re
from collections.abc import Sequence
from math import atan2, degrees, floor, log10
from pathlib import Path
from typing import NamedTuple

import numpy as np
from jinja2 import Environment, FileSystemLoader
from markupsafe import Markup

from grader.course.calls import Access, Launch

MOST = 2000  # rectangles of one kind per panel
SIDE, LEFT, TOP = 240, 30, 34  # pixels: a square panel, and room for words beside it
HERE = Path(__file__).parent
# For pictures, and for what is around them in a page.
STYLE, PANELS = ((HERE / name).read_text("utf-8") for name in ("drawings.css", "panels.css"))
# whole, cut, sink, hidden: kinds of a pair or tile under a mask; wrong: mistakes.
COLOURS = {theme: dict(re.findall(r"--([\w-]+): (#\w{6})", block)) for theme, block in zip(
    ("light", "dark"), re.findall(r":root \{(.*?)\}", STYLE, re.DOTALL), strict=True)}

environment = Environment(loader=FileSystemLoader(HERE), trim_blocks=True, lstrip_blocks=True,
                          autoescape=True)
environment.filters["short"] = lambda x: f"{x:.0f}" if x >= 100 else f"{x:.3g}"
draw = environment.get_template("drawings.html").module


class Panel(NamedTuple):
    """name; drawn: an SVG; for one with sliders, the number of programs and the one shown first."""

    name: str
    drawn: Markup
    programs: int = 0
    first: int = 0


def area(cells: np.ndarray, x: float, y: float, size: float) -> str:
    """A path over the true cells of a grid, coarser if they are scattered."""
    d, height = [], 0
    for i, row in enumerate(cells):
        height += 1
        if i + 1 < len(cells) and np.array_equal(row, cells[i + 1]):
            continue  # equal rows are one taller row
        changes = np.flatnonzero(np.diff(np.concatenate([[0], row.astype(np.int8), [0]])))
        for first, end in changes.reshape(-1, 2).tolist():
            top, width, tall = (i + 1 - height) * size, (end - first) * size, height * size
            d.append(f"M{x + first * size:.6g} {y + top:.6g}h{width:.6g}v{tall:.6g}h-{width:.6g}z")
        height = 0
    if len(d) > MOST:
        even = np.pad(cells, [(0, n % 2) for n in cells.shape])
        return area(even.reshape(len(even) // 2, 2, -1, 2).any((1, 3)), x, y, 2 * size)
    return "".join(d)


DIFFERENCES = {  # what is wrong with a weight -> its class, and its legend
    "seen": ("wrong", "a hidden key is seen"), "unseen": ("missing", "a visible key is missed"),
    "much": ("behind-wrong more", "too much weight"),
    "little": ("behind-wrong", "too little weight"), "nan": ("sink sink-lines", "NaN")}
KINDS = (("whole", "visible, in a tile that needs no mask"),
         ("cut cut-lines", "visible, in a tile that the mask cuts"),
         ("sink sink-lines", "sinks: visible to all that follow"))
Layers = Sequence[tuple[str, np.ndarray]]

def mask(expected: np.ndarray, found: np.ndarray, wrong: dict[str, np.ndarray], tile: int,
         first: tuple[int, int] = (0, 0), sinks: int = 0
         ) -> tuple[list[Panel], list[tuple[str, str]]]:
    """-> three panels: the pairs that should be visible, those that are, the differences; the
    legend as (classes, words)."""
    wrong = {name: cells for name, cells in wrong.items() if cells.any()}
    count = sum(int(cells.sum()) for cells in wrong.values())
    said = ", ".join(f"{int(cells.sum())} pairs: {DIFFERENCES[name][1]}"
                     for name, cells in wrong.items()) or "no pair differs"
    tiles = kinds(expected, tile, first, sinks)
    drawn = [Panel(name, _grid(title, says, layers, tile, first)) for name, title, says, layers in (
        *((name, title, f"{int(keep.sum())} pairs are visible.",
           [(kind, keep & where) for kind, where in tiles]) for name, title, keep in (
               ("expected", "The expected mask", expected), ("yours", "Your mask", found))),
        (f"difference: {count or 'none'}", "The difference", f"{said}.",
         [(DIFFERENCES[name][0], cells) for name, cells in wrong.items()] or [
             ("hidden", ~expected | expected)]))]
    there = [one for one, (_, where) in zip(KINDS, tiles, strict=True) if (expected & where).any()]
    return drawn, [*there, *[("hidden", "hidden")] * (not expected.all()),
                   *(DIFFERENCES[name] for name in wrong)]


def kinds(keep: np.ndarray, tile: int, first: tuple[int, int] = (0, 0), sinks: int = 0) -> Layers:
    """Which pairs are in a wholly visible tile, in one that the mask cuts, and in one of which only
    sinks are visible.  first: the numbers of the first query and key."""
    rows, columns = ((np.arange(n) + at) // tile for n, at in zip(keep.shape, first, strict=True))
    whole, only = np.zeros((2, *keep.shape), bool)
    others = keep & (np.arange(keep.shape[1]) + first[1] >= sinks)
    for i, j in itertools.product(np.unique(rows), np.unique(columns)):
        part = np.ix_(rows == i, columns == j)
        is_ragged = (j + 1) * tile > first[1] + keep.shape[1]  # keys past the end are masked off
        whole[part] = keep[part].all() and not is_ragged
        only[part] = keep[part].any() and not others[part].any()
    return [(kind, where) for (kind, _), where in zip(
        KINDS, (whole, ~whole & ~only, ~whole & only), strict=True)]


def _grid(title: str, says: str, layers: Layers, tile: int, first: tuple[int, int]) -> Markup:
    """Layers of cells over each other, with the edges of tiles and, where there is room, their
    numbers."""
    rows, columns = layers[0][1].shape
    size = SIDE / max(rows, columns)
    return draw.grid(title, says, [
        (kind, area(cells, LEFT, TOP, size)) for kinds, cells in layers for kind in kinds.split()],
        size, tile, (first[1], columns), (first[0], rows), LEFT, TOP)


TILES = {"whole": "visited", "cut cut-lines": "visited with MASKED=True", "hidden": "not visited",
         "ring": "its visit, or MASKED=True, is missing", "cross": "visited in vain",
         "2×": "visited more than once"}


def tiles(name: str, visits: np.ndarray, wanted: np.ndarray, masked: np.ndarray, bare: np.ndarray,
          rows: Sequence, columns: Sequence) -> tuple[Panel, dict[str, str]]:
    """A row per program, a column per tile of its loop over these; its legend.  visits: how often;
    wanted: should be visited once; masked: hatched; bare: lacks a mask, or a part of its pairs."""
    cells, said, used = [], [], set()
    flags = {"ring": wanted & ((visits == 0) | bare), "cross": (visits > 0) & ~wanted,
             "2×": visits > 1}
    for (i, j), n in np.ndenumerate(visits):
        marks = [mark for mark, where in flags.items() if where[i, j]]
        kinds = ["hidden" if not n else "cut cut-lines" if masked[i, j] else "whole", *marks]
        cells.append((i, j, " ".join(kinds).replace("2×", f"{n}×")))
        said += [f"{rows[i]}, tile {columns[j]}: {TILES[mark]}" for mark in marks]
        used |= {*kinds}
    drawn = draw.tiles(name, ("; ".join(said) or "All is as it should be") + ".", rows, columns,
                       cells, 14 + 6 * max(len(str(row)) for row in rows))
    return Panel(name, drawn), {kind: words for kind, words in TILES.items() if kind in used}


VERBS = {"load": ("read", "read"), "store": ("sink sink-lines", "written"),
         "add": ("cut cut-lines", "added to")}  # -> the class, and its legend
HEAD, TALL, OVER = 20, 180, 14  # pixels: the longest tensor, and room above and below it


def memory(launch: Launch, programs: Sequence[Sequence[Sequence[Access]]]) -> Panel:
    """The tensors of a launch, and on them a group per program, with one per turn of its loop."""
    first = max(range(len(programs)), key=lambda number: len(programs[number]))
    longest = max(rows for rows, _ in launch.tensors.values())
    place, tensors, x = {}, [], 30.0
    for name, (rows, columns) in launch.tensors.items():
        short = name.removesuffix("_ptr")
        place[name] = x, max(14.0, min(columns, 64) * 0.75), max(6.0, rows / longest * TALL)
        tensors.append((short, *place[name]))
        x += max(place[name][1], 7.0 * len(short)) + 14
    return Panel(launch.kernel, draw.memory(
        f"Loads and stores of {launch.kernel}", tensors, longest, programs, lambda one: _boxes(
            one, launch.tensors[one.tensor], *place[one.tensor]), first, x), len(programs), first)


def _boxes(one: Access, shape: tuple[int, int], x: float, width: float, height: float) -> list:
    """An access on its tensor, as (class, x, y, width, height): all lanes dashed, those that no
    mask turns off filled, those outside in red."""
    def box(edges, kind: str) -> tuple:
        (top, bottom, left, right), (rows, columns) = edges, shape
        most = rows * (1 + OVER / height)
        top, bottom = (min(max(at, -rows * 8 / height), most) for at in (top, bottom + 1))
        left, right = (min(max(at, 0), columns * 1.1) for at in (left, right + 1))
        return (kind, round(x + left * width / columns, 1), round(HEAD + top * height / rows, 1),
                round(max(2, (right - left) * width / columns), 1),
                round(max(2, (bottom - top) * height / rows), 1))

    found, rows = [], shape[0]
    if one.lanes:
        top, bottom, *across = one.lanes
        if top < rows and bottom >= 0:
            inside = max(top, 0), min(bottom, rows - 1), *across
            found += [box(inside, kind) for kind in VERBS.get(one.verb, ["hidden"])[0].split()]
        if one.is_outside(shape):
            found.append(box((max(top, min(rows, bottom)) if bottom >= rows else top, bottom,
                              *across), "wrong"))
    return [*found, box(one.tile, "tile-line")]


WIDE, HIGH = 300, 220  # pixels, between the axes


def roofline(x: float, points: Sequence[tuple], products: float, memory: float) -> Markup:
    """Points (name, TFLOP/s) at x FLOP per byte, under roofs of TFLOP/s in products and of TB/s."""
    knee = products / memory
    left, low = (floor(log10(min(least))) for least in (
        (x / 2, knee / 10), (products / 10, *(rate / 2 for _, rate in points))))
    wide = WIDE / (max(log10(x) + 1.5, log10(3 * knee)) - left)  # pixels per power of ten; room
    high = HIGH / (log10(2 * products) - low)  # for words beside the points and above the roof

    def place(x: float, y: float) -> tuple[float, float]:
        return round((log10(x) - left) * wide, 1), round(HIGH - (log10(y) - low) * high, 1)

    return draw.roofline(x, sorted(points, key=lambda point: -point[1]), products, memory, place,
                         10.0**left, 10.0**low, WIDE, HIGH, -degrees(atan2(high, wide)))
