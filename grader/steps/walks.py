"""Walks: every visible key tile exactly once, masked where it must be (3.2, 4.2 and their copies).

The stand-in of _attend gives back other numbers than it was given, so that what a walk drops, or
hands on wrongly, shows.  Another order, masking more than needed and tiles that nobody sees are
right; the two latter are a note.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from grader.steps.trial import LOG2E, Entry, Left, Pointer, Trial, Wrong, same

SCALE, E = 0.25, float(np.e)


@dataclass(frozen=True)
class Walk:
    """Of which tiles: sees(own, other) -> whether a row of the program's own tile and one of the
    walked axis belong together.  own: the program's rows; N: how many rows exist on both axes."""

    own: np.ndarray
    N: int
    size: int  # of a tile on the walked axis
    sees: Callable[[np.ndarray, np.ndarray], np.ndarray]
    names: tuple[str, str] = ("query", "key")  # of the two axes
    first_sees: bool = True  # whether the first tile of a row must show it something

    def judge(self, visits: list[tuple[int, bool]]) -> Wrong | None:
        """visits: first row and MASKED of every call, in order."""
        own, (mine, theirs) = self.own[self.own < self.N], self.names
        other = np.arange(self.N)
        wanted = self.sees(own[:, None], other[None])
        seen, in_vain, masked_more = np.zeros_like(wanted, dtype=int), [], []
        for begin, masked in visits:
            tile = np.arange(begin, begin + self.size)
            inside = tile[(0 <= tile) & (tile < self.N)]
            if begin < 0:
                return self.drawn(visits, f"a tile begins at {begin}, before the first row.")
            pairs = wanted[:, inside]
            if not masked and (len(inside) < self.size or not pairs.all()):
                why = "rows past N - 1" if len(inside) < self.size else "pairs that are hidden"
                return self.drawn(visits, f"the tile at {begin} has {why}, and MASKED is False.")
            if not self.sees(self.own[:, None], tile[None]).any():
                in_vain.append(begin)
            if masked and len(inside) == self.size and pairs.all():
                masked_more.append(begin)
            before = seen.sum(1)
            seen[:, inside] += pairs
            blind = (before == 0) & ~pairs.any(1)
            if self.first_sees and blind.any():
                return self.drawn(visits, f"the tile at {begin} comes first and shows {mine} "
                                  f"{own[blind][0]} nothing: -inf - (-inf) is NaN.")
        if (seen != wanted).any():
            i, j = np.argwhere(seen != wanted)[0]
            count = ("never", "once", "twice")[seen[i, j]] if seen[i, j] < 3 else f"{seen[i, j]} x"
            return self.drawn(visits, f"{mine} {own[i]} meets {theirs} {j} {count}, and should "
                              f"meet it {'once' if wanted[i, j] else 'never'}.")
        if in_vain:
            return Wrong((f"right, but nobody sees anything in the tile at {in_vain[0]}",),
                         note=True)
        if masked_more:
            return Wrong((f"right, but the tile at {masked_more[0]} needs no mask",), note=True)
        return None

    def drawn(self, visits: list[tuple[int, bool]], words: str) -> Wrong:
        """Tiles visited beside those wanted, * where masked."""
        own, tiles = self.own[self.own < self.N], []
        for begin in range(0, self.N, self.size):
            tile = np.arange(begin, min(begin + self.size, self.N))
            pairs = self.sees(own[:, None], tile[None])
            if pairs.any():
                tiles.append((begin, not pairs.all() or len(tile) < self.size))

        def row(tiles) -> str:
            shown = [f"{begin}{'*' * masked}" for begin, masked in tiles[:14]]
            return " ".join(shown + ["..."] * (len(tiles) > 14)) or "none"

        return Wrong((words, f"visited  {row(visits)}", f"wanted   {row(tiles)}   (* masked)"))


def key_walk(sees: Callable, examples: list[dict], scale: float = LOG2E,
             constants: tuple[str, ...] = ("D", "BLOCK_M", "BLOCK_N"), first_sees: bool = True,
             further: tuple[str, ...] = ()) -> Entry:
    """The walk of the forward over the keys, a call of _attend a tile.

    sees(query, key, given).  scale: what SCALE is to be multiplied with on the way.  further: what
    _attend is passed unchanged beside what all stages pass.
    """
    state = ("acc", "l_i", "m_i")

    def trial(example: dict) -> Trial:
        M, T = example["BLOCK_M"], example["BLOCK_N"]
        start = example.get("start_m", 0)
        query = np.arange(start, start + M, dtype=np.int32)
        given = {"acc": np.full((M, 16), -1, np.float32), "l_i": np.full(M, -2, np.float32),
                 "m_i": np.full(M, -3, np.float32), "q": np.full((M, 16), 7, np.float32),
                 "k_head": (Pointer("k", 32), 16, 1), "v_head": (Pointer("v", 64), 16, 1),
                 "query": query, "start_m": start, "HQ": 3, "scale": SCALE, "D": 16, "BLOCK_D": 16,
                 "b": 1, "h": 2, "bh": np.int64(5), **example}
        walk = Walk(query, given["N"], T, lambda i, j: sees(i, j, given), first_sees=first_sees)
        passed = {name: given[name] for name in
                  ("q", "k_head", "v_head", "query", "N", "D", "BLOCK_N", *further)}

        def check(left: Left) -> Wrong | None:
            visits, now = [], {name: given[name] for name in state}
            for _, arguments in left.calls:
                begin, masked = arguments.get("start_n"), arguments.get("MASKED")
                if np.size(begin) != 1 or isinstance(begin, tuple | str | Pointer) or begin is None:
                    return Wrong((f"start_n: want one number; got {begin}.",))
                visits.append((int(begin), bool(np.asarray(masked).any())))
            if (found := walk.judge(visits)) and not found.note:
                return found
            for number, (_, arguments) in enumerate(left.calls):
                for name, value in (*now.items(), *passed.items()):
                    if not same(arguments.get(name), value):
                        old = " of the call before" if number and name in state else ""
                        return Wrong((f"call {number + 1} of _attend, at {visits[number][0]}: want "
                                      f"{name}{old}; got something else.",))
                if not same(arguments.get("scale_log2e"), SCALE * scale):
                    return Wrong((f"call {number + 1} of _attend: want scale * LOG2E = "
                                  f"{SCALE * scale:.5g} for scale = {SCALE}; got "
                                  f"{_short(arguments.get('scale_log2e'))}.",))
                now = {name: np.full(np.shape(given[name]), 3.0 * number + i + 1)
                       for i, name in enumerate(state)}
            for name, value in now.items():
                if not same(left.programs[0][name], value):
                    return Wrong((f"after the walk {name} is not what the last call of _attend "
                                  "gave back.",))
            return found

        named = ("start_m", "N", "BLOCK_M", "BLOCK_N", *further)
        words = ", ".join(f"{name}={given[name]}" for name in named if name in example)
        memory = {"k": np.zeros(8, np.float32), "v": np.zeros(8, np.float32)}
        return Trial(words, given, check, memory)

    return Entry(state, lambda: [trial(example) for example in examples],
                 (*constants, "BLOCK_D"), {"_attend": list(state)})


def _short(value) -> str:
    return f"{float(value):.5g}" if np.size(value) == 1 and not isinstance(
        value, tuple | str | Pointer | None) else "something else"


def all_keys(query, key, given):
    return np.broadcast_to(key < given["N"], np.broadcast_shapes(query.shape, key.shape))


def causal(query, key, given):
    return key <= query


PLAIN_LENGTHS = [dict(BLOCK_M=32, BLOCK_N=16, N=N) for N in (40, 7, 48, 16)]
CAUSAL_TILES = [dict(BLOCK_M=M, BLOCK_N=16, N=N, start_m=start) for M, N, start in (
    (32, 100, 64), (32, 100, 96), (32, 97, 96), (16, 64, 0), (16, 64, 48), (32, 7, 0))]
