"""Gives the words for mistakes that have a name, from mistakes.toml.

What a mistake does to the numbers is a variant of a step's formula, see named.py.

A mistake belongs to a place of the computation.  Places have the same names in every stage;
stages.py says which step holds each:

    rows         which rows, head and batch entry a program has; launch: grid, order, allocation
    kv head      which keys and values it reads
    borders      where the loop over the keys changes or ends; loop, sink loop: what it does
    scale        the factor of the scores; scores: S, and -inf for hidden keys; mask: which those
    are softmax      maximum, weights, alpha; sums: l and acc; sink start: their first values
    normalise    o from acc and l; lse; load, store: the addresses of a tile dx, dw       stage 2's
    gradients

The backward has delta, dsink (the gradient of the sink logits) and, for the kernels dq and dkdv,
"dq rows", "dkdv rows" and so on: rows, kv head, borders, loop, P (recomputed from lse), products
(dS and its products), scale; dkdv calls: what the loop passes on.
"""

import functools
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("mistakes.toml")


@dataclass(frozen=True)
class Mistake:
    """words: what is wrong, where {0} stands for what was tried.  rule: the rule it breaks."""

    words: str
    rule: str


@functools.cache
def known() -> dict[str, Mistake]:
    """All mistakes by id."""
    return {id: Mistake(**row) for id, row in tomllib.loads(FILE.read_text("utf-8")).items()}


def plain(id: str) -> str:
    """The id without the backward kernel in front of it."""
    return re.sub("^(dq|dkdv|backward)-", "", id)


def of(id: str) -> Mistake:
    """The mistake of an id, with or without a kernel in front."""
    return known().get(id) or known()[plain(id)]


def said(id: str, *tried) -> str:
    """What is wrong, in words.  tried: for {0}; nothing if it is not known."""
    return of(id).words.format(*map(str, tried), *[""] * (not tried))
