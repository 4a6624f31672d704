"""Reads the attention matrix that a submission really uses, through its own function.

O is linear in V: if V is one-hot, column c of O has the weights that all queries give to one key.
In the same way dV is linear in dO, and shows the weights of the backward, and dQ in K, and shows
dS = P (dP - delta).  Each batch entry takes the next D keys, so one call is enough.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch

import reference
from grader.course.calls import TensorInput
from grader.course.cases import Case
from grader.course.inputs import Built, build
from grader.diagnosis.describe import constant
from grader.text import ranges

SEEN = 1e-6  # a larger weight counts as given
ALIKE = 0.05  # relative change of a weight that rounding may cause
# Queries, two tiles at the least: more would be more than a picture can show.
LONGEST = {1: 192}
MANY = 260  # queries and keys, several tiles
SCALE = 0.3  # of a case with a scale of its own: no power or root of 1 / sqrt(D)
TILE = {1: 128}  # as in the lesson; 64 in other stages


@dataclass(frozen=True)
class Matrix:
    """The weights of one query head, (N, keys) in float64: the right ones, and those found.

    tensor: where they were found, o, d_v or d_q; with_dq: dq is wrong, too; lse: (N, 1) or, in d_q,
    (N, keys); every: those found of all query heads, (HQ, N, keys), in o, or in d_v those of this
    query head in all key/value heads, (HKV, N, keys); of(h, kv): scores and right weights of query
    head h if it reads key/value head kv, in o; sinks: the sink logit of every query head, or -inf.
    """

    case: Case
    head: int
    expected: torch.Tensor
    found: torch.Tensor
    keep: torch.Tensor  # bool: which keys each query should see
    scores: torch.Tensor  # of all pairs, hidden or not
    lse: torch.Tensor
    sinks: tuple[float, ...]
    tensor: str = "o"
    with_dq: bool = False
    unknown: torch.Tensor | None = None  # bool: what was found tells nothing, in d_q
    every: torch.Tensor | None = None
    of: Callable[[int, int], tuple[torch.Tensor, torch.Tensor]] | None = None

    @property
    def sink(self) -> float:
        return self.sinks[self.head]

    @property
    def backward(self) -> bool:
        return self.tensor != "o"

    @property
    def place(self) -> str:
        """Where the weights are computed, in front of what is wrong with them."""
        return {"o": "", "d_v": "in the backward, " if self.with_dq else
                "in the code that computes dk and dv, ",
                "d_q": "in the code that computes dq, "}[self.tensor]

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
    longest, D = longest or LONGEST.get(case.stage, 128), case.D
    while D > 64:  # float32 is not asked for wider rows
        D //= 2
    N = min(case.N, longest)
    NK = None if case.NK is None else min(case.NK, longest)
    return replace(case, group="probe", D=D, B=-(-(NK or N) // D), N=N, NK=NK, layout="dense",
                   scale=None if case.scale is None else SCALE,
                   dtype=torch.float32, dout="dense", repeats=1, refill=False, growth=False,
                   grads=("v",) if case.grads else ())


def read(ask: Callable[[Built], dict | None], case: Case, head: int, tensor: str = "o",
         longest: int = 0) -> Matrix | None:
    """Recover the matrix of one query head from o, d_v or d_q.  ask: as in samples.Samples;
    longest: as in small().  None: no answer."""
    case = replace(small(case, longest), grads=(tensor[2:],) if tensor != "o" else ())
    built = build(case, 1)
    B, D, kv = case.B, case.D, head // (case.HQ // case.HKV)
    length = case.N if tensor == "d_v" else case.n_keys
    hot = torch.zeros(B, length, D)
    position = torch.arange(min(B * D, length))
    hot[position // D, position, position % D] = 1.0
    keep = reference.keep_mask(case.N, case.n_keys, case.is_causal, case.window, case.sinks or 0)
    scale = case.D**-0.5 if case.scale is None else case.scale
    for name, x in built.tensors.items():
        if name != "sink_logits":
            built.tensors[name] = x[:1].expand_as(x).contiguous()
    if tensor != "d_v":
        built.tensors["v" if tensor == "o" else "k"] = hot[:, None].expand(
            B, case.HKV, length, D) / (1.0 if tensor == "o" else scale)
    if tensor != "o":
        dout = torch.zeros(B, case.HQ, case.N, D)
        dout[:, head] = hot if tensor == "d_v" else torch.eye(D)[0]
        if tensor == "d_q":  # dP is 1 or -1, and never near to delta
            built.tensors["v"][..., 0] = built.tensors["v"][..., 0].sign()
        for name, sent in built.call.douts.items():
            built.call.douts[name] = TensorInput.dense(
                dout if name == "o" else torch.zeros(sent.view().shape))
    for name, x in built.tensors.items():
        built.call.inputs[name] = TensorInput.dense(x.contiguous())
    got = ask(built)
    if got is None:
        return None
    q, k, v = (built.tensors[name].double() for name in "qkv")
    sinks = built.tensors["sink_logits"].double() if case.sink_logits else torch.full(
        (case.HQ,), -torch.inf, dtype=torch.float64)

    def of(h: int, kv: int) -> tuple[torch.Tensor, torch.Tensor]:
        scores = q[0, h] @ k[0, kv].mT * scale
        return scores, _weights(scores, keep, sinks[h])[1]

    scores = q[:, head] @ k[:, kv].mT * scale
    lse, expected = _weights(scores, keep, sinks[head])
    every = unknown = None
    if tensor == "o":
        every = torch.cat(list(got["o"]), -1)[..., :case.n_keys].double()
        found = every[head]
    elif tensor == "d_v":  # (B, HKV, keys, D), entry b holds the queries from b D on
        every = got["d_v"].permute(1, 0, 3, 2).flatten(1, 2)[:, :case.N].double()
        found = every[kv]
    if tensor != "d_q":
        scores, lse, expected = scores[0], lse[0], expected[0]
    else:  # (B, queries, D), entry b holds the keys from b D on
        def own(x):  # of every key in the entry that holds it
            x = x.expand(B, case.N, length)
            return torch.stack([x[j // D, :, j] for j in range(length)], 1)

        ds = got["d_q"][:, head].double().permute(1, 0, 2).flatten(1)[:, :length]
        v = v[0, kv, :, 0]
        shift = own(v - (expected @ v)[..., None])
        scores, lse, expected = own(scores), own(lse), own(expected)
        unknown = shift.abs() < 0.05  # where dP = delta, dS is 0 for any weight
        found = torch.where(unknown, expected, ds / shift)
    return Matrix(case, head, expected, found, keep, scores, lse, tuple(sinks.tolist()), tensor,
                  unknown=unknown, every=every, of=of)


def others(matrix: Matrix) -> Iterator[Matrix]:
    """The matrices of the other query heads of the same call, right or wrong, in o."""
    group = matrix.case.HQ // matrix.case.HKV
    for h in range(matrix.case.HQ) if matrix.tensor == "o" else ():
        if h != matrix.head:
            scores, expected = matrix.of(h, h // group)
            yield replace(matrix, head=h, scores=scores, expected=expected, found=matrix.every[h])


def _weights(scores: torch.Tensor, keep: torch.Tensor, sink: torch.Tensor
             ) -> tuple[torch.Tensor, torch.Tensor]:
    """-> lse (..., N, 1) and the weights (..., N, keys) of scores (..., N, keys)."""
    s = scores.masked_fill(~keep, -torch.inf)
    lse = torch.logaddexp(torch.logsumexp(s, -1, True), sink)
    return lse, torch.exp(s - lse)


def longer(ask: Callable[[Built], dict | None], matrix: Matrix) -> Matrix | None:
    """The matrix of such a call with more tiles and a window of several, if it is wrong: the last
    tile is cut, or else none; with a window so long that tiles need no mask, of one group of heads
    and with a D that needs few batch entries, or else of all heads."""
    case, times = matrix.case, TILE.get(matrix.case.stage, 64) // 64
    group = case.HQ // case.HKV
    one = replace(case, HQ=group, HKV=1, D=max(case.D, 64))
    for like, N, window in (*[(one, 390, 200)] * (case.window is not None),
                            (case, MANY * times, 100), (case, 256 * times, 100)):
        NK = None if case.NK is None else N + (300 if case.NK > case.N else -100)
        found = read(ask, replace(like, N=N, NK=NK, window=case.window and window,
                                  sinks=case.sinks and 70),
                     matrix.head % like.HQ, matrix.tensor, N + 300)
        if found is None or bool(found.wrong.any()):
            return found
    return None


def describe(matrix: Matrix) -> tuple[str, str] | None:
    """What is wrong with it, as (stable id, sentence), or None.

    Only if all given weights are in the right proportions is the mask blamed.
    """
    found, keep, N = matrix.found, matrix.keep, matrix.case.N
    where = f"{matrix.place}q".capitalize()
    if matrix.tensor == "d_v" and not bool((found.abs() > SEEN).any()):
        return _of_no_head(matrix)
    bad = ~torch.isfinite(found).all(1)
    if bool(bad.any()):
        return "effect-nan", (f"{where}uery {_first(bad)} has NaN weights; {int(bad.sum())} of {N} "
                              "queries do.")
    if not bool(matrix.wrong.any()):
        return None
    given = found > SEEN
    extra, missing = given & ~keep, ~given & keep & (matrix.expected > 1e-4)
    # The logarithm of a weight is its score minus a number that is the same for the row.
    over = found.clamp_min(SEEN).log() - (matrix.scores - matrix.lse)
    over = over - over.masked_fill(~(given & keep), torch.inf).amin(1, keepdim=True)
    over = torch.where(given & torch.isfinite(over), over, 0.0)
    if cut := _cut(matrix, given, missing):
        return "effect-small-weights", (
            f"{matrix.place}{int(missing.sum())} weights are 0 that should not be, each of them "
            f"less than {cut:g} % of the largest weight in its row: small weights are lost, not "
            "hidden by a mask.")
    if not bool((over.abs() > ALIKE).any()) and not _by_size(matrix, missing):
        if bool(extra.any()):
            i, j = extra.nonzero()[0].tolist()
            return "effect-extra-keys", (f"{where}uery {i} sees key {j}, which should be hidden"
                                         f"{_pattern(extra, matrix.case)}")
        if bool(missing.any()):
            i, j = missing.nonzero()[0].tolist()
            pattern = _pattern(missing, matrix.case, _window(matrix, given, missing))
            return "effect-missing-keys", (
                f"{where}uery {i} should see key {j} but does not{pattern}")
        return _sums(matrix)
    return _proportions(matrix, given, over, where)


def _of_no_head(matrix: Matrix) -> tuple[str, str]:
    """The finding if the query head has no part in the gradient of its key/value head."""
    group = matrix.case.HQ // matrix.case.HKV
    at = [kv for kv, found in enumerate(matrix.every) if bool((found.abs() > SEEN).any())]
    instead = f"; it has one in that of key/value head {ranges(at)}" * bool(at)
    return "effect-head-left-out", (
        f"{matrix.place}query head {matrix.head} has no part in v.grad of key/value head "
        f"{matrix.head // group}{instead}.").replace("in the", "In the", 1)


def _by_size(matrix: Matrix, missing: torch.Tensor) -> bool:
    """Whether only the smaller scores of each row are missing, because they underflowed."""
    seen = (matrix.found > SEEN) & matrix.keep
    rows = missing.any(1) & seen.any(1)
    largest = matrix.scores.masked_fill(~missing, -torch.inf).amax(1)[rows]
    least = matrix.scores.masked_fill(~seen, torch.inf).amin(1)[rows]
    return len(largest) > 3 and bool((largest <= least).all())


def _cut(matrix: Matrix, given: torch.Tensor, missing: torch.Tensor) -> float:
    """If only small weights are missing, and most of those that are as small, the percentage of the
    largest weight in their row that they are below; else 0.  Of normally distributed scores only:
    those of other cases are small where a mask may hide them."""
    share = 100 * matrix.expected / matrix.expected.amax(1, keepdim=True)
    cut = next((cut for cut in (0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0) if bool(missing.any())
                and float(share[missing].max()) < cut), 0.0)
    small = matrix.keep & (share < cut)
    often = int(missing.sum()) > max(16, int((small & given).sum()))
    return cut if often and matrix.case.family == "randn" else 0.0


def _sums(matrix: Matrix) -> tuple[str, str] | None:
    """The finding if keys and proportions are right, but not the sum."""
    sums, wanted = matrix.found.sum(1), matrix.expected.sum(1)
    ratio = sums / wanted
    if matrix.tensor == "d_q":  # a factor of dq, which describe.py names, changes no weight
        times = (matrix.found / matrix.expected)[(matrix.expected > 1e-4) & ~matrix.unknown]
        if float(times.max() - times.min()) < ALIKE * float(times.max()):
            return None
    first = int((ratio - 1).abs().argmax())
    top = matrix.scores.masked_fill(~matrix.keep, -torch.inf)
    total = torch.logsumexp(top, 1).exp() + torch.tensor(matrix.sink).exp()
    more = (total * (1 / ratio - 1)).clamp_min(0)  # besides what belongs there
    for beside, before, after in (
            (more, "as if it counted ", " more keys with a score of 0, such as keys past the end."),
            (more / top.amax(1).exp(), "by ", " times exp(maximum). Does l_i start at 0, and is "
             "nothing added to it but the weights?")):
        count = float(beside.median())
        if count > 0.05 and bool(((beside - count).abs() < 0.02 * count).all()):
            return "effect-row-sums", (
                "The right keys are seen in the right proportions, but the denominator of every "
                f"query is too large, {before}{count:.4g}{after}")
    return "effect-row-sums", (f"The right keys are seen in the right proportions, but the weights "
                               f"of query {first} add up to {float(sums[first]):.4g} instead of "
                               f"{float(wanted[first]):.4g}.")


def _proportions(matrix: Matrix, given, over, where: str) -> tuple[str, str]:
    """The finding if weights do not fit their scores: sharper, flatter, or some of them wrong."""
    some = given & matrix.keep
    count = some.sum(1, keepdim=True).clamp_min(1)

    def centred(x):
        x = x.masked_fill(~some, 0.0)
        return (x - x.sum(1, keepdim=True) / count).masked_fill(~some, 0.0)

    s, w = centred(matrix.scores - matrix.lse), centred(matrix.found.clamp_min(SEEN).log())
    slope = float((s * w).sum() / s.square().sum().clamp_min(1e-30))
    enough = int((some.sum(1) > 2).sum()) > 3
    near = ALIKE + 0.02 * float(w.abs().max())
    if enough and abs(slope) < 1e-3 and float(w.abs().max()) < ALIKE:
        return "effect-too-flat", ("All keys that a query sees have the same weight: their scores "
                                   "have no effect.")
    if enough and abs(slope - 1) > 0.01 and float((w - slope * s).abs().max()) < near:
        id = "effect-too-sharp" if slope > 1 else "effect-too-flat"
        return id, (f"The weights are too {id[11:]}, as if every score were {slope:.4g}"
                    f"{constant(slope, matrix.case)} times as large.")
    hidden, off = given & ~matrix.keep, (over.abs() > ALIKE) & some
    alike = float((s * w).sum().abs() / (s.square().sum() * w.square().sum()).sqrt())
    if enough and alike < 0.3 and 2 * int(off.sum()) > int(some.sum()):
        return "effect-weights", (
            f"{matrix.place}the weights do not follow the scores of q and k. Are q, k and v read "
            "with their own strides, at the right rows and head?")
    if bool(hidden.any()):
        i, j = hidden.nonzero()[0].tolist()
        return "effect-hidden-weights", (
            f"{where}uery {i} gives weight to key {j}, which should be hidden, and that weight "
            f"does not match its score{_constant_score(matrix, hidden, some)}"
            f"{_pattern(hidden, matrix.case)}")
    if not bool(off.any()):  # only a few large scores are left
        return "effect-too-sharp", "The weights are too sharp: only the largest scores keep any."
    i, j = off.nonzero()[0].tolist()
    times = over[off].exp()
    if float(times.max() - times.min()) < ALIKE * float(times.max()):
        often = f"{float(times.median()):.3g} times"
        return "effect-weights", (
            f"{where}uery {i}'s weight for key {j} is {'twice' if often == '2 times' else often} "
            f"what it should be, compared with that query's other keys{_pattern(off, matrix.case)}")
    return "effect-weights", f"The weights are wrong from query {i} on."


def _constant_score(matrix: Matrix, hidden: torch.Tensor, seen: torch.Tensor) -> str:
    """The score that all hidden keys seem to have, if it is the same; "" otherwise."""
    logs = matrix.found.clamp_min(SEEN).log()
    over = (logs - matrix.scores).masked_fill(~seen, torch.nan).nanmedian(1, keepdim=True).values
    scores = (logs - over)[hidden & seen.any(1, keepdim=True)]
    if len(scores) < 4 or float(scores.std()) > 0.01 * (1 + abs(float(scores.mean()))):
        return ""
    return f": it is that of a score of {float(scores.mean()):.4g}"


def _first(rows: torch.Tensor) -> int:
    return int(rows.nonzero()[0])


def _window(matrix: Matrix, given: torch.Tensor, missing: torch.Tensor) -> str:
    """The number of keys that every query sees, if the others are missing and should not be."""
    ages = torch.arange(matrix.keep.shape[0])[:, None] - torch.arange(matrix.keep.shape[1])
    W, seen = int(ages[missing].min()), (given & matrix.keep).any(1)
    if matrix.case.sinks or not bool(seen.all()) or int(ages[given & matrix.keep].max()) != W - 1:
        return ""
    return f"as if there were a window of {W} keys"


def _pattern(pairs: torch.Tensor, case: Case, known: str = "") -> str:
    """How many pairs are wrong, and what they have in common.  known: that, if it is known."""
    i, j = pairs.nonzero().unbind(1)
    count, ages = len(i), (i - j).unique()
    if count < 2:
        return ". This is the only wrong pair."
    text = f". This happens for {count} pairs"
    if known:
        return f"{text}, {known}."
    if len(ages) == 1:
        return f"{text}, always with query - key = {int(ages)}."
    if len(j.unique()) == 1:
        after = ", the first one after the sinks" * (case.sinks == int(j[0]) > 0)
        return f"{text}, always with key {int(j[0])}{after}."
    if case.sinks and int(j.max()) < case.sinks:
        inside = " inside the window" * (int(ages.max()) < (case.window or 0))
        return f"{text}, and in each of them the key is a sink{inside}."
    if len(i.unique()) == 1:
        return f"{text}, all of them for query {int(i[0])}."
    for tile in (16, 32, 64):
        if bool((i // tile == j // tile).all()) and pairs.shape[0] > tile:
            return f"{text}, all of them in the {tile} x {tile} tiles on the diagonal."
    if bool((j > i).all()):
        return f"{text}, all of them with a key after the query."
    if int(j.max()) < 16 < pairs.shape[1]:
        return f"{text}, all of them with one of the first {int(j.max()) + 1} keys."
    if (int(i.max() - i.min()) + 1, int(j.max() - j.min()) + 1) == pairs.shape:
        return f"{text}, spread over the whole matrix."
    return (f"{text} among queries {int(i.min())}-{int(i.max())} and keys {int(j.min())}-"
            f"{int(j.max())}.")
