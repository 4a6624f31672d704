"""Makes variants of a loop (named.py): the tiles it visits, and which of them are masked."""

import collections
from dataclasses import dataclass

import numpy as np

from grader.step_checks.examples import Observed


def visited(left: Observed, begin: str) -> list[tuple[int, bool]]:
    """First row and MASKED of every tile that a loop visited, in order.  begin: the argument with
    the first row."""
    made = [(arguments.get(begin), arguments.get("MASKED"))
            for _, arguments in left.calls if begin in arguments]
    known = all(np.size(one) == 1 and isinstance(one, int | np.ndarray | np.generic)
                for visit in made for one in visit)
    return [(int(at), bool(masked)) for at, masked in made] if known else []


def others(right: list[tuple[int, bool]], given: dict, diagonal: int | None
           ) -> tuple[dict[object, list[int]], dict[object, list[tuple[int, bool]]]]:
    """Wrong loops by the name of the mistake.

    right: first key and MASKED of the wanted tiles.  diagonal: where it begins, if there is one.
    -> the first keys of the visited tiles, if those are masked rightly; otherwise first key and
    MASKED of each.
    """
    N, T = given["N"], given["BLOCK_N"]
    begins, whole = [at for at, _ in right], [at for at, masked in right if not masked]
    ragged = [at for at in begins if at + T > N]
    window = "window_size" in given
    visits = {
        "first-window-tile-skipped" if window else "first-key-tile-skipped": begins[1:],
        "last-key-tile-skipped": begins[:-1],
        "first-key-tile-only": begins[:1],
        "last-full-tile-skipped": [at for at in begins if at not in whole[-1:]],
        "interior-skipped" if window else "last-tile-only": [at for at in begins
                                                             if at not in whole]}
    if diagonal is None:
        some = [*range(0, N // T, T)]
        return visits | {
            "ragged-tail-skipped": [at for at in begins if at not in ragged],
            "ragged-tail-twice": begins + ragged,
            "walk-in-tiles": some + [N // T] * (N // T < N),
            ("walk-in-tiles", "one by one"): [*range(N // T)] + ragged,
            ("walk-in-tiles", "the loop alone"): some + ragged}, {
            "tail-unmasked": [(at, False) for at in begins]}
    late = [at for at in begins if at >= diagonal]
    return visits | {
        ("first-key-tile-skipped", "but the diagonal's"): [at for at in begins if at or at in late],
        "walk-in-tiles": [*range((diagonal - begins[0]) // T)] + late,
        "diagonal-skipped": begins[:len(begins) - len(late)],
        "diagonal-cut-short": [at for at in begins if at <= diagonal],
        "diagonal-twice": begins + late}, {
        "diagonal-unmasked": [(at, masked and at < diagonal) for at, masked in right],
        "left-edge-unmasked": [(at, masked and at >= diagonal) for at, masked in right]}


def visits(right: list[tuple[int, bool]], given: dict, diagonal: int | None) -> dict:
    """Variants of a loop's key tiles and masks; arguments as others()."""
    def fit(wanted: list, with_masks: bool):
        def fits(left: Observed) -> bool:
            found = sorted(one for one in visited(left, "start_n") if one[0] < given["N"])
            return (found if with_masks else [at for at, _ in found]) == sorted(wanted)
        return fits

    tiles, masks = others(right, given, diagonal)
    return {id: fit(wanted, False) for id, wanted in tiles.items()
            if sorted(wanted) != [at for at, _ in right]} | {
        id: fit(wanted, True) for id, wanted in masks.items() if sorted(wanted) != right}


def windowed(right: list[tuple[int, bool]], given: dict, diagonal: int) -> dict:
    """Variants of a loop whose window is wrong in one phase.  right: as in others()."""
    N, T, wanted = given["N"], given["BLOCK_N"], [at for at, _ in right]

    def no_window_on_the_diagonal(left: Observed) -> bool:
        handed = [(one["start_n"], one["window_size"]) for _, one in left.calls
                  if {"start_n", "window_size"} <= one.keys()]
        if any(not isinstance(x, int | np.ndarray | np.generic) or np.size(x) != 1
               for pair in handed for x in pair):
            return False
        return sorted(at for at, _ in visited(left, "start_n") if at < N) == wanted and all(
            window >= N if at >= diagonal else window == given["window_size"]
            for at, window in handed) and bool(handed)

    def runs_into_the_diagonal(left: Observed) -> bool | None:
        begins = [at for at, _ in visited(left, "start_n")]
        odd = [at for at in begins if at % T]
        if not odd:
            return None
        return odd == list(range(odd[0], diagonal, T)) and [
            at for at in wanted if at >= diagonal] == [at for at in begins if diagonal <= at < N]

    return {"diagonal-without-window": no_window_on_the_diagonal,
            "window-into-the-diagonal": runs_into_the_diagonal}


@dataclass(frozen=True)
class Phase:
    """A phase of the lesson's loop.  said: its name in words; tiles: their first rows; masked:
    whether its calls are."""

    said: str
    tiles: range
    masked: bool

    def faults(self, visits: list[tuple[int, bool]], wanted: list[tuple[int, bool]],
               flags: dict[int, bool]) -> set[str] | None:
        """The ids of mistakes that, made in this phase alone, give these visits; None if they are
        right.

        wanted: first row of every tile, and whether it needs the mask; flags: the lesson's MASKED.
        """
        left, lacks, bare = collections.Counter(visits), [], []
        for at, masked in wanted:
            first = flags.get(at, masked)  # of several visits, the lesson's
            found = next((one for one in ((at, first), (at, not first)) if left[one]), None)
            left[found] -= found is not None
            lacks += [at] * (found is None)
            bare += [at] * (found == (at, False) and masked)
        known, size = dict(wanted), self.tiles.step
        own = [at for at in self.tiles if at in known]
        more = [(at, masked) for at, masked in sorted((+left).elements())
                if at in known or at % size or not masked]  # others are wasted
        if lacks and not more:
            return {id for id, missing in (("phase-left-out", own),
                                           ("phase-too-short", own[-len(lacks):]),
                                           ("phase-too-late", own[:len(lacks)]))
                    if missing == lacks}
        if not more:
            cut = [at for at in own if known[at]]
            return ({"phase-unmasked"} if bare == cut else set()) if bare else None
        starts = [at for at, masked in more if masked == self.masked]
        if lacks or len(starts) < len(more):
            return set()
        after, before = self.tiles.start + len(self.tiles) * size, self.tiles.start
        return {id for id, twice in (
            ("phase-too-long", [after + n * size for n in range(len(starts))]),
            ("phase-too-early", [before - n * size for n in range(len(starts), 0, -1)]),
            ("phase-twice", own)) if twice == starts}


def single(phases: list[Phase], wanted: list[tuple[int, bool]], begin: str = "start_n") -> dict:
    """Variants with one wrong phase, by (id, name of the phase), the likeliest first."""
    flags, needs = {at: phase.masked for phase in phases for at in phase.tiles}, dict(wanted)

    def fit(phase: Phase, id: str):
        # If the visits are right, no existing phase was left out or done twice.
        there = id in ("phase-left-out", "phase-twice") and any(at in needs for at in phase.tiles) \
            or id == "phase-unmasked" and any(needs.get(at) for at in phase.tiles)

        def fits(left: Observed) -> bool | None:
            found = phase.faults(visited(left, begin), wanted, flags)
            return id in found if found is not None else False if there else None
        return fits

    return {(id, phase.said): fit(phase, id) for id in (
        "phase-left-out", "phase-too-short", "phase-too-late", "phase-too-long", "phase-too-early",
        "phase-twice", "phase-unmasked") for phase in phases}
