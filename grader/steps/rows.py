"""Rows: which program has which tile of which head (3.1, 4.1, 8.13 and their copies)."""

import numpy as np

from grader.steps.trial import Entry, Left, Trial, Wrong, same


def rows(head: str = "h", start: str = "start_m", index: str = "query", size: str = "BLOCK_M",
         heads: str = "HQ", longest_first: bool = False) -> Entry:
    """Every tile of every head has one program.  head ... heads: the names of this kernel."""
    def trial(B: int, H: int, N: int, T: int, more: dict) -> Trial:
        tiles = -(-N // T)

        def check(left: Left) -> Wrong | None:
            taken = {}
            for program, names in enumerate(left.programs):
                if found := _program(program, names):
                    return found
                place = int(names["bh"]), int(names[start])
                if place in taken:
                    return _drawn(f"programs {taken[place]} and {program} have the same rows, "
                                  f"from {place[1]} of head {place[0]} on: others have none.", left)
                taken[place] = program
            order = [int(names[start]) for names in left.programs[:tiles]]
            if longest_first and order != sorted(order, reverse=True):
                return Wrong((f"right, but the programs of a head begin at {order}: the longest "
                              "walk starts last",), note=True)
            if any(np.asarray(names["bh"]).dtype != np.int64 for names in left.programs):
                return Wrong(("right, but bh is not int64: addresses pass 2**31 in large tensors",),
                             note=True)
            return None

        def _program(program: int, names: dict) -> Wrong | None:
            bh, b, h, first = (names[name] for name in ("bh", "b", head, start))
            for name, value in (("bh", bh), ("b", b), (head, h), (start, first)):
                if np.size(value) != 1 or isinstance(value, tuple | str) \
                        or float(value) != int(value):
                    return Wrong((f"{name}: want one whole number; got {value}.",))
            if not 0 <= bh < B * H or first not in range(0, N, T):
                return _told(program, names, f"heads go from 0 to {B * H - 1}, first rows are "
                             f"{', '.join(map(str, range(0, N, T)))}")
            if (b, h) != (bh // H, bh % H):
                return _told(program, names, f"head {int(bh)} of all is head {int(bh % H)} of "
                             f"batch entry {int(bh // H)}")
            if not same(names[index], first + np.arange(T)):
                return _told(program, names, f"{index} is {int(first)} ... {int(first) + T - 1}")
            return None

        def _told(program: int, names: dict, wanted: str) -> Wrong:
            said = ", ".join(f"{name} {int(names[name])}" for name in ("bh", "b", head, start))
            rows = np.asarray(names[index]).reshape(-1)
            return Wrong((f"program {program}: {said}, {index} {rows[0]} ... {rows[-1]}.",
                          f"want: {wanted}."))

        def _drawn(words: str, left: Left) -> Wrong:
            table = [f"program {i}: head {int(names['bh'])}, rows from {int(names[start])}"
                     for i, names in enumerate(left.programs)]
            return Wrong((words,), tuple(table))

        return Trial(f"B={B}, {heads}={H}, N={N}, {size}={T}: {B * H * tiles} programs",
                     {heads: H, "N": N, size: T, **more}, check, programs=B * H * tiles)

    def trials() -> list[Trial]:
        more = {"HQ": 6} if heads == "HKV" else {}
        return [trial(2, 3, 56, 16, more), trial(1, 1, 7, 16, {"HQ": 1} if more else {}),
                trial(3, 2, 32, 16, {"HQ": 4} if more else {})]

    return Entry(("bh", "b", head, start, index), trials, (size,))
