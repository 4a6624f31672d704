"""Which mistake of the table made this answer?  A name, or none: never a guess.

The wrong answer is held against what every mistake would have given on the same case.  Those that
match go on to further small cases, asked of the same live worker and chosen so that the mistakes
still in question come out differently.  A name is given only if one mistake matches everything
within rounding, and neither the truth nor any other mistake comes near.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch

from grader import probes
from grader.candidates import NOTHING, Candidate, double, single
from grader.cases import Built, Case
from grader.distance import NEAR, Sample, alike
from grader.walks import INF, NotHere

MATCH = 1.5  # times the limits that a right kernel has: mistakes may round a little worse
APART = 5.0  # the truth and the runner-up are so many times further away
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
        fits = []
        for BM, BN in sizes:
            try:
                score, found = part.from_mistake(candidate, BM, BN)
            except NotHere:  # with these tiles it cannot be told from a right answer
                score, found = self.score(None, sample, size), {}
            if score <= NEAR:
                fits.append((BM, BN))
            if score < best:
                best, self.found[candidate] = score, found
            if best <= MATCH / 2 and size == "many":
                break
        if size != "many":
            self.fits[fit] = fits
        return best

    def judge(self, sample: Sample, pool: list[Candidate]) -> list[Candidate]:
        """Those of pool that stay in question after this sample; notes every score."""
        near = []
        for candidate in pool:
            if self.score(candidate, sample, "few") > NEAR:
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
        built = probes.build_probe(case, self.asked)
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
            found = self._run(single(self.stage, self.part))
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
                further = probes.general(case)
            else:
                overflow = any(c.mistake.symptom in ("overflow", "nan") for c in matching)
                long = probes.long(case)
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
            left = self.probe(replace(probes.long(case), D=case.D, dtype=dtype, layout=case.layout),
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
        for case in probes.further(self.sample.built.case):
            if case in asked:
                continue
            part = Sample(probes.build_probe(case, self.asked + 1), {}, None).part(
                self.names, "all")
            right = part.answers(part.changed(NOTHING, 64, 64))
            groups = [right]
            for candidate in few:
                fitting = [size for (c, _), sizes in self.fits.items() if c is candidate
                           for size in sizes]
                for BM, BN in fitting[-1:] or candidate.sizes(case)[:1]:
                    try:
                        found = part.answers(part.changed(candidate, BM, BN))
                    except NotHere:
                        found = right
                    if not any(alike(found, other) for other in groups):
                        groups.append(found)
            if len(groups) > most:
                best, most = case, len(groups)
            if most == len(few) + 1:
                break
        return best

    # ------------------------------------------------------------------- pairs
    def _run_pairs(self) -> Name | None:
        """Two mistakes at once: of two kinds in the forward, or in two gradients."""
        if self.part == "backward":
            return self._each_gradient()
        if self.part != "forward" or self.stage == 2:
            return None
        return self._run(double(self.stage))

    def _each_gradient(self) -> Name | None:
        """A mistake for every gradient that is wrong."""
        wrong = [n for n in self.names if self.sample.wrong[n]]
        if len(wrong) < 2:
            return None
        names, everything = {}, self.names
        for name in wrong:
            self.names = [name]
            found = self._run(single(self.stage, self.part))
            if found is None:
                return None
            names.setdefault(found.id, found)
        self.names = everything
        first, *rest = names.values()
        return replace(first, also=rest[0]) if len(rest) == 1 else None
