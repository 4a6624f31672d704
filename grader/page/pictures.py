"""What the pictures of a page show, and in one sentence what to look at."""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from markupsafe import Markup

from grader.course.calls import Access, Launch
from grader.page import svg


class Panel(NamedTuple):
    """name; drawn: an SVG; of one with sliders the number of its programs, and which it shows at
    first."""

    name: str
    drawn: Markup
    programs: int = 0
    first: int = 0


@dataclass(frozen=True)
class Picture:
    """title; look: what to look at; panels: side by side where there is room; key: (classes, words)
    of what is drawn; is_wild: whether it shows an access outside of a tensor."""

    title: str
    look: str
    panels: list[Panel]
    key: tuple[tuple[str, str], ...] = ()
    is_wild: bool = False


def mask_panels(*drawn) -> list[Panel]:
    """As svg.mask()."""
    return [Panel(*one) for one in svg.mask(*drawn)]


# ------------------------------------------------------------------ of a red step
def evidence(found: dict | None) -> list[Picture]:
    """The mask and the loop that a step made, beside those it should make (step_checks/evidence.py
    says what found holds); its tables are the template's."""
    drawn, found = [], found or {}
    if mask := found.get("mask"):
        want, got = (np.array([list(row) for row in mask[name]]) == "x" for name in (
            "want", "got"))
        wrong, first = {"seen": got & ~want, "unseen": want & ~got}, tuple(mask["first"])
        drawn.append(Picture("", "", mask_panels(want, got, wrong, 16, first),
                             tuple(svg.legend(want, wrong, 16, first))))
    if tiles := found.get("tiles"):
        drawn.append(_one_loop(tiles))
    return drawn


def _one_loop(drawn: dict) -> Picture:
    """The loop of one program beside the one that it should make."""
    begins = sorted({begin for name in ("wanted", "visited") for begin, _ in drawn[name]})
    want, got = ([[masked for begin, masked in drawn[name] if begin == at] for at in begins]
                 for name in ("wanted", "visited"))
    visits = np.array([[len(flags) for flags in row] for row in (got, want)])
    masked = np.array([[any(flags) for flags in row] for row in (got, want)])
    lacks, vain = np.zeros((2, *visits.shape), bool)
    lacks[0] = (visits[1] > 0) & ((visits[0] != 1) | (masked[1] & ~masked[0]))
    vain[0] = (visits[0] > 0) & (visits[1] == 0)
    (mine, theirs), (first, last) = drawn["names"], drawn["own"]
    mine = {"query": "queries"}.get(mine, f"{mine}s")
    return Picture("", "", [Panel(
        f"{mine} {first} to {last}, {theirs} tiles of {drawn['size']}",
        svg.tiles(visits, masked, lacks, vain, ("your loop", "should be"),
                  list(map(str, begins)), f"The loop over {theirs} tiles"))],
        (("whole", "visited"), ("cut cut-lines", "visited with MASKED=True"),
         ("hidden", "not visited")))


# ------------------------------------------------------------------ loops over tiles
@dataclass(frozen=True)
class Loop:
    """Which tiles each program visits, and which it should: programs x tiles.

    masked: of the tiles visited; where that is not known, of those that should be.
    """

    visited: np.ndarray
    wanted: np.ndarray
    masked: np.ndarray
    names: tuple[str, str]  # of what a program owns, and of what its loop is over
    sizes: tuple[int, int]  # of a tile of both


def loop(read: np.ndarray, sees: np.ndarray, own: int, other: int, names: tuple[str, str]) -> Loop:
    """From rows: read[i, j], row j was read for row i; sees[i, j], it is needed."""
    def tiles(x, join):
        rows = [join(x[i:i + own], axis=0) for i in range(0, len(x), own)]
        return np.array([[join(row[j:j + other]) for j in range(0, len(row), other)]
                         for row in rows])
    wanted = tiles(sees, np.any)
    whole = tiles(sees, np.all)
    if sees.shape[1] % other:
        whole[:, -1] = False  # rows that do not exist are masked off
    return Loop(tiles(read, np.any), wanted, wanted & ~whole, names, (own, other))


def loops(found: list[Loop], label: str) -> Picture | None:
    """One row per program of each loop."""
    if not found:
        return None
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
def memory(launches: list[Launch], file: str) -> Picture | None:
    """Of every launch the tensors, and what each program does to them, turn by turn."""
    drawn, wrong = [], []
    for launch in launches:
        turns = [[(_said(turn, number, len(its)), turn) for number, turn in enumerate(its, 1)]
                 for its in map(_turns, launch.programs)]
        if not any(turns):
            continue
        first = max(range(len(turns)), key=lambda number: len(turns[number]))
        said = f"Program {first}. " + " ".join(words for words, _ in turns[first])
        drawn.append(Panel(launch.kernel, svg.memory(launch, turns, first, said), len(turns),
                           first))
        wrong += [(launch, number, one) for number, its in enumerate(launch.programs)
                  for one in its if svg.outside(one, launch.tensors[one.tensor])]
    if not drawn:
        return None
    look = ("Rows are drawn from top to bottom, columns from left to right. Look at which rows one "
            "program reads over and over, and which it writes once.")
    for launch, number, one in wrong[:1]:
        look = (f"Look at the red: program {number} of {launch.kernel} {_verb(one)} outside of "
                f"{one.tensor.removesuffix('_ptr')}" + (f", `{file}:{one.line}`." if one.line
                                                        else "."))
    verbs = {one.verb for launch in launches for its in launch.programs for one in its}
    words = zip(svg.VERBS.items(), ("read", "written", "added to"), strict=True)
    return Picture("Loads and stores", look, drawn, (
        *((kind, said) for (verb, kind), said in words if verb in verbs),
        ("tile-line", "masked off"), *[("wrong", "outside of the tensor")] * bool(wrong)),
        bool(wrong))


def _verb(one: Access) -> str:
    return {"load": "reads", "store": "writes"}.get(one.verb, "adds to")


def _turns(program: tuple[Access, ...]) -> list[list[Access]]:
    """The turns of a program's loop: a new one begins when a tensor is met again that this turn has
    met, and with the stores after the last load."""
    turns = [[]]
    for one in program:
        if any(one.tensor == other.tensor for other in turns[-1]):
            turns.append([])
        turns[-1].append(one)
    loads = [number for number, one in enumerate(turns[-1]) if one.verb == "load"]
    if loads:
        turns[-1:] = [turns[-1][:loads[-1] + 1], turns[-1][loads[-1] + 1:]]
    return [turn for turn in turns if turn]


def _said(turn: list[Access], number: int, of: int) -> str:
    said = [f"{_verb(one)} {one.tensor.removesuffix('_ptr')} "
            + (f"{one.lanes[0]} to {one.lanes[1]}" if one.lanes else "nowhere") for one in turn]
    return f"Turn {number} of {of}: {', '.join(said)}."


# ------------------------------------------------------------------ online softmax
KEYS = 90  # bars at most; each stands for neighbouring keys


def softmax(scores: np.ndarray, keep: np.ndarray, rows: range, tiles: list[tuple[int, int]]
            ) -> Picture | None:
    """One row of these, as the online softmax should have it after each tile of keys (first, last).
    """
    hidden = np.where(keep, scores, -np.inf)
    tops = [np.array([hidden[row, first:last + 1].max() for first, last in tiles]) for row in rows]
    grows = [int((np.diff(np.maximum.accumulate(top)) > 0.05).sum()) for top in tops]
    row = rows[int(np.argmax(grows))]  # the row whose maximum grows most often
    s, each = hidden[row], -(-hidden.shape[1] // KEYS)
    m, turns, seen, said = -np.inf, [], np.zeros(len(s), bool), []
    for first, last in tiles:
        now = np.zeros_like(seen)
        now[first:last + 1] = True
        new = max(m, float(s[now].max(initial=-np.inf)))
        pivot = new if np.isfinite(new) else 0.0
        alpha, p = float(np.exp(m - pivot)), np.exp(s - pivot)
        old, fresh = (np.add.reduceat(np.where(some, p, 0.0), np.arange(0, len(s), each))
                      for some in (seen & ~now, now))
        seen |= now
        said.append(f"Keys {first} to {last}: m = {new:.3g}, alpha = {alpha:.3g}, "
                    f"l = {p[seen].sum():.4g}")
        turns.append((said[-1], old, fresh))
        m = new
    return Picture(
        "The online softmax", f"Query {row}, as it should be after each tile, in the order of the "
        "loop. Look at the grey bars: where the maximum m grows, alpha is below 1, and all "
        "that came before shrinks by it, as l and acc must.",
        [Panel("", svg.softmax(turns, ". ".join(said) + "."))],
        (("read", f"exp(s - m) of this tile's keys, {each} to a bar"),
         ("older", "of earlier keys, times alpha")))


# ------------------------------------------------------------------ speed
def benchmark(found: dict) -> Picture:
    """The times as bars, and the memory in words."""
    rows = [(name, found[key]) for name, key in (
        ("yours", "ms"), ("PyTorch's SDPA", "sdpa_ms"), ("naive PyTorch", "naive_ms"))
        if found.get(key)]
    longest = max((ms for _, ms in rows), default=1.0)
    said = ", ".join(f"{name} {ms:.4g} ms" for name, ms in rows)
    look = "Shorter is faster."
    if found.get("ms") and found.get("naive_ms"):
        look += f" Yours takes 1 / {found['naive_ms'] / found['ms']:.3g} of naive PyTorch's time"
        look += f" and {found['ms'] / found['sdpa_ms']:.3g} times SDPA's." \
            if found.get("sdpa_ms") else "."
    if found.get("peak_mib") and found.get("naive_peak_mib"):
        look += (f" It takes {found['peak_mib']:.4g} MiB of memory; naive PyTorch takes "
                 f"{found['naive_peak_mib']:.4g}.")
    return Picture("Speed", look, [Panel("", svg.draw.bars("Times", said, [
        (name, f"{ms:.4g} ms", ms / longest) for name, ms in rows]))])
