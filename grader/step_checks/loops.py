"""Checks loops: every visible key tile exactly once, masked where needed (3.2, 4.2 and copies).

The fake _attend changes the numbers it is given, so that it shows if a loop drops them or passes on
the wrong ones.  Another order is right.  Masking more than needed, and tiles that show nothing, are
right but noted.
"""

import collections
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from grader.step_checks import evidence, named, phases
from grader.step_checks.examples import (
    LOG2E,
    Example,
    Observed,
    Pointer,
    StepSpec,
    Wrong,
    same,
    unlike,
)
from grader.step_checks.phases import Phase

SCALE, E = 0.3, float(np.e)  # SCALE is not the 1 / sqrt(D) of any tile here


@dataclass(frozen=True)
class Loop:
    """Which tiles a loop must visit.  sees(own, other): whether a row of the program's tile and a
    row of the other axis belong together; own: the program's rows; N: rows on both axes."""

    own: np.ndarray
    N: int
    size: int  # of a tile on the other axis
    sees: Callable[[np.ndarray, np.ndarray], np.ndarray]
    names: tuple[str, str] = ("query", "key")  # the two axes
    first_sees: bool = True  # whether a row must see something of its first tile
    masked: frozenset[int] = frozenset()  # first rows of tiles that are always masked

    def judge(self, visits: list[tuple[int, bool]]) -> Wrong | None:
        """Judge a loop's visits: first row and MASKED of every call, in order."""
        own, (mine, theirs) = self.own[self.own < self.N], self.names
        other = np.arange(self.N)
        wanted = self.sees(own[:, None], other[None])
        seen, in_vain, masked_more = np.zeros_like(wanted, dtype=int), [], []
        for begin, often in collections.Counter(begin for begin, _ in visits).items():
            if often > 1 and wanted[:, max(begin, 0):max(begin + self.size, 0)].any():
                return self.drawn(visits, f"The tile at {begin} is visited {_times(often)}; "
                                  "it should be visited once.")
        for begin, masked in visits:
            tile = np.arange(begin, begin + self.size)
            inside = tile[(0 <= tile) & (tile < self.N)]
            if begin < 0:
                return self.drawn(visits, f"A tile begins at {begin}, before the first row.")
            pairs = wanted[:, inside]
            if not masked and (len(inside) < self.size or not pairs.all()):
                why = "rows past N - 1" if len(inside) < self.size else "hidden pairs"
                return self.drawn(visits, f"The tile at {begin} has {why}, but MASKED is False.")
            if not self.sees(self.own[:, None], tile[None]).any():
                in_vain.append(begin)
            if masked and begin not in self.masked \
                    and self.sees(self.own[:, None], tile[None]).all():
                masked_more.append(begin)
            before = seen.sum(1)
            seen[:, inside] += pairs
            blind = (before == 0) & ~pairs.any(1)
            if self.first_sees and blind.any():
                return self.drawn(visits, f"The tile at {begin} comes first, and {mine} "
                                  f"{own[blind][0]} sees nothing in it: -inf - (-inf) is NaN.")
        if (seen != wanted).any():
            i, j = np.argwhere(seen != wanted)[0]
            pair, times = f"{mine.capitalize()} {own[i]} {{}} {theirs} {j}", seen[i, j]
            return self.drawn(visits, pair.format("reaches") + f" {_times(times)}; it should once."
                              if times else pair.format("never reaches") + "; it should, once.")
        if in_vain:
            drawn = self.drawn(visits, "").lines[1:]
            return Wrong((f"no {mine} sees a {theirs} in the tile at {in_vain[0]}: "
                          + ", ".join(" ".join(row.split()) for row in drawn),), note=True)
        if masked_more and (self.first_sees or self.masked) and all(
                masked for _, masked in visits):
            return Wrong((f"the tile at {masked_more[0]} needs no mask, and MASKED=False is faster "
                          "there",), note=True)
        return None

    def wanted(self) -> list[tuple[int, bool]]:
        """First row of every tile to visit, and whether it needs the mask."""
        own, tiles = self.own[self.own < self.N], []
        for begin in range(0, self.N, self.size):
            tile = np.arange(begin, min(begin + self.size, self.N))
            pairs = self.sees(own[:, None], tile[None])
            if pairs.any():
                tiles.append((begin, not pairs.all() or len(tile) < self.size))
        return tiles

    def drawn(self, visits: list[tuple[int, bool]], words: str) -> Wrong:
        """The tiles visited and those wanted, with * for MASKED."""
        def row(tiles) -> str:
            shown = [f"{begin}{'*' * masked}" for begin, masked in tiles[:14]]
            return " ".join(shown + ["..."] * (len(tiles) > 14)) or "none"

        wanted = [(begin, masked or begin in self.masked) for begin, masked in self.wanted()]
        return Wrong((words, f"your loop visits tiles  {row(visits)}",
                      f"it should visit tiles   {row(wanted)}   (* with MASKED=True)"),
                     want=row(wanted), got=row(visits), drawn=evidence.tiles(
                         self.names, self.own, self.size, wanted, visits))


def _times(often: int) -> str:
    return "twice" if often == 2 else f"{often} times"


@dataclass(frozen=True)
class Calls:
    """How a kernel loops.  function is called once per tile; it returns state changed, takes begin,
    the tile's first row, and all of passed unchanged.  own: the program's rows; before: what state
    holds when the loop begins."""

    function: str
    state: tuple[str, ...]
    passed: tuple[str, ...]
    begin: str = "start_n"
    own: str = "query"
    before: str = "what it held before the loop"

    def judge(self, left: Observed, given: dict, loop: Loop, scale: float, own: dict | None = None
              ) -> Wrong | None:
        """Judge a run: first the tiles, then the arguments of every call, then what is left.

        given: what has to be passed on; own: what the step itself is given, if that differs.
        """
        own = given if own is None else own
        visits, calls = [], [one for name, one in left.calls if name == self.function]
        for arguments in calls:
            first, masked = arguments.get(self.begin), arguments.get("MASKED")
            if np.size(first) != 1 or isinstance(first, tuple | str | Pointer) or first is None:
                return unlike(self.begin, "one number", first)
            visits.append((int(first), bool(np.asarray(masked).any())))
        if (found := loop.judge(visits)) and not found.note:
            return found
        now = {name: given[name] for name in self.state}
        for number, arguments in enumerate(calls):
            call = f"Call {number + 1} of {self.function}, for the tile at {visits[number][0]}"
            wanted = now | {name: given[name] for name in self.passed}
            for name, value in wanted.items():
                if not same(arguments.get(name), value):
                    if name in now and same(arguments.get(name), 0 * value):
                        held = f"as call {number} returned it" if number else f"with {self.before}"
                        return Wrong((f"{call}, gets {name} = 0. It should get {name} {held}.",),
                                     id="begins-again", name=name)
                    if number and name in now and same(
                            arguments.get(name), value + calls[number - 1][name]):
                        return Wrong((f"{call}, gets {name} as it was plus what the call before "
                                      f"returned: {self.function} returns the sum already.",),
                                     id="added-twice", name=name)
                    old = ", as the call before returned it" if number and name in now else ""
                    got = next((other for other, its in (now | own).items()
                                if same(arguments.get(name), its)), "something else")
                    got = f"{name} as it was before the loop" if got == name in now else got
                    wants = name + _beyond(own.get(name), value, own)
                    return unlike(call, wants + old, got, id="handed-wrongly")
            if not same(arguments.get("scale_log2e"), SCALE * scale):
                return unlike(call, f"scale * LOG2E, {SCALE * scale:.5g} for a scale of {SCALE}",
                              _short(arguments.get("scale_log2e")), id="handed-wrongly")
            now = self.after(number, given)
        for name, value in now.items():
            if name in left.programs[0] and not same(left.programs[0][name], value):
                return Wrong((f"After the loop, {name} is not what the last call of "
                              f"{self.function} returned.",), id="result-dropped")
        return found

    def after(self, number: int, given: dict) -> dict[str, np.ndarray]:
        """What the fake returns from that call."""
        return {name: np.full(np.shape(given[name]), 3.0 * number + i + 1)
                for i, name in enumerate(self.state)}


def _beyond(begin, value, own: dict) -> str:
    """ " + row" if an address is that far behind the step's own."""
    if not isinstance(value, Pointer) or not isinstance(begin, Pointer):
        return ""
    return next((f" + {name}" for name, its in own.items() if value.at - begin.at
                 and same(its, value.at - begin.at)), "")


FORWARD = Calls("_attend", ("acc", "l_i", "m_i"), ("q", "k_head", "v_head", "query", "N", "D",
                                                   "BLOCK_N"))
CONSTANTS = ("D", "BLOCK_D", "BLOCK_M", "BLOCK_N", "CAUSAL")


def key_loop(sees: Callable, examples: list[dict], scale: float = LOG2E,
             first_sees: bool = True) -> StepSpec:
    """The forward's loop over the keys.  sees(query, key, given); scale: the factor that SCALE gets
    on the way."""
    calls = replace(FORWARD, passed=(*FORWARD.passed, *further(examples[0])))

    def make(example: dict) -> Example:
        given = {**tiles(example), "acc": np.full((example["BLOCK_M"], 16), -10, np.float32),
                 "l_i": np.full(example["BLOCK_M"], -20, np.float32),
                 "m_i": np.full(example["BLOCK_M"], -30, np.float32)}
        masked = frozenset(at for phase in parts(given, example) if phase.masked
                           for at in phase.tiles)
        loop = Loop(given["query"], given["N"], given["BLOCK_N"],
                    lambda i, j: sees(i, j, given), first_sees=first_sees, masked=masked)
        return Example(words(example), given,
                       lambda left: calls.judge(left, given, loop, scale), POINTED,
                       variants=lambda: variants(loop, given, example, scale, sees))

    return StepSpec(calls.state, lambda: [make(example) for example in examples], CONSTANTS,
                    {"_attend": list(calls.state)})


def parts(given: dict, example: dict) -> list[Phase]:
    """The phases of the lesson's loop over the keys."""
    N, T = given["N"], given["BLOCK_N"]
    interior = "the interior" if "window_size" in example else "the whole tiles"
    if not (example.get("CAUSAL", True) and "start_m" in example):
        return [Phase("the ragged last tile", range(N // T * T, N, T), True),
                Phase(interior, range(0, N // T * T, T), False)]
    start, first, inner = example["start_m"], example.get("first", 0), example.get("inner", 0)
    found = [Phase("the diagonal", range(start, min(start + given["BLOCK_M"], N), T), True),
             Phase(interior, range(inner, start, T), False)]
    if "window_size" in example:
        found.append(Phase("the left edge", range(first, inner, T), True))
    if "sink_size" in example:
        sinks = min(example["sink_size"], first)
        found.append(Phase("the sinks before the window", range(0, sinks, T), True))
    return found


def variants(loop: Loop, given: dict, example: dict, scale: float, sees: Callable) -> dict:
    """Variants of a loop over the keys, in named.py.  sees: as for key_loop()."""
    wanted, start = loop.wanted(), None
    if example.get("CAUSAL", True):
        start = example.get("start_m")
    whole = phases.visits(wanted, given, start)
    if start is not None and "window_size" in example:
        whole |= phases.windowed(wanted, given, start)
    if "CAUSAL" in example:
        flag = example["CAUSAL"]
        whole["end-always-causal" if not flag else "end-never-causal"] = lambda left: \
            phases.visited(left, "start_n") == replace(
                loop, sees=lambda i, j: sees(i, j, given | {"CAUSAL": not flag})).wanted()
    return named.hands(SCALE, scale) | whole | phases.single(parts(given, example), wanted)


def borders(sees: Callable, examples: list[dict], visits: Callable, leaves: tuple[str, ...],
            queries: bool = False, counted: Callable[[dict], dict] = lambda example: {}
            ) -> StepSpec:
    """Borders with which the lesson's loop visits every visible tile once, masked where needed.

    visits(names) -> (range, MASKED) of each phase; names: those given and those left.  queries:
    the loop is over queries, for a tile of keys.  counted(example) -> id of a mistake -> the border
    that it makes, and its value.
    """
    def make(example: dict) -> Example:
        # D and BLOCK_D differ from BLOCK_N here, so that a repair cannot take them for it.
        given = tiles({"D": 11, "BLOCK_D": 128} | {
            name: value for name, value in example.items() if name not in leaves})
        if queries:
            loop = Loop(given["key"], given["N"], given["BLOCK_M"],
                        lambda i, j: sees(j, i, given), ("key", "query"), False)
        else:
            loop = Loop(given["query"], given["N"], given["BLOCK_N"],
                        lambda i, j: sees(i, j, given), first_sees=False)

        def check(left: Observed, only: bool = True) -> Wrong | None:
            """only: say so if a single border is wrong."""
            found = {}
            for name in leaves:
                value = left.programs[0][name]
                if isinstance(value, tuple | str | Pointer | None) or np.size(value) != 1:
                    return unlike(name, "one number", value)
                found[name] = int(value)
            said = ", ".join(f"{name} is {value}" for name, value in found.items())
            called = [(begin, masked) for phase, masked in visits({**given, **found})
                      for begin in phase]
            if len(called) > 500:
                return Wrong((f"{said}, so the loop visits {len(called)} tiles.",))
            wrong, name = loop.judge(called), ""
            if wrong and not wrong.note and only:
                alone = [name for name in leaves if other(name)(left)]
                if len(alone) == 1:
                    name = alone[0]
                    beside = [f"{one}={value}" for one, value in found.items()
                              if one != name and value == example[one]]
                    said = f"{name} is {found[name]} and should be {example[name]}" + (
                        f"; {', '.join(beside)} {'are' if len(beside) > 1 else 'is'} right"
                        if beside else "")
            return wrong and replace(
                wrong, lines=(f"{said}. {wrong.lines[0]}", *wrong.lines[1:]), name=name)

        def other(name: str):
            """Whether the lesson's value of this name makes the loop right."""
            def fits(left: Observed) -> bool:
                program = left.programs[0] | {name: example[name]}
                wrong = check(replace(left, programs=[program]), only=False)
                return wrong is None or wrong.note
            return fits

        def off(name: str, fix: Callable[[int, int], int] | None):
            """Whether this one alone is wrong, and fix makes it right."""
            def fits(left: Observed) -> bool | None:
                value = left.programs[0][name]
                if same(value, example[name]):
                    return None
                if fix is not None and (not isinstance(value, int | np.ndarray | np.generic)
                                        or np.size(value) != 1
                                        or fix(int(value), loop.size) != example[name]):
                    return False
                return other(name)(left)
            return fits

        def is_counted(name: str, wrong: int):
            """Whether this border alone is wrong, and has this value."""
            def fits(left: Observed) -> bool | None:
                if not same(left.programs[0][name], wrong):
                    return False
                return None if wrong == example[name] else other(name)(left)
            return fits

        def exact(left: Observed) -> bool:
            return sorted(visits({**given, **left.programs[0]}), key=str) == sorted(
                visits(example), key=str)

        return Example(words(example, leaves), given, check, POINTED, exact=exact,
                       variants=lambda: {("border-wrong", name, how): off(name, fix)
                                         for how, fix in BORDERS.items() for name in leaves}
                       | {id: is_counted(*wrong) for id, wrong in counted(example).items()})

    return StepSpec(leaves, lambda: [make(example) for example in examples], CONSTANTS)


# What is said of a border -> what would make it right, of a value and the size of a tile.
BORDERS = {
    "must be rounded down to whole tiles": lambda value, size: value // size * size,
    "must be rounded up to whole tiles": lambda value, size: -(-value // size) * size,
    "must not be below 0": lambda value, size: max(value, 0),
    "must not be below 0, and must be rounded down to whole tiles":
        lambda value, size: max(value, 0) // size * size,
    "counts tiles instead of rows": lambda value, size: value * size,
    "is one tile too small": lambda value, size: value + size,
    "is one tile too large": lambda value, size: value - size,
    "is one too small": lambda value, size: value + 1,
    "is one too large": lambda value, size: value - 1,
    "": None,  # all that is known is its value
}
POINTED = {name: np.zeros(8, np.float32) for name in ("k", "v", "q", "do", "lse", "delta")}


def tiles(example: dict) -> dict:
    """The names that a kernel has at its loop, and those of the example."""
    M, T = example["BLOCK_M"], example["BLOCK_N"]
    start_m, start_n = example.get("start_m", 0), example.get("start_n", 0)
    rows = np.arange(max(M, T), dtype=np.int32)
    own = {"key": start_n + rows[:T], "start_n": start_n} if "start_n" in example else {
        "query": start_m + rows[:M], "start_m": start_m}
    return {"q": np.full((M, 16), 7, np.float32), "k_head": (Pointer("k", 32), 16, 1),
            "v_head": (Pointer("v", 64), 16, 1), "HQ": 3, "HKV": 3, "scale": SCALE, "D": 16,
            "BLOCK_D": 16, "b": 1, "h": 2, "kv_head": 2, "bh": np.int64(5), **own, **example}


def further(example: dict) -> tuple[str, ...]:
    """What else a loop passes on."""
    return tuple(name for name in ("window_size", "sink_size", "CAUSAL") if name in example)


def words(example: dict, without: tuple[str, ...] = ()) -> str:
    """The example in a few numbers."""
    return ", ".join(f"{name}={value}" for name, value in example.items() if name not in without)


def _short(value) -> str:
    return f"{float(value):.5g}" if np.size(value) == 1 and not isinstance(
        value, tuple | str | Pointer | None) else "something else"


# ------------------------------------------------------------------- examples
LENGTHS = [dict(N=N, BLOCK_M=32, BLOCK_N=16) for N in (40, 7, 48, 33, 16, 63)]
CAUSAL = [dict(N=N, start_m=start, BLOCK_M=M, BLOCK_N=16) for M, N, start in (
    (32, 100, 64), (32, 100, 96), (32, 97, 96), (16, 64, 0), (16, 64, 48), (32, 7, 0))]


def windowed(example: dict, W: int) -> dict:
    """An example with a window, with the borders of step 6.3."""
    M, T, start = example["BLOCK_M"], example["BLOCK_N"], example["start_m"]
    inner = -(-max(start + M - W, 0) // T) * T
    return example | dict(window_size=W, first=max(start - W + 1, 0) // T * T,
                          inner=min(inner, start))


WINDOWS = [windowed(example, W) for example, W in (
    (CAUSAL[0], 20), (CAUSAL[0], 64), (CAUSAL[1], 1), (CAUSAL[2], 300), (CAUSAL[3], 5),
    (CAUSAL[4], 33), (CAUSAL[4], 18), (CAUSAL[5], 3), (CAUSAL[1], 48), (CAUSAL[0], 47))]
SINKS = [example | dict(sink_size=S) for example, S in zip(
    WINDOWS, (40, 20, 16, 4, 2, 40, 1, 300, 0, 5), strict=True)]


def window_phases(names: dict) -> list:
    """The phases of step 6.4, with the borders of 6.3."""
    T, start = names["BLOCK_N"], names["start_m"]
    return [(range(names["first"], names["inner"], T), True),
            (range(names["inner"], start, T), False),
            (range(start, start + names["BLOCK_M"], T), True)]
