"""Makes the pictures of a page, each with one sentence on what to look at."""

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from grader.course.calls import Access, Launch
from grader.page import svg
from grader.page.svg import Panel, environment


class Picture(NamedTuple):
    """A picture.  look: what to look at; panels: side by side if there is room; key: (classes,
    words) of the legend; is_wild: whether it shows an access outside of a tensor."""

    title: str
    look: str
    panels: Sequence[Panel]
    key: Sequence[tuple[str, str]] = ()
    is_wild: bool = False


LOOP_KEY = (("whole", "visited"), ("cut cut-lines", "visited with MASKED=True"),
            ("hidden", "not visited"))


# ------------------------------------------------------------------ of a red step
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
        drawn.append(Picture("", "", [Panel(
            f"{mine} rows {first} to {last}, {theirs} tiles of {tiles['size']}",
            svg.tiles(visits, visits[1] > 0, masked, masked[1] & ~masked,
                      ("your loop", "should be"), tiles["begins"], theirs))], LOOP_KEY))
    return drawn


# ------------------------------------------------------------------ loops over tiles
class Loop(NamedTuple):
    """Programs x tiles: which each visits, and which it should; masked: which it visits with
    MASKED=True, or which need a mask; bare: which have a hidden pair and MASKED=False."""

    visited: np.ndarray
    wanted: np.ndarray
    masked: np.ndarray
    bare: np.ndarray
    names: tuple[str, str]  # what a program owns, what its loop is over
    sizes: tuple[int, int]  # sizes of both tiles


def loops(found: list[Loop], label: str, shows_masked: bool) -> Picture:
    """One row per program of each loop.  shows_masked: whether the file says what it masks."""
    look = f"{label}. A row is a program, a column a tile of its loop. "
    for words, cells in (
            ("red rings: the loop should also visit {}", lambda one: one.wanted & ~one.visited),
            ("red rings: MASKED is False in {}, though a pair must be hidden there",
             lambda one: one.bare),
            ("crosses: the loop visits {} in vain, for no pair is visible there",
             lambda one: one.visited & ~one.wanted)):
        if count := sum(int(cells(one).sum()) for one in found):
            look += f"Look at the {words.format(f'{count} tile' + 's' * (count > 1))}. "
    if "Look" not in look:
        look += "Every tile that has a visible pair is visited, and no other. "
    key = LOOP_KEY
    if not shows_masked:
        look += "Hatched tiles need a mask; the picture cannot show where this file applies one."
        key = (LOOP_KEY[0], ("cut cut-lines", "visited, needs a mask"), LOOP_KEY[2])
    return Picture("The loop over tiles", look.strip(), [
        Panel(f"{one.names[0]} tiles of {one.sizes[0]}, {one.names[1]} tiles of {one.sizes[1]}",
              svg.tiles(one.visited.astype(int), one.wanted, one.masked, one.bare,
                        *map(range, one.visited.shape), one.names[1])) for one in found], key)


# ------------------------------------------------------------------ loads and stores
def memory(launches: list[tuple[Launch, list[list[list[Access]]]]], file: str) -> Picture:
    """The tensors of every launch, and what each program does to them in each turn of its loop."""
    drawn, wild, verbs = [], [], set()
    for launch, programs in launches:
        drawn.append(svg.memory(launch, programs))
        verbs |= {one.verb for accesses in launch.programs for one in accesses}
        wild += [f"Look at the red: program {number} of {launch.kernel} "
                 f"{'writes' if one.verb == 'store' else 'reads'} outside of "
                 f"{one.tensor.removesuffix('_ptr')}, `{file}:{one.line}`."
                 for number, accesses in enumerate(launch.programs) for one in accesses
                 if one.is_outside(launch.tensors[one.tensor])]
    return Picture(
        "Loads and stores", (wild or [
            "Rows are drawn from top to bottom, columns from left to right. Look at which rows one "
            "program reads over and over, and which it writes once."])[0], drawn,
        [*(one for verb, one in svg.VERBS.items() if verb in verbs),
         ("tile-line", "masked off"), *[("wrong", "outside of the tensor")] * bool(wild)],
        bool(wild))


# ------------------------------------------------------------------ roofline
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


# ------------------------------------------------------------------ online softmax
class Turn(NamedTuple):
    """A tile of keys; after it m, alpha, l (total), and bars of earlier keys and of its own."""

    first: int
    last: int
    m: float
    alpha: float
    total: float
    older: np.ndarray
    new: np.ndarray


def softmax(row: int, turns: list[Turn], each: int) -> Picture:
    """The online softmax of one row, as it should be after each tile.  each: keys to a bar."""
    said = ["Keys {} to {}: m = {:.3g}, alpha = {:.3g}, l = {:.4g}".format(*one) for one in turns]
    return Picture(
        "The online softmax", f"Query {row}, as it should be after each tile, in the order of the "
        "loop. Look at the grey bars: where the maximum m grows, alpha is below 1, and all that "
        "came before shrinks by it, as l and acc must.",
        [Panel("", svg.softmax([(words, one.older, one.new) for words, one in zip(
            said, turns, strict=True)], f"{'. '.join(said)}."))],
        (("read", f"exp(s - m) of this tile's keys, {each} to a bar"),
         ("older", "of earlier keys, times alpha")))
