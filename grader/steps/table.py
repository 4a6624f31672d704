"""Step -> what is asked of it, and what may be moved from one step to another.

A step that is a copy is asked what the step it copies is asked.
"""

from grader.steps import masks, memory, pytorch, row_sum, rows, softmax, walks
from grader.steps.trial import LOG2E, Entry

KEYS = {  # the stage that is new in it -> what its walk over the keys sees, and examples
    3: (masks.all_keys, walks.LENGTHS), 4: (masks.causal, walks.CAUSAL),
    6: (masks.window, walks.WINDOWS), 7: (masks.sinks, walks.SINKS),
}


def walk(stage: int, scale: float = LOG2E) -> Entry:
    """A stage's walk over the keys; scale: what the scale is multiplied with there."""
    return walks.key_walk(*KEYS[stage], scale, first_sees=stage < 6)


def softmax_of(stage: int, factor: float = softmax.FACTOR, base: float = 2.0) -> Entry:
    """A stage's online softmax: from 6 on a row may have seen nothing yet."""
    return softmax.online_softmax(factor, base, first_row_sees=stage < 6)


ENTRIES: dict[str, Entry] = {
    **pytorch.ENTRIES, **row_sum.ENTRIES,
    "3.1": rows.rows(),
    "3.2": walk(3),
    "3.3": memory.FINISH,
    "3.4": softmax.SCORES,
    "3.5": softmax_of(3),
    "3.6": masks.MASKS[3],
    "3.7": memory.LOAD,
    "3.8": memory.STORE,
    "4.1": rows.rows(longest="last"),
    "4.2": walk(4),
    "4.6": masks.MASKS[4],
    "5.2": rows.heads(),
    "6.3": walks.borders(masks.window, walks.WINDOWS, walks.window_phases, ("first", "inner")),
    "6.4": walk(6),
    "6.7": softmax_of(6),
    "6.8": masks.MASKS[6],
    "7.4": walk(7),
    "7.8": masks.MASKS[7],
}

COPIES = {
    "3.3": "4.3 5.4 6.5 7.5", "3.4": "4.4 5.5 6.6 7.6", "3.5": "4.5 5.6", "3.7": "4.7 5.8 6.9 7.9",
    "3.8": "4.8 5.9 6.10 7.10", "4.1": "5.1 6.1 7.1", "4.2": "5.3", "4.6": "5.7", "5.2": "6.2 7.2",
    "6.3": "7.3", "6.7": "7.7",
}
ORIGINS = {copy: origin for origin, copies in COPIES.items() for copy in copies.split()}


def entry(id: str) -> Entry | None:
    """What is asked of a step; None where nothing is."""
    return ENTRIES.get(ORIGINS.get(id, id))


# Where a factor or a base may stand that the lesson puts elsewhere.  Each is taken for right where
# two steps at least agree on it, and no other step of the stage speaks against it.
def moves(stage: int, where: int, scores: str, update: str, finish: str) -> list[dict]:
    """The other arrangements of a stage, by the names of its steps, as step -> what it is asked
    then.  where: the stage that its walk is new in."""
    step = {3: "3.2", 4: "4.2", 5: "5.3", 6: "6.4", 7: "7.4"}[stage]
    bare = walk(where, 1.0)
    own = {(factor, base): softmax_of(stage, factor, base)
           for factor in (1.0, LOG2E, softmax.FACTOR, softmax.FACTOR * LOG2E)
           for base in (2.0, walks.E)}
    scaled = softmax.scores(softmax.FACTOR)
    return [
        {step: bare, update: own[softmax.FACTOR, walks.E], finish: memory.NATURAL},  # base e
        {step: bare, update: own[softmax.FACTOR * LOG2E, 2.0]},  # log2(e) in the softmax
        {scores: scaled, update: own[1.0, 2.0]},  # s scaled at once
        {step: bare, scores: softmax.scores(softmax.FACTOR * LOG2E), update: own[1.0, 2.0]},
        {step: bare, scores: scaled, update: own[LOG2E, 2.0]},
        {step: bare, scores: scaled, update: own[1.0, walks.E], finish: memory.NATURAL},
    ]


MOVES: dict[int, list[dict]] = {
    3: moves(3, 3, "3.4", "3.5", "3.3"), 4: moves(4, 4, "4.4", "4.5", "4.3"),
    5: moves(5, 4, "5.5", "5.6", "5.4"), 6: moves(6, 6, "6.6", "6.7", "6.5"),
    7: moves(7, 7, "7.6", "7.7", "7.5"),
}


# Steps of one function that may share their work out otherwise: run one after the other, they leave
# what the last of them is asked for.
TOGETHER: dict[tuple[str, ...], Entry] = {
    ("1.3", "1.4"): pytorch.BOTH, ("2.2", "2.3"): row_sum.SUMMED,
    ("6.3", "6.4"): walk(6).without("first", "inner"),
    ("7.3", "7.4"): walk(7).without("first", "inner"),
}
