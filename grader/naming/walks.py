"""A walk over the pairs of query and key: what it reads of k and v, and which pairs it counts."""

import torch

from grader.naming.reading import Reading


class Pass:
    """One walk over the pairs: the forward's, that of dq, or that of dk and dv, to be changed.

    keep (R, K) bool: which keys each row really gets.  count (R, K) or None: how often.
    fill: the score of hidden keys that are walked all the same.  k_rows, v_rows (K,) or None:
    which row of k or v stands for each key.  q_of (P,) or None: whose q each pair reads.
    changes: functions that the scores pass through.  over_queries: it belongs to a tile of keys,
    and walks over the queries.

    Facts of the case and positions in its tiles are those of Tiles: p.window, p.j, p.diag.
    """

    def __init__(self, reading: Reading, over_queries: bool = False):
        self.reading, self.tiles, self.scale = reading, reading.tiles, reading.scale
        self.over_queries, self.in_key_order = over_queries, False
        self.keep, self.count, self.fill = self.tiles.keep, None, None
        self.k_at = self.v_at = reading.kv_at
        self.k_rows = self.v_rows = self.q_of = None
        self.changes: list = []

    def __getattr__(self, name: str):
        if name == "tiles":  # not there yet
            raise AttributeError(name)
        return getattr(self.tiles, name)

    @property
    def plain_keys(self) -> bool:
        """Whether every row meets the keys that belong to it."""
        return (self.k_at is self.reading.kv_at and self.k_rows is None and self.q_of is None
                and self.reading.plain)

    @property
    def plain(self) -> bool:
        """Whether every row meets the keys and values that belong to it."""
        return self.plain_keys and self.v_at is self.reading.kv_at and self.v_rows is None

    def count_again(self, pairs) -> None:
        """These pairs (R, K) bool count once more."""
        self.count_pairs(self.keep.double() + pairs)

    def count_pairs(self, count) -> None:
        """Each pair counts so many times."""
        self.keep, self.count = count > 0, count

    def k(self):
        """(P, K, D)."""
        return self.reading.take("k", self.k_at, self.k_rows)

    def v(self):
        """(P, K, D)."""
        return self.reading.take("v", self.v_at, self.v_rows)

    def products(self):
        """(P, R, K): Q K^T."""
        if not self.plain_keys:
            q = self.reading.q if self.q_of is None else self.reading.q[self.q_of]
            return q @ self.k().mT
        return self.reading.once(("products", self.pad), lambda: self.reading.q @ self.k().mT)

    def scores(self):
        """(P, R, K): scaled scores, hidden keys at -inf or at fill."""
        s = self.products() * self.scale
        hidden = ~self.keep
        if self.fill is not None:
            s = s.masked_fill(hidden & self.walked, self.fill)
            hidden = hidden & ~self.walked
        s = s.masked_fill(hidden, -torch.inf)
        s = s if self.count is None else s + torch.log(self.count)
        for change in self.changes:
            s = change(s)
        return s
