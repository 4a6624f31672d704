"""How far is an answer from what a mistake would give?  In limits that a right kernel has."""

import copy
from dataclasses import dataclass, field
from math import inf, isfinite, sqrt

import torch

from grader.correctness import Answer, answer, relative, row_sizes, whole_size
from grader.inputs import Built
from grader.naming.backward import Backward
from grader.naming.candidates import Candidate
from grader.naming.model import Model
from grader.naming.reading import all_pairs
from grader.naming.row_sum import RowSum
from grader.naming.table import NotHere

NEAR = 20.0  # what is further away than so many limits is not measured exactly
ROWS, MANY_ROWS = 24, 160  # of a head: for a first look, and to be sure
UNSURE = 0.25  # of the rows, at most: on the edge of what float32 can hold
SCALED = ("y", "d_w", "d_sink_logits")  # and a scale for each
ONE_A_ROW = ("lse", *SCALED)  # these have one number a row
FLIPPED = 0.2  # of the rows, at most: their numbers lay on a border when they were rounded


@dataclass(eq=False)
class Sample:
    """One answer of the submission: the case, float64 tensors by name, and the right answer."""

    built: Built
    got: dict[str, torch.Tensor]
    exact: Answer | None
    limits: dict[str, tuple[float, float]] = field(default_factory=dict)
    wrong: dict[str, bool] = field(default_factory=dict)
    parts: dict[tuple, "Part"] = field(default_factory=dict)

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

    def part(self, names, size: str) -> "Part":
        """What is compared of these tensors.  size: "few" rows around the largest error, "rows" of
        a few heads, "many", or "all"."""
        case = self.built.case
        if case.stage == 2 or names[0].startswith("d_"):  # a row of keys needs all queries
            size = "all"
        key = tuple(names), size
        if key not in self.parts:
            self.parts[key] = Part(self, key[0], *_chosen(self, names, size))
        return self.parts[key]


class Part:
    """Some heads and rows of one answer, and the right models of them."""

    def __init__(self, sample: Sample, names: tuple[str, ...], pairs, rows):
        self.sample, self.names, self.pairs, self.rows = sample, names, pairs, rows
        self.backward = names[0].startswith("d_")
        self.got = {n: self.select(sample.got[n], n) for n in names if n in sample.got}
        self.bad = {n: ~torch.isfinite(x) for n, x in self.got.items()}
        self._models: dict[tuple, Model | RowSum] = {}
        self._known: dict = {}
        self._masks: dict[tuple, tuple | None] = {}
        self._distances: dict[tuple, float] = {}
        self._truth: float | None = None

    def select(self, x: torch.Tensor, name: str) -> torch.Tensor:
        """This part of a whole tensor, heads side by side."""
        if name in SCALED or name == "d_x":
            return x
        if name.startswith("d_"):
            return x.flatten(0, 1)
        return x[self.pairs[:, 0], self.pairs[:, 1]][:, self.rows]

    # ------------------------------------------------------------------ models
    def right(self, BM: int = 64, BN: int = 64, padded: bool = False) -> Model | RowSum:
        """The right computation with these tile sizes, to be changed."""
        sample, key = self.sample, (BM, BN, padded)
        if sample.built.case.stage == 2:
            return RowSum(sample.built, BM, BN, sample.got)
        if key not in self._models:
            kind, got = (Backward, sample.got) if self.backward else (Model, self.got)
            self._models[key] = kind(sample.built, self.pairs, self.rows, *key, self._known,
                                     got=got)
        return self._models[key].again()

    def changed(self, candidate: Candidate, BM: int, BN: int) -> Model | RowSum:
        """The right computation with a mistake in it."""
        model = self.right(BM, BN, candidate.padded)
        if self.backward:
            model.needed &= {n[2:] for n in candidate.affects()}
        candidate.apply(model)
        return model

    def answers(self, model: Model | RowSum) -> dict[str, torch.Tensor]:
        """What a model gives, with heads side by side."""
        if self.backward:
            return {n: x if x.dim() < 3 else x.flatten(0, 1)
                    for n, x in model.gradients().items()}
        return model.outputs()

    # --------------------------------------------------------------- distances
    def from_truth(self) -> float:
        """How far the answer is from the right one."""
        if self._truth is None:
            self._truth = self.distance({n: self.select(self.sample.truth(n), n)
                                         for n in self.got})
        return self._truth

    def from_mistake(self, candidate: Candidate, BM: int, BN: int) -> tuple[float, dict]:
        """-> distance from what the mistake gives with these tiles, and the numbers it found.

        Raises:
            NotHere: it cannot be told from a right answer.
        """
        if candidate.mask_alone:
            return self._from_mask(candidate, BM, BN), {}
        found = self._from_change(candidate, BM, BN, False)
        if found[0] > NEAR and self.sample.built.case.window is not None:
            if self.right(BM, BN, candidate.padded).tiles.has_two_orders:
                return min(found, self._from_change(candidate, BM, BN, True), key=lambda f: f[0])
        return found

    def _from_change(self, candidate, BM, BN, in_key_order: bool) -> tuple[float, dict]:
        model = self.changed(candidate, BM, BN)
        if in_key_order:
            if getattr(model, "online", None) is None:
                return inf, {}
            model.fwd.in_key_order = True
        predicted = self.answers(model)
        unsure = getattr(model, "unsure", None)
        if unsure is not None and bool(unsure.any()):  # they say nothing, for or against
            if unsure.double().mean() > UNSURE:
                return inf, model.found
            return self._sure(predicted, ~unsure, candidate.rounds), model.found
        return self.distance(predicted, candidate.rounds), model.found

    def _sure(self, predicted, sure: torch.Tensor, rounds: bool) -> float:
        """As distance, of the rows that can be told in float32."""
        part = copy.copy(self)
        part.got = {n: x[sure][None] for n, x in self.got.items()}
        part.bad = {n: x[sure][None] for n, x in self.bad.items()}
        return part.distance({n: p[sure][None] for n, p in predicted.items()}, rounds)

    def _from_mask(self, candidate: Candidate, BM: int, BN: int) -> float:
        """Many mistakes and tile sizes come down to the same mask: each is tried once."""
        what = candidate.mistake, candidate.more, BM, BN, candidate.padded
        if what not in self._masks:
            walk = self.right(BM, BN, candidate.padded).fwd
            try:
                candidate.mistake.change(walk, *candidate.more)
                count = None if walk.count is None else walk.count.numpy().tobytes()
                self._masks[what] = walk.keep, walk.count, (walk.keep.numpy().tobytes(), count)
            except NotHere:
                self._masks[what] = None
        if self._masks[what] is None:
            raise NotHere
        keep, count, bits = self._masks[what]
        worst = 0.0
        for name in candidate.walks:
            key = name, bits
            if key not in self._distances:
                model = self.right(BM, BN, candidate.padded)
                walk = getattr(model, name)
                walk.keep, walk.count = keep, count
                if self.backward:
                    model.needed &= {"dq": {"q"}, "dkv": {"k", "v"}}[name]
                self._distances[key] = self.distance(self.answers(model))
            worst = max(worst, self._distances[key])
            if worst > NEAR:
                break
        return worst

    def distance(self, predicted: dict[str, torch.Tensor], rounds: bool = False) -> float:
        """The largest of all tensors; above NEAR not exactly.  rounds: see _within."""
        worst = 0.0
        for name in self.names:
            if name in self.got and name in predicted:
                worst = max(worst, self._one(name, predicted[name], rounds))
                if worst > NEAR:
                    break
        return worst

    def _one(self, name: str, p: torch.Tensor, rounds: bool) -> float:
        """Infinite where NaN does not match NaN."""
        x, bad_x, sample = self.got[name], self.bad[name], self.sample
        if x.shape != p.shape:
            return inf
        fro_limit, row_limit = limits = sample.limits[name]
        bad_p = None if isfinite(float(p.sum())) else ~torch.isfinite(p)
        if name not in ONE_A_ROW:
            bad_x = bad_x.any(-1)
            bad_p = bad_p if bad_p is None else bad_p.any(-1)
        terms = sample.exact.terms.get(name)
        terms = terms if terms is None else terms.cpu().flatten(0, 1)
        scale = sample.exact.scale[name].cpu() if name in SCALED else None
        if bad_p is None or not bool(bad_p.any()):
            if bool(bad_x.any()):
                return inf
        elif not torch.equal(bad_x, bad_p):
            return inf
        else:
            good = ~bad_p
            if not bool(good.any()):
                return 0.0
            x, p = x[good], p[good]
            terms = terms if terms is None else terms[good]
            scale = scale if scale is None else scale[good]
        if name == "lse":
            scale = p.abs().clamp_min(1.0)
        elif scale is not None:
            scale = torch.maximum(scale, 0.35 * p.abs())
        off, total, least = x - p, 1.0, 0.0
        if scale is None:
            if float(p.norm()) == 0:  # zeros are zeros
                return 0.0 if float(x.norm()) == 0 else inf
            least = max(1e-6 * self._truth_norm(name), 1e-30)  # what is smaller has underflowed
            total = max(float(whole_size(p, terms)), least)
            fro = float(off.norm()) / total
            if fro > NEAR * fro_limit and not rounds:
                return fro / fro_limit
        rows = row_sizes(p, name, scale, terms).clamp_min(least / sqrt(max(len(p), 1)))
        return _within(off, total, rows, limits, self._slack(row_limit) if rounds else 0.0)

    def _slack(self, row_limit: float) -> float:
        """How far a flipped rounding may move a row: no further than the answer is off."""
        return max(2.0**-6, self.from_truth() * row_limit)

    def _truth_norm(self, name: str) -> float:
        key = "norm", name
        if key not in self._known:
            self._known[key] = float(self.sample.truth(name).norm())
        return self._known[key]


def _within(off, total, rows, limits: tuple[float, float], slack: float) -> float:
    """The larger of the two errors, each over its limit.  off, total, rows: as of relative.

    slack: not 0 for a mistake that rounds on the way.  Our sums are not the submission's to the
    last bit, so a number on a border may be rounded the other way: a few rows may be off, by
    slack at most.
    """
    fro, errors = relative(off, total, rows)
    few = int(FLIPPED * errors.numel())
    if few and float(errors.max()) < slack:
        kept = errors.flatten().argsort()[:-few]
        off = off.flatten() if off.dim() == rows.dim() else off.flatten(0, -2)
        fro, errors = relative(off[kept], total, rows.flatten()[kept])
    fro_limit, row_limit = limits
    return max(float(fro) / fro_limit, float(errors.max()) / row_limit)


def alike(a: dict, b: dict) -> bool:
    """Whether two predictions are the same but for rounding."""
    for name in a.keys() & b.keys():
        x, y = a[name], b[name]
        if x.shape != y.shape or not torch.equal(torch.isfinite(x), torch.isfinite(y)):
            return False
        x, y = (torch.nan_to_num(t, 0.0, 0.0, 0.0) for t in (x, y))
        if float((x - y).abs().max()) > 1e-4 * max(float(y.abs().max()), 1e-9):
            return False
    return True


def _chosen(sample: Sample, names, size: str):
    """-> pairs (P, 2) of batch entry and head, and rows (R,)."""
    case = sample.built.case
    everything = all_pairs(case)
    if size == "all":
        return everything, torch.arange(case.N)
    name = next((n for n in names if sample.wrong.get(n)), names[0])
    if name not in sample.got:
        return everything[:1], torch.arange(case.N)[:ROWS]
    error = (sample.got[name] - sample.truth(name)).abs()
    error = torch.nan_to_num(error, nan=1e30, posinf=1e30)
    error = error if error.dim() == 3 else error.amax(-1)
    worst = int(error.amax(2).argmax())
    far = error.flatten(0, 1)[worst].topk(min(8, case.N)).indices  # rows
    if size == "many":
        rows = torch.arange(case.N)
        if case.N > MANY_ROWS:
            spread = torch.linspace(0, case.N - 1, MANY_ROWS - 32).long()
            ends = torch.arange(16), torch.arange(case.N - 16, case.N)
            rows = torch.cat([spread, *ends, far]).unique()
        some = {*range(0, len(everything), max(len(everything) // 8, 1)), worst}
        return everything[sorted(some)], rows
    rows = torch.cat([far, torch.linspace(0, case.N - 1, min(ROWS, case.N)).long()]).unique()
    pairs = everything[sorted({worst, 0, len(everything) - 1})]
    return pairs, torch.arange(case.N) if size == "rows" else rows
