"""The pairs of query and key that a tiled kernel walks over, and which of them it lets count.

Tiles says where rows, keys and tiles lie; a Pass is one walk over them, to be changed by a
hypothesis (hypotheses.py).
"""

from functools import cached_property
from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from grader.naming.model import Model

INF = float("inf")


class NotHere(Exception):
    """The mistake cannot be made, or cannot be told from a right answer, on this case."""


class Tiles:
    """Positions of rows and keys, and the tiles they lie in, (R, 1), (1, K) or (R, K).

    rows (R,): query positions.  BM, BN: rows of a query tile and of a key tile.  pad: zeros that
    fill the last tile of keys.  Models share one; nobody changes its tensors in place.
    """

    def __init__(self, case, rows: torch.Tensor, BM: int, BN: int, pad: int):
        self.N, self.NK, self.causal, self.window = case.N, case.n_keys, case.is_causal, case.window
        self.sinks, self.BM, self.BN, self.pad, self.rows = case.sinks or 0, BM, BN, pad, rows
        self.keys = torch.arange(self.NK + pad)
        self.i, self.j = rows[:, None], self.keys[None, :]

    @cached_property
    def tile_start(self):
        """First row of the query tile."""
        return self.i // self.BM * self.BM

    @cached_property
    def diag(self):
        """First key of the tile that the query tile's first row lies in."""
        return self.tile_start // self.BN * self.BN

    @cached_property
    def end(self):
        """One past the last key that is walked, whole tiles."""
        if not self.causal:
            return torch.full_like(self.i, round_up(self.NK, self.BN))
        last = (self.tile_start + self.BM).clamp(max=self.N)
        return self.diag + round_up(last - self.diag, self.BN)

    @cached_property
    def first(self):
        """First key of the window's walk, at a tile's border."""
        if self.window is None:
            return torch.zeros_like(self.i)
        return (self.tile_start - self.window + 1).clamp(min=0) // self.BN * self.BN

    @cached_property
    def inner(self):
        """First key that all rows of the tile have in their windows, at a tile's border."""
        if self.window is None:
            return torch.zeros_like(self.i)
        inner = round_up((self.tile_start + self.BM - self.window).clamp(min=0), self.BN)
        return torch.minimum(inner, self.diag)

    @cached_property
    def sink_end(self):
        """One past the last key of the walk over the sinks, whole tiles."""
        return round_up(self.first.clamp(max=self.sinks), self.BN)

    @cached_property
    def walked(self):
        """(R, K) bool: pairs in tiles that are visited at all."""
        return ((self.j >= self.first) & (self.j < self.end)) | (self.j < self.sink_end)

    @cached_property
    def exists(self):
        """Keys that a mask which lets too much in may let in."""
        return self.j < self.NK + self.pad

    @cached_property
    def keep(self):
        """The right mask."""
        return self.rule()

    def rule(self, window="own", sinks="own", causal="own"):
        """The mask in words, with another window, number of sinks, or without the causal part."""
        window = self.window if window == "own" else window
        sinks = self.sinks if sinks == "own" else sinks
        causal = self.causal if causal == "own" else causal
        keep = (self.j <= self.i) if causal else torch.ones_like(self.i + self.j, dtype=torch.bool)
        if window is not None:
            keep = keep & ((self.i - self.j < window) | (self.j < sinks))
        return keep & (self.exists if self.causal and not causal else self.j < self.NK)


class Pass:
    """One walk over the pairs of query and key: the forward's, that of dq, or that of dk and dv.

    keep (R, K) bool: which keys each row really gets.  count (R, K) or None: how often.
    fill: the score of hidden keys that are walked all the same.
    """

    def __init__(self, model: "Model"):
        self.model, self.tiles = model, model.tiles
        self.scale = model.scale
        self.fill, self.count = None, None
        self.k_at, self.v_at = model.kv_at, model.kv_at
        self.k_rows = self.v_rows = None  # (K,) which row of k stands for each key
        self.keep = self.tiles.keep

    i = property(lambda self: self.tiles.i)
    j = property(lambda self: self.tiles.j)
    tile_start = property(lambda self: self.tiles.tile_start)
    diag = property(lambda self: self.tiles.diag)
    end = property(lambda self: self.tiles.end)
    first = property(lambda self: self.tiles.first)
    inner = property(lambda self: self.tiles.inner)
    sink_end = property(lambda self: self.tiles.sink_end)
    walked = property(lambda self: self.tiles.walked)
    exists = property(lambda self: self.tiles.exists)

    def rule(self, **other):
        """As Tiles.rule."""
        return self.tiles.rule(**other)

    @property
    def plain(self) -> bool:
        """Whether every row meets the keys and values that belong to it."""
        m = self.model
        return (self.k_at is m.kv_at and self.v_at is m.kv_at and self.k_rows is None
                and self.v_rows is None and m.plain)

    def products(self):
        """(P, R, K): Q K^T."""
        m = self.model
        if not (self.k_at is m.kv_at and self.k_rows is None and m.plain):
            return m.q @ m.take("k", self.k_at, self.k_rows).mT
        key = "products", m.tiles.pad
        if key not in m.known:
            m.known[key] = m.q @ m.take("k", self.k_at).mT
        return m.known[key]

    def scores(self):
        """(P, R, K): scaled scores, hidden keys at -inf or at fill."""
        s = self.products() * self.scale
        hidden = ~self.keep
        if self.fill is not None:
            s = s.masked_fill(hidden & self.walked, self.fill)
            hidden = hidden & ~self.walked
        s = s.masked_fill(hidden, -INF)
        return s if self.count is None else s + torch.log(self.count)

    def values(self):
        return self.model.take("v", self.v_at, self.v_rows)


def round_up(x, step: int):
    """x, rounded up to a multiple of step."""
    return (x + step - 1) // step * step
