"""How far is every mistake from all answers so far?  With which tile sizes?"""

import time
from math import inf

import torch

from grader.naming.candidates import NOTHING, Candidate
from grader.naming.distance import NEAR, Sample, alike
from grader.naming.table import NotHere

MATCH = 1.5  # times the limits that a right kernel has: mistakes may round a little worse


class Evidence:
    """The distances of candidates from the samples judged so far, in limits.

    part: "forward", "lse" or "backward"; names: its tensors.  deadline: of this thread's own time.
    """

    def __init__(self, part: str, names: list[str], deadline: float):
        self.part, self.names, self.deadline = part, names, deadline
        self.fits: dict[tuple, dict] = {}  # (candidate, id(sample)) -> tile sizes that fit
        self.samples: list[Sample] = []
        self.of: dict[Candidate, list[float]] = {}  # one a sample that it is near
        self.of_truth: list[float] = []
        self.least_truth = inf
        self.found: dict[Candidate, list[dict]] = {}  # one a sample where the answer is wrong

    def tile(self) -> int:
        """The key tile that fitted last, for a picture; 64 where none did."""
        for sizes in reversed(list(self.fits.values())):
            if len(sizes) == 1:
                return next(iter(sizes))[1]
        return 64

    def take(self, sample: Sample, pool: list[Candidate]) -> list[Candidate]:
        """Judge a further sample.  -> who stays in question."""
        self.samples.append(sample)
        self.of_truth.append(self.score(None, sample, "many"))
        return self.judge(sample, pool)

    def forget(self, count: int) -> None:
        """Take back the last samples."""
        if not count:
            return
        del self.samples[-count:], self.of_truth[-count:]
        for scores in self.of.values():
            del scores[len(self.samples):]

    def wrong(self, sample: Sample) -> bool:
        return any(sample.wrong.get(name) for name in self.names)

    def score(self, candidate: Candidate | None, sample: Sample, size: str) -> float:
        """How far the answer is from this mistake's, in limits; candidate None: from the truth.

        With the tile sizes that fit best, which are noted in self.fits.
        """
        if candidate is None:
            return sample.part(self.names, size).from_truth()
        best, fit = inf, (candidate, id(sample))
        if self.part == "backward":
            if any(sample.wrong[n] for n in self.names if n in sample.got
                   and n not in candidate.affects()):
                return inf
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
        if size == "many" and best_found and self.wrong(sample):
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
        hidden = self.wrong(sample) and MATCH < truth <= NEAR
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
                self.of.setdefault(candidate, []).append(score)
                near.append(candidate)
        return near

    def matching(self, pool) -> list[Candidate]:
        """Those that match every sample; with a fitted number, or with other tile sizes from case
        to case, only where nothing else does."""
        full = len(self.samples)
        all_of = [c for c in pool if len(self.of[c]) == full and max(self.of[c]) <= MATCH]
        all_of = [c for c in all_of if not c.mistake.fitted] or all_of
        return [c for c in all_of if self.same_tiles(c)] or all_of

    def same_tiles(self, candidate: Candidate) -> bool:
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

    def one_number(self, candidate: Candidate) -> bool:
        """Whether a factor that was fitted is the same in every case."""
        factors = [f["factor"] for f in self.found.get(candidate, ()) if "factor" in f]
        return not factors or max(factors) - min(factors) <= 0.03 * max(map(abs, factors))

    def same_numbers(self, one: Candidate, other: Candidate) -> bool:
        """Whether two mistakes come to the same in every case asked, not only nearly."""
        if one.mistake.fitted or other.mistake.fitted or max(self.of[other]) > MATCH:
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
            a, b = (self._given(part, c, size)
                    for c, size in zip((one, other), sizes, strict=True))
            if not alike(a, b):
                return False
        return True

    def _given(self, part, candidate: Candidate, size: tuple[int, int]) -> dict:
        """What a mistake gives of what is looked at; where it cannot be made, what is right."""
        try:
            found = part.answers(part.changed(candidate, *size))
        except NotHere:
            found = part.answers(part.changed(NOTHING, *size))
        return {name: x for name, x in found.items() if name in self.names}

    def tells(self, sample: Sample) -> bool:
        """Whether a match here says something: all NaN says little, unless some cases are right."""
        if any(sample.wrong.get(name) and bool(torch.isfinite(sample.got[name]).any())
               for name in self.names):
            return True
        wrong = sum(self.wrong(s) for s in self.samples)
        return wrong >= 3 and len(self.samples) - wrong >= 2
