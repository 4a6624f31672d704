"""Where rows, keys and tiles lie: the pairs of query and key that a tiled kernel walks over."""

from functools import cached_property

import torch


class Tiles:
    """Positions of rows and keys, and the tiles they lie in, (R, 1), (1, K) or (R, K).

    rows (R,): query positions.  BM, BN: rows of a query tile and of a key tile.  pad: zeros that
    fill the last tile of keys.  Models share them; nobody changes its tensors in place.
    """

    def __init__(self, case, rows: torch.Tensor, BM: int, BN: int, pad: int):
        self.stage, self.N, self.NK = case.stage, case.N, case.n_keys
        self.causal, self.window, self.sinks = case.is_causal, case.window, case.sinks or 0
        self.BM, self.BN, self.pad = BM, BN, pad
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
    def has_two_orders(self):
        """Whether the interior and the left edge may come in either order."""
        return (self.stage in (6, 7) and self.window is not None
                and bool(((self.first < self.inner) & (self.inner < self.diag)).any()))

    @cached_property
    def sink_end(self):
        """One past the last key of the walk over the sinks, whole tiles."""
        return round_up(self.first.clamp(max=self.sinks), self.BN)

    @cached_property
    def walked(self):
        """(R, K) bool: pairs in tiles that are visited at all."""
        return ((self.j >= self.first) & (self.j < self.end)) | (self.j < self.sink_end)

    # ------------------------------------------- the same, seen from a tile of keys
    @cached_property
    def start(self):
        """First key of the key tile."""
        return self.j // self.BN * self.BN

    @cached_property
    def last(self):
        """One past the last query that sees any key of the tile."""
        if not self.causal or self.window is None:
            return torch.full_like(self.j, self.N)
        last = (self.start + self.BN - 1 + self.window).clamp(max=self.N)
        return torch.where(self.start < self.sinks, self.N, last)

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


def round_up(x, step: int):
    """x, rounded up to a multiple of step."""
    return (x + step - 1) // step * step
