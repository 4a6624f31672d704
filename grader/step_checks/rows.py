"""Checks which program has which tile of which head (3.1, 4.1, 8.13 and copies)."""

import numpy as np

from grader.step_checks.examples import (
    Example,
    Observed,
    Pointer,
    StepSpec,
    Wrong,
    same,
    unlike,
)


def rows(head: str = "h", start: str = "start_m", index: str = "query", size: str = "BLOCK_M",
         heads: str = "HQ", longest: str = "") -> StepSpec:
    """Every tile of every head must have one program.  head ... heads: this kernel's names.
    longest: the tile of a head with the longest loop, "first" or "last"."""
    def make(B: int, H: int, N: int, T: int, more: dict) -> Example:
        tiles = -(-N // T)

        def check(left: Observed) -> Wrong | None:
            taken = {}
            for program, names in enumerate(left.programs):
                if found := _program(program, names):
                    return found
                place = int(names["bh"]), int(names[start])
                if place in taken:
                    return _drawn(f"Programs {taken[place]} and {program} take the same rows, from "
                                  f"{place[1]} on of head {place[0]}; other rows have no program.",
                                  left)
                taken[place] = program
            order = [int(names[start]) for names in left.programs[:tiles]]
            if longest and order != sorted(order, reverse=longest == "last"):
                return Wrong((f"the programs of a head begin at {order}: start the longest loop "
                              "first, so that it does not run alone at the end",), note=True)
            return None

        def _program(program: int, names: dict) -> Wrong | None:
            bh, b, h, first = (names[name] for name in ("bh", "b", head, start))
            for name, value in (("bh", bh), ("b", b), (head, h), (start, first)):
                if np.size(value) != 1 or isinstance(value, tuple | str) \
                        or float(value) != int(value):
                    return unlike(name, "one whole number", value)
            if not 0 <= bh < B * H:
                return _told("bh", f"0 to {B * H - 1}", f"{int(bh)}", f"Program {program} has bh "
                             f"{int(bh)}; bh must be from 0 to {B * H - 1}.")
            if first not in range(0, N, T):
                tiles = ", ".join(map(str, range(0, N, T)))
                return _told(start, f"one of {tiles}", f"{int(first)}", f"Program {program} has "
                             f"{start} {int(first)}; tiles begin at {tiles}.")
            if (b, h) != (bh // H, bh % H):
                own = f"head {int(bh % H)} of batch entry {int(bh // H)}"
                got = f"head {int(h)} of batch entry {int(b)}"
                return _told("b" if b != bh // H else head, own, got, f"Program {program} has bh "
                             f"{int(bh)}, which is {own}; here {head} and b give {got}.")
            if isinstance(names[index], tuple):
                return Wrong((f"{index} is a Python list: want a tile, made by tl.arange(0, "
                              f"{size}).",), id="python-in-a-kernel")
            if not same(names[index], first + np.arange(T)):
                rows = np.asarray(names[index]).reshape(-1)
                own, got = f"{int(first)} ... {int(first) + T - 1}", f"{rows[0]} ... {rows[-1]}"
                return _told(index, own, got, f"Program {program} has {start} {int(first)}, so "
                             f"{index} should be {own}; it is {got}.")
            return None

        def _told(name: str, want: str, got: str, words: str) -> Wrong:
            return Wrong((words,), name=name, want=want, got=got)

        def _drawn(words: str, left: Observed) -> Wrong:
            table = [f"program {i}: head {int(names['bh'])}, rows from {int(names[start])}"
                     for i, names in enumerate(left.programs)]
            return Wrong((words,), tuple(table))

        return Example(f"B={B}, {heads}={H}, N={N}, {size}={T}, {B * H * tiles} programs",
                       {heads: H, "N": N, size: T, **more}, check, programs=B * H * tiles)

    def examples() -> list[Example]:
        def more(HQ: int) -> dict:  # what the kernel has beside them
            return {"HQ": HQ, "BLOCK_M": 8} if heads == "HKV" else {"BLOCK_N": 32}

        return [make(2, 3, 56, 16, more(6)), make(1, 1, 7, 16, more(1)),
                make(3, 2, 32, 16, more(4))]

    return StepSpec(("bh", "b", head, start, index), examples, ("BLOCK_M", "BLOCK_N"))


# Wrong key/value heads for query head h, by the name of the mistake.
HEADS = {
    "heads-interleaved": lambda h, HQ, HKV: h % HKV,
    "one-kv-head-for-all": lambda h, HQ, HKV: h * 0,
    "heads-not-mapped": lambda h, HQ, HKV: h,
    "heads-multiplied": lambda h, HQ, HKV: h * (HQ // HKV),
    "heads-divided-by-hkv": lambda h, HQ, HKV: h // HKV,
    "head-in-its-group": lambda h, HQ, HKV: h % (HQ // HKV),
    "groups-reversed": lambda h, HQ, HKV: HKV - 1 - h // (HQ // HKV),
}


def heads() -> StepSpec:
    """5.2: k_head and v_head must belong to the group of head h."""
    def make(HQ: int, HKV: int, b: int, h: int) -> Example:
        given, wanted = {"b": np.int64(b), "h": np.int64(h), "bh": np.int64(b * HQ + h), "HQ": HQ,
                         "HKV": HKV, "N": 40, "D": 16}, {}
        for name, strides in (("k", (701, 101, 16, 1)), ("v", (907, 127, 1, 40))):
            given |= {f"{name}_ptr": Pointer(name, 0), f"{name}_strides": strides}
            at = b * strides[0] + h // (HQ // HKV) * strides[1]
            wanted[f"{name}_head"] = Pointer(name, at), strides[2], strides[3]

        def check(left: Observed) -> Wrong | None:
            for got, (name, value) in ((names[name], (name, value)) for names in left.programs
                                       for name, value in wanted.items()):
                if same(got, value):
                    continue
                strides, found = given[f"{name[0]}_strides"], None
                if isinstance(got, tuple) and got and isinstance(got[0], Pointer):
                    found = next((f"head {one} of batch entry {entry}" for entry in range(4)
                                  for one in range(2 * HQ)
                                  if same(got, (Pointer(name[0], entry * strides[0] + one *
                                                        strides[1]), *strides[2:]))), None)
                return unlike(name, f"head {h // (HQ // HKV)} of batch entry {b}",
                              found or "something else")
            return None

        def variants() -> dict:
            def fit(head: int):
                return lambda left: all(same(names[f"{name}_head"], (
                    Pointer(name, b * strides[0] + head * strides[1]), *strides[2:]))
                    for names in left.programs for name in "kv"
                    for strides in [given[f"{name}_strides"]])
            return {id: fit(read(h, HQ, HKV)) for id, read in HEADS.items()}

        return Example(f"HQ={HQ}, HKV={HKV}, query head {h} of batch entry {b}", given, check,
                       {"k": np.zeros(8, np.float32), "v": np.zeros(8, np.float32)}, 3, variants)

    return StepSpec(("k_head", "v_head"), lambda: [
        make(6, 2, 1, 4), make(6, 2, 0, 1), make(8, 4, 1, 3), make(3, 3, 2, 2),
        make(4, 1, 1, 3), make(6, 2, 2, 5), make(40, 2, 0, 19),
        make(82, 2, 0, 41)], ("D",))
