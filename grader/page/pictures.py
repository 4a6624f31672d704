"""What the pictures of a page show, and in one sentence what to look at."""

from dataclasses import dataclass

import numpy as np
from markupsafe import Markup

from grader.page import svg


@dataclass(frozen=True)
class Picture:
    """title; look: what to look at; drawn: HTML; key: (classes, words) of what is drawn."""

    title: str
    look: str
    drawn: Markup
    key: tuple[tuple[str, str], ...] = ()


def panels(named: list[tuple[str, str]]) -> Markup:
    """Pictures with names, side by side where there is room."""
    return Markup('<div class="panels">{}</div>').format(Markup("").join(
        Markup('<div><p class="name">{}</p>{}</div>').format(name, Markup(drawn))
        for name, drawn in named))


# ------------------------------------------------------------------ of a red step
def evidence(found: dict | None) -> list[Picture]:
    """The mask and the loop that a step made, beside those it should make (step_checks/evidence.py
    says what found holds); its tables are the template's."""
    drawn, found = [], found or {}
    if mask := found.get("mask"):
        want, got = (np.array([list(row) for row in mask[name]]) == "x" for name in (
            "want", "got"))
        wrong, first = {"seen": got & ~want, "unseen": want & ~got}, tuple(mask["first"])
        drawn.append(Picture("", "", panels(svg.mask(want, got, wrong, 16, first)),
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
    mine, theirs = drawn["names"]
    return Picture("", "", panels([(
        f"{mine} {drawn['own'][0]} to {drawn['own'][1]}, {theirs} tiles of {drawn['size']}",
        svg.tiles(visits, masked, lacks, vain, ("your loop", "should be"),
                  list(map(str, begins)), f"The loop over {theirs} tiles"))]),
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
    return Picture("The loop over tiles", look.strip(), panels(
        [(f"{one.names[0]} tiles of {one.sizes[0]}, {one.names[1]} tiles of {one.sizes[1]}",
          svg.tiles(one.visited.astype(int), one.masked, one.wanted & ~one.visited,
                    one.visited & ~one.wanted, *(list(map(str, range(n)))
                                                 for n in one.visited.shape),
                    f"The loop over {one.names[1]} tiles")) for one in found]), tuple(key))


# ------------------------------------------------------------------ speed
def benchmark(found: dict) -> Picture:
    """The times as bars, and the memory in words."""
    rows = [(name, found.get(key), kind) for name, key, kind in (
        ("yours", "ms", "accent"), ("PyTorch's SDPA", "sdpa_ms", "faint-bar"),
        ("naive PyTorch", "naive_ms", "faint-bar")) if found.get(key)]
    longest, inside = max((ms for _, ms, _ in rows), default=1.0), []
    for number, (name, ms, kind) in enumerate(rows):
        y = 34 * number
        inside.append(f'<text class="ink" x="0" y="{y + 15}">{name}</text>'
                      f'<rect class="{kind}" x="110" y="{y}" height="22" rx="2" '
                      f'width="{max(1.0, 330 * ms / longest):.6g}"/>'
                      f'<text x="{118 + 330 * ms / longest:.6g}" y="{y + 15}">{ms:.4g} ms</text>')
    said = ", ".join(f"{name} {ms:.4g} ms" for name, ms, _ in rows)
    look = "Shorter is faster."
    if found.get("ms") and found.get("naive_ms"):
        look += f" Yours takes 1 / {found['naive_ms'] / found['ms']:.3g} of naive PyTorch's time"
        look += f" and {found['ms'] / found['sdpa_ms']:.3g} times SDPA's." \
            if found.get("sdpa_ms") else "."
    if found.get("peak_mib") and found.get("naive_peak_mib"):
        look += (f" It takes {found['peak_mib']:.4g} MiB of memory; naive PyTorch takes "
                 f"{found['naive_peak_mib']:.4g}.")
    return Picture("Speed", look, Markup(
        svg.picture("Times", said, "".join(inside), 520, 34 * len(rows))))
