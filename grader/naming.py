"""Which mistake of the table made this answer?  A name, or none: never a guess.

The wrong answer is held against what every mistake would have given on the same case.  Those that
match go on to further small cases, asked of the same live worker and chosen so that the mistakes
still in question come out differently.  A name is given only if one mistake matches everything
within rounding, and neither the truth nor any other mistake comes near.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace

import torch

from grader.cases import Built, Case, build
from grader.correctness import Answer, answer
from grader.hypotheses import TILE_SIZES, Hypothesis
from grader.mistakes import TABLE
from grader.model import INF, Model, NotHere, RowSum, all_pairs, doubles

MATCH = 1.5  # times the limits that a right kernel has: mistakes may round a little worse
APART = 5.0  # the truth and the runner-up are so many times further away
NEAR = 20.0  # candidates within this many limits stay in question
ROWS, MANY_ROWS = 24, 160  # of a head: for a first look, and to be sure
ORDER = ("inputs", "strides", "stride", "scale", "heads", "sink logits", "mask", "window", "sinks",
         "tail", "fill", "online", "rescale", "finish", "rows", "output")
F32 = torch.float32


@dataclass(frozen=True)
class Name:
    """A mistake that was recognised.  Distances are multiples of a right kernel's limits."""

    id: str
    words: str
    line: str
    symptom: str
    distance: float
    runner_up: str
    runner_up_distance: float
    truth_distance: float
    only: str = ""  # where it shows, if not everywhere
    also: "Name | None" = None


@dataclass(frozen=True)
class Candidate:
    """A mistake with the values it is tried with, whatever the tile sizes.

    walk: "", or which of the gradients' walks it is in; padded: see Model.
    """

    mistake: Hypothesis
    more: tuple = ()
    walk: str = ""
    padded: bool = False
    second: "Candidate | None" = None

    @property
    def id(self) -> str:
        walk = self.walk.replace("dkv", "dkdv")
        own = f"{walk}-{self.mistake.id}" if walk else self.mistake.id
        return own if self.second is None else f"{own} + {self.second.id}"

    @property
    def whole(self) -> str:
        return self.mistake.whole or (self.second.whole if self.second else "")

    def sizes(self, case: Case) -> list[tuple[int, int]]:
        """Tile sizes (BM, BN) that may differ on this case."""
        sizes = self.mistake.sizes()
        if self.padded and self.mistake.tiles in ("", "m"):
            sizes = tuple((m, n) for m, _ in sizes for n in TILE_SIZES)
        if self.second is not None:  # fewer for two mistakes at once: there are many of them
            both = self.mistake.tiles + self.second.mistake.tiles
            sizes = USUAL_TILES if both or self.padded else sizes
        keys, found = set(), []
        rows, columns = (case.M, case.N) if case.stage == 2 else (case.N, case.n_keys)
        for m, n in sizes:
            if (n == 16 and columns > 256 or m == 16 and rows > 256) and len(sizes) > 1:
                continue  # so small a tile on so many keys is slow, and rare
            fills = not (self.padded or self.mistake.padded) or columns % n == 0
            key = m if m < rows else 0, 0 if fills and n >= columns else n
            if key not in keys:
                keys.add(key)
                found.append((m, n))
        return found

    def affects(self) -> set[str]:
        """The gradients that a mistake in the backward changes; those of all others are right."""
        if self.walk:
            return {"dq": {"d_q"}, "dkv": {"d_k", "d_v"}}.get(self.walk, {"d_q", "d_k", "d_v"})
        return AFFECTED.get(self.mistake.slot, {"d_q", "d_k", "d_v", "d_sink_logits"})

    def apply(self, model) -> None:
        """Make the mistake in a Model or RowSum."""
        if self.mistake.kind == "mask" and not self.walk:
            self.mistake.change(model.fwd, *self.more)
        elif self.mistake.kind == "mask":
            for walk in ("dq", "dkv") if self.walk == "backward" else (self.walk,):
                self.mistake.change(getattr(model, walk), *self.more)
        else:
            self.mistake.change(model, *self.more)
        if self.second is not None:
            self.second.apply(model)

    def words(self, found: dict) -> str:
        text = self.mistake.words.format(*self.more, **found)
        where = {"dq": "in dq, ", "dkv": "in dk and dv, ", "backward": "in the backward, "}
        return where.get(self.walk, "") + text


@dataclass
class Sample:
    """One answer of the submission: the case, float64 tensors by name, and the right answer."""

    built: Built
    got: dict[str, torch.Tensor]
    exact: Answer
    limits: dict[str, tuple[float, float]] = field(default_factory=dict)
    wrong: dict[str, bool] = field(default_factory=dict)
    masks: dict[tuple, float] = field(default_factory=dict)  # scores of masks that were tried
    doubles: dict[str, torch.Tensor] | None = None
    sums: tuple | None = None  # what the right forward ends with: acc, l and m

    @classmethod
    def of(cls, built: Built, got: dict[str, torch.Tensor], device: str,
           exact: Answer | None = None) -> "Sample":
        exact = exact or answer(built, device)
        sample = cls(built, {n: x.cpu().double() for n, x in got.items()}, exact)
        for name in sample.got:
            verdict = exact.judge(name, got[name])
            sample.limits[name] = verdict.fro_limit, verdict.row_limit
            sample.wrong[name] = not verdict.accepted
        return sample

    def truth(self, name: str) -> torch.Tensor:
        return self.exact.truth[name].cpu()


class Search:
    """Looks for the mistake behind one wrong answer.

    ask(built) -> the submission's tensors for another case, or None if it failed there.
    seconds: of this process's own work, however busy the machine is.
    """

    def __init__(self, sample: Sample, ask: Callable[[Built], dict | None], device: str,
                 seconds: float = 8.0):
        self.sample, self.ask, self.device = sample, ask, device
        self.deadline = time.thread_time() + seconds
        self.stage = sample.built.case.stage
        forward = [n for n in sample.got if not n.startswith("d_") and n != "lse"]
        if any(sample.wrong[n] for n in forward):
            self.part, self.names = "forward", forward
        elif sample.wrong.get("lse"):
            self.part, self.names = "lse", ["lse"]
        else:
            self.part = "backward"
            self.names = [n for n in sample.got if n.startswith("d_")]
        self.samples = [sample]
        self.scores: dict[Candidate, list[float]] = {}
        self.truth_scores: list[float] = []
        self.asked, self.matched, self.harder = 0, False, None
        self.fits: dict = {}
        self.found: dict[Candidate, dict] = {}

    def tile(self) -> int:
        """The key tile that fitted last, for a picture; 64 where none did."""
        for sizes in reversed(list(self.fits.values())):
            if len(sizes) == 1:
                return sizes[0][1]
        return 64

    # ------------------------------------------------------------- candidates
    def candidates(self) -> list[Candidate]:
        """Everything that could have made this kind of answer."""
        kinds = {"forward": ("forward", "mask", "row sum"), "lse": ("lse",),
                 "backward": ("backward", "mask")}[self.part]
        found = []
        for mistake in TABLE:
            if mistake.kind not in kinds or self.stage not in mistake.stages:
                continue
            walks = ("",)
            if self.part == "backward" and mistake.kind == "mask":
                walks = ("dq", "dkv", "backward")
            pads = (False, True) if self.stage > 2 and mistake.id in LET_IN else (False,)
            found += [Candidate(mistake, more, walk, padded) for more in mistake.each
                      for walk in walks for padded in pads]
        return found

    # ----------------------------------------------------------------- scores
    def score(self, candidate: Candidate | None, sample: Sample, size: str) -> float:
        """How far the answer is from this mistake's, in limits; candidate None: from the truth.

        With the tile sizes that fit best, which are noted in self.fits.
        """
        if candidate is None:
            pairs, rows = _part_of(sample, self.names, size)
            return self._distance(sample, {n: _select(sample.truth(n), n, pairs, rows)
                                           for n in self.names}, pairs, rows)
        pairs, rows = _part_of(sample, self.names, candidate.whole or size)
        best, fit = INF, (candidate, id(sample))
        if self.part == "backward":
            if any(sample.wrong[n] for n in self.names if n in sample.got
                   and n not in candidate.affects()):
                return INF
        sizes = candidate.sizes(sample.built.case)
        if size == "many" and fit in self.fits:
            sizes = self.fits[fit]
        fits, right = [], None
        if time.thread_time() > self.deadline:
            raise TimeoutError
        for BM, BN in sizes:
            try:
                model = changed(candidate, sample, pairs, rows, self.part, BM, BN)
                key = None
                if candidate.mistake.kind == "mask" and candidate.second is None:
                    walk = getattr(model, {"": "fwd", "dq": "dq"}.get(candidate.walk, "dkv"))
                    key = (size, candidate.walk, walk.keep.numpy().tobytes(),
                           None if walk.count is None else walk.count.numpy().tobytes())
                found = model.found
                if key is not None and key in sample.masks:
                    score = sample.masks[key]
                else:
                    score = self._distance(sample, answers(model, self.part), pairs, rows)
                    sample.masks[key] = score
            except NotHere:  # with these tiles it cannot be told from a right answer
                right = self.score(None, sample, size) if right is None else right
                score, found = right, {}
            if score <= NEAR:
                fits.append((BM, BN))
            if score < best:
                best, self.found[candidate] = score, found
            if best <= MATCH / 2 and size == "many":
                break
        if size != "many":
            self.fits[fit] = fits
        return best

    def _distance(self, sample, predicted, pairs, rows) -> float:
        worst = 0.0
        for name in self.names:
            if name in sample.got and name in predicted:
                x = _select(sample.got[name], name, pairs, rows)
                worst = max(worst, distance(x, predicted[name], sample, name, pairs, rows))
        return worst

    def judge(self, sample: Sample, pool: list[Candidate]) -> list[Candidate]:
        """Those of pool that stay in question after this sample; notes every score."""
        near = []
        first = "all" if self.part == "backward" else "few"
        for candidate in pool:
            if self.score(candidate, sample, first) > NEAR:
                continue
            score = self.score(candidate, sample, "many")
            if score <= NEAR:
                self.scores.setdefault(candidate, []).append(score)
                near.append(candidate)
        return near

    def probe(self, case: Case, pool: list[Candidate]) -> tuple[list[Candidate], bool] | None:
        """Ask one more case.  -> who is left, and whether the submission was wrong there."""
        self.asked += 1
        if self.part != "backward":
            case = replace(case, grads=())
        built = build_probe(case, self.asked)
        got = self.ask(built)
        if got is None:
            return None
        sample = Sample.of(built, got, self.device)
        self.samples.append(sample)
        self.truth_scores.append(self.score(None, sample, "many"))
        return self.judge(sample, pool), any(sample.wrong[n] for n in self.names
                                             if n in sample.got)

    # ------------------------------------------------------------------ search
    def run(self) -> Name | None:
        """The mistake, or None.  Takes at most about the seconds given."""
        try:
            found = self._run(self.candidates())
            if found is None and self.matched and self.harder is not None:
                self.sample, self.matched = self.harder, False  # two mistakes may show here
            return found if found or self.matched else self._run_pairs()
        except TimeoutError:
            return None

    def _run(self, pool: list[Candidate]) -> Name | None:
        self.scores, self.samples = {}, [self.sample]
        self.truth_scores = [self.score(None, self.sample, "many")]
        pool = self.judge(self.sample, pool)
        self.matched = bool(self._matching(pool))
        if not self.matched:
            return None
        case = self.sample.built.case
        own = replace(case, group="probe", repeats=1, refill=False, growth=False)
        left = self.probe(replace(own, dtype=F32), pool)
        if left is not None and case.dtype != F32 and not left[1]:
            self._forget()  # right in float32: asked again in the dtype that it shows in
            left = self.probe(own, pool)
        if left is not None:
            pool = left[0]
        if not self._matching(pool):
            return None
        twins = len(self.samples)
        positive, asked = False, []
        for turn in range(7):
            matching = self._matching(pool)
            if turn == 0:
                further = _general(case)
            else:
                overflow = any(c.mistake.symptom in ("overflow", "nan") for c in matching)
                long = _long(case)
                if long not in asked:
                    further = long  # many tiles: what differs from tile to tile shows
                elif len({c.id for c in matching}) == 1 and positive and (
                        turn > 3 or not overflow):
                    break
                else:
                    further = self._telling_apart(matching, asked)
                if further is None:
                    break
            asked.append(further)
            left = self.probe(further, pool)
            if left is None:
                continue
            rest, was_wrong = left
            if self._matching(rest):
                pool, positive = rest, positive or was_wrong
                continue
            if was_wrong or positive:  # no mistake of the table explains all of it
                self.harder = self.samples[-1] if was_wrong else None
                return None
            self._forget(len(self.samples) - twins)
            return self._only_here(matching)
        return self._decide(pool)

    def _only_here(self, matching: list[Candidate]) -> Name | None:
        """The submission is right on a plain case: does the mistake show wherever dtype and head
        dimension are those of the wrong case?"""
        case = self.sample.built.case
        special = case.family not in ("randn", "real", "hot", "needles")
        if special and not all(c.mistake.symptom == "overflow" for c in matching):
            return None
        if not special:
            dtype = self.samples[-1].built.case.dtype
            left = self.probe(replace(_long(case), D=case.D, dtype=dtype, layout=case.layout),
                              matching)
            if left is not None:
                matching = left[0]
        return self._decide(matching, only=case.label)

    def _forget(self, count: int = 1) -> None:
        """Take back the last samples."""
        del self.samples[-count:], self.truth_scores[-count:]
        for scores in self.scores.values():
            del scores[len(self.samples):]

    def _matching(self, pool) -> list[Candidate]:
        """Those that match every sample; with a fitted number, only where nothing else does."""
        full = len(self.samples)
        all_of = [c for c in pool if len(self.scores[c]) == full and max(self.scores[c]) <= MATCH]
        return [c for c in all_of if not c.mistake.fitted] or all_of

    def _decide(self, pool, only: str = "") -> Name | None:
        """The one name that fits everything, or None."""
        matching = self._matching(pool)
        if not matching:
            return None
        full, total = len(self.samples), {}
        for candidate in pool:
            if len(self.scores[candidate]) == full and (
                    candidate in matching or not candidate.mistake.fitted):
                score = max(self.scores[candidate])
                if score < total.get(candidate.id, (INF,))[0]:
                    total[candidate.id] = score, candidate
        ranked = sorted(total.values(), key=lambda item: item[0])
        best, winner = ranked[0]
        second = ranked[1] if len(ranked) > 1 else (NEAR, None)
        truth, floor = max(self.truth_scores), max(best, 0.2)
        if truth < APART * floor or second[0] < APART * floor:
            return None
        if not any(self._tells(winner, sample) for sample in self.samples):
            return None
        return self._name(winner, best, second[1].id if second[1] else "none within reach",
                          second[0], truth, only)

    def _name(self, winner, best, runner_up, second, truth, only) -> Name:
        m, found, also = winner.mistake, self.found.get(winner, {}), None
        if winner.second is not None:
            other = winner.second.mistake
            also = Name(winner.second.id, winner.second.words(found), other.line, other.symptom,
                        best, runner_up, second, truth)
        return Name(winner.id.split(" + ")[0], winner.words(found), m.line, m.symptom, best,
                    runner_up, second, truth, only, also)

    def _tells(self, candidate, sample) -> bool:
        """Whether a match here says something: all NaN says little, unless some cases are right."""
        if any(
                sample.wrong.get(name) and not bool((~torch.isfinite(sample.got[name])).all())
                for name in self.names):
            return True
        wrong = sum(any(s.wrong.get(name) for name in self.names) for s in self.samples)
        return wrong >= 3 and len(self.samples) - wrong >= 2

    def _telling_apart(self, pool: list[Candidate], asked) -> Case | None:
        """The small case on which most of the mistakes still in question differ, from each other
        and from the truth."""
        best, most = None, 1
        few = list({c.id: c for c in reversed(pool)}.values())[:8]
        for case in _further(self.sample.built.case):
            if case in asked:
                continue
            built = build_probe(case, self.asked + 1)
            sample = Sample(built, {}, None)
            pairs, rows = _part_of(sample, self.names, "all")
            right = self._right(sample, pairs, rows)
            groups = [right]
            for candidate in few:
                fitting = [size for (c, _), sizes in self.fits.items() if c == candidate
                           for size in sizes]
                for BM, BN in fitting[-1:] or candidate.sizes(case)[:1]:
                    try:
                        found = answers(changed(candidate, sample, pairs, rows, self.part, BM, BN),
                                        self.part)
                    except NotHere:
                        found = right
                    if not any(_alike(found, other) for other in groups):
                        groups.append(found)
            if len(groups) > most:
                best, most = case, len(groups)
            if most == len(few) + 1:
                break
        return best

    def _right(self, sample: Sample, pairs, rows) -> dict:
        """What a submission without a mistake would answer."""
        nothing = Candidate(Hypothesis("", "", "", "", "forward", "", (), lambda model: None))
        return answers(changed(nothing, sample, pairs, rows, self.part, 64, 64), self.part)

    # ------------------------------------------------------------------- pairs
    def _run_pairs(self) -> Name | None:
        """Two mistakes at once: of two kinds in the forward, or in two gradients."""
        if self.part == "backward":
            return self._each_gradient()
        if self.part != "forward" or self.stage == 2:
            return None
        usual = [c for c in self.candidates()
                 if c.mistake.id in USUAL and c.more == c.mistake.each[0]]
        usual.sort(key=lambda c: ORDER.index(c.mistake.slot))
        pool = []
        for i, first in enumerate(usual):
            for second in usual[i + 1:]:
                if first.mistake.slot == second.mistake.slot:
                    continue
                pool.append(replace(first, padded=first.padded or second.padded, second=second))
        return self._run(pool)

    def _each_gradient(self) -> Name | None:
        """A mistake for every gradient that is wrong."""
        wrong = [n for n in self.names if self.sample.wrong[n]]
        if len(wrong) < 2:
            return None
        names, everything = {}, self.names
        for name in wrong:
            self.names = [name]
            found = self._run(self.candidates())
            if found is None:
                return None
            names.setdefault(found.id, found)
        self.names = everything
        first, *rest = names.values()
        return replace(first, also=rest[0]) if len(rest) == 1 else None


AFFECTED = {
    "factor dq": {"d_q"}, "dq": {"d_q"}, "factor dk": {"d_k"}, "dk": {"d_k"},
    "factor dv": {"d_v"}, "dv": {"d_v"}, "dkdv mask": {"d_k", "d_v"}, "dkdv": {"d_k", "d_v"},
    "group": {"d_k", "d_v"}, "d sink": {"d_sink_logits"}, "factor d sink_logits": {"d_sink_logits"},
    "delta": {"d_q", "d_k", "d_sink_logits"}, "o": {"d_q", "d_k", "d_sink_logits"},
    "order": {"d_q", "d_k", "d_v"},
}

# The mistakes that may let in the zeros that fill the last tile of keys.
LET_IN = {
    "causal-ignored", "next-key-visible", "mask-reversed", "diagonal-unmasked", "diagonal-twice",
    "phase-1-past-the-diagonal", "query-positions-of-the-tile", "key-positions-of-the-tile",
    "both-positions-of-the-tile", "only-first-tile-masked", "window-symmetric",
    "window-without-causal", "ragged-tail-twice", "tail-unmasked", "sinks-not-causal",
    "hidden-scores-zero", "hidden-scores-finite", "hidden-keys-in-denominator",
    "max-of-hidden-keys", "interior-too-early", "mask-forgotten",
}

USUAL_TILES = ((64, 64), (64, 32), (64, 128), (128, 64), (128, 128), (32, 32), (16, 16))

# The mistakes that are tried two at a time.
USUAL = {
    "no-scale", "scale-twice", "no-log2e", "log2e-twice", "q-k-swapped", "k-v-swapped",
    "values-are-keys", "causal-ignored", "strictly-causal", "next-key-visible",
    "diagonal-unmasked", "diagonal-skipped", "window-plus-one", "window-minus-one",
    "window-ignored", "window-symmetric", "sinks-ignored", "sinks-plus-one", "sinks-minus-one",
    "sinks-not-causal", "no-sink-phase", "hidden-scores-zero", "hidden-keys-in-denominator",
    "acc-not-rescaled", "l-not-rescaled", "nothing-rescaled", "alpha-inverted",
    "alpha-in-another-base", "not-normalised", "heads-interleaved", "one-kv-head-for-all",
    "batch-ignored", "head-ignored", "tail-unmasked", "ragged-tail-skipped",
    "last-key-tile-skipped", "last-key-dropped", "first-key-tile-only", "first-key-tile-skipped",
    "last-rows-not-written", "last-row-not-written", "own-scale-ignored", "sink-logits-ignored",
    "first-window-tile-skipped", "last-tile-only",
}


def changed(candidate: Candidate, sample: Sample, pairs, rows, part: str, BM: int,
            BN: int) -> Model | RowSum:
    """The right computation for these heads and rows, with the mistake in it."""
    built = sample.built
    if built.case.stage == 2:
        model = RowSum(built, BM, BN, sample.got.get("y"))
    else:
        if sample.doubles is None:
            sample.doubles = doubles(built)
        if part == "backward":  # rows of keys need all queries
            pairs, rows, got = all_pairs(built.case), None, None
        else:
            got = sample.got.get("o")
            got = None if got is None else got[pairs[:, 0], pairs[:, 1]][:, rows]
        model = Model(built, pairs, rows, BM, BN, candidate.padded, got, sample.doubles)
        model.all_got = sample.got
        if part == "backward":
            model.needed &= {n[2:] for n in candidate.affects()}
            if sample.sums is None:
                sample.sums = model._whole()
            model.sums = sample.sums
    candidate.apply(model)
    return model


def answers(model: Model | RowSum, part: str) -> dict[str, torch.Tensor]:
    """What a changed model gives, with heads side by side."""
    if part == "backward":
        return {n: x if x.dim() == 1 else x.flatten(0, 1) for n, x in model.gradients().items()}
    return model.outputs()


def build_probe(case: Case, seed: int) -> Built:
    """A case whose gaps hold numbers, not NaN: what is read there by mistake can be recognised."""
    built = build(case, seed)
    gen = torch.Generator().manual_seed(seed)
    for sent in (*built.call.inputs.values(), *built.call.douts.values()):
        gaps = torch.isnan(sent.storage)
        noise = torch.randn(len(gaps), generator=gen).to(sent.storage.dtype)
        sent.storage[gaps] = noise[gaps]
    return built


def distance(x, p, sample: Sample, name: str, pairs, rows) -> float:
    """How far x is from p, in limits of a right kernel; infinite where NaN does not match NaN."""
    if x.shape != p.shape:
        return INF
    fro_limit, row_limit = sample.limits[name]
    x, p = (x[:, None], p[:, None]) if x.dim() == 1 else (x, p)
    bad_x, bad_p = ~torch.isfinite(x), ~torch.isfinite(p)
    if name == "lse" or x.shape[-1] == 1 and name in ("y", "d_sink_logits"):
        rows_x, rows_p = bad_x, bad_p
        scale = sample.exact.scale.get(name)
        size = p.abs().clamp_min(1.0) if name == "lse" else scale.cpu()[:, None]
        if not torch.equal(rows_x, rows_p):
            return INF
        good = ~rows_p
        if not bool(good.any()):
            return 0.0
        size = torch.maximum(size.expand_as(p), 0.02 * p.abs())[good]
        errors = (x - p).abs()[good] / size
        return max(float(errors.square().mean().sqrt()) / fro_limit,
                   float(errors.max()) / row_limit)
    if not torch.equal(bad_x.any(-1), bad_p.any(-1)):
        return INF
    good = ~bad_p.any(-1)
    if not bool(good.any()):
        return 0.0
    x, p = x[good], p[good]
    norms = torch.linalg.vector_norm(p, dim=-1)
    floor = (0.25 if name.startswith("d_") else 0.05) * norms.square().mean().sqrt()
    least = 1e-6 * sample.truth(name).norm()  # what is so small has underflowed
    size = torch.maximum(norms, floor).clamp_min(float(least) / max(len(p), 1) ** 0.5)
    total = torch.maximum(p.norm(), least)
    if name in sample.exact.terms:
        terms = sample.exact.terms[name].cpu().flatten(0, 1)[good]
        size, total = torch.maximum(size, 0.25 * terms), torch.maximum(total, 0.25 * terms.norm())
    size, total = size.clamp_min(1e-30), max(float(total), 1e-30)
    if float(p.norm()) == 0:  # zeros are zeros
        return 0.0 if float(x.norm()) == 0 else INF
    errors = torch.linalg.vector_norm(x - p, dim=-1) / size
    return max(float((x - p).norm() / total) / fro_limit, float(errors.max()) / row_limit)


def _select(x, name: str, pairs, rows):
    """The part of a whole tensor that is compared."""
    if name in ("y", "d_sink_logits"):
        return x
    if name.startswith("d_"):
        return x.flatten(0, 1)
    return x[pairs[:, 0], pairs[:, 1]][:, rows]


def _part_of(sample: Sample, names, size: str):
    """Heads and rows to compare: "few" around the largest error, "rows" of a few heads, "many" or
    "all"."""
    case = sample.built.case
    everything = all_pairs(case)
    if case.stage == 2 or size == "all" or names[0].startswith("d_"):
        return everything, torch.arange(case.N)
    if size == "many":
        rows = torch.arange(case.N)
        if case.N > MANY_ROWS:
            spread = torch.linspace(0, case.N - 1, MANY_ROWS - 32).long()
            rows = torch.cat([spread, torch.arange(16), torch.arange(case.N - 16, case.N)]).unique()
        return everything if len(everything) <= 8 else everything[::len(everything) // 8], rows
    name = next((n for n in names if sample.wrong.get(n)), names[0])
    if name not in sample.got:
        return everything[:1], torch.arange(case.N)[:ROWS]
    error = (sample.got[name] - sample.truth(name)).abs()
    error = torch.nan_to_num(error, nan=1e30, posinf=1e30)
    error = error if error.dim() == 3 else error.amax(-1)
    worst = int(error.amax(2).argmax())
    by_row = error.flatten(0, 1)[worst]
    rows = torch.cat([by_row.topk(min(8, case.N)).indices,
                      torch.linspace(0, case.N - 1, min(ROWS, case.N)).long()]).unique()
    pairs = everything[sorted({worst, 0, len(everything) - 1})]
    return pairs, torch.arange(case.N) if size == "rows" else rows


def _alike(a: dict, b: dict) -> bool:
    for name in a.keys() & b.keys():
        x, y = a[name], b[name]
        if x.shape != y.shape or not torch.equal(torch.isfinite(x), torch.isfinite(y)):
            return False
        x, y = (torch.nan_to_num(t, 0.0, 0.0, 0.0) for t in (x, y))
        if float((x - y).abs().max()) > 1e-4 * max(float(y.abs().max()), 1e-9):
            return False
    return True


# ------------------------------------------------------------------ probe cases
def _general(case: Case) -> Case:
    """A plain case of the stage in which most mistakes differ."""
    if case.stage == 2:
        return Case(2, "probe", 333, M=70, dtype=F32, layout="guarded")
    heads = {1: (2, 2), 3: (3, 3), 4: (3, 3), 8: (4, 2), 9: (4, 2)}.get(case.stage, (6, 2))
    base = Case(case.stage, "probe", 150, D=16, B=2, HQ=heads[0], HKV=heads[1], dtype=F32,
                is_causal=case.is_causal)
    if case.stage == 1:
        return replace(base, N=300)
    if case.window is not None:
        base = replace(base, window=37)
    if case.sinks is not None:
        base = replace(base, sinks=5 if case.sinks else 0)
    if case.stage >= 8:
        base = replace(base, N=100, scale=case.scale, grads=case.grads,
                       sink_logits=case.sink_logits)
        if case.stage == 9 and case.window is not None:
            base = replace(base, window=23)
    return base


def _long(case: Case) -> Case:
    """As _general, with more tiles."""
    if case.stage == 2:
        return replace(_general(case), N=1025, M=70)
    N = 500 if case.stage == 1 else 257 if case.stage < 8 else 200
    return replace(_general(case), N=N, B=1)


def _further(case: Case) -> list[Case]:
    """Other small cases to choose from."""
    base = _general(case)
    if case.stage == 2:
        return [replace(base, N=64, M=130), replace(base, N=1025, M=5), replace(base, N=257, M=40),
                replace(base, N=140, M=20, layout="mixed"), replace(base, N=129, M=33)]
    cases = [replace(base, D=40, N=70), replace(base, N=257, B=1), replace(base, N=64, B=1),
             replace(base, N=256, B=1),
             replace(base, N=33, layout="mixed"), replace(base, N=192, B=1), replace(base, N=1),
             replace(base, N=65, family="shift-"), replace(base, N=65, family="rising"),
             replace(base, N=130, family="falling", B=1), replace(base, B=6, N=40),
             replace(base, N=65, family="shift+"), replace(base, N=128, family="shift-", B=1),
             replace(base, N=130, family="signs", B=1), replace(base, N=130, family="levels", B=1),
             replace(base, N=193, family="steep", B=1),
             replace(base, N=40, D=24), replace(base, N=129, B=1)]
    if case.stage == 1:
        cases += [replace(base, N=500, B=1), replace(base, N=256, B=1)]
        if not case.is_causal:
            cases += [replace(base, N=70, NK=257), replace(base, N=257, NK=63)]
    if case.window is not None:
        cases += [replace(base, window=w, N=n, B=1) for w, n in
                  ((1, 70), (64, 150), (150, 190), (33, 130), (100, 257), (2, 70), (63, 150))]
    if case.window is not None and case.sinks is not None:
        cases += [replace(base, window=w, sinks=s, N=n, B=1) for w, s, n in
                  ((17, 1, 150), (17, 0, 150), (9, 70, 150), (40, 33, 150), (20, 16, 150))]
    if case.stage in (8, 9):
        cases += [replace(base, HQ=6, HKV=2, N=50), replace(base, scale=0.5, N=50),
                  replace(base, N=50, dout="transposed")]
    if case.stage == 5 or case.stage > 5 and case.stage < 8:
        cases += [replace(base, HQ=6, HKV=2, N=40), replace(base, HQ=6, HKV=3, N=40),
                  replace(base, HQ=8, HKV=2, N=40)]
    return cases
