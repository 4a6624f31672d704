"""Which mistake of the table made this answer?  A name, or none: never a guess.

The live worker is asked a plain, small case first.  What it answers, and the wrong answer, are
held against what every mistake (candidates.py) would have given there (distance.py).  Those that
match go on to further small cases (probes.py), chosen so that the mistakes in question come out
differently.  A name is given only if one mistake matches everything within rounding, and neither
the truth nor any other mistake comes near; two that come to the same numbers are named together.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from grader.cases import Case
from grader.inputs import Built
from grader.naming import probes
from grader.naming.candidates import NOTHING, Candidate, double, single
from grader.naming.distance import NEAR, Sample, alike
from grader.naming.walks import INF, NotHere

MATCH = 1.5  # times the limits that a right kernel has: mistakes may round a little worse
APART = 5.0  # the truth and the runner-up are so many times further away
PARTS = ("forward", "lse", "backward")
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
    also: "Name | None" = None  # a second mistake
    either: "Name | None" = None  # another that gives the same numbers with these tiles


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
        self.part, self.names = _part_and_names(sample)
        self.samples: list[Sample] = []
        self.scores: dict[Candidate, list[float]] = {}
        self.truth_scores: list[float] = []
        self.least_truth = INF
        self.matched, self.harder = False, None
        self.fits: dict[tuple, dict] = {}  # (candidate, id(sample)) -> tile sizes that fit
        self.found: dict[Candidate, list[dict]] = {}  # one a sample where the answer is wrong
        self._answers: dict[Case, Sample | None] = {}

    def tile(self) -> int:
        """The key tile that fitted last, for a picture; 64 where none did."""
        for sizes in reversed(list(self.fits.values())):
            if len(sizes) == 1:
                return next(iter(sizes))[1]
        return 64

    # ------------------------------------------------------------------ search
    def run(self) -> Name | None:
        """The mistake, or None.  Takes at most about the seconds given."""
        try:
            plain = self._answer(probes.general(self.sample.built.case))
            if plain is None:  # what fails there may well be the same mistake
                return None
            if any(plain.wrong.values()):
                part, names = _part_and_names(plain)
                if PARTS.index(part) < PARTS.index(self.part):  # what is wrong first says more
                    self.part, self.names = part, names
            found = self._run(single(self.stage, self.part), plain)
            if found is None and self.matched and self.harder is not None:
                self.matched = False  # two mistakes may show there
            return found if found or self.matched else self._two(plain)
        except TimeoutError:
            return None

    def _run(self, pool: list[Candidate], plain: Sample) -> Name | None:
        """The one of pool that explains everything; plain: the answer to a plain, small case."""
        self.scores, self.found, self.samples, self.truth_scores = {}, {}, [], []
        self.least_truth = INF
        positive = self._wrong(plain)
        case, first = self.sample.built.case, [self.sample]
        first += [plain] if positive else []
        if self.harder is not None:
            first = [self.harder] + [s for s in first if s is not self.harder]
        elif positive and (case.N > plain.built.case.N
                           or self.score(None, self.sample, "many") < 10 * NEAR):
            first.reverse()  # all are tried on the smaller one, or where most of them are far off
        for sample in first:
            pool = self._take(sample, pool)
            if not self._matching(pool):
                self.matched = len(self.samples) > 1
                self.harder = sample if self.matched and self._wrong(sample) else None
                return None
        self.matched = True
        if not positive:
            pool = self._twin(pool)
            matching = self._matching(pool)
            if not matching:
                return None
            pool = self._take(plain, pool)
            if not self._matching(pool):
                return self._only_here(matching)
        asked = {probes.general(case)}
        for _ in range(6):
            matching = self._matching(pool)
            further = probes.long(case)  # many tiles: what differs from tile to tile shows
            if further in asked:
                if len({c.id for c in matching}) == 1 and positive and (
                        len(asked) > 3 or not any(c.mistake.symptom in ("overflow", "nan")
                                                  for c in matching)):
                    break
                further = self._telling_apart(matching, asked)
            if further is None:
                break
            asked.add(further)
            sample = self._answer(further)
            if sample is None or sample in self.samples:
                continue
            rest = self._take(sample, pool)
            if not self._matching(rest):
                if self._wrong(sample) or positive:  # no mistake of the table explains all of it
                    self.harder = sample if self._wrong(sample) else None
                    return None
                return self._only_here(matching)
            pool, positive = rest, positive or self._wrong(sample)
        return self._decide(pool) if positive else self._only_here(pool, keep=True)

    def _twin(self, pool: list[Candidate]) -> list[Candidate]:
        """The wrong case once more with other numbers: in float32, or where it is right then, in
        the dtype that it shows in.  -> who is left."""
        case = self.sample.built.case
        own = replace(case, group="probe", repeats=1, refill=False, growth=False)
        twin = self._answer(replace(own, dtype=F32))
        if twin is not None and case.dtype != F32 and not self._wrong(twin):
            twin = self._answer(own)
        return pool if twin is None else self._take(twin, pool)

    def _only_here(self, pool: list[Candidate], keep: bool = False) -> Name | None:
        """The submission is right on plain cases: does the mistake show wherever dtype, window and
        head dimension are those of the wrong case?  keep: in what was asked it need not show."""
        case = self.sample.built.case
        if not keep:
            own = sum(1 for s in self.samples if s.built.case.D == case.D and self._wrong(s))
            self._forget(len(self.samples) - own)
        matching = self._matching(pool)
        if keep and all(c.rounds for c in matching):
            return self._decide(pool, only=case.label)
        if case.family not in ("randn", "real", "hot", "needles"):
            special = all(c.mistake.symptom == "overflow" for c in matching)
            return self._decide(pool, only=case.label) if special else None
        dtype = [s for s in self.samples if self._wrong(s)][-1].built.case.dtype
        sample = self._answer(replace(probes.long(case), D=case.D, dtype=dtype, layout=case.layout,
                                      window=case.window, sinks=case.sinks))
        if sample is None or not self._wrong(sample):
            return None
        return self._decide(self._take(sample, pool), only=case.label)

    def _answer(self, case: Case) -> Sample | None:
        """What the submission answers to a further case; None where it fails."""
        if self.part != "backward":
            case = replace(case, grads=())
        if case not in self._answers:
            built = probes.build_probe(case, 1)
            got = self.ask(built)
            self._answers[case] = None if got is None else Sample.of(built, got, self.device)
        return self._answers[case]

    def _take(self, sample: Sample, pool: list[Candidate]) -> list[Candidate]:
        """Judge a further sample.  -> who stays in question."""
        self.samples.append(sample)
        self.truth_scores.append(self.score(None, sample, "many"))
        return self.judge(sample, pool)

    def _forget(self, count: int) -> None:
        """Take back the last samples."""
        if not count:
            return
        del self.samples[-count:], self.truth_scores[-count:]
        for scores in self.scores.values():
            del scores[len(self.samples):]

    def _wrong(self, sample: Sample) -> bool:
        return any(sample.wrong.get(name) for name in self.names)

    # ----------------------------------------------------------------- scores
    def score(self, candidate: Candidate | None, sample: Sample, size: str) -> float:
        """How far the answer is from this mistake's, in limits; candidate None: from the truth.

        With the tile sizes that fit best, which are noted in self.fits.
        """
        if candidate is None:
            return sample.part(self.names, size).from_truth()
        best, fit = INF, (candidate, id(sample))
        if self.part == "backward":
            if any(sample.wrong[n] for n in self.names if n in sample.got
                   and n not in candidate.affects()):
                return INF
        part = sample.part(self.names, candidate.whole or size)
        sizes = candidate.sizes(sample.built.case)
        if size == "many" and fit in self.fits:
            sizes = self.fits[fit]
        if time.thread_time() > self.deadline:
            raise TimeoutError
        fits, best_found = {}, {}
        for BM, BN in sizes:
            try:
                score, found = part.from_mistake(candidate, BM, BN)
            except NotHere:  # with these tiles it cannot be told from a right answer
                score, found = self.score(None, sample, size), {}
            if candidate.mistake.fitted:  # by a number so small that nothing shows
                score = min(score, self.score(None, sample, size))
            if score <= NEAR:
                fits[BM, BN] = score
            if score < best:
                best, best_found = score, found
            if best <= MATCH / 2 and size == "many":
                break
        if size == "many" and best_found and self._wrong(sample):
            self.found.setdefault(candidate, []).append(best_found)
        if size != "many":  # the best one first
            self.fits[fit] = {s: sizes[s] for s in sorted(fits, key=fits.get)}
        return best

    def judge(self, sample: Sample, pool: list[Candidate]) -> list[Candidate]:
        """Those of pool that stay in question after this sample; notes every score.

        Where a wrong answer is near the truth, so is every mistake that does not show here.  Those
        are left out: they are as far away as the truth, which must be far enough for a name.
        """
        near, truth = [], self.score(None, sample, "few")
        hidden = self._wrong(sample) and MATCH < truth <= NEAR
        for candidate in pool:
            score = self.score(candidate, sample, "few")
            if score > NEAR:
                continue
            if hidden and abs(score - truth) < 1e-3 * truth:
                self.least_truth = min(self.least_truth, truth)
                continue
            if score <= 2 * MATCH:  # else it is a runner-up at most
                score = self.score(candidate, sample, "many")
            if score <= NEAR:
                self.scores.setdefault(candidate, []).append(score)
                near.append(candidate)
        return near

    def _matching(self, pool) -> list[Candidate]:
        """Those that match every sample; with a fitted number, or with other tile sizes from case
        to case, only where nothing else does."""
        full = len(self.samples)
        all_of = [c for c in pool if len(self.scores[c]) == full and max(self.scores[c]) <= MATCH]
        all_of = [c for c in all_of if not c.mistake.fitted] or all_of
        return [c for c in all_of if self._same_tiles(c)] or all_of

    def _same_tiles(self, candidate: Candidate) -> bool:
        """Whether it fits with the same tile sizes wherever head dimension, dtype and group are
        the same."""
        common: dict[tuple, set] = {}
        for sample in self.samples:
            case, fits = sample.built.case, self.fits.get((candidate, id(sample)))
            if fits is not None:
                sizes = {size for covered in fits.values() for size in covered}
                key = case.D, case.dtype, case.HQ // case.HKV
                common[key] = common.get(key, sizes) & sizes
        return all(common.values())

    def _decide(self, pool, only: str = "") -> Name | None:
        """The one name that fits everything, or None."""
        matching = self._matching(pool)
        if not matching:
            return None
        full, total = len(self.samples), {}
        for candidate in pool:
            if len(self.scores[candidate]) == full and (candidate in matching or not (
                    candidate.mistake.fitted or not self._same_tiles(candidate))):
                score = max(self.scores[candidate])
                if score < total.get(candidate.id, (INF,))[0]:
                    total[candidate.id] = score, candidate
        ranked = sorted(total.values(), key=lambda item: item[0])
        best, winner = ranked[0]
        if not self._one_number(winner):
            return None
        truth, floor = min(max(self.truth_scores), self.least_truth), max(best, 0.2)
        either = None
        if len(ranked) > 1 and self._same_numbers(winner, ranked[1][1]):
            either = ranked.pop(1)[1]
        second = ranked[1] if len(ranked) > 1 else (NEAR, None)
        if truth < APART * floor or second[0] < APART * floor:
            return None
        if not any(self._tells(sample) for sample in self.samples):
            return None
        runner_up = second[1].id if second[1] else "none within reach"
        name = self._name(winner, best, runner_up, second[0], truth, only)
        if either is None:
            return name
        return replace(name, either=self._name(either, best, runner_up, second[0], truth, only))

    def _one_number(self, candidate: Candidate) -> bool:
        """Whether a factor that was fitted is the same in every case."""
        factors = [f["factor"] for f in self.found.get(candidate, ()) if "factor" in f]
        return not factors or max(factors) - min(factors) <= 0.03 * max(map(abs, factors))

    def _same_numbers(self, one: Candidate, other: Candidate) -> bool:
        """Whether two mistakes come to the same in every case asked, not only nearly."""
        if (one.second or other.second or one.mistake.fitted or other.mistake.fitted
                or max(self.scores[other]) > MATCH):
            return False
        for sample in self.samples:
            part = sample.part(self.names, one.whole or other.whole or "many")
            fits = [self.fits.get((c, id(sample))) for c in (one, other)]
            if not all(fits):
                return False
            sizes = [next(iter(f)) for f in fits]
            common = set.intersection(*({s for covered in f.values() for s in covered}
                                        for f in fits))
            if common:
                sizes = [max(common)] * 2
            try:
                a, b = (part.answers(part.changed(c, *size))
                        for c, size in zip((one, other), sizes, strict=True))
            except NotHere:
                return False
            if not alike(a, b):
                return False
        return True

    def _name(self, winner, best, runner_up, second, truth, only) -> Name:
        m, also = winner.mistake, None
        found = self.found.get(winner, [{}])[0]
        if winner.second is not None:
            other = winner.second.mistake
            also = Name(winner.second.id, winner.second.words(found), other.line, other.symptom,
                        best, runner_up, second, truth)
        return Name(winner.id.split(" + ")[0], winner.words(found), m.line, m.symptom, best,
                    runner_up, second, truth, only, also)

    def _tells(self, sample: Sample) -> bool:
        """Whether a match here says something: all NaN says little, unless some cases are right."""
        if any(sample.wrong.get(name) and bool(torch.isfinite(sample.got[name]).any())
               for name in self.names):
            return True
        wrong = sum(self._wrong(s) for s in self.samples)
        return wrong >= 3 and len(self.samples) - wrong >= 2

    def _telling_apart(self, pool: list[Candidate], asked: set[Case]) -> Case | None:
        """The small case on which most of the mistakes still in question differ, from each other
        and from the truth."""
        best, most = None, 1
        few = list({c.id: c for c in reversed(pool)}.values())[:8]
        longest = max(self.samples, key=lambda s: s.built.case.N)
        for case in probes.further(self.sample.built.case):
            if case in asked:
                continue
            part = Sample(probes.build_probe(case, 1), {}, None).part(self.names, "all")
            right = part.answers(part.changed(NOTHING, 64, 64))
            groups = [right]
            for candidate in few:
                sizes = self.fits.get((candidate, id(longest))) or candidate.sizes(case)
                try:
                    found = part.answers(part.changed(candidate, *next(iter(sizes))))
                except NotHere:
                    found = right
                if not any(alike(found, other) for other in groups):
                    groups.append(found)
            if len(groups) > most:
                best, most = case, len(groups)
            if most == len(few) + 1:
                break
        return best

    # ------------------------------------------------------------- two mistakes
    def _two(self, plain: Sample) -> Name | None:
        """Two mistakes at once: of two kinds in the forward, or in two gradients."""
        if self.part == "backward":
            return self._each_gradient(plain)
        if self.part != "forward" or self.stage == 2:
            return None
        return self._run(double(self.stage), plain)

    def _each_gradient(self, plain: Sample) -> Name | None:
        """A mistake for every gradient that is wrong."""
        wrong = [n for n in self.names if self.sample.wrong[n]]
        if len(wrong) < 2:
            return None
        names, everything = {}, self.names
        for name in wrong:
            self.names = [name]
            found = self._run(single(self.stage, self.part), plain)
            if found is None:
                return None
            names.setdefault(found.id, found)
        self.names = everything
        first, *rest = names.values()
        return replace(first, also=rest[0]) if len(rest) == 1 else None


def _part_and_names(sample: Sample) -> tuple[str, list[str]]:
    """-> which part of an answer is looked at, and its tensors: what is wrong first."""
    forward = [n for n in sample.got if not n.startswith("d_") and n != "lse"]
    if any(sample.wrong[n] for n in forward):
        return "forward", forward
    if sample.wrong.get("lse"):
        return "lse", ["lse"]
    return "backward", [n for n in sample.got if n.startswith("d_")]
