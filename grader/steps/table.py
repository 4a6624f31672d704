"""Step -> what is asked of it, and what may be moved from one step to another.

A step that is a copy is asked what the step it copies is asked.
"""

from grader.steps import masks, memory, rows, softmax, walks
from grader.steps.trial import LOG2E, Entry

PLAIN, CAUSAL = walks.PLAIN_LENGTHS, walks.CAUSAL_TILES

ENTRIES: dict[str, Entry] = {
    "3.1": rows.rows(),
    "3.2": walks.key_walk(walks.all_keys, PLAIN),
    "3.3": memory.FINISH,
    "3.4": softmax.SCORES,
    "3.5": softmax.SOFTMAX,
    "3.6": masks.ALL_KEYS,
    "3.7": memory.LOAD,
    "3.8": memory.STORE,
    "4.1": rows.rows(longest_first=True),
    "4.2": walks.key_walk(walks.causal, CAUSAL),
    "4.6": masks.CAUSAL,
}

COPIES = {"4.3": "3.3", "4.4": "3.4", "4.5": "3.5", "4.7": "3.7", "4.8": "3.8"}

# Where a factor or a base may stand that the lesson puts elsewhere.  Each is taken for right where
# two steps at least agree on it, and no other step of the stage speaks against it.
SCALED, NATURAL = softmax.scores(softmax.FACTOR), softmax.online_softmax(base=walks.E)
BARE = {"3.2": walks.key_walk(walks.all_keys, PLAIN, 1.0),
        "4.2": walks.key_walk(walks.causal, CAUSAL, 1.0)}
UNSCALED = {base: softmax.online_softmax(1.0, base=base) for base in (2.0, walks.E)}


def moves(walk: str, scores: str, update: str, finish: str) -> list[dict[str, Entry]]:
    """The other arrangements of a stage, by the names of its steps."""
    bare = BARE[walk]
    return [
        {walk: bare, update: NATURAL, finish: memory.NATURAL},  # base e throughout
        {walk: bare, update: softmax.INNER_LOG2E},  # log2(e) in the softmax
        {scores: SCALED, update: UNSCALED[2.0]},  # s scaled at once
        {walk: bare, scores: softmax.scores(softmax.FACTOR * LOG2E), update: UNSCALED[2.0]},
        {walk: bare, scores: SCALED, update: softmax.online_softmax(LOG2E)},
        {walk: bare, scores: SCALED, update: UNSCALED[walks.E], finish: memory.NATURAL},
    ]


MOVES: dict[int, list[dict[str, Entry]]] = {
    3: moves("3.2", "3.4", "3.5", "3.3"),
    4: moves("4.2", "4.4", "4.5", "4.3"),
}


def entry(id: str) -> Entry | None:
    """What is asked of a step; None where nothing is."""
    return ENTRIES.get(COPIES.get(id, id))


def moved(stage: int) -> list[dict[str, Entry]]:
    """Arrangements of the whole stage, each as the steps it asks otherwise."""
    return MOVES.get(stage, [])
