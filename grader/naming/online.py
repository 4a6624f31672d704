"""The online softmax: one tile of keys after the other, with the range of float32."""

from collections.abc import Callable
from dataclasses import dataclass

import torch

from grader.naming.rounding import to_32_bits
from grader.naming.walks import Pass


@dataclass
class Tile:
    """A tile of keys on the way, from key lo on."""

    lo: int
    s: torch.Tensor  # (P, R, T): scores
    top: torch.Tensor  # (P, R, 1): their maximum
    walked: torch.Tensor  # (R, T) bool
    old: torch.Tensor  # (P, R, 1): m before this tile; all below, too
    new: torch.Tensor | None = None  # m with this tile, as it is subtracted
    alpha: torch.Tensor | None = None  # exp(old - new)


def running(tile: Tile):
    """The largest score so far."""
    return torch.maximum(tile.old, tile.top)


def rescaled(old, new, alpha, tile: Tile):
    """What was summed before, and what the tile adds."""
    return to_32_bits(alpha * old + new)


def as_it_is(x):
    return x


@dataclass(frozen=True)
class Online:
    """How m, l and acc go on from tile to tile; each field is right by default."""

    start: float | None = None  # m before the first key, where not -inf or the sink logit
    maximum: Callable = running  # tile -> m
    pivot: Callable = lambda m: m.masked_fill(m == -torch.inf, 0.0)  # what is subtracted for m
    against: Callable = lambda tile: tile.new  # what the weights subtract
    alpha_l: Callable = lambda tile: tile.alpha
    alpha_acc: Callable = lambda tile: tile.alpha
    weights: Callable = as_it_is  # exp(S - m) as they are summed
    to_values: Callable = as_it_is  # and as they are multiplied with v
    add_l: Callable = rescaled
    add_acc: Callable = rescaled
    lanes: int = 1  # partial sums of l, added up at the end

    def walk(self, p: Pass, sink):
        """-> acc (P, R, D), l and m (P, R, 1).  sink: (P,) or None."""
        s, v = p.scores(), p.v()
        m = s.new_full((*s.shape[:2], 1), -torch.inf)
        total, acc = s.new_zeros(*s.shape[:2], self.lanes), s.new_zeros(*s.shape[:2], v.shape[2])
        if sink is not None:
            m, total = sink[:, None, None].expand_as(m).clone(), total + 1.0 / self.lanes
        if self.start is not None:
            m = torch.full_like(m, self.start)
        for lo, visited in _visits(p, s.shape[2]):
            here = slice(lo, lo + p.BN)
            part, walked = s[..., here], visited[:, here]
            tile = Tile(lo, part, part.amax(-1, keepdim=True), walked, m)
            m_new = self.maximum(tile)
            tile.new = self.pivot(m_new)
            tile.alpha = to_32_bits(torch.exp(m - tile.new))
            w = self.weights(to_32_bits(torch.exp(part - self.against(tile))))
            share = self.to_values(w) @ v[..., here, :]
            more = self.add_l(total, _sums(w, self.lanes), self.alpha_l(tile), tile)
            seen = walked.any(1)[None, :, None]  # the tile is visited at all
            total = torch.where(seen, more, total)
            acc = torch.where(seen, self.add_acc(acc, share, self.alpha_acc(tile), tile), acc)
            m = torch.where(seen, m_new, m)
        return acc, total.sum(-1, keepdim=True), m


def _visits(p: Pass, length: int):
    """First key of each tile, and the pairs that are walked then.  With a window the course walks
    the left edge after the interior, in stages 6 and 7."""
    parts = [p.walked]
    if not p.in_key_order and p.has_two_orders:
        late = (p.j >= p.diag) | ((p.j >= p.first) & (p.j < p.inner))
        parts = [p.walked & ~late, p.walked & late]
    for part in parts:
        for lo in range(0, length, p.BN):
            if len(parts) == 1 or bool(part[:, lo:lo + p.BN].any()):
                yield lo, part


def _sums(w, lanes: int):
    """(P, R, T) -> (P, R, lanes): lane i sums columns i, i + lanes, ..."""
    if lanes == 1:
        return w.sum(-1, keepdim=True)
    w = torch.nn.functional.pad(w, (0, -w.shape[-1] % lanes))
    return w.unflatten(-1, (-1, lanes)).sum(-2)
