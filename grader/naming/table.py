"""The mistakes the grader knows by name: what each does to the right computation.

One entry a mistake: a stable id, words, the line of mathematics it comes down to, its place in the
computation, and a function that changes the right computation (model.py, backward.py, row_sum.py),
or a walk of it (walks.py), as the mistake would.  Where the outcome depends on
something the grader cannot see (tile sizes, a constant), the entry is tried with each of several
values.  A forward mistake is looked for in the outputs, a backward one in the gradients once the
outputs are right.  docs/diagnoses.md is the table for readers.

Places are named alike in every stage, whose table in stages.py says in which step each is written.
A mistake that may stand in several names them all: "mask, walk".  "" is none: given code.

    rows         which rows, head and batch entry a program has; launch: grid, order, allocation
    kv head      which keys and values it reads
    borders      where the walk over the keys changes or ends; walk, sink walk: what is done between
    scale        the factor of the scores; scores: S, and -inf where a key is hidden; mask: where
    softmax      maximum, weights, alpha; sums: l and acc; sink start: what they begin with
    normalise    o from acc and l; lse; load, store: the addresses of a tile
    dx, dw       stage 2's gradients

The backward has delta, dsink (the gradient of the sink logits), and, of dq's kernel and of dkdv's,
"dq rows", "dkdv rows" and so on: rows, kv head, borders, walk, P (made again from lse), products
(dS, and what it is multiplied with), scale; dkdv calls: what the walk passes on.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

LN2, LOG2E = math.log(2), math.log2(math.e)
TILE_SIZES = (64, 128, 32, 16)
ROWS, COLUMNS = (16, 64, 128, 32, 8, 4, 1), (64, 128, 32, 16, 256, 512, 1024)  # of stage 2
ATTENTION = (1, 3, 4, 5, 6, 7, 8, 9)
CAUSAL, GROUPED = (1, 4, 5, 6, 7, 8, 9), (5, 6, 7, 8, 9)
WINDOWED, SINKS, BACKWARD = (6, 7, 9), (7, 9), (8, 9)
OWN_BACKWARD, SAVED = (1, 8, 9), (3, 4, 5, 6, 7, 8, 9)  # written there; made from a saved lse


OF_A_GROUP = ("the first HQ / HKV query heads read the first key/value head, the next ones the "
              "second, and so on")


class NotHere(Exception):
    """The mistake cannot be made, or cannot be told from a right answer, on this case."""


@dataclass(frozen=True, eq=False)
class Mistake:
    """One mistake.  kind: "forward", "mask" (it changes a Pass; also tried in the gradients' own
    walks), "lse", "row sum" or "backward".  slot: what of the computation is changed, for AFFECTED.
    tiles: which tile sizes it depends on, "m", "n", both or "".  each: further values it is tried
    with."""

    id: str
    words: str
    line: str
    place: str | Callable[..., str]  # or a function of the further values
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
    walks: tuple[str, ...] = ("dq", "dkv", "backward")  # of the gradients, where a mask's may be
    in_forward: bool = True
    spoils: Callable[..., set[str]] | None = None  # further values -> the gradients it makes wrong
    shows: str = ""  # "overflow" or "nan", if it shows as that alone, where it shows at all

    def places(self, *more) -> tuple[str, ...]:
        """Where it may stand; more: the further values that it was found with."""
        place = self.place if isinstance(self.place, str) else self.place(*more)
        return tuple(one.strip() for one in place.split(",") if one.strip())

    def sizes(self) -> tuple[tuple[int, int], ...]:
        """(BM, BN) to try: a submission may use any, and others for another case."""
        rows, columns = TILE_SIZES, TILE_SIZES
        if self.kind == "row sum":
            rows, columns = ROWS, COLUMNS
        elif self.tiles == "mn":
            rows = *TILE_SIZES, 256
        return tuple(itertools.product(rows if "m" in self.tiles else (64,),
                                       columns if "n" in self.tiles else (64,)))


TABLE: list[Mistake] = []


def mistake(id, words, line, place, *, kind="forward", slot, stages=ATTENTION, each=((),), **more):
    """Put the decorated change into TABLE."""
    def add(change):
        TABLE.append(Mistake(id, words, line, place, kind, slot, stages, change, each=tuple(each),
                             **more))
        return change
    return add


def mask(id, words, line, place="mask", *, here=lambda p: True, slot="mask", **more):
    """As mistake, for what a Pass keeps, where here(p) holds."""
    def add(change):
        def change_there(p, *values):
            only(here(p))
            change(p, *values)
        return mistake(id, words, line, place, kind="mask", slot=slot, **more)(change_there)
    return add


def backward(id, words, line, place, slot="", stages=OWN_BACKWARD, **more):
    """As mistake, for gradients where the outputs are right."""
    return mistake(id, words, line, place, kind="backward", slot=slot or id, stages=stages, **more)


def only(condition) -> None:
    """Go on only where the mistake can be made."""
    if not condition:
        raise NotHere
