"""Checks of the backward's kernels: loops (8.10, 8.15, 9.12, 9.17), what a tile adds (8.11, 8.12,
8.16, 8.17), delta (8.9), and the sink logit (9.3, 9.11).
"""

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from grader.step_checks import loops, named, phases
from grader.step_checks.examples import (
    EXACT,
    LN2,
    LOG2E,
    ROUNDED,
    Example,
    Observed,
    Pointer,
    StepSpec,
    Wrong,
    difference,
    first,
    number,
    randoms,
)
from grader.step_checks.loops import CONSTANTS, POINTED, SCALE, Calls, Loop, further, tiles, words
from grader.step_checks.memory import MARK, stored
from grader.step_checks.phases import Phase
from grader.step_checks.softmax import FACTOR

HEADS, D = 4, 16


# --------------------------------------------------------------------- loops
def dq_loop(sees: Callable, examples: list[dict], scale: float = LOG2E) -> StepSpec:
    """dq's loop: every visible key tile once, then dq times the scale is stored.  With a scale of 1
    the loop passes lse on in base e."""
    def make(example: dict) -> Example:
        M, N, bh = example["BLOCK_M"], example["N"], 2
        given = {**tiles(example), "bh": np.int64(bh), "dq": np.full((M, D), 5, np.float32),
                 "do": np.full((M, D), 8, np.float32), "lse_log2": np.full(M, 9, np.float32),
                 "delta": np.full(M, 11, np.float32), "dq_ptr": Pointer("dq", 0)}
        calls = Calls("_add_dq", ("dq",), ("q", "do", "lse_log2", "delta", "k_head", "v_head",
                                           "query", "N", "D", "BLOCK_N", *further(example)))
        loop = Loop(given["query"], N, given["BLOCK_N"], lambda i, j: sees(i, j, given),
                    first_sees=False)

        handed = given if scale != 1 else given | {"lse_log2": given["lse_log2"] * np.float32(LN2)}

        def memory(left: Observed, factor: float) -> np.ndarray:
            number = sum(name == "_add_dq" for name, _ in left.calls)
            last = calls.after(number - 1, given)["dq"] if number else given["dq"]
            want, rows = np.full((HEADS * N, D), MARK), given["query"][given["query"] < N]
            want[bh * N + rows] = last[:len(rows)] * factor
            return want

        def check(left: Observed) -> Wrong | None:
            found = calls.judge(left, handed, loop, scale)
            if found is not None and not found.note:
                return found
            return first(stored("dq", left.memory["dq"], memory(left, SCALE), D, N), found)

        def variants() -> dict:
            found = loops.variants(loop, given, example, scale, sees)
            return {"dq-unscaled": lambda left: stored(
                "dq", left.memory["dq"], memory(left, 1.0), D, N) is None} | _of("dq", found)

        return Example(words(example), given, check,
                       {**POINTED, "dq": np.full(HEADS * N * D, MARK, np.float32)},
                       variants=variants)

    return StepSpec((), lambda: [make(example) for example in examples], CONSTANTS,
                    {"_add_dq": ["dq"], "_store": "store"})


def _of(kernel: str, variants: dict) -> dict:
    """The same variants with the kernel's name before the ids."""
    return {(f"{kernel}-{id}" if isinstance(id, str) else (f"{kernel}-{id[0]}", *id[1:])): fit
            for id, fit in variants.items()}


def query_loop(sees: Callable, examples: list[dict], scale: float = LOG2E) -> StepSpec:
    """dkdv's loop: every query tile that sees one of the keys, once."""
    def make(example: dict) -> Example:
        T, row = example["BLOCK_N"], 2 * example["N"]
        given = {**tiles(example), "HQ": 6, "h": 5, "row": np.int64(row),
                 "q_head": (Pointer("q", 32), 16, 1), "do_head": (Pointer("do", 64), 16, 1),
                 "lse_ptr": Pointer("lse", 3), "delta_ptr": Pointer("delta", 5)}
        given |= {name: np.full((T, D), value, np.float32)
                  for name, value in (("dk", -10), ("dv", -20), ("k", 7), ("v", 8))}
        handed = given | {"lse_ptr": Pointer("lse", 3 + row),
                          "delta_ptr": Pointer("delta", 5 + row)}
        calls = Calls("_add_dkdv", ("dk", "dv"), (
            "k", "v", "q_head", "do_head", "lse_ptr", "delta_ptr", "key", "N", "D", "BLOCK_M",
            *further(example)), "start_m", before="the shares of the group's earlier heads")
        loop = Loop(given["key"], given["N"], given["BLOCK_M"], lambda i, j: sees(j, i, given),
                    ("key", "query"), False)

        def variants() -> dict:
            size, last = example["BLOCK_M"], example.get("last", example["N"])
            interior, end = (("the interior", "the right edge") if "window_size" in example else
                             ("the whole tiles", "the ragged last tile"))
            parts = [Phase("the diagonal", range(example["first"], min(example["inner"], last),
                                                 size), True),
                     Phase(interior, range(example["inner"], example["outer"], size), False),
                     Phase(end, range(example["outer"], last, size), True)]
            found = named.hands(SCALE, scale) | phases.single(parts, loop.wanted(), "start_m")
            return _of("dkdv", found)

        return Example(words(example), given,
                       lambda left: calls.judge(left, handed, loop, scale, given), POINTED,
                       variants=variants)

    return StepSpec(("dk", "dv"), lambda: [make(example) for example in examples], CONSTANTS,
                    {"_add_dkdv": ["dk", "dv"]})


def keys(N: int, start_n: int, BN: int, BM: int, CAUSAL: bool, W: int = 0, S: int = 0) -> dict:
    """A tile of keys, with the borders of step 8.14 or, with a window, of 9.16."""
    begin, inner = (start_n, start_n + BN) if CAUSAL else (0, 0)
    example = dict(N=N, start_n=start_n, BLOCK_N=BN, BLOCK_M=BM, CAUSAL=CAUSAL)
    if not W:
        return example | dict(first=begin, inner=inner, outer=max(N // BM * BM, inner))
    last, outer = N, N
    if CAUSAL:
        last = N if start_n < S else min(inner - 1 + W, N)
        outer = N if inner <= S else min(start_n + W, N)
    return example | dict(window_size=W, sink_size=S, first=begin, inner=inner,
                          outer=max(outer // BM * BM, inner), last=last)


def by_the_wrong_key(example: dict) -> dict:
    """Borders of step 9.16 that are counted from the other end of the tile of keys."""
    if not example["CAUSAL"]:
        return {}
    N, W, S, start, size, inner = (example[name] for name in (
        "N", "window_size", "sink_size", "start_n", "BLOCK_M", "inner"))
    outer = N if inner <= S else min(inner - 1 + W, N)
    return {"outer-by-the-youngest-key": ("outer", max(outer // size * size, inner)),
            "last-by-the-oldest-key": ("last", N if start < S else min(start + W, N))}


def queries(N: int, start_m: int, T: int, CAUSAL: bool, W: int, S: int) -> dict:
    """A tile of queries, with the borders of step 9.20."""
    begin, inner, edge, sinks = 0, 0, N // T * T, 0
    if CAUSAL:
        begin, edge = max(start_m - W + 1, 0) // T * T, start_m
        inner = min(-(-max(start_m + T - W, 0) // T) * T, start_m)
        sinks = min(S, begin)
    return dict(N=N, start_m=start_m, BLOCK_M=T, BLOCK_N=T, CAUSAL=CAUSAL, window_size=W,
                sink_size=S, sink_end=sinks, first=begin, inner=inner, edge=edge)


def query_phases(names: dict) -> list:
    """The phases of steps 8.15 and 9.17."""
    size = names["BLOCK_M"]
    return [(range(names["inner"], names["outer"], size), False),
            (range(names["outer"], names.get("last", names["N"]), size), True),
            (range(names["first"], names["inner"], size), True)]


def key_phases(names: dict) -> list:
    """The phases of step 9.4."""
    size, edge = names["BLOCK_N"], names["edge"]
    return [(range(0, names["sink_end"], size), True),
            (range(names["first"], names["inner"], size), True),
            (range(names["inner"], edge, size), False),
            (range(edge, edge + 1) if edge < names["N"] else (), True)]


KEY_TILES = [keys(*row) for row in (
    (70, 0, 16, 16, True), (70, 48, 16, 16, True), (70, 64, 16, 16, True), (64, 48, 16, 16, True),
    (70, 16, 16, 16, False), (64, 16, 16, 16, False), (7, 0, 16, 16, True), (7, 0, 16, 16, False),
    (100, 32, 32, 16, True), (100, 64, 32, 16, False), (65, 32, 32, 16, True),
    (100, 96, 32, 16, True))]
QUERY_TILES = [dict(N=N, start_m=start, BLOCK_M=16, BLOCK_N=16, CAUSAL=flag)
               for N, start, flag in ((70, 32, True), (70, 64, True), (70, 0, True),
                                      (64, 48, True), (65, 64, True), (70, 32, False),
                                      (64, 0, False), (7, 0, False), (7, 0, True))]
WINDOWED_KEYS = [keys(*row) for row in (
    (100, 32, 16, 16, True, 20, 0), (100, 32, 16, 16, True, 40, 4), (100, 0, 16, 16, True, 20, 4),
    (100, 0, 16, 16, True, 5, 40), (100, 80, 16, 16, True, 3, 2), (100, 96, 16, 16, True, 300, 0),
    (128, 32, 32, 16, True, 33, 0), (128, 32, 32, 16, True, 50, 40), (128, 64, 32, 16, True, 1, 0),
    (100, 16, 16, 16, True, 49, 16), (100, 16, 16, 16, True, 48, 32),
    (100, 32, 16, 16, True, 18, 0), (70, 16, 16, 16, False, 70, 5), (64, 32, 32, 16, False, 64, 0),
    (7, 0, 16, 16, True, 7, 7), (97, 32, 16, 16, True, 17, 33),
    (128, 0, 16, 16, True, 64, 0), (128, 16, 16, 16, True, 63, 0))]
WINDOWED_QUERIES = [queries(*row) for row in (
    (100, 64, 16, True, 20, 0), (100, 64, 16, True, 20, 40), (100, 96, 16, True, 1, 16),
    (97, 96, 16, True, 33, 4), (64, 0, 16, True, 5, 9), (64, 48, 16, True, 300, 300),
    (100, 80, 16, True, 18, 3), (100, 80, 16, True, 47, 20), (70, 32, 16, False, 70, 5),
    (64, 16, 16, False, 64, 0), (7, 0, 16, True, 3, 1), (7, 0, 16, False, 7, 0),
    (100, 80, 16, True, 64, 17), (100, 80, 16, True, 31, 33))]


# ---------------------------------------------------------------- arithmetic
def _tile(seed: int, dtype: str = "float32", transposed: bool = False) -> dict:
    """What a kernel knows of one tile of scores: (M, N), or (N, M) if transposed."""
    random, (M, N) = randoms(seed), (32, 16) if transposed else (16, 32)
    rounded = {name: random(n, D).astype(dtype)
               for name, n in (("q", M), ("do", M), ("k", N), ("v", N))}
    return rounded | {"lse_log2": random(M) + 5, "delta": random(M), "scale_log2e": FACTOR,
                      "dq": random(M, D), "dk": random(N, D), "dv": random(N, D), "N": 400,
                      "D": D, "BLOCK_M": M, "BLOCK_N": N, "start_m": 64, "start_n": 32,
                      "query": np.arange(64, 64 + M, dtype=np.int32),
                      "key": np.arange(32, 32 + N, dtype=np.int32)}


def wide(given: dict, *names: str):
    return (given[name].astype(np.float64) for name in names)


def weights(transposed: bool = False, natural: bool = False) -> StepSpec:
    """8.11 and 8.16: P from the saved log-sum-exp, and 0 where MASKED and not keep.

    natural: the scale is passed on in base e, and in 8.11 lse, too.
    """
    name = "p_t" if transposed else "p"

    def make(masked: bool, seed: int, dtype: str = "float32", far: bool = False,
             causal: bool = True, loud: bool = False) -> Example:
        """loud: hidden scores are so large that exp of them is infinite."""
        given = _tile(seed, dtype, transposed)
        if loud:
            given["k"][::4] *= 60
        q, k, lse = wide(given, "q", "k", "lse_log2")
        if far:  # rows past N - 1 load q = 0 and lse = inf
            given["lse_log2"][3:6] = lse[3:6] = np.inf
        less = lse * LN2 if natural and transposed else lse
        want = (np.exp if natural else np.exp2)(q @ k.T * FACTOR - less[:, None])
        want = want.T if transposed else want
        keep = randoms(seed + 1)(*want.shape) < 0.5 if masked else np.ones(want.shape, bool)
        if loud:
            (keep if transposed else keep.T)[::4] = False

        def check(left: Observed) -> Wrong | None:
            got = left.programs[0][name]
            found = difference(name, got, np.where(keep, want, 0), EXACT * 3)
            nan = isinstance(got, np.ndarray) and np.isnan(got).any()
            return replace(found, id="zero-times-inf") if found and loud and nan else found

        def variants() -> dict:
            s, less = q @ k.T, lse[:, None]
            others = {"backward-without-lse": np.exp2(s * FACTOR),
                      "backward-scores-unscaled": np.exp2(s - less),
                      "backward-in-two-bases": np.exp(s * FACTOR - less)}
            # A 16-bit tile times a number stays in 16 bits, and the number is rounded first.
            for factor in (np.float32(FACTOR), np.dtype(dtype).type(FACTOR)):
                scaled = {x: (given[x] * factor).astype(dtype).astype(np.float64) for x in "qk"}
                others["scaled-in-16-bits", "k", factor] = np.exp2(q @ scaled["k"].T - less)
                others["scaled-in-16-bits", "q", factor] = np.exp2(scaled["q"] @ k.T - less)
            return {"keep-not-applied": named.leaves(**{name: want})} | {
                id: named.leaves(EXACT * 3 if "scaled-in-16-bits" in id else named.NEAR,
                                 **{name: np.where(keep, p.T if transposed else p, 0)})
                for id, p in others.items()}

        return Example(f"{name} {want.shape}, {dtype}, MASKED={masked}, CAUSAL={causal}"
                       + ", very large hidden scores" * loud,
                       {**given, "keep": keep, "MASKED": masked, "CAUSAL": causal},
                       check, variants=None if far or natural or loud else variants)

    return StepSpec((name,), lambda: [make(True, 21), make(False, 22), make(True, 23, "float16"),
                                      make(True, 24, far=True), make(True, 25, causal=False),
                                      make(True, 26, loud=True)],
                    ("MASKED", *CONSTANTS))


def products(transposed: bool = False) -> StepSpec:
    """8.12: dq with this tile's share; 8.17: dk and dv."""
    def make(seed: int, dtype: str) -> Example:
        given = _tile(seed, dtype, transposed)
        q, do, k, v, delta = wide(given, "q", "do", "k", "v", "delta")
        p = np.abs(randoms(seed + 1)(len(q), len(k)))
        dp = do @ v.T
        ds = p * (dp - delta[:, None])
        if transposed:
            want = {"dv": given["dv"] + p.T @ do, "dk": given["dk"] + ds.T @ q}
        else:
            want = {"dq": given["dq"] + ds @ k}

        def check(left: Observed) -> Wrong | None:
            return first(*(difference(name, left.programs[0][name], value,
                                      2 * EXACT if dtype == "float32" else ROUNDED)
                           for name, value in want.items()))

        shape = (len(k), len(q)) if transposed else p.shape
        return Example(f"a tile of scores {shape}, {dtype}", {
            **given, "p_t" if transposed else "p": p.T.copy() if transposed else p,
            "MASKED": True, "CAUSAL": dtype == "float32", "keep": np.ones(shape, bool)}, check,
            variants=None if dtype == "float16" else lambda: named.products(
                p, ds, dp, delta, q, k, do, given, transposed))

    return StepSpec(("dk", "dv") if transposed else ("dq",),
                    lambda: [make(31, "float32"), make(32, "float16")], ("MASKED", *CONSTANTS))


def delta() -> StepSpec:
    """8.9: rowsum(do * o) in float32, stored like lse."""
    def make(N: int, start: int, bh: int, dtype: str) -> Example:
        random, M = randoms(N + start), 16
        do, o = random(M, D).astype(dtype), random(M, D).astype(dtype)
        query = np.arange(start, start + M, dtype=np.int32)
        want = (do.astype(np.float64) * o).sum(1)
        memory = np.full(HEADS * N, MARK)
        memory[bh * N + query[query < N]] = want[query < N]

        def check(left: Observed) -> Wrong | None:
            delta = left.programs[0]["delta"]
            if np.shape(delta) != (M,):
                return difference("delta", delta, want)
            found = difference("delta", delta[:, None], want[:, None], 1e-4)
            return first(found and replace(found, lines=(found.lines[0].replace(", 0]", "]", 1),)),
                         stored("delta_ptr", left.memory["delta"], memory, 1, N, 1e-4))

        return Example(f"N={N}, rows {start}-{start + M - 1} of head {bh}, {dtype}", {
            "do": do, "o": o, "bh": np.int64(bh), "N": N, "query": query, "start_m": start,
            "BLOCK_M": M, "BLOCK_D": D, "D": D, "delta_ptr": Pointer("delta", 0), "b": bh // 2,
            "h": bh % 2, "HQ": 2, "HKV": 1, "kv_head": 0}, check,
            {"delta": np.full(HEADS * N, MARK, np.float32)})

    return StepSpec(("delta",), lambda: [make(40, 16, 1, "float16"), make(40, 32, 2, "float32"),
                                         make(7, 0, 0, "float16")], CONSTANTS)


def sink_start(base: float = 2.0) -> StepSpec:
    """9.3: l_i base^m_i is exp(sink)."""
    def make(sink: float) -> Example:
        M = 16

        def logits(names: dict) -> np.ndarray:
            with np.errstate(all="ignore"):
                return names["m_i"].astype(np.float64) * np.log(base) + np.log(
                    names["l_i"].astype(np.float64))

        def check(left: Observed) -> Wrong | None:
            names = left.programs[0]
            for name in ("m_i", "l_i"):
                if np.shape(names[name]) != (M,):
                    return difference(name, names[name], np.zeros(M))
            got = logits(names)
            if np.allclose(got, sink, rtol=1e-5, atol=1e-5):
                return None
            return Wrong((f"m_i = {number(names['m_i'][0])} and l_i = {number(names['l_i'][0])} "
                          f"amount to a sink logit of {number(got[0])}; it should be {sink}.",),
                         want=str(sink), got=number(got[0]))

        def variants() -> dict:
            def counts(logit: float):  # exp of what is far from 0 is 0 or inf
                return lambda left: np.allclose(np.clip(logits(left.programs[0]), -160, 160),
                                                np.clip(logit, -160, 160), 1e-5, 1e-5)

            def untouched(left: Observed, *names: str) -> bool:
                start, given = {"m_i": -np.inf, "l_i": 0}, left.programs[0]
                return all((given[name] == value).all() == (name in names)
                           for name, value in start.items())
            return {id: counts(logit(sink, SCALE)) for id, logit in named.SINK_LOGITS.items()} | {
                "sink-logits-ignored": lambda left: untouched(left, "m_i", "l_i"),
                ("sink-logit-wrong", "is not counted in l_i, which is still 0"):
                    lambda left: untouched(left, "l_i"),
                ("sink-logit-wrong", "is not in m_i, which is still -inf"):
                    lambda left: untouched(left, "m_i")}

        return Example(f"sink={sink}", {
            "sink": np.float32(sink), "m_i": np.full(M, -np.inf, np.float32),
            "l_i": np.zeros(M, np.float32), "acc": np.zeros((M, D), np.float32), "BLOCK_M": M,
            "BLOCK_D": D, "BLOCK_N": M, "h": 1, "scale": SCALE}, check, variants=variants)

    return StepSpec(("m_i", "l_i"), lambda: [make(1.5), make(-2.0), make(0.0), make(150.0),
                                             make(-150.0)], CONSTANTS)


def dsink() -> StepSpec:
    """9.11: -sum exp(sink - lse) delta over the queries of the tile."""
    def make(sink: float, N: int) -> Example:
        random, M = randoms(41), 16
        lse, delta = 2 * random(M) + 4, random(M)
        exists = np.arange(M) < N
        lse[~exists], delta[~exists] = np.inf, 0
        want = -(np.exp(sink - lse[exists] / LOG2E) * delta[exists]).sum()
        return Example(f"sink={sink}, {int(exists.sum())} queries", {
            "sink": np.float32(sink), "lse_log2": lse, "delta": delta, "N": N, "BLOCK_M": M,
            "query": np.arange(M, dtype=np.int32), "start_m": 0, "h": 1, "b": 0,
            "bh": np.int64(1)},
            lambda left: difference("dsink", left.programs[0]["dsink"], np.float64(want), 1e-4),
            variants=lambda: {"backward-without-lse": named.leaves(
                dsink=np.float64(-(np.exp(sink) * delta).sum()))})

    return StepSpec(("dsink",), lambda: [make(1.5, 40), make(-1.0, 9), make(0.0, 16)], CONSTANTS)
