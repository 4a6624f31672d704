"""The gradients that a submission would give if it had one mistake, where its outputs are right."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from grader.naming.model import Model
from grader.naming.rounding import held, to_32_bits
from grader.naming.walks import Pass


@dataclass
class Recomputed:
    """What a walk of the backward has at hand: P, dS and dP (P, R, K), lse and delta (P, R, 1),
    dO (P, R, D)."""

    p: torch.Tensor
    ds: torch.Tensor
    lse: torch.Tensor
    do: torch.Tensor
    dp: torch.Tensor
    delta: torch.Tensor


class BackwardPass(Pass):
    """A walk that recomputes P, to be changed: P = exp(S - lse), dS = P * (dP - delta)."""

    def __init__(self, model: "Backward", over_queries: bool):
        super().__init__(model, over_queries)
        self.exponent = 1.0  # times S - lse: not 1 in another base
        self.lse: Callable = lambda lse: lse  # (P, R, 1), as this walk reads it
        self.delta: Callable = lambda delta: delta  # (P, R, 1), likewise
        self.dp_with: Callable = self.v  # dP = dO V^T
        self.dp_of: Callable = lambda do: do  # what stands in dO's place there
        self.ds_of: Callable | None = None  # P, dP, delta -> dS, where not P * (dP - delta)
        self.instead_of_p: torch.Tensor | None = None  # (R, K): the other factor of dS
        # Recomputed -> what is summed, (P, R or K, D): one walk makes dq, the other dk and dv.
        self.d_q: Callable = lambda w: w.ds @ self.k()
        self.d_k: Callable = lambda w: w.ds.mT @ model.q
        self.d_v: Callable = lambda w: w.p.mT @ w.do

    def recompute(self, lse, do, delta) -> Recomputed:
        """P and dS.  lse, delta (P, R, 1); do (P, R, D)."""
        m = self.reading
        own_lse, plain = self.lse(lse), self.plain and m.dout is m.right_dout
        if (plain and not self.changes and self.exponent == 1.0 and self.scale == m.scale
                and own_lse is m.right[1]):
            p = m.once(("weights", self.pad),  # of all keys, seen or not
                       lambda: torch.exp(self.products() * self.scale - own_lse))
            p = torch.where(self.keep, p, 0.0)
            p = p if self.count is None else p * self.count
        else:
            p = to_32_bits(torch.exp((self.scores() - own_lse) * self.exponent))
        right_do = self.dp_of(do)
        if plain and self.dp_with == self.v and right_do is do:
            dp = m.once(("dp", self.pad), lambda: do @ self.v().mT)
        else:
            dp = right_do @ self.dp_with().mT
        delta, dtype = self.delta(delta), m.case.dtype
        if self.ds_of is None:
            ds = (dp - delta) * (p if self.instead_of_p is None else self.instead_of_p)
        else:
            ds = self.ds_of(p, dp, delta)
        return Recomputed(held(p, dtype), held(ds, dtype), lse, do, dp, delta)


class Backward(Model):
    """The right gradients of a case, to be changed.  Needs all pairs and all rows.

    The forward's output is taken to be right.  got: as of Model.
    """

    def __init__(self, *model, **more):
        super().__init__(*model, **more)
        self.right_sums = self.once("sums", self.sums)
        acc, total, m = self.right_sums
        self.right = self.once("ends", lambda: (self._own_o(acc / total), m + torch.log(total)))
        self.right_dout = self.dout = self.built.dout.double()
        self.needed = set(self.case.grads)  # gradients to compute
        self.saved_lse: Callable = lambda m, total, lse: lse  # what the forward saved
        self.o_of: Callable = lambda o: o  # the output as the backward reads it
        self.delta_of: Callable = lambda o, do: (do * o).sum(-1, keepdim=True)
        dlse = self.built.upstream.get("dlse")
        self.dlse = None if dlse is None else dlse.double()[self.b, self.h][..., None]
        self.with_dlse: Callable = lambda delta, dlse: delta - dlse
        self.dq_of: torch.Tensor | None = None  # (P,): whose q, o and dO the walk of dq reads
        self.over_group: Callable = lambda parts: parts.sum(2)  # (B, HKV, group, NK, D)
        self.sink_sum: Callable = lambda parts, delta: parts.sum((0, 2))  # (B, HQ, N) -> (HQ,)
        self.dq, self.dkv = BackwardPass(self, False), BackwardPass(self, True)
        self.factor = {"q": self.scale, "k": self.scale, "v": 1.0, "sink_logits": 1.0}

    def _own_o(self, o):
        """The output as it was answered: right, and rounded as the backward reads it."""
        got = self.got.get("o")
        return o if got is None or not bool(torch.isfinite(got).all()) else got[self.b, self.h]

    def again(self) -> "Backward":
        new = super().again()
        new.needed, new.factor = set(self.needed), dict(self.factor)
        new.dq, new.dkv = BackwardPass(new, False), BackwardPass(new, True)
        return new

    def gradients(self) -> dict[str, torch.Tensor]:
        """-> d_q (B, HQ, N, D), d_k, d_v (B, HKV, N, D), d_sink_logits (HQ,) of what is needed."""
        acc, total, m = self.right_sums
        o, lse = self.right
        lse = self.saved_lse(m, total, lse)
        do = self.dout[self.b, self.h]
        delta = self.delta_of(self.o_of(o), do)
        delta = delta if self.dlse is None else self.with_dlse(delta, self.dlse)
        do_q = do
        if self.dq_of is not None:
            do_q, delta = do[self.dq_of], delta[self.dq_of]
        heads, out = (self.B, self.HQ), {}
        if "q" in self.needed:
            dq = self.dq.d_q(self.dq.recompute(lse, do_q, delta))
            out["d_q"] = (dq * self.factor["q"]).unflatten(0, heads)
        if {"k", "v"} & self.needed:
            w = self.dkv.recompute(lse, do, delta)
            for name, product in (("k", self.dkv.d_k), ("v", self.dkv.d_v)):
                if name in self.needed:
                    x = (product(w) * self.factor[name])[:, :self.NK]
                    out["d_" + name] = self.over_group(x.unflatten(0, (self.B, self.HKV, -1)))
        if "sink_logits" in self.needed:
            parts = torch.exp(self.sink[:, None, None] - lse) * delta
            parts = self.sink_sum(parts[..., 0].unflatten(0, heads), delta)
            out["d_sink_logits"] = -parts * self.factor["sink_logits"]
        out = {n: x for n, x in self.after(out).items() if n[2:] in self.needed}
        return {name: held(x, self.case.dtype) for name, x in out.items()}
