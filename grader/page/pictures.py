"""Makes the pictures of a page, each with one sentence on what to look at."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from grader.course.calls import Access, Launch
from grader.page import svg
from grader.page.svg import Panel


@dataclass(frozen=True)
class Picture:
    """A picture.  look: what to look at; panels: side by side if there is room; key: (classes,
    words) of the legend; is_wild: whether it shows an access outside of a tensor."""

    title: str
    look: str
    panels: Sequence[Panel]
    key: Sequence[tuple[str, str]] = ()
    is_wild: bool = False


# ------------------------------------------------------------------ of a red step
def evidence(found: dict | None) -> list[Picture]:
    """The mask and loop of a step beside the right ones.  found: see step_checks/evidence.py."""
    drawn, found = [], found or {}
    if mask := found.get("mask"):
        want, got = (np.array([list(row) for row in mask[name]]) == "x" for name in (
            "want", "got"))
        wrong = {"seen": got & ~want, "unseen": want & ~got}
        drawn.append(Picture("", "", *svg.mask(want, got, wrong, 16, tuple(mask["first"]))))
    if tiles := found.get("tiles"):
        drawn.append(_one_loop(tiles))
    return drawn


def _one_loop(drawn: dict) -> Picture:
    """The loop of one program beside the right one."""
    visits, masked, lacks, vain = (np.array(drawn[name]) for name in (
        "visits", "masked", "lacks", "vain"))
    (mine, theirs), (first, last) = drawn["names"], drawn["own"]
    mine = {"query": "queries"}.get(mine, f"{mine}s")
    return Picture("", "", [Panel(
        f"{mine} {first} to {last}, {theirs} tiles of {drawn['size']}",
        svg.tiles(visits, masked, lacks, vain, ("your loop", "should be"),
                  list(map(str, drawn["begins"])), f"The loop over {theirs} tiles"))],
        (("whole", "visited"), ("cut cut-lines", "visited with MASKED=True"),
         ("hidden", "not visited")))


# ------------------------------------------------------------------ loops over tiles
@dataclass(frozen=True)
class Loop:
    """Programs x tiles: which each visits, and which it should; masked: which need the mask."""

    visited: np.ndarray
    wanted: np.ndarray
    masked: np.ndarray
    names: tuple[str, str]  # what a program owns, what its loop is over
    sizes: tuple[int, int]  # sizes of both tiles


def loops(found: list[Loop], label: str) -> Picture:
    """One row per program of each loop."""
    missing = sum(int((one.wanted & ~one.visited).sum()) for one in found)
    vain = sum(int((one.visited & ~one.wanted).sum()) for one in found)
    look = f"{label}. A row is a program, a column a tile of its loop. "
    if missing:
        look += f"Look at the {missing} red ringed tiles: the loop should visit them. "
    if vain:
        look += f"In {vain} crossed tiles no pair is visible: the loop need not visit them. "
    if not missing and not vain:
        look += "Every tile that has a visible pair is visited, and no other."
    key = [("whole", "visited, every pair is visible"),
           ("cut cut-lines", "visited, needs MASKED=True"), ("hidden", "not visited")]
    return Picture("The loop over tiles", look.strip(), [
        Panel(f"{one.names[0]} tiles of {one.sizes[0]}, {one.names[1]} tiles of {one.sizes[1]}",
          svg.tiles(one.visited.astype(int), one.masked, one.wanted & ~one.visited,
                    one.visited & ~one.wanted, *(list(map(str, range(n)))
                                                 for n in one.visited.shape),
                    f"The loop over {one.names[1]} tiles")) for one in found], tuple(key))


# ------------------------------------------------------------------ loads and stores
def memory(launches: list[tuple[Launch, list[list[list[Access]]]]], file: str) -> Picture:
    """The tensors of every launch, and what each program does to them in each turn of its loop."""
    drawn, wild, verbs = [], [], set()
    for launch, programs in launches:
        first = max(range(len(programs)), key=lambda number: len(programs[number]))
        drawn.append(Panel(launch.kernel, svg.memory(launch, programs, first), len(programs),
                           first))
        verbs |= {one.verb for accesses in launch.programs for one in accesses}
        wild += [f"Look at the red: program {number} of {launch.kernel} "
                 f"{'writes' if one.verb == 'store' else 'reads'} outside of "
                 f"{one.tensor.removesuffix('_ptr')}, `{file}:{one.line}`."
                 for number, accesses in enumerate(launch.programs) for one in accesses
                 if one.is_outside(launch.tensors[one.tensor])]
    words = zip(svg.VERBS.items(), ("read", "written", "added to"), strict=True)
    return Picture(
        "Loads and stores", (wild or [
            "Rows are drawn from top to bottom, columns from left to right. Look at which rows one "
            "program reads over and over, and which it writes once."])[0], drawn,
        [*((kind, said) for (verb, kind), said in words if verb in verbs),
         ("tile-line", "masked off"), *[("wrong", "outside of the tensor")] * bool(wild)],
        bool(wild))


# ------------------------------------------------------------------ online softmax
class Turn(NamedTuple):
    """A tile of keys, first to last; after it the maximum m, alpha and the sum l, called total, and
    the bars of earlier keys and of this tile's."""

    first: int
    last: int
    m: float
    alpha: float
    total: float
    older: np.ndarray
    new: np.ndarray


def softmax(row: int, turns: list[Turn], each: int) -> Picture:
    """The online softmax of one row, as it should be after each tile.  each: keys to a bar."""
    said = [f"Keys {one.first} to {one.last}: m = {one.m:.3g}, alpha = {one.alpha:.3g}, "
            f"l = {one.total:.4g}" for one in turns]
    return Picture(
        "The online softmax", f"Query {row}, as it should be after each tile, in the order of the "
        "loop. Look at the grey bars: where the maximum m grows, alpha is below 1, and all that "
        "came before shrinks by it, as l and acc must.",
        [Panel("", svg.softmax([(words, one.older, one.new) for words, one in zip(
            said, turns, strict=True)], ". ".join(said) + "."))],
        (("read", f"exp(s - m) of this tile's keys, {each} to a bar"),
         ("older", "of earlier keys, times alpha")))
