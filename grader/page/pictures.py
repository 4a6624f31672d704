"""Makes the pictures of a page, each with one sentence on what to look at."""

from collections.abc import Collection, Sequence
from typing import NamedTuple

import numpy as np

from grader.course.calls import Launch
from grader.drawings import svg
from grader.drawings.svg import Panel, environment


class Picture(NamedTuple):
    """A picture.  look: what to look at; panels: side by side if there is room; key: (classes,
    words) of the legend; is_wrong: whether it shows a mistake."""

    title: str
    look: str
    panels: Sequence[Panel]
    key: Collection[tuple[str, str]] = ()
    is_wrong: bool = False


def evidence(found: dict | None) -> list[Picture]:
    """The mask and loop of a step beside the right ones.  found: see step_checks/evidence.py."""
    drawn, found = [], found or {}
    if mask := found.get("mask"):
        want, got = (np.array([[*row] for row in mask[name]]) == "x" for name in ("want", "got"))
        wrong = {"seen": got & ~want, "unseen": want & ~got}
        drawn.append(Picture("", "", *svg.mask(want, got, wrong, 16, tuple(mask["first"]))))
    if tiles := found.get("tiles"):
        visits, masked = (np.array(tiles[name]) for name in ("visits", "masked"))
        (mine, theirs), (first, last) = tiles["names"], tiles["own"]
        panel, key = svg.tiles(
            f"{mine} rows {first} to {last}, {theirs} tiles of {tiles['size']}", visits,
            visits[1] > 0, masked, masked[1] & ~masked, ("your loop", "should be"), tiles["begins"])
        drawn.append(Picture("", "", [panel], key.items()))
    return drawn


class Loop(NamedTuple):
    """Programs x tiles: how often each visits them, and which it should; masked: visited with
    MASKED=True, or in need of a mask; bare: with a hidden pair and MASKED=False; missed: of which a
    visible pair is not read."""

    visits: np.ndarray
    wanted: np.ndarray
    masked: np.ndarray
    bare: np.ndarray
    missed: np.ndarray
    names: tuple[str, str]  # what a program owns, what its loop is over
    sizes: tuple[int, int]  # sizes of both tiles


def loops(found: list[Loop], label: str, shows_masked: bool) -> Picture:
    """One row per program of each loop.  shows_masked: whether the file says what it masks."""
    look, panels, key = "", [], {}
    for words, cells in (
            ("red rings: the loop misses visible pairs of {}", lambda one: one.missed),
            ("red rings: MASKED is False in {}, though a pair must be hidden there",
             lambda one: one.bare),
            ("2×: the loop visits {} more than once, and each of their pairs may count once",
             lambda one: one.visits > 1),
            ("crosses: the loop visits {} in vain, for no pair is visible there",
             lambda one: (one.visits > 0) & ~one.wanted)):
        if count := sum(int(cells(one).sum()) for one in found):
            look += f"Look at the {words.format(f'{count} tile' + 's' * (count > 1))}. "
    for one in found:
        panel, used = svg.tiles(", ".join(map("{} tiles of {}".format, one.names, one.sizes)),
                                one.visits, one.wanted, one.masked, one.bare | one.missed,
                                *map(range, one.visits.shape))
        panels, key = [*panels, panel], key | used
    look = look or "Every tile that has a visible pair is visited once, and no other. "
    if not shows_masked:
        look += "Hatched tiles need a mask; the picture cannot show where this file applies one."
        key |= {kind: "visited, needs a mask" for kind in key if "cut" in kind}
    look = f"This call: {label}. A row is a tile of a program, a column one of its loop. {look}"
    return Picture("The loop over tiles", look.strip(), panels, key.items(), "Look at" in look)


def memory(launches: list[tuple[Launch, list]], label: str, file: str) -> Picture:
    """The tensors of every launch, and the accesses of each program in each turn of its loop."""
    wild, verbs, is_darker = [], set(), False
    for launch, _ in launches:
        for number, accesses in enumerate(launch.programs):
            verbs |= {one.verb for one in accesses}
            wild += [f"Look at the red: program {number} of {launch.kernel} "
                     f"{'writes' if one.verb == 'store' else 'reads'} outside "
                     f"{one.tensor.removesuffix('_ptr')}, `{file}:{one.line}`."
                     for one in accesses if one.is_outside(launch.tensors[one.tensor])]
            rows = [(one.tensor, row, one.lanes[2]) for one in accesses
                    if one.lanes and one.verb == "load" for row in range(
                        max(0, one.lanes[0]), min(one.lanes[1] + 1, launch.tensors[one.tensor][0]))]
            is_darker |= len(rows) > len({*rows})
    return Picture(
        "Loads and stores", f"This call: {label}. " + (wild or [
            "Rows run from top to bottom; program 0 need not own the first. Look at which rows one "
            "program reads over and over, and which it writes once."])[0],
        [svg.memory(*one) for one in launches],
        [*(one for verb, one in svg.VERBS.items() if verb in verbs),
         *[("read read", "read more than once by one program")] * is_darker,
         ("tile-line", "masked off"), *[("wrong", "outside the tensor")] * bool(wild)],
        bool(wild))


def roofline(found: dict) -> Picture:
    """Where a kernel lies below what its GPU could do.  found: as judge/profiling.py records it."""
    x, products, memory = (found["flops"] / found["bytes"], found["peak_flops"] / 1e12,
                           found["peak_bytes"] / 1e12)
    rates = {name: found["flops"] / found[key] / 1e9 for name, key in (
        ("yours", "ms"), ("SDPA", "sdpa_ms"), ("naive", "naive_ms")) if found[key]}
    roof, binds = min((products, "its matrix products"), (x * memory, "its memory"))
    said = map(environment.filters["short"], (rates["yours"], roof, x))
    return Picture("The roofline", "{}. Yours reaches {} of the {} TFLOP/s that this GPU allows at "
                   "{} FLOP per byte, {:.0%}. Look at the dashed line: it ends at the roof, the "
                   "rate of {}.".format(found["label"], *said, rates["yours"] / roof, binds),
                   [Panel("", svg.roofline(x, [*rates.items()], products, memory))])


class Turn(NamedTuple):
    """A tile of keys; after it m, alpha, l (total), and bars of earlier keys and of its own."""

    first: int
    last: int
    m: float
    alpha: float
    total: float
    older: np.ndarray
    new: np.ndarray


def softmax(label: str, row: int, turns: list[Turn], each: int) -> Picture:
    """The online softmax of one row, as it should be after each tile.  each: keys to a bar."""
    said = ["Keys {} to {}: m = {:.3g}, alpha = {:.3g}, l = {:.4g}".format(*one) for one in turns]
    high = 46 / max(float((one.older + one.new).max()) for one in turns)
    bars = [(words, (high * one.older).round(2).tolist(), (high * one.new).round(2).tolist())
            for words, one in zip(said, turns, strict=True)]
    return Picture(
        "The online softmax", f"This call: {label}. Query {row}, as it should be after each tile "
        "of a right loop, whatever yours does. Look at the grey bars: where the maximum m grows, "
        "alpha is below 1, and all that came before shrinks by it, as l and acc must.",
        [Panel("", svg.draw.softmax("The online softmax of one row", f"{'. '.join(said)}.", bars,
                                    5 * len(turns[0].new)))],
        (("read", f"exp(s - m) of this tile's keys, {each} to a bar"),
         ("older", "of earlier keys, times alpha")))
