"""Reads the attention matrix that a submission really uses, through its own function.

O is linear in V: if V is one-hot, column c of O has the weights that all queries give to one key.
In the same way dV is linear in dO, and shows the weights of the backward.  Each batch entry takes
the next D keys, so one call is enough.
"""

from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

import reference
from grader.course.calls import TensorInput
from grader.course.cases import Case
from grader.course.inputs import Built, build
from grader.diagnosis.describe import constant

SEEN = 1e-6  # a larger weight counts as given
ALIKE = 0.05  # relative change of a weight that rounding may cause
# Queries, two tiles at the least: more would be more than a picture can show.
LONGEST = {1: 192}
MANY = 260  # queries and keys, several tiles
TILE = {1: 128}  # as in the lesson; 64 in other stages


@dataclass(frozen=True)
class Matrix:
    """The weights of one query head, (N, keys) in float64: the right ones, and those found.

    every: those found of all query heads, (HQ, N, keys), in a forward; of(h, kv): scores and right
    weights of query head h if it reads key/value head kv; sinks: the sink logit of every query
    head, or -inf.
    """

    case: Case
    head: int
    expected: torch.Tensor
    found: torch.Tensor
    keep: torch.Tensor  # bool: which keys each query should see
    scores: torch.Tensor  # of all pairs, hidden or not
    every: torch.Tensor | None
    of: Callable[[int, int], tuple[torch.Tensor, torch.Tensor]]
    sinks: tuple[float, ...]

    @property
    def sink(self) -> float:
        return self.sinks[self.head]

    @property
    def backward(self) -> bool:
        return self.every is None

    @property
    def wrong(self) -> torch.Tensor:
        """Where weights differ from the right ones; NaN differs."""
        return ~((self.found - self.expected).abs() <= 1e-4 + 1e-3 * self.expected)

    @property
    def label(self) -> str:
        """The sizes of the case, without its batch, which only serves this module."""
        return replace(self.case, B=1).label


def small(case: Case, longest: int = 0) -> Case:
    """The case that is asked for its matrix: as the wrong one, in float32, short enough to draw.
    longest: its length at most, 0 for what a terminal can show."""
    longest = longest or LONGEST.get(case.stage, 128)
    N = min(case.N, longest)
    NK = None if case.NK is None else min(case.NK, longest)
    return replace(case, group="probe", B=-(-(NK or N) // case.D), N=N, NK=NK, layout="dense",
                   dtype=torch.float32, dout="dense", repeats=1, refill=False, growth=False,
                   grads=("v",) if case.grads else ())


def read(ask: Callable[[Built], dict | None], case: Case, head: int,
         backward: bool = False, longest: int = 0) -> Matrix | None:
    """Recover the matrix of one query head.  ask: as in samples.Samples; longest: as in small().
    None: no answer."""
    case = small(case, longest)
    if not backward:
        case = replace(case, grads=())
    built = build(case, 1)
    B, D, kv = case.B, case.D, head // (case.HQ // case.HKV)
    length = case.N if backward else case.n_keys
    hot = torch.zeros(B, length, D)
    position = torch.arange(min(B * D, length))
    hot[position // D, position, position % D] = 1.0
    for name in ("q", "k"):
        built.tensors[name] = built.tensors[name][:1].expand_as(built.tensors[name]).contiguous()
    if backward:
        dout = torch.zeros(B, case.HQ, case.N, D)
        dout[:, head] = hot
        built.call.douts["o"] = TensorInput.dense(dout)
    else:
        built.tensors["v"] = hot[:, None].expand(B, case.HKV, length, D).contiguous()
    for name, x in built.tensors.items():
        built.call.inputs[name] = TensorInput.dense(x)
    got = ask(built)
    if got is None:
        return None
    every = None
    if backward:  # (B, keys, D), entry b holds the queries from b D on -> (queries, keys)
        found = got["d_v"][:, kv].mT.flatten(0, 1)[:case.N].double()
    else:
        every = torch.cat(list(got["o"]), -1)[..., :case.n_keys].double()
        found = every[head]
    keep = reference.keep_mask(case.N, case.n_keys, case.is_causal, case.window, case.sinks or 0)
    scale = case.D**-0.5 if case.scale is None else case.scale
    sinks = built.tensors["sink_logits"].double() if case.sink_logits else torch.full(
        (case.HQ,), -torch.inf, dtype=torch.float64)

    def of(h: int, kv: int) -> tuple[torch.Tensor, torch.Tensor]:
        scores = built.tensors["q"][0, h].double() @ built.tensors["k"][0, kv].double().T * scale
        s = scores.masked_fill(~keep, -torch.inf)
        sink = sinks[h].expand(case.N, 1)
        return scores, torch.softmax(torch.cat([s, sink], 1), 1)[:, :-1]

    scores, expected = of(head, kv)
    return Matrix(case, head, expected, found, keep, scores, every, of, tuple(sinks.tolist()))


def longer(ask: Callable[[Built], dict | None], matrix: Matrix) -> Matrix | None:
    """The matrix of such a call with more tiles and a window of several, if it is wrong: the last
    tile is cut, or else none."""
    case, times = matrix.case, TILE.get(matrix.case.stage, 64) // 64
    for N in (MANY * times, 256 * times):
        NK = None if case.NK is None else N + (300 if case.NK > case.N else -100)
        case = replace(case, N=N, NK=NK, window=case.window and 100, sinks=case.sinks and 70)
        found = read(ask, case, matrix.head, longest=N + 300)
        if found is None or bool(found.wrong.any()):
            return found
    return None


def describe(matrix: Matrix) -> tuple[str, str] | None:
    """What is wrong with it, as (stable id, sentence), or None.

    Only if all given weights are in the right proportions is the mask blamed.
    """
    found, keep, N = matrix.found, matrix.keep, matrix.case.N
    where = "In the backward, q" if matrix.backward else "Q"
    bad = ~torch.isfinite(found).all(1)
    if bool(bad.any()):
        return "effect-nan", (f"{where}uery {_first(bad)} has NaN weights; {int(bad.sum())} of {N} "
                              "queries do.")
    if not bool(matrix.wrong.any()):
        return None
    given = found > SEEN
    extra, missing = given & ~keep, ~given & keep & (matrix.expected > 1e-4)
    # The logarithm of a weight is its score minus a number that is the same for the row.
    over = found.clamp_min(SEEN).log() - matrix.scores
    over = over - over.masked_fill(~(given & keep), torch.inf).amin(1, keepdim=True)
    over = torch.where(given & torch.isfinite(over), over, 0.0)
    if not bool((over.abs() > ALIKE).any()) and not _by_size(matrix, missing):
        if bool(extra.any()):
            i, j = extra.nonzero()[0].tolist()
            return "effect-extra-keys", (f"{where}uery {i} sees key {j}, which should be hidden; "
                                         f"{_pattern(extra)}")
        if bool(missing.any()):
            i, j = missing.nonzero()[0].tolist()
            return "effect-missing-keys", (f"{where}uery {i} should see key {j} but does not; "
                                           f"{_pattern(missing)}")
        return _sums(matrix)
    return _proportions(matrix, given, over, where)


def _by_size(matrix: Matrix, missing: torch.Tensor) -> bool:
    """Whether only the smaller scores of each row are missing, because they underflowed."""
    seen = (matrix.found > SEEN) & matrix.keep
    rows = missing.any(1) & seen.any(1)
    largest = matrix.scores.masked_fill(~missing, -torch.inf).amax(1)[rows]
    least = matrix.scores.masked_fill(~seen, torch.inf).amin(1)[rows]
    return len(largest) > 3 and bool((largest <= least).all())


def _sums(matrix: Matrix) -> tuple[str, str]:
    """The finding if keys and proportions are right, but not the sum."""
    ratio = matrix.found.sum(1) / matrix.expected.sum(1)
    first = int((ratio - 1).abs().argmax())
    top = matrix.scores.masked_fill(~matrix.keep, -torch.inf)
    total = torch.logsumexp(top, 1).exp() + torch.tensor(matrix.sink).exp()
    more = (total * (1 / ratio - 1)).clamp_min(0)  # besides what belongs there
    for beside, words in ((more, "keys with a score of 0: keys past the end, for example"),
                          (more / top.amax(1).exp(), "at the maximum: l_i begins with a number, or "
                           "one is added to it")):
        count = float(beside.median())
        if count > 0.05 and bool(((beside - count).abs() < 0.02 * count).all()):
            return "effect-row-sums", (
                "The right keys are seen in the right proportions, but the denominator of every "
                f"query counts {count:.4g} more {words}.")
    return "effect-row-sums", (f"The right keys are seen in the right proportions, but the weights "
                               f"of query {first} add up to {float(ratio[first]):.4g} times what "
                               "they should.")


def _proportions(matrix: Matrix, given, over, where: str) -> tuple[str, str]:
    """The finding if weights do not fit their scores: sharper, flatter, or some of them wrong."""
    some = given & matrix.keep
    count = some.sum(1, keepdim=True).clamp_min(1)

    def centred(x):
        x = x.masked_fill(~some, 0.0)
        return (x - x.sum(1, keepdim=True) / count).masked_fill(~some, 0.0)

    s, w = centred(matrix.scores), centred(matrix.found.clamp_min(SEEN).log())
    slope = float((s * w).sum() / s.square().sum().clamp_min(1e-30))
    enough = int((some.sum(1) > 2).sum()) > 3
    near = ALIKE + 0.02 * float(w.abs().max())
    if enough and abs(slope - 1) > 0.01 and float((w - slope * s).abs().max()) < near:
        id = "effect-too-sharp" if slope > 1 else "effect-too-flat"
        return id, (f"The weights are too {id[11:]}, as if every score was {slope:.4g}"
                    f"{constant(slope, matrix.case)} times as large.")
    hidden = given & ~matrix.keep
    if bool(hidden.any()):
        i, j = hidden.nonzero()[0].tolist()
        return "effect-hidden-weights", (
            f"{where}uery {i} gives weight to key {j}, which should be hidden, and not the weight "
            f"of its score; {_pattern(hidden)}")
    off = (over.abs() > ALIKE) & some
    if not bool(off.any()):  # only a few large scores are left
        return "effect-too-sharp", "The weights are too sharp: only the largest scores keep any."
    i, j = off.nonzero()[0].tolist()
    times = over[off].exp()
    if float(times.max() - times.min()) < ALIKE * float(times.max()):
        return "effect-weights", (
            f"{where}uery {i}'s weight for key {j} is {float(times.median()):.3g} times the right "
            f"one, relative to its other keys; {_pattern(off)}")
    return "effect-weights", f"The weights are not in the right proportions, from query {i} on."


def _first(rows: torch.Tensor) -> int:
    return int(rows.nonzero()[0])


def _pattern(pairs: torch.Tensor) -> str:
    """What the wrong pairs have in common."""
    i, j = pairs.nonzero().unbind(1)
    count, ages = len(i), (i - j).unique()
    text = f"{count} such pair{'s' * (count > 1)}"
    if count < 2:
        return f"{text}."
    if len(ages) == 1 and count > 1:
        return f"{text}, always query - key = {int(ages)}."
    if len(j.unique()) == 1 and count > 1:
        return f"{text}, always key {int(j[0])}."
    if len(i.unique()) == 1 and count > 1:
        return f"{text}, all of query {int(i[0])}."
    for tile in (16, 32, 64):
        if bool((i // tile == j // tile).all()) and pairs.shape[0] > tile:
            return f"{text}, all within tiles of {tile} on the diagonal."
    if bool((j > i).all()):
        return f"{text}, all of them keys after the query."
    if int(j.max()) < 16 < pairs.shape[1]:
        return f"{text}, all among the first {int(j.max()) + 1} keys."
    return f"{text}, queries {int(i.min())}-{int(i.max())}, keys {int(j.min())}-{int(j.max())}."
