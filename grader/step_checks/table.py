"""Says how each step is checked, and what may be moved from one step to another.

A step that is a copy is checked as the step it copies.
"""

from grader.course.stages import STAGES
from grader.step_checks import gradients, loops, masks, memory, pytorch, row_sum, rows, softmax
from grader.step_checks.examples import LOG2E, StepSpec

KEYS = {  # stage -> the mask of its loop over the keys, and examples
    3: (masks.all_keys, loops.LENGTHS), 4: (masks.causal, loops.CAUSAL),
    6: (masks.window, loops.WINDOWS), 7: (masks.sinks, loops.SINKS),
    8: (masks.either, gradients.QUERY_TILES), 9: (masks.sinks_or_all, gradients.WINDOWED_QUERIES),
}
QUERIES = {8: (masks.either, gradients.KEY_TILES),
           9: (masks.sinks_or_all, gradients.WINDOWED_KEYS)}  # over the queries


def loop(stage: int, scale: float = LOG2E) -> StepSpec:
    """A stage's loop over the keys; scale: the factor that the scale gets there."""
    return loops.key_loop(*KEYS[stage], scale, first_sees=not STAGES[stage].windowed)


def softmax_of(stage: int, factor: float = softmax.FACTOR, base: float = 2.0) -> StepSpec:
    """A stage's online softmax; with a window a row may not have seen any key yet."""
    return softmax.online_softmax(factor, base, first_row_sees=not STAGES[stage].windowed)


ENTRIES: dict[str, StepSpec] = {
    **pytorch.ENTRIES, **row_sum.ENTRIES,
    "3.1": rows.rows(),
    "3.2": loop(3),
    "3.3": memory.FINISH,
    "3.4": softmax.SCORES,
    "3.5": softmax_of(3),
    "3.6": masks.MASKS[3],
    "3.7": memory.LOAD,
    "3.8": memory.STORE,
    "4.1": rows.rows(longest="last"),
    "4.2": loop(4),
    "4.6": masks.MASKS[4],
    "5.2": rows.heads(),
    "6.3": loops.borders(masks.window, loops.WINDOWS, loops.window_phases, ("first", "inner")),
    "6.4": loop(6),
    "6.7": softmax_of(6),
    "6.8": masks.MASKS[6],
    "7.4": loop(7),
    "7.8": masks.MASKS[7],
    "8.3": loop(8),
    "8.9": gradients.delta(),
    "8.10": gradients.dq_loop(*KEYS[8]),
    "8.11": gradients.weights(),
    "8.12": gradients.products(),
    "8.13": rows.rows("kv_head", "start_n", "key", "BLOCK_N", "HKV", longest="first"),
    "8.14": loops.borders(*QUERIES[8], gradients.query_phases, ("first", "inner", "outer"), True),
    "8.15": gradients.query_loop(*QUERIES[8]),
    "8.16": gradients.weights(transposed=True),
    "8.17": gradients.products(transposed=True),
    "8.18": masks.MASKS[8],
    "9.3": gradients.sink_start(),
    "9.4": loop(9),
    "9.11": gradients.dsink(),
    "9.12": gradients.dq_loop(*KEYS[9]),
    "9.16": loops.borders(*QUERIES[9], gradients.query_phases, ("first", "inner", "outer", "last"),
                          queries=True, counted=gradients.by_the_wrong_key),
    "9.17": gradients.query_loop(*QUERIES[9]),
    "9.20": loops.borders(*KEYS[9], gradients.key_phases, ("sink_end", "first", "inner", "edge")),
    "9.21": masks.MASKS[9],
}

COPIES = {
    "3.3": "4.3 5.4 6.5 7.5 8.4 9.5", "3.4": "4.4 5.5 6.6 7.6 8.5 9.6", "3.5": "4.5 5.6 8.6",
    "3.7": "4.7 5.8 6.9 7.9 8.19 9.22", "3.8": "4.8 5.9 6.10 7.10 8.20 9.23",
    "4.1": "5.1 6.1 7.1 8.1 8.7 9.1 9.8", "4.2": "5.3", "4.6": "5.7",
    "5.2": "6.2 7.2 8.2 8.8 9.2 9.9", "6.3": "7.3", "6.7": "7.7 9.7", "8.9": "9.10",
    "8.11": "9.13", "8.12": "9.14", "8.13": "9.15", "8.16": "9.18", "8.17": "9.19",
}
ORIGINS = {copy: origin for origin, copies in COPIES.items() for copy in copies.split()}


def entry(id: str) -> StepSpec | None:
    """How a step is checked; None if it is not."""
    return ENTRIES.get(ORIGINS.get(id, id))


# Where else a factor or a base may be applied.  An arrangement counts as right if at least two
# steps agree on it and no other step of the stage contradicts it.
def moves(stage: int, where: int, scores: str, update: str, finish: str) -> list[dict]:
    """The other arrangements of a stage, each as step -> how it is checked then.  The arguments
    name its steps.  where: the stage in which its loop is new."""
    step = STAGES[stage].steps_of(("loop",))[0]
    bare = loop(where, 1.0)
    own = {(factor, base): softmax_of(stage, factor, base)
           for factor in (1.0, LOG2E, softmax.FACTOR, softmax.FACTOR * LOG2E)
           for base in (2.0, loops.E)}
    scaled = softmax.scores(softmax.FACTOR)
    natural = {finish: memory.NATURAL}
    for start in STAGES[stage].steps_of(("sink start",)):
        natural[start] = gradients.sink_start(loops.E)
    return [
        {step: bare, update: own[softmax.FACTOR, loops.E], **natural},  # base e
        {step: bare, update: own[softmax.FACTOR * LOG2E, 2.0]},  # log2(e) in the softmax
        {scores: scaled, update: own[1.0, 2.0]},  # s scaled at once
        {step: bare, scores: softmax.scores(softmax.FACTOR * LOG2E), update: own[1.0, 2.0]},
        {step: bare, scores: scaled, update: own[LOG2E, 2.0]},
        {step: bare, scores: scaled, update: own[1.0, loops.E], **natural},
    ]


def natural_gradients(stage: int) -> list[dict]:
    """The arrangements with base e in dq's loop, or in that of dk and dv."""
    dq, p, dkdv, p_t = (STAGES[stage].steps_of((place,))[0]
                        for place in ("dq loop", "dq P", "dkdv calls", "dkdv P"))
    return [{dq: gradients.dq_loop(*KEYS[stage], 1.0), p: gradients.weights(natural=True)},
            {dkdv: gradients.query_loop(*QUERIES[stage], 1.0),
             p_t: gradients.weights(transposed=True, natural=True)}]


MOVES: dict[int, list[dict]] = {
    3: moves(3, 3, "3.4", "3.5", "3.3"), 4: moves(4, 4, "4.4", "4.5", "4.3"),
    5: moves(5, 4, "5.5", "5.6", "5.4"), 6: moves(6, 6, "6.6", "6.7", "6.5"),
    7: moves(7, 7, "7.6", "7.7", "7.5"), 8: moves(8, 8, "8.5", "8.6", "8.4") + natural_gradients(8),
    9: moves(9, 9, "9.6", "9.7", "9.5") + natural_gradients(9),
}


# Steps of one function that may divide their work differently: run one after the other, they must
# leave what the last of them is checked for.
TOGETHER: dict[tuple[str, ...], StepSpec] = {
    ("1.3", "1.4"): pytorch.BOTH, ("2.2", "2.3"): row_sum.SUMMED,
    ("6.3", "6.4"): loop(6).without("first", "inner"),
    ("7.3", "7.4"): loop(7).without("first", "inner"),
    ("8.14", "8.15"): gradients.query_loop(*QUERIES[8]).without("first", "inner", "outer"),
    ("9.16", "9.17"): gradients.query_loop(*QUERIES[9]).without("first", "inner", "outer", "last"),
}
