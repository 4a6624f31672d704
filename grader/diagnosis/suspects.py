"""Names the mistake that, made in a whole call, gives just the attention matrix that was found.

The mistakes are those that step_checks/ knows by name: of a mask, a loop, a tile's online softmax,
the scale, the heads.  Each is carried out on the scores of the call, with tiles of every size.  A
name is said only where all weights of the call agree with it, in every query head.
"""

import functools
import itertools
from collections.abc import Callable, Iterable, Iterator
from math import isqrt
from typing import NamedTuple

import numpy as np

from grader.diagnosis.attention_map import SEEN, Matrix
from grader.step_checks import loops, masks, named, phases, rows
from grader.step_checks.examples import LOG2E
from grader.step_checks.named import MASKS, SINK_LOGITS, UPDATES, Tile

SIZES = (128, 64, 32, 16)  # of tiles
LEAST = 1e-3  # smaller weights agree with many mistakes
OF_THE_CASE = ("heads-read", "sinks-of", "window-of", "sink-logit-wrong")  # words with its numbers
# One off in a single case may be a number that the file takes in every case, as OF_NUMBER says it.
ONE_OFF = ("sinks-plus-one", "sinks-minus-one", "window-plus-one", "window-minus-one")
OF_NUMBER = ("sinks-of", "window-of")
Visits = list[tuple[int, bool]]  # first key of every tile, and whether it is masked
# Tiles that have code of their own, by their first query, their first key and MASKED.
PARTS = {"in masked tiles": lambda start, at, masked: masked,
         "in tiles without a mask": lambda start, at, masked: not masked,
         "on the diagonal": lambda start, at, masked: at >= start,
         "in tiles before the diagonal": lambda start, at, masked: at < start}


class Suspect(NamedTuple):
    """A mistake, (id, *more).  What is not changed is right.

    loop: the tiles that a program visits, by its first query and the sizes of tiles; sees: the
    mask, of queries, keys and the first ones of their tiles; hidden: the score of a hidden key;
    factor, base: of the scores, the factor where tiles says so, of the first query, the first key
    and whether it is masked; update: as in named.UPDATES; read_k, read_v: the first key that a tile
    of k or v is read from, by the first query, the first key and the loop's; begin: the maximum at
    first; sink: the logit of the sink; exchanged: whether k is in the place of q, and q in that of
    k; end: the weights, of acc, l_i and m_i.
    """

    mistake: tuple
    loop: Callable[[int, int, int], Visits | None] | None = None
    sees: Callable | None = None
    hidden: float = -np.inf
    factor: float | None = None
    tiles: Callable[[int, int, bool], bool] = lambda start, at, masked: True
    base: float = 2.0
    update: dict = {}
    read_k: Callable[[int, int, int], int] | None = None
    read_v: Callable[[int, int, int], int] | None = None
    begin: float = -np.inf
    sink: float | None = None
    exchanged: bool = False
    end: Callable = lambda acc, l_i, m_i: acc / l_i[:, None]


def name(matrix: Matrix, longer: Callable[[], Matrix | None],
         others: Callable[[], Iterable[Matrix]] = tuple) -> tuple[str, str, str]:
    """-> the mistake that fits, as its id, in words, and the rule that it breaks; "" where none
    fits or more than two do.  longer: a matrix with more tiles, to tell several apart; others:
    those of other query heads, right or wrong, which the mistake must give, too."""
    fits = fitting(matrix)
    one_off = any(one[0] in ONE_OFF for one in fits)
    more = longer() if len(_said(fits)) > 1 or one_off else None
    if more is not None:
        there = fitting(more, fits)
        fits = [one for one in fits if one in there]
        if one_off and not fits:
            fits = fitting(matrix, [one.mistake for one in Call(matrix).suspects()
                                    if one.mistake[0] in OF_NUMBER])
    fits = [one for one in fits if not named.is_part(one[0])] or fits
    if 0 < len(_said(fits)) <= 2:
        fits = fitting(matrix, fits, others=others())
    id, words, rule = _in_words(fits)
    prefix = {"o": "", "d_v": "dkdv-", "d_q": "dq-"}[matrix.tensor]
    return (prefix + id, matrix.place + words, rule) if id else ("", "", "")


def of_nan(matrices: list[Matrix]) -> tuple[str, str, str]:
    """The same of a call whose weights are all NaN, by the matrices of several families of inputs:
    the mistake fits all, right ones too."""
    fits = None
    for matrix in matrices:
        fits = fitting(matrix, fits, nan=True)
    return _in_words([one for one in fits or () if not named.is_part(one[0])])


def _in_words(fits: list[tuple]) -> tuple[str, str, str]:
    """-> id, words and rule of the mistakes left; "" if there are none, or too many to say."""
    said = _said(fits)
    if not 0 < len(said) <= 2:
        return "", "", ""
    return fits[0][0], ", or ".join(said), named.words(*fits[0])[1] * (len(said) == 1)


def _said(fits: list[tuple]) -> list[str]:
    return list(dict.fromkeys("".join(f"{part}, " for part in one[1:] if part in PARTS)
                              + named.words(*one)[0] for one in fits))


def fitting(matrix: Matrix, only: list[tuple] | None = None, nan: bool = False,
            others: Iterable[Matrix] = ()) -> list[tuple]:
    """The mistakes, of these or of all, that give the matrix, and all others, with tiles of some
    size.  nan: it may be right, or all NaN, which fits too many to tell alone."""
    call, found = Call(matrix), {}
    beside = [(other, [*other.suspects()]) for other in map(Call, others)]
    if not nan and (not call.wrong or not (
            np.isfinite(call.found) & (call.found > LEAST)).any()):
        return []
    suspects = [one for one in call.suspects() if only is None or one.mistake in only]
    for BM, BN in itertools.product(SIZES, SIZES):
        for one in suspects if max(BM, BN) < 2 * max(call.found.shape) else ():
            if one.mistake not in found and call.fits(one, BM, BN) and (
                    one.mistake[0] in OF_THE_CASE or all(any(
                        own.mistake == one.mistake and other.fits(own, BM, BN) for own in its)
                        for other, its in beside)):
                found[one.mistake] = None
    named_ones = [one for one in found if one[0] not in OF_NUMBER]  # say more
    return named_ones or list(found) or ([] if matrix.backward or nan else call.heads())


class Call:
    """The call whose matrix was found."""

    def __init__(self, matrix: Matrix):
        case = matrix.case
        self.matrix, self.case = matrix, case
        self.found, self.keep = matrix.found.numpy(), matrix.keep.numpy()
        self.free = np.zeros_like(self.keep) if matrix.unknown is None else matrix.unknown.numpy()
        self.N = self.keep.shape[1]
        self.scale = case.D**-0.5 if case.scale is None else case.scale
        room = -(-self.N // 128) * 128 + 128  # keys past the end, read as 0
        self.s = np.zeros((len(self.found), room))
        self.s[:, :self.N] = matrix.scores.numpy() / self.scale
        self.turned = np.zeros_like(self.s)
        if len(self.found) == self.N:
            self.turned[:, :self.N] = self.s[:, :self.N].T
        self.ages = np.subtract.outer(np.arange(len(self.found)), np.arange(self.N))
        self.loops, self.wanted = functools.cache(self.loops), functools.cache(self.wanted)
        self.eye, self.wrong = np.eye(room), matrix.wrong.any(1).nonzero().flatten().tolist()
        self.given = {"N": self.N, "window_size": case.window, "sink_size": case.sinks}
        self.kind = ("all_keys" if not case.is_causal else "causal" if case.window is None
                     else "sinks" if case.sinks is not None else "window")

    def agree(self, found: np.ndarray, weights: np.ndarray, free: np.ndarray | bool = False
              ) -> bool:
        """As Matrix.wrong has it; NaN, of a row that sees nothing, agrees with NaN.  free: pairs
        that do not matter."""
        near = np.isfinite(weights) & (abs(found - weights) <= 1e-4 + 1e-3 * weights)
        return bool((near | np.isnan(found) & np.isnan(weights) | free).all())

    def heads(self) -> list[tuple]:
        """The mistake of the heads that fits all of them, if there is one."""
        HQ, HKV, every = self.case.HQ, self.case.HKV, self.matrix.every
        read = [next((kv for kv in range(HKV) if self.agree(
            every[h].numpy(), self.matrix.of(h, kv)[1].numpy())), None) for h in range(HQ)]
        if None in read or read == [h // (HQ // HKV) for h in range(HQ)]:
            return []
        return [(id,) for id, of in rows.HEADS.items()
                if read == [of(h, HQ, HKV) for h in range(HQ)]] or [
            ("heads-read", ", ".join(map(str, read)))]

    def suspects(self) -> Iterator[Suspect]:
        """All mistakes that it may have."""
        right, given, case = self.sees, self.given, self.case
        for id, change in MASKS[self.kind].items():
            for walk in (None, self.all_tiles):
                # A loop that ends with the diagonal hides all later tiles.
                shown = "diagonal-unmasked" if (id, walk) == ("causal-ignored", None) else id
                for ends in (True, False):  # whether keys past the end are hidden all the same
                    yield Suspect(_whole(shown), walk, lambda q, k, m, n, change=change, ends=ends:
                                  change(q, k, given) & ((k < self.N) | (not ends)))
        if self.matrix.backward:
            if case.sink_logits:  # P from an lse that leaves it out
                yield Suspect(("sink-logits-ignored",), sink=-np.inf)
            if self.matrix.tensor == "d_q":  # d_v has a loop over queries
                yield from self.wrong_loops()
            return
        if case.window and self.kind != "all_keys":
            seen = np.argwhere((self.found > SEEN) & (self.ages >= 0) & (
                np.arange(self.N) >= (case.sinks or 0)))
            W = int((seen[:, 0] - seen[:, 1]).max(initial=0)) + 1
            less = " (W - S)" * (W + (case.sinks or 0) == case.window)
            yield Suspect(("window-of", f"{W}{less}", case.window), sees=lambda q, k, m, n: right(
                q, k, window_size=W))
            if case.sinks:
                left = np.argwhere((self.found > SEEN) & (self.ages >= case.window))
                S = int(left[:, 1].max(initial=-1)) + 1
                yield Suspect(("sinks-of", S, case.sinks),
                              sees=lambda q, k, m, n: right(q, k, sink_size=S))
                yield Suspect(("sinks-before-the-window-only",), sees=lambda q, k, m, n: right(
                    q, k, sink_size=case.sinks if n + k.size <= m - case.window + 1 else 0))
            yield Suspect(("diagonal-without-window",), sees=lambda q, k, m, n: right(
                q, k, window_size=self.N if n >= m else case.window))
            for back in (case.window, case.window - 1):
                yield Suspect(("window-into-the-diagonal",), functools.partial(
                    self.from_the_window, back))
        if case.n_keys != case.N:
            yield Suspect(("keys-counted-by-queries",), self.all_tiles,
                          lambda q, k, m, n: k < case.N)
            yield Suspect(("keys-counted-by-queries",), lambda *where: [
                one for one in self.wanted(*where) if one[0] < case.N])
        for id, moved in (  # positions: of the queries and keys that the mask compares
                ("query-positions-of-the-tile", lambda q, k, m, n: (q - m, k)),
                ("key-positions-of-the-tile", lambda q, k, m, n: (q, k - n)),
                ("positions-of-the-tile", lambda q, k, m, n: (q - m, k - n)),
                ("offset-negated", lambda q, k, m, n: (q + 2 * (n - m), k))):
            for walk, ends in ((None, True), (None, False), (self.whole_diagonal, False)) \
                    if self.kind != "all_keys" else ():
                yield Suspect((id,), walk, lambda q, k, m, n, moved=moved, ends=ends:
                              right(*moved(q, k, m, n)) & ((k < self.N) | (not ends)))
        yield from self.wrong_loops()
        for name, (which, at) in itertools.product("kv", {
                "the first tile": lambda start, at, first: first,
                "the tile before": lambda start, at, first: max(at - 1, first),
                "keys from 0 on, on the diagonal": lambda start, at, first:
                    at - start if at >= start else at}.items()):
            if self.case.is_causal or "diagonal" not in which:
                yield Suspect(("tile-not-advanced", name, which), **{f"read_{name}": at})
        yield Suspect(("hidden-scores-zero",), hidden=0.0)
        for walk in (None, self.all_tiles) if self.kind != "all_keys" else ():
            yield Suspect(("hidden-keys-in-the-sum",), walk, update={
                "total": lambda t, a, r: t.l_i * a + t.power(t.raw - t.m[..., None]).sum(-1)})
        factors = [("no-scale", 1.0), ("scale-twice", self.scale**2),
                   ("no-log2e", self.scale / LOG2E), ("log2e-twice", self.scale * LOG2E)]
        padded = 1 << (case.D - 1).bit_length()  # the width of a tile
        for id, factor in (*factors, ("scale-rounded", 1 / isqrt(case.D))
                           if case.scale is None else ("scale-ignored", case.D**-0.5),
                           *[("scale-of-the-tile", padded**-0.5)] * (padded > case.D),
                           ("scale-of-the-length", self.N**-0.5)):
            yield Suspect((id,), factor=factor)
        parts = {"all_keys": list(PARTS)[:2], "causal": list(PARTS)[2:]}.get(self.kind, PARTS)
        for (id, factor), part in itertools.product(factors, parts):
            yield Suspect((id, part), factor=factor, tiles=PARTS[part])
        for id, update in UPDATES.items():
            for base in (2.0, np.e):
                yield Suspect(_whole(id), update=update, base=base)
        if case.sink_logits:
            own = self.matrix.sink
            for id, change in SINK_LOGITS.items():
                yield Suspect(_whole(id), sink=change(own, self.scale))
            for h, sink in enumerate(self.matrix.sinks):
                if sink != own:
                    yield Suspect(("sink-logit-wrong", f"of query head {self.matrix.head} is that "
                                   f"of head {h}"), sink=sink)
        if case.n_keys == case.N and case.HQ == case.HKV:
            yield Suspect(("q-and-k-exchanged",), exchanged=True)
        yield Suspect(("max-starts-at-0",), begin=0.0)
        yield Suspect(("not-normalised",), end=lambda acc, l_i, m_i: acc)
        yield Suspect(("divided-by-the-max",), end=lambda acc, l_i, m_i: acc / m_i[:, None])

    def wrong_loops(self) -> Iterator[Suspect]:
        for id in self.loops(0, 128, 16):
            yield Suspect(_whole(id), lambda *where, id=id: self.loops(*where).get(id))

    def sees(self, query, key, **others: int):
        """The right mask, or that of another window_size or sink_size."""
        return getattr(masks, self.kind)(query, key, self.given | others)

    def all_tiles(self, start: int, BM: int, BN: int) -> Visits:
        """Of a loop that leaves out none, and masks all."""
        return [(at, True) for at in range(0, self.N, BN)]

    def whole_diagonal(self, start: int, BM: int, BN: int) -> Visits:
        """Of a loop that visits the diagonal's tiles past the last key, too."""
        visits = self.wanted(start, BM, BN)
        return visits + [(at, True) for at in range(-(-self.N // BN) * BN, start + BM, BN)]

    def from_the_window(self, back: int, start: int, BM: int, BN: int) -> Visits:
        """Of a loop that begins so many keys before the tile's first query."""
        begin, diagonal = max(start - back, 0), range(start, min(start + BM, self.N), BN)
        sinks = range(0, min(self.case.sinks or 0, begin // BN * BN), BN)
        return [(at, True) for at in (*sinks, *range(begin, start, BN), *diagonal)]

    def loops(self, start: int, BM: int, BN: int) -> dict[object, Visits]:
        """Wrong loops of one program by the name of the mistake."""
        right = self.wanted(start, BM, BN)
        example = {"N": self.N, "BLOCK_M": BM, "BLOCK_N": BN, "CAUSAL": self.case.is_causal,
                   "start_m": start}
        if self.kind in ("window", "sinks"):
            example = loops.windowed(example, self.case.window)
        if self.kind == "sinks":
            example |= {"sink_size": self.case.sinks}
        needs, found = dict(right), {}
        if right:
            tiles, found = phases.others(right, example, start if self.case.is_causal else None)
            if not self.case.is_causal:
                del tiles["last-full-tile-skipped"]  # its words are of a diagonal
            elif self.kind == "causal":  # a cut tile before the diagonal's first is of it, too
                found["diagonal-unmasked", "before it"] = found.pop("left-edge-unmasked")
            if self.kind in ("window", "sinks"):
                found["left-edge-unmasked", "but its first tile"] = [
                    (at, masked and (at >= start or at == right[0][0])) for at, masked in right]
                first = start - self.case.window + 1
                for how, begin in (("rounded up", first), ("a key late", (first + 1) // BN * BN)):
                    tiles["first-window-tile-skipped", how] = [
                        at for at, _ in right if at >= begin or at < (self.case.sinks or 0)]
            for id, begins in tiles.items():  # of two visits only the first is masked
                found[id] = [(at, needs.get(at, True) and at not in begins[:i])
                             for i, at in enumerate(begins)]
        found["last-tile-only", "of all keys"] = [((self.N - 1) // BN * BN, True)]
        found["last-tile-only", "of a program"] = right[-1:]
        if self.kind == "sinks":
            inside = [(at, True) for at, _ in right if at >= example["first"]]
            for end in ("BLOCK", "inner"):  # of the loop over the sinks, which reaches the window
                tiles = range(0, min(self.case.sinks, example.get(end, self.N)), BN)
                found["sinks-counted-twice", end] = [(at, True) for at in tiles] + inside
        parts = loops.parts(example, example)
        for part in parts:
            begin, end, said = part.tiles.start, part.tiles.stop, part.said
            rest = [(at, one.masked) for one in parts if one is not part for at in one.tiles]
            for id, changed in {
                    ("phase-left-out", said): range(0),
                    ("phase-too-short", said, "a tile"): range(begin, end - BN, BN),
                    ("phase-too-short", said, "a key"): range(begin, end - 1, BN),
                    ("phase-too-short", said, "rounded down"): range(begin, end // BN * BN, BN),
                    ("phase-too-late", said): range(begin + BN, end, BN),
                    ("phase-too-long", said, "a tile"): range(begin, end + BN, BN),
                    ("phase-too-long", said, "a key"): range(begin, end + 1, BN),
                    ("phase-too-early", said): range(max(begin - BN, 0), end, BN)}.items():
                found[id] = rest + [(at, part.masked) for at in changed]
            own = [(at, part.masked) for at in part.tiles]
            found["phase-twice", said] = rest + own + own
            found["phase-unmasked", said] = rest + [(at, False) for at in part.tiles]
        return found

    def wanted(self, start: int, BM: int, BN: int) -> Visits:
        """The tiles that a program must visit."""
        tiles = []
        for at in range(0, self.N, BN):
            pairs = self.keep[start:start + BM, at:at + BN]
            if pairs.any():
                tiles.append((at, not pairs.all() or at + BN > self.N))
        return tiles

    def fits(self, one: Suspect, BM: int, BN: int) -> bool:
        """Whether the mistake, with tiles of BM queries and BN keys, gives the weights found."""
        def right(first: int, end: int, start: int) -> bool:
            weights = self.program(one, start, BM, BN, slice(first, end))
            return weights is not None and self.agree(
                self.found[first:end], weights, self.free[first:end])

        begins = range(0, len(self.found), BM)
        with np.errstate(all="ignore"):
            if one.mistake != ("max-over-the-block",):  # first a few rows, for most do not fit
                rows = self.wrong or range(len(self.found))
                for row in (rows[0], rows[len(rows) // 2], rows[-1]):
                    if not right(row, row + 1, row // BM * BM):
                        return False
            return all(right(at, min(at + BM, len(self.found)), at) for at in begins)

    def program(self, one: Suspect, start: int, BM: int, BN: int, these: slice
                ) -> np.ndarray | None:
        """The weights of one program's queries, of these rows, (queries, keys)."""
        visits = self.wanted(start, BM, BN) if one.loop is None else one.loop(start, BM, BN)
        s = (self.turned if one.exchanged else self.s)[these]
        if self.matrix.backward:
            return self.recomputed(one, visits, start, BN, these)
        query = np.arange(these.start, these.stop)[:, None]
        sink = self.matrix.sink if one.sink is None else one.sink
        m_i = np.full(len(s), max(sink / np.log(one.base), one.begin), np.float32)
        l_i, acc = np.zeros(len(s)), np.zeros_like(s)
        if sink > -np.inf:
            l_i = np.exp(sink - m_i * np.log(one.base)).astype(np.float32)
        for at, masked in visits or []:
            if not 0 <= at <= s.shape[1] - BN:
                return None
            from_k, from_v = (at if read is None else read(start, at, visits[0][0])
                              for read in (one.read_k, one.read_v))
            key, raw = np.arange(at, at + BN), s[:, from_k:from_k + BN]
            tile = raw
            if masked:
                keep = self.sees(query, key) if one.sees is None else one.sees(
                    query, key, start, at)
                tile = np.where(keep, raw, one.hidden)
            changed = one.factor is not None and one.tiles(start, at, masked)
            factor = (one.factor if changed else self.scale) / np.log(one.base)
            left = Tile(tile, m_i, l_i, acc, self.eye[from_v:from_v + BN], factor, one.base,
                        one.update, raw).left
            m_i, l_i, acc = left["m_new"], left["l_i"], left["acc"]
        return one.end(acc, l_i, m_i)[:, :self.N]

    def recomputed(self, one: Suspect, visits: Visits, start: int, BN: int, these: slice
                   ) -> np.ndarray:
        """P of these rows, as the backward makes it from the right lse."""
        s, lse = self.s[these, :self.N] * self.scale, self.matrix.lse.numpy()[these]
        if one.sink is not None:  # -inf: an lse without it
            lse = lse + np.log1p(-np.exp(self.matrix.sink - lse))
        p, seen = np.exp(s - lse), np.zeros(s.shape, bool)
        query = np.arange(these.start, these.stop)[:, None]
        for at, masked in visits:
            key = np.arange(at, min(at + BN, self.N))
            mask = one.sees or (lambda q, k, m, n: self.sees(q, k))
            seen[:, key] = mask(query, key, start, at) if masked else True
        return np.where(seen, p, 0.0)


def _whole(id: str | tuple) -> tuple:
    """(id, *more)."""
    return id if isinstance(id, tuple) else (id,)
