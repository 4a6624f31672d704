"""Checks loads (3.7) and stores (3.3, 3.8), and their copies.

There is no memory around a tensor: a lane that no mask turns off there raises an error in its line.
What must not be read is NaN; what must not be written holds MARK.
"""

from dataclasses import replace

import numpy as np

from grader.step_checks import named
from grader.step_checks.examples import (
    EXACT,
    ROUNDED,
    Example,
    Observed,
    Pointer,
    StepSpec,
    Wrong,
    difference,
    first,
    randoms,
    ratio,
    unlike,
)

MARK = -77.0


def stored(name: str, got: np.ndarray, want: np.ndarray, width: int, N: int,
           error: float = EXACT) -> Wrong | None:
    """What is wrong with a memory of heads of N rows; MARK: must not be written."""
    free = (want == MARK).reshape(-1)  # what it says is not the size of any number
    found = difference(name, got, np.where(free, 0, want.reshape(-1)).astype(np.float64), error,
                       free=free)
    touched = np.flatnonzero((want.reshape(-1) == MARK) & (got != MARK))
    heads = want.size > N * width

    def place(row: int) -> str:
        return f"row {row % N}" + f" of head {row // N}" * heads

    mine = np.flatnonzero(want.reshape(-1) != MARK)
    own = want.reshape(-1)[mine].astype(np.float64)
    here, head = mine % (N * width), int(mine[0]) // (N * width) if mine.size else 0
    if touched.size == mine.size > 0 and (touched == here).all() and np.allclose(
            got[here].astype(np.float64), want.reshape(-1)[mine], error, error):
        return Wrong((f"The rows of head {head} are stored in head 0 of {name}: the head in the "
                      "address is missing or wrong.",), id="wrong-head", name=name)
    if touched.size:
        return Wrong((f"This program also writes {place(int(touched[0]) // width)} of {name}, "
                      "which belongs to another program.",), name=name)
    if found is None:
        return None
    if (got == MARK).all():
        return Wrong((f"Nothing is stored in {name}: no tl.store reaches it.",),
                     id="nothing-stored", name=name)
    at = int(np.flatnonzero(~np.isclose(got.astype(np.float64), want.reshape(-1).astype(np.float64),
                                        rtol=error, atol=error) & (want.reshape(-1) != MARK))[:1]
             .sum())
    row, column = divmod(at, width)
    return replace(unlike(name, f"{want.reshape(-1)[at]:.5g}",
                          "not written" if got[at] == MARK else f"{got[at]:.5g}",
                          f", {place(row)}" + f", column {column}" * (width > 1)),
                   ratio=ratio(got[mine].astype(np.float64), own, np.abs(own).max()))


def read(memory: np.ndarray, at: np.ndarray, exist: np.ndarray) -> np.ndarray:
    """The numbers at these places; 0 where none exists, and past the end of the memory."""
    there = exist & (at < memory.size)
    return np.where(there, memory.ravel()[np.where(there, at, 0)].astype(np.float64), 0)


def finish(base: float = 2.0) -> StepSpec:
    """3.3: o = acc / l_i and lse = m_i + log(l_i), stored for the rows that exist."""
    def make(N: int, start: int, bh: int, D: int, dtype: str, size: float = 1) -> Example:
        random, M, heads = randoms(N + start), 16, 4
        acc, l_i, m_i = size * random(M, 32), size * (np.abs(random(M)) + 0.5), 3 * random(M) + 2
        query = np.arange(start, start + M, dtype=np.int32)
        here, exists = bh * N + query[query < N], query < N
        o, lse = np.full((heads * N, D), MARK), np.full(heads * N, MARK)
        o[here] = (acc / l_i[:, None])[exists, :D]
        lse[here] = (m_i * np.log(base) + np.log(l_i))[exists]

        def check(left: Observed, lse: np.ndarray = lse) -> Wrong | None:
            return first(stored("o", left.memory["o"], o, D, N,
                                EXACT if dtype == "float32" else ROUNDED),
                         stored("lse", left.memory["lse"], lse, 1, N))

        def fit(rows: np.ndarray):
            wrong = lse.copy()
            wrong[here] = rows[exists]
            return lambda left: check(left, wrong) is None

        return Example(f"N={N}, rows {start}-{start + M - 1} of head {bh}, D={D}, {dtype}"
                       + f", acc and l_i about {size:,}" * (size > 1), {
            "acc": acc, "l_i": l_i, "m_i": m_i.astype(np.float32), "query": query, "N": N, "D": D,
            "bh": np.int64(bh), "start_m": start, "BLOCK_M": M, "BLOCK_D": 32, "scale": 0.25,
            "o_ptr": Pointer("o", 0), "lse_ptr": Pointer("lse", 0), "HQ": 2, "b": bh // 2,
            "h": bh % 2, "BLOCK_N": 16, "HKV": 1, "kv_head": 0}, check,
            {"o": np.full(heads * N * D, MARK, dtype), "lse": np.full(heads * N, MARK, "float32")},
            variants=lambda: {id: fit(rows) for id, rows in named.statistics(
                m_i * np.log(base), l_i).items()})

    return StepSpec((), lambda: [make(40, 16, 1, 16, "float32"), make(40, 32, 2, 16, "float32"),
                                 make(7, 0, 0, 10, "float16"),
                                 make(40, 16, 1, 16, "float16", 200_000)],
                    ("D", "BLOCK_D", "BLOCK_M", "BLOCK_N"), {"_store": "store"})


def load() -> StepSpec:
    """3.7: the tile's elements, and 0 past N - 1 and D - 1."""
    def make(D: int, RAGGED: bool, start: int, N: int, strides: tuple[int, int]) -> Example:
        (stride_n, stride_d), ROWS, BLOCK_D = strides, 16, 16
        whole = np.full((N - 1) * stride_n + (D - 1) * stride_d + 1, np.nan, np.float32)
        at = np.arange(N)[:, None] * stride_n + np.arange(D)[None] * stride_d
        whole[at] = np.arange(1, N * D + 1).reshape(N, D)
        want, rows = np.zeros((ROWS, BLOCK_D)), min(ROWS, N - start)
        want[:rows, :D] = whole[at[start:start + rows]]

        def check(left: Observed) -> Wrong | None:
            return difference("tile", left.programs[0]["tile"], want, 1e-9)

        def taken(length: int):
            i, j = np.arange(ROWS)[:, None], np.arange(BLOCK_D)
            taken = read(whole, start * stride_n + i * length + j, (start + i < N) & (j < D))
            return lambda left: difference("tile", left.programs[0]["tile"], taken, 1e-9) is None

        pointer = Pointer("x", start * stride_n)
        return Example(f"N={N}, start={start}, D={D}, BLOCK_D={BLOCK_D}, strides {strides}, "
                       f"RAGGED={RAGGED}",
                       {"ptr": pointer, "start": start, "stride_n": stride_n, "stride_d": stride_d,
                        "head": (Pointer("x", 0), stride_n, stride_d),
                        "N": N, "D": D, "BLOCK_D": BLOCK_D, "ROWS": ROWS, "RAGGED": RAGGED}, check,
                       {"x": whole}, variants=lambda: {("row-stride-ignored", name): taken(length)
                                                       for name, length in (("D", D), ("N", N))})

    return StepSpec(("tile",), lambda: [
        make(16, True, 32, 40, (16, 1)), make(16, False, 16, 40, (16, 1)),
        make(10, True, 32, 40, (24, 1)), make(10, False, 16, 40, (11, 1)),
        make(10, True, 0, 7, (1, 9)), make(16, False, 16, 33, (20, 2))],
        ("D", "BLOCK_D", "ROWS", "RAGGED"))


def store() -> StepSpec:
    """3.8: the rows and columns that exist, stored in the tensor's dtype."""
    def make(N: int, start: int, bh: int, D: int, dtype: str) -> Example:
        ROWS, heads = 16, 3
        tile = randoms(N + start)(ROWS, 16)
        rows = np.arange(start, start + ROWS, dtype=np.int32)
        want = np.full((heads * N, D), MARK)
        want[bh * N + rows[rows < N]] = tile[rows < N, :D]

        def check(left: Observed) -> Wrong | None:
            return stored("the tensor", left.memory["x"], want, D, N,
                          EXACT if dtype == "float32" else ROUNDED)

        return Example(f"N={N}, rows {start}-{start + ROWS - 1} of head {bh}, D={D} of 16 columns, "
                       f"{dtype}", {"ptr": Pointer("x", 0), "tile": tile, "bh": np.int64(bh),
                                    "rows": rows, "N": N, "D": D}, check,
                       {"x": np.full(heads * N * D, MARK, dtype)})

    return StepSpec((), lambda: [make(40, 16, 1, 16, "float32"), make(40, 32, 1, 10, "float32"),
                                 make(7, 0, 2, 16, "float16")], ("D",))


FINISH, NATURAL, LOAD, STORE = finish(), finish(float(np.e)), load(), store()
