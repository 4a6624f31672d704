"""What a submission would answer if it had one mistake, in float64.

A Model starts as the right computation of a case, for some of its heads and rows; a mistake
(table.py) changes a field or two, and outputs() then says what comes out.  Everything is a
function of the case and its tensors: nothing here calls a submission.
"""

import copy

import torch

from grader.inputs import Built
from grader.naming.online import Online
from grader.naming.reading import Reading
from grader.naming.rounding import held
from grader.naming.walks import Pass


class Model(Reading):
    """The right outputs of a case, to be changed.  Arguments as Reading.

    got: what the submission answered, by name, for a mistake with a number to be found.
    """

    def __init__(self, built: Built, *reading, got: dict[str, torch.Tensor] | None = None, **more):
        super().__init__(built, *reading, **more)
        self.got = got or {}
        logits = built.tensors.get("sink_logits")
        self.sink = None if logits is None else logits.double()[self.h]  # (P,)
        self.online: Online | None = None  # None: all keys at once
        self.sum_keep = self.value_keep = None  # (R, K): how often weights join l, and acc
        self.moved_values = None  # (R, K) bool, and (K,): the rows of v that these pairs read
        self.value_factor = 1.0
        self.finish = lambda acc, total, m: acc / total
        self.lse_of = lambda m, total: m + torch.log(total)
        self.after = lambda out: out
        self.found: dict[str, float] = {}  # numbers that a mistake had to find out
        self.unsure = None  # (P, R) bool: rows on the edge of what float32 can hold
        self.fwd = Pass(self)

    def again(self) -> "Model":
        """The right computation once more, to be changed in another way; shares what is known."""
        new = copy.copy(self)
        new.found, new.fwd = {}, Pass(new)
        return new

    def set_scale(self, scale: float) -> None:
        """Another factor of the scores."""
        self.scale = self.fwd.scale = scale

    def outputs(self) -> dict[str, torch.Tensor]:
        """-> o (P, R, D), lse (P, R)."""
        if self.online is None:
            acc, total, m = self.sums()
        else:
            acc, total, m = self.online.walk(self.fwd, self.sink)
            size = (self._whole_lse() - m)[..., 0]
            self.unsure = (size > -106) & (size < -80)  # l is near the smallest float32, or below
        o, lse = self.finish(acc, total, m), self.lse_of(m, total)[..., 0]
        return self.after({"o": held(o, self.case.dtype), "lse": lse})

    def sums(self):
        """-> acc (P, R, D), l and m (P, R, 1), of all keys at once."""
        s = self.fwd.scores()
        m = s.amax(-1, keepdim=True)
        if self.sink is not None:
            m = torch.maximum(m, self.sink[:, None, None])
        p = torch.exp(s - m)
        total = (p if self.sum_keep is None else p * self.sum_keep).sum(-1, keepdim=True)
        if self.sink is not None:
            total = total + torch.exp(self.sink[:, None, None] - m)
        weights, v = p if self.value_keep is None else p * self.value_keep, self.fwd.v()
        acc = weights @ v
        if self.moved_values is not None:
            pairs, rows = self.moved_values
            acc = acc + (weights * pairs) @ (v[:, rows] - v)
        return acc * self.value_factor, total, m

    def _whole_lse(self):
        p = self.fwd
        if not (p.plain and p.keep is self.tiles.keep):
            return p.scores().logsumexp(-1, keepdim=True)
        return self.once(("lse", self.pad, p.scale), lambda: p.scores().logsumexp(-1, keepdim=True))


def best_factor(got: torch.Tensor, right: torch.Tensor) -> float:
    """The factor of right that comes nearest to got, where both are finite."""
    good = torch.isfinite(got) & torch.isfinite(right)
    return float((got * right)[good].sum() / right[good].square().sum().clamp_min(1e-30))
