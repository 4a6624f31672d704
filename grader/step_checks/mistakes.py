"""The mistakes that have a name.

What is said of each is data, mistakes.toml.  What each does to the numbers is a variant of a step's
formula.

Places of the computation are named alike in every stage; its table in stages.py says in which step
each is written.

    rows         which rows, head and batch entry a program has; launch: grid, order, allocation
    kv head      which keys and values it reads
    borders      where the loop over the keys changes or ends; loop, sink loop: what is done between
    scale        the factor of the scores; scores: S, and -inf where a key is hidden; mask: where
    softmax      maximum, weights, alpha; sums: l and acc; sink start: what they begin with
    normalise    o from acc and l; lse; load, store: the addresses of a tile
    dx, dw       stage 2's gradients

The backward has delta, dsink (the gradient of the sink logits), and, of dq's kernel and of dkdv's,
"dq rows", "dkdv rows" and so on: rows, kv head, borders, loop, P (made again from lse), products
(dS, and what it is multiplied with), scale; dkdv calls: what the loop passes on.
"""

import functools
import re
import tomllib
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("mistakes.toml")


@dataclass(frozen=True)
class Mistake:
    """words: what is wrong; {0} in it stands for what was tried.  rule: what it breaks."""

    words: str
    rule: str


@functools.cache
def known() -> dict[str, Mistake]:
    """id -> the mistake."""
    return {id: Mistake(**row) for id, row in tomllib.loads(FILE.read_text("utf-8")).items()}


def plain(id: str) -> str:
    """The id without the kernel of the backward that it was found in."""
    return re.sub("^(dq|dkdv|backward)-", "", id)


def of(id: str) -> Mistake:
    """The mistake of an id, with or without a kernel before it."""
    return known().get(id) or known()[plain(id)]


def said(id: str, *tried) -> str:
    """What is wrong, in words.  tried: what {0} stands for; nothing where that is not known."""
    return of(id).words.format(*map(str, tried), *[""] * (not tried))
