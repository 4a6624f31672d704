"""Which known mistake made this answer?  A name, or none: never a guess.

The live worker is asked a few small cases.  What it answers there is held against what every
mistake would give (whole.py).  A name is given only if one mistake gives all of it within rounding,
and neither the truth nor any other mistake comes near.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

import numpy as np
import torch

from grader.course.cases import Case
from grader.course.correctness import Answer, Verdict, answer, errors
from grader.course.inputs import Built
from grader.lights import known
from grader.words import probes, whole

MATCH = 1.5  # times the limits that a right kernel has: mistakes may round a little worse
APART = 5.0  # the truth, in one case, and every other mistake are so many times further away


@dataclass(frozen=True)
class Name:
    """A mistake that was recognised.  Distances are multiples of a right kernel's limits."""

    id: str
    words: str
    line: str
    places: tuple[str, ...]  # in the computation, as known.py names them
    distance: float
    runner_up: str
    runner_up_distance: float
    truth_distance: float


@dataclass(eq=False)
class Sample:
    """One answer of the submission: the case, float64 tensors by name, and the right answer."""

    built: Built
    got: dict[str, torch.Tensor]
    exact: Answer
    verdicts: dict[str, Verdict]

    @classmethod
    def of(cls, built: Built, got: dict[str, torch.Tensor], device: str,
           exact: Answer | None = None) -> "Sample":
        exact = exact or answer(built, device)
        return cls(built, {n: x.cpu().double() for n, x in got.items()}, exact,
                   {n: exact.judge(n, x) for n, x in got.items()})

    @property
    def wrong(self) -> dict[str, bool]:
        return {name: not verdict.accepted for name, verdict in self.verdicts.items()}

    @property
    def times(self) -> dict[str, float]:
        """Every tensor's error as a multiple of its limit."""
        return {name: verdict.times for name, verdict in self.verdicts.items()}

    def truth(self, name: str) -> torch.Tensor:
        return self.exact.truth[name].cpu()

    def distance(self, predicted: dict[str, np.ndarray], names: list[str]) -> float:
        """How far the answer is from this one, in limits; infinite where NaN is not NaN."""
        worst = 0.0
        for name in names:
            x, right = self.got[name], self.truth(name)
            p = torch.from_numpy(np.ascontiguousarray(predicted[name])) \
                if name in predicted else right
            lost = ~torch.isfinite(p)
            if not torch.equal(lost, ~torch.isfinite(x)):
                return inf
            if bool(lost.any()):
                x, p = (torch.where(lost, right, one) for one in (x, p))
            fro, row = errors(x, p, name, *(None if size is None else size.cpu() for size in (
                self.exact.scale.get(name), self.exact.terms.get(name))))
            limits = self.verdicts[name]
            worst = max(worst, fro / limits.fro_limit, row / limits.row_limit)
            if worst > MATCH * APART:
                break
        return worst


class Search:
    """Looks for the mistake behind one wrong answer.

    ask(built) -> the submission's tensors for another case, or None if it failed there.
    seconds: of this process's own work, however busy the machine is.
    """

    def __init__(self, sample: Sample, ask: Callable[[Built], dict | None], device: str,
                 seconds: float = 3.0):
        self.sample, self.ask, self.device = sample, ask, device
        self.deadline = time.thread_time() + seconds
        self.gave_up = False  # for want of time
        self.answers: dict[Case, Sample | None] = {}  # to the further cases asked
        self.part, self.names = _part_and_names(sample)

    def plain_is_right(self) -> bool:
        """Whether a plain, small case is answered rightly."""
        plain = self.answer(probes.general(self.sample.built.case))
        return plain is not None and not any(plain.wrong.values())

    def answer(self, case: Case) -> Sample | None:
        """What the submission answers to a further case; None where it fails."""
        if self.part != "backward":
            case = replace(case, grads=())
        if case not in self.answers:
            built = probes.build_probe(case, 1)
            got = self.ask(built)
            self.answers[case] = None if got is None else Sample.of(built, got, self.device)
        return self.answers[case]

    def run(self) -> Name | None:
        """The mistake, or None.  Takes at most about the seconds given."""
        case = self.sample.built.case
        samples = []
        for make in (probes.general, probes.long, probes.alike):
            sample = self.answer(make(case))
            if sample is None:  # what fails there may well be another mistake: its own case is left
                sample = self.sample
            if samples == [] and any(sample.wrong.values()):
                part, names = _part_and_names(sample)
                if part != self.part and self.part == "backward":  # what is wrong first
                    self.part, self.names = part, names
                    sample = self.answer(make(case)) or self.sample
            samples += [sample] * (sample is not None and sample not in samples)
        samples.sort(key=lambda sample: not any(map(sample.wrong.get, self.names)))
        if not any(map(samples[0].wrong.get, self.names)):
            return None
        try:
            return self._of(samples)
        except TimeoutError:
            self.gave_up = True
            return None

    def _of(self, samples: list[Sample]) -> Name | None:
        """The mistake that gives all of them; the first one is wrong."""
        far: dict[tuple, float] = {}  # the largest distance of every mistake that is left
        for sample in samples:
            here: dict[tuple, float] = {}
            with np.errstate(all="ignore"):
                for tried, make in whole.answers(sample.built, self.part):
                    if time.thread_time() > self.deadline:
                        raise TimeoutError
                    if sample is samples[0] or tried in far:
                        found = sample.distance(make(), self.names)
                        here[tried] = min(here.get(tried, inf), found)
            far = {tried: max(x, far.get(tried, 0.0)) for tried, x in here.items()
                   if x <= MATCH * APART} | {
                tried: x for tried, x in far.items()  # there it cannot be made: as good as right
                if tried not in here and not any(map(sample.wrong.get, self.names))}
        ranked = sorted(far, key=far.get)
        if not ranked or far[ranked[0]] > MATCH:
            return None
        best, (id, *more) = far[ranked[0]], ranked[0]
        others = [tried for tried in ranked if tried[0] != id]
        words, places = _said(id, *more), _places(id, *more)
        if others and far[others[0]] <= MATCH:  # two that give the same numbers are both said
            also = others[0]
            words += f"; or {_said(*also)}, which gives the same numbers"
            places += tuple(place for place in _places(*also) if place not in places)
            others = [tried for tried in others if tried[0] != also[0]]
        second = next(iter(others), None)
        runner_up = inf if second is None else far[second]
        truth = max(sample.distance({}, self.names) for sample in samples)
        if min(truth, runner_up) < APART * max(best, 0.2):
            return None
        return Name(id, words, known.of(id).rule, places, best,
                    "none within reach" if second is None else second[0], runner_up, truth)


def _said(id: str, *more) -> str:
    """What is wrong, and in which kernel of the backward where the words do not say it."""
    kernel = id.partition("-")[0] if id not in known.known() else ""
    return known.said(id, *more) + whole.KERNELS.get(kernel, ("",))[0]


def _places(id: str, *more) -> tuple[str, ...]:
    """Where it may stand: a mask's own place, in a kernel of the backward."""
    places = known.of(id).places
    kernels = {"dq": ("dq ",), "dkdv": ("dkdv ",), "backward": ("dq ", "dkdv ")}
    if id not in known.known():
        return tuple(kernel + place for kernel in kernels[id.partition("-")[0]]
                     for place in places)
    if more and len(places) > 1:  # of both kernels' the one that it was found in
        only = {", in dq": "dkdv", ", in dk": "dq ", ", in dk and dv": "dq "}.get(more[0])
        places = [place for place in places if only is None or not place.startswith(only)]
    return tuple(places)


def _part_and_names(sample: Sample) -> tuple[str, list[str]]:
    """-> which part of an answer is looked at, and its tensors: what is wrong first."""
    forward = [n for n in sample.got if not n.startswith("d_") and n != "lse"]
    if any(sample.wrong[n] for n in forward):
        return "forward", forward
    if sample.wrong.get("lse"):
        return "lse", ["lse"]
    return "backward", [n for n in sample.got if n.startswith("d_")]
