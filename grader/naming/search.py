"""Which mistake of the table made this answer?  A name, or none: never a guess.

The live worker is asked a plain, small case first.  What it answers, and the wrong answer, are
held against what every mistake (candidates.py) would have given there (evidence.py).  Those that
match go on to further small cases (probes.py), chosen so that the mistakes in question come out
differently.  A name is given only if one mistake matches everything within rounding, and neither
the truth nor any other mistake comes near; two that come to the same numbers are named together.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from math import inf

import torch

from grader.cases import Case
from grader.inputs import Built
from grader.naming import probes
from grader.naming.candidates import NOTHING, Candidate, single
from grader.naming.distance import NEAR, Sample, alike
from grader.naming.evidence import Evidence
from grader.naming.table import NotHere

LARGE = 3e7  # pairs of query and key: a case with more takes long, and small ones tell as much
APART = 5.0  # the truth, in one case, and the runner-up are so many times further away
LEAST = 2.0  # limits: nearer, the truth itself would do
PARTS = ("forward", "lse", "backward")
F32 = torch.float32


@dataclass(frozen=True)
class Name:
    """A mistake that was recognised.  Distances are multiples of a right kernel's limits."""

    id: str
    words: str
    line: str
    places: tuple[str, ...]  # in the computation, as table.py names them
    distance: float
    runner_up: str
    runner_up_distance: float
    truth_distance: float
    only: str = ""  # where it shows, if not everywhere
    either: "Name | None" = None  # another that gives the same numbers with these tiles


class Search:
    """Looks for the mistake behind one wrong answer.

    ask(built) -> the submission's tensors for another case, or None if it failed there.
    seconds: of this process's own work, however busy the machine is.
    """

    def __init__(self, sample: Sample, ask: Callable[[Built], dict | None], device: str,
                 seconds: float = 3.0):
        self.sample, self.ask, self.device = sample, ask, device
        self.stage = sample.built.case.stage
        self.evidence = Evidence(*_part_and_names(sample), time.thread_time() + seconds)
        self.gave_up = False  # for want of time
        self.answers: dict[Case, Sample | None] = {}  # to the further cases asked

    def tile(self) -> int:
        """The key tile that fitted last, for a picture."""
        return self.evidence.tile()

    def plain_is_right(self) -> bool:
        """Whether a plain, small case is answered rightly."""
        plain = self.answers.get(probes.general(self.sample.built.case))
        return plain is not None and not any(plain.wrong.values())

    # ------------------------------------------------------------------ search
    def run(self) -> Name | None:
        """The mistake, or None.  Takes at most about the seconds given."""
        try:
            plain = self.answer(probes.general(self.sample.built.case))
            if plain is None:  # what fails there may well be the same mistake
                return None
            if any(plain.wrong.values()):
                part, names = _part_and_names(plain)
                if PARTS.index(part) < PARTS.index(self.evidence.part):
                    self.evidence.part, self.evidence.names = part, names  # what is wrong first
            return self._run(single(self.stage, self.evidence.part), plain)
        except TimeoutError:
            self.gave_up = True
            return None

    def _run(self, pool: list[Candidate], plain: Sample) -> Name | None:
        """The one of pool that explains everything; plain: the answer to a plain, small case."""
        positive = self.evidence.wrong(plain)
        case, first = self.sample.built.case, [self.sample]
        first += [plain] if positive else []
        if positive and self._is_large():
            first = [plain]
        elif positive and (case.N > plain.built.case.N
                           or self.evidence.score(None, self.sample, "many") < 10 * NEAR):
            first.reverse()  # all are tried on the smaller one, or where most of them are far off
        for sample in first:
            pool = self.evidence.take(sample, pool)
            if not self.evidence.matching(pool):
                return None
        if not positive:
            pool = self._twin(pool)
            matching = self.evidence.matching(pool)
            if not matching:
                return None
            pool = self.evidence.take(plain, pool)
            if not self.evidence.matching(pool):
                return self._only_here(matching)
        asked = {probes.general(case)}
        for _ in range(6):
            matching = self.evidence.matching(pool)
            further = probes.long(case)  # many tiles: what differs from tile to tile shows
            if further in asked:
                if len({c.id for c in matching}) == 1 and positive and (
                        len(asked) > 3 or not any(c.mistake.shows for c in matching)):
                    break
                further = self._telling_apart(matching, asked)
            if further is None:
                break
            asked.add(further)
            sample = self.answer(further)
            if sample is None or sample in self.evidence.samples:
                continue
            rest = self.evidence.take(sample, pool)
            if not self.evidence.matching(rest):
                if self.evidence.wrong(sample) or positive:  # no mistake explains all of it
                    return None
                return self._only_here(matching)
            pool, positive = rest, positive or self.evidence.wrong(sample)
        return self._decide(pool) if positive else self._only_here(pool, keep=True)

    def _is_large(self) -> bool:
        case = self.sample.built.case
        return self.stage != 2 and case.B * case.HQ * case.N * case.n_keys > LARGE

    def _twin(self, pool: list[Candidate]) -> list[Candidate]:
        """The wrong case once more with other numbers: in float32, or where it is right then, in
        the dtype that it shows in.  -> who is left."""
        case = self.sample.built.case
        own = replace(case, group="probe", repeats=1, refill=False, growth=False)
        twin = self.answer(replace(own, dtype=F32))
        if twin is not None and case.dtype != F32 and not self.evidence.wrong(twin):
            twin = self.answer(own)
        return pool if twin is None else self.evidence.take(twin, pool)

    def _only_here(self, pool: list[Candidate], keep: bool = False) -> Name | None:
        """The submission is right on plain cases: does the mistake show wherever dtype, window and
        head dimension are those of the wrong case?  keep: in what was asked it need not show."""
        case, evidence = self.sample.built.case, self.evidence
        if not keep:
            own = sum(s.built.case.D == case.D and evidence.wrong(s) for s in evidence.samples)
            evidence.forget(len(evidence.samples) - own)
        matching = evidence.matching(pool)
        if keep and all(c.rounds for c in matching):
            return self._decide(pool, only=case.label)
        if case.family not in ("randn", "real", "hot", "needles", "alike", "faint"):
            special = all(c.mistake.shows == "overflow" for c in matching)
            return self._decide(pool, only=case.label) if special else None
        dtype = [s for s in evidence.samples if evidence.wrong(s)][-1].built.case.dtype
        sample = self.answer(replace(probes.long(case), D=case.D, dtype=dtype, layout=case.layout,
                                     dout=case.dout, window=case.window, sinks=case.sinks))
        if sample is None or not evidence.wrong(sample):
            return None
        return self._decide(evidence.take(sample, pool), only=case.label)

    def answer(self, case: Case) -> Sample | None:
        """What the submission answers to a further case; None where it fails."""
        if self.evidence.part != "backward":
            case = replace(case, grads=())
        if case not in self.answers:
            built = probes.build_probe(case, 1)
            got = self.ask(built)
            self.answers[case] = None if got is None else Sample.of(built, got, self.device)
        return self.answers[case]

    def _decide(self, pool, only: str = "") -> Name | None:
        """The one name that fits everything, or None."""
        evidence = self.evidence
        matching = evidence.matching(pool)
        if not matching:
            return None
        total = {}
        for c in pool:
            if len(evidence.of[c]) == len(evidence.samples) and (c in matching or (
                    not c.mistake.fitted and evidence.same_tiles(c))):
                score = max(evidence.of[c])
                if score < total.get(c.id, (inf,))[0]:
                    total[c.id] = score, c
        ranked = sorted(total.values(), key=lambda item: round(item[0], 3))
        best, winner = ranked[0]
        if not evidence.one_number(winner):
            return None
        truth, floor = min(max(evidence.of_truth), evidence.least_truth), max(best, 0.2)
        same = [item for item in ranked[1:7] if evidence.same_numbers(winner, item[1])]
        ranked = [item for item in ranked if item not in same]
        either = min((c for _, c in same), key=lambda c: c.id == winner.id, default=None)
        second = ranked[1] if len(ranked) > 1 else (NEAR, None)
        far = any(right >= APART * max(own, 0.2)
                  for right, own in zip(evidence.of_truth, evidence.of[winner], strict=True))
        if not far or truth < LEAST or second[0] < APART * floor:
            return None
        if not any(evidence.tells(sample) for sample in evidence.samples):
            return None
        runner_up = second[1].id if second[1] else "none within reach"
        name = self._name(winner, best, runner_up, second[0], truth, only)
        if either is None:
            return name
        return replace(name, either=self._name(either, best, runner_up, second[0], truth, only))

    def _name(self, winner, best, runner_up, second, truth, only) -> Name:
        found = self.evidence.found.get(winner, [{}])[0]
        return Name(winner.id, winner.words(found), winner.line, winner.places, best, runner_up,
                    second, truth, only)

    def _telling_apart(self, pool: list[Candidate], asked: set[Case]) -> Case | None:
        """The small case on which most of the mistakes still in question differ, from each other
        and from the truth."""
        best, most = None, 1
        few = list({c.id: c for c in reversed(pool)}.values())[-8:]
        longest = max(self.evidence.samples, key=lambda s: s.built.case.N)
        for case in probes.further(self.sample.built.case):
            if case in asked or case.dtype != F32 and not any(c.rounds for c in few):
                continue
            if self.evidence.part == "backward" and not case.grads:
                continue
            part = Sample(probes.build_probe(case, 1), {}, None).part(self.evidence.names, "all")
            right = part.answers(part.changed(NOTHING, 64, 64))
            groups = [right]
            for candidate in few:
                sizes = self.evidence.fits.get((candidate, id(longest))) or candidate.sizes(case)
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


def _part_and_names(sample: Sample) -> tuple[str, list[str]]:
    """-> which part of an answer is looked at, and its tensors: what is wrong first."""
    forward = [n for n in sample.got if not n.startswith("d_") and n != "lse"]
    if any(sample.wrong[n] for n in forward):
        return "forward", forward
    if sample.wrong.get("lse"):
        return "lse", ["lse"]
    return "backward", [n for n in sample.got if n.startswith("d_")]
