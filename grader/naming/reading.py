"""How a case's tensors are read: which heads and rows of q, k and v, in float64."""

import torch

from grader.inputs import Built
from grader.naming.tiles import Tiles


class Reading:
    """q, k and v of a case as they should be read, for some heads and rows, to be changed.

    pairs (P, 2): (batch entry b, query head h) to compute; rows (R,): query positions.  BM, BN:
    rows of a query tile and of a key tile.  padded: the keys that fill the last tile are there as
    zeros, which a wrong mask lets in.  known: what is right, by name, which readings of the same
    heads and rows share, whatever their tile sizes.  q_at, kv_at: entries and heads read, (P,).
    """

    def __init__(self, built: Built, pairs, rows=None, BM: int = 64, BN: int = 64,
                 padded: bool = False, known: dict | None = None):
        case = built.case
        self.built, self.case, self.pairs, self.BM, self.BN = built, case, pairs, BM, BN
        self.B, self.HQ, self.HKV, self.N, self.NK, self.D = (
            case.B, case.HQ, case.HKV, case.N, case.n_keys, case.D)
        self.group, self.causal = case.HQ // case.HKV, case.is_causal
        self.rows = torch.arange(self.N) if rows is None else rows
        self.tiles = Tiles(case, self.rows, BM, BN, -case.n_keys % BN if padded else 0)
        self.pad, self.keys = self.tiles.pad, self.tiles.keys
        self.known = {} if known is None else known
        self.inputs = self.once("inputs", lambda: {
            name: t.double() for name, t in built.tensors.items() if t.dim() == 4})
        self.scale = case.D**-0.5 if case.scale is None else case.scale
        self.b, self.h = pairs.unbind(1)
        self.q_at, self.kv_at = (self.b, self.h), (self.b, self.h // self.group)
        self.q_rows, self.q_factor = self.rows, 1.0
        self._own = self.inputs, self.q_at, self.q_rows

    def once(self, key, make):
        """What is right is made once."""
        if key not in self.known:
            self.known[key] = make()
        return self.known[key]

    @property
    def plain(self) -> bool:
        """Whether the inputs are read as they should be, but for k's and v's heads."""
        inputs, q_at, q_rows = self._own
        return (self.inputs is inputs and self.q_at is q_at and self.q_rows is q_rows
                and isinstance(self.q_factor, float) and self.q_factor == 1.0)

    @property
    def q(self):
        """(P, R, D)."""
        return self.inputs["q"][self.q_at][:, self.q_rows] * self.q_factor

    def take(self, name: str, at, rows=None):
        """(P, K, D) of k or v, with the rows of padding at 0."""
        x = self.inputs[name][at]
        if self.pad:
            x = torch.cat([x, x.new_zeros(x.shape[0], self.pad, x.shape[2])], 1)
        return x if rows is None else x[:, rows]

    @property
    def dense(self) -> bool:
        """Whether k and v were sent contiguous, so that head HKV is the next entry's first."""
        sent = self.built.call.inputs
        return all(sent[n].stride == torch.empty(sent[n].shape, device="meta").stride()
                   for n in ("k", "v"))


def all_pairs(case) -> torch.Tensor:
    """(B * HQ, 2): every (batch entry, query head)."""
    return torch.cartesian_prod(torch.arange(case.B), torch.arange(case.HQ)).view(-1, 2)
