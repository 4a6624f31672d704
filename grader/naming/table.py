"""The mistakes the grader knows by name: what each does to the right computation.

One entry a mistake: a stable id, words, the line of mathematics it comes down to, the symptom whose
step and hint fit, and a function that changes a Model (model.py) as the mistake would.  Where the
outcome depends on something the grader cannot see (tile sizes, a constant), the entry is tried with
each of several values.  A forward mistake is looked for in the outputs, a backward one in the
gradients once the outputs are right.  docs/diagnoses.md is the table for readers.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from grader.naming.walks import NotHere, Pass

LN2, LOG2E = math.log(2), math.log2(math.e)
TILE_SIZES = (64, 128, 32, 16)
ROWS, COLUMNS = (16, 64, 128, 32, 8, 4, 1), (64, 128, 32, 16, 256, 512, 1024)  # of stage 2
ATTENTION, LATER = tuple(n for n in range(1, 10) if n != 2), tuple(range(3, 10))
CAUSAL, GROUPED = (1, 4, 5, 6, 7, 8, 9), (5, 6, 7, 8, 9)
WINDOWED, SINKS, BACKWARD = (6, 7, 9), (7, 9), (8, 9)


@dataclass(frozen=True, eq=False)
class Hypothesis:
    """One mistake.  kind: "forward", "mask" (also tried in the gradients' own walks), "lse", "row
    sum" or "backward".  slot: two mistakes of one slot are not tried together.  tiles: which tile
    sizes it depends on, "m", "n", both or "".  each: further values it is tried with."""

    id: str
    words: str
    line: str
    symptom: str
    kind: str
    slot: str
    stages: tuple[int, ...]
    change: Callable
    tiles: str = ""
    each: tuple = ((),)
    whole: str = ""  # "rows" where rows depend on one another, "all" where heads do, too
    padded: bool = False  # a tile larger than the sequence still matters
    fitted: bool = False  # a number is found from the answer: named where nothing else fits
    rounds: bool = False  # to 16 bits on the way, which no two sums do alike to the last bit

    def sizes(self) -> tuple[tuple[int, int], ...]:
        """(BM, BN) to try: a submission may use any, and others for another case."""
        if self.kind == "row sum":
            return {"": ((64, 64),), "n": tuple((64, n) for n in COLUMNS),
                    "m": tuple((m, 64) for m in ROWS),
                    "mn": tuple(itertools.product(ROWS, COLUMNS))}[self.tiles]
        return {"": ((64, 64),), "n": tuple((64, n) for n in TILE_SIZES),
                "m": tuple((m, 64) for m in TILE_SIZES),
                "mn": tuple(itertools.product((*TILE_SIZES, 256), TILE_SIZES))}[self.tiles]


TABLE: list[Hypothesis] = []


def mistake(id, words, line, symptom="numbers", *, kind="forward", slot="", stages=ATTENTION,
            tiles="", each=((),), whole="", padded=False, fitted=False, rounds=False):
    """Put the decorated change into TABLE."""
    def add(change):
        TABLE.append(Hypothesis(id, words, line, symptom, kind, slot or symptom, stages, change,
                                tiles, tuple(each), whole, padded, fitted, rounds))
        return change
    return add


def only(p: Pass, condition) -> None:
    """Go on only where the mistake can be made."""
    if not condition:
        raise NotHere


def count_pairs(p: Pass, count) -> None:
    """Pairs seen count times each."""
    p.keep, p.count = count > 0, count


def in_window(p: Pass):
    """(R, K) bool: pairs that a window, if there is one, leaves visible."""
    m = p.model
    if m.window is None:
        return torch.ones_like(p.keep)
    return (p.i - p.j < m.window) | (p.j < m.sinks)
