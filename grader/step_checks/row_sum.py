"""Checks of stage 2: rows, loads and sums of the row-sum, its gradients and their launch."""

from dataclasses import replace

import numpy as np

from grader.step_checks import named
from grader.step_checks.examples import (
    EXACT,
    ROUNDED,
    Example,
    Observed,
    Pointer,
    Saved,
    StepSpec,
    Wrong,
    difference,
    first,
    randoms,
    same,
    unlike,
)
from grader.step_checks.memory import MARK, read, stored

BM, BN = 16, 32
CONSTANTS = ("BLOCK_M", "BLOCK_N")


def rows() -> Example:
    M = 40

    def check(left: Observed) -> Wrong | None:
        for program, names in enumerate(left.programs):
            want = program * BM + np.arange(BM)
            for name in ("offs_m", "mask_m"):
                if np.shape(names[name]) != want.shape:
                    return unlike(name, f"shape {want.shape}", _ends(names[name]))
            of, rows = f" of program {program}", f"{want[0]} ... {want[-1]}"
            if program and same(names["offs_m"], left.programs[0]["offs_m"]):
                return unlike("offs_m", rows, _ends(names["offs_m"]), of, ", the rows of program "
                              "0: tl.program_id(0) has no effect", id="programs-alike")
            if not same(names["offs_m"], want):
                return unlike("offs_m", rows, _ends(names["offs_m"]), of)
            if not same(names["mask_m"], want < M):
                row = next(row for row, one in zip(want, names["mask_m"], strict=True)
                           if one != (row < M))
                return unlike("mask_m", f"True for the rows below {M} and no others",
                              f"{bool(row >= M)} for row {row}", of)
        return None

    return Example(f"M={M}, BLOCK_M={BM}, 3 programs", {"M": M, "N": 70, "BLOCK_M": BM,
                                                       "BLOCK_N": BN}, check, programs=3)


def _ends(value) -> str:
    if not isinstance(value, np.ndarray) or not value.ndim:
        return f"the single number {value}"
    return f"shape {value.shape}" if value.shape != (BM,) else f"{value[0]} ... {value[-1]}"


def _layout(M: int, N: int, strides: tuple[int, int], dtype: str, seed: int):
    """-> a memory with NaN around a matrix; the matrix."""
    x = randoms(seed)(M, N).astype(dtype)
    whole = np.full((M - 1) * strides[0] + (N - 1) * strides[1] + 1, np.nan, dtype)
    whole[np.arange(M)[:, None] * strides[0] + np.arange(N) * strides[1]] = x
    return whole, x


def _tile(M: int, N: int, start_m: int, start_n: int, strides: tuple[int, int], dtype: str) -> dict:
    """What the kernels know when they load the tile at (start_m, start_n) of x (M, N)."""
    offs_m, offs_n = start_m + np.arange(BM), start_n + np.arange(BN)
    return {"M": M, "N": N, "BLOCK_M": BM, "BLOCK_N": BN, "offs_m": offs_m, "mask_m": offs_m < M,
            "offs_n": offs_n, "mask_n": offs_n < N, "start_m": start_m, "start_n": start_n,
            "stride_xm": strides[0], "stride_xn": strides[1]}


def loads(M: int, N: int, start_m: int, start_n: int, strides: tuple[int, int], stride_wn: int,
          dtype: str, summed: bool = False) -> Example:
    """2.2; summed: followed by 2.3."""
    given = _tile(M, N, start_m, start_n, strides, dtype)
    memory, x = _layout(M, N, strides, dtype, 1)
    weights, w = _layout(N, 1, (stride_wn, 1), dtype, 2)
    tile, row = np.zeros((BM, BN)), np.zeros(BN)
    inside = x[start_m:start_m + BM, start_n:start_n + BN].astype(np.float64)
    tile[:inside.shape[0], :inside.shape[1]] = inside
    row[:inside.shape[1]] = w[start_n:start_n + BN, 0]
    acc = randoms(3)(BM)

    def check(left: Observed) -> Wrong | None:
        names = left.programs[0]
        if summed:
            return difference("acc", names["acc"], acc + tile @ row, EXACT, free=~given["mask_m"])
        return first(difference("x", names["x"], tile, 1e-9),
                     difference("w", names["w"], row, 1e-9))

    def variants() -> dict:
        rows, exist = given["offs_m"][:, None] * N, given["mask_m"][:, None] & given["mask_n"]
        return {("row-stride-ignored", "N", stride): named.leaves(
            x=read(memory, rows + given["offs_n"] * stride, exist), w=row)
            for stride in {strides[1], 1}}

    return Example(f"M={M}, N={N}, rows from {start_m}, columns from {start_n}, strides {strides}, "
                   f"w stride {stride_wn}, {dtype}",
                   {**given, "x_ptr": Pointer("x", 0), "w_ptr": Pointer("w", 0), "acc": acc,
                    "stride_wn": stride_wn}, check, {"x": memory, "w": weights},
                   variants=None if summed else variants)


EXAMPLES = ((40, 70, 16, 32, (70, 1), 1, "float32"), (40, 70, 32, 64, (90, 1), 2, "float16"),
            (40, 70, 16, 64, (1, 41), 3, "float32"), (5, 9, 0, 0, (20, 2), 1, "float32"))


def sums(dtype: str) -> Example:
    random = randoms(4)
    x, w, acc = random(BM, BN).astype(dtype), random(BN).astype(dtype), random(BM)
    want = acc + x.astype(np.float64) @ w.astype(np.float64)
    wide = x.astype(np.float64)

    def rounded(to, summed_in=np.float64):
        product = (x.astype(to) * w.astype(to)).astype(summed_in)
        return named.leaves(EXACT, acc=acc + product.sum(1).astype(np.float64))

    def variants() -> dict:
        return {("product-in-16-bits", "of x"): rounded(dtype),
                ("product-in-16-bits", "float16"): rounded(np.float16),
                "tile-sum-in-16-bits": rounded(dtype, dtype),
                "sums-multiplied": named.leaves(acc=acc + wide.sum(1) * w.astype(np.float64).sum()),
                "w-ignored": named.leaves(acc=acc + wide.sum(1)),
                "w-squared": named.leaves(acc=acc + wide @ (w.astype(np.float64)**2)),
                "last-tile-only": named.leaves(acc=want - acc)}

    return Example(f"x of shape {x.shape}, w of shape {w.shape}, {dtype}",
                   {"x": x, "w": w, "acc": acc},
                   lambda left: difference("acc", left.programs[0]["acc"], want), variants=variants)


def outer(M: int, N: int, start_m: int, start_n: int, stride_dym: int, stride_wn: int,
          strides: tuple[int, int], dtype: str) -> Example:
    """2.4."""
    given = _tile(M, N, start_m, start_n, strides, dtype)
    memory, dy = _layout(M, 1, (stride_dym, 1), dtype, 5)
    if not stride_dym:
        memory, dy = np.full(1, 1.5, dtype), np.full((M, 1), 1.5, dtype)
    weights, w = _layout(N, 1, (stride_wn, 1), dtype, 6)
    m, n = given["offs_m"][given["mask_m"]], given["offs_n"][given["mask_n"]]

    def filled(row_stride: int, column_stride: int) -> np.ndarray:
        left = np.full((M - 1) * strides[0] + (N - 1) * strides[1] + 1, MARK)
        at = m[:, None] * row_stride + n[None] * column_stride
        left[np.minimum(at, len(left) - 1)] = \
            dy[m].astype(np.float64) * w[n, 0].astype(np.float64)
        return left

    want = filled(*strides)

    def check(left: Observed) -> Wrong | None:
        return off(left, want)

    def off(left: Observed, want: np.ndarray) -> Wrong | None:
        return stored("dx", left.memory["dx"], want, strides[0] if strides[1] == 1 else len(want),
                      M, EXACT if dtype == "float32" else ROUNDED)

    return Example(f"M={M}, N={N}, rows from {start_m}, columns from {start_n}, stride of "
                   f"dy {stride_dym}, of w {stride_wn}, of dx {strides}, {dtype}",
                   {**given, "dy_ptr": Pointer("dy", 0), "w_ptr": Pointer("w", 0),
                    "dx_ptr": Pointer("dx", 0), "stride_dym": stride_dym, "stride_wn": stride_wn,
                    "stride_dxm": strides[0], "stride_dxn": strides[1], "num_n": -(-N // BN)},
                   check,
                   {"dy": memory, "w": weights, "dx": np.full(len(want), MARK, dtype)},
                   variants=lambda: {
                       ("row-stride-ignored", "N", stride):
                           lambda left, stride=stride: off(left, filled(N, stride)) is None
                       for stride in {strides[1], 1} if (N, stride) != strides})


def columns(M: int, N: int, start_m: int, start_n: int, strides: tuple[int, int], stride_dym: int,
            dtype: str) -> Example:
    """2.5."""
    given = _tile(M, N, start_m, start_n, strides, dtype)
    given = {name: value for name, value in given.items() if name not in ("offs_m", "mask_m")}
    memory, x = _layout(M, N, strides, dtype, 7)
    upstream, dy = _layout(M, 1, (stride_dym, 1), dtype, 8)
    if not stride_dym:
        upstream, dy = np.full(1, 1.5, dtype), np.full((M, 1), 1.5, dtype)
    acc = randoms(9)(BN)

    def added(first_row: int) -> np.ndarray:
        rows, total = slice(first_row, first_row + BM), acc.astype(np.float64)
        tile = x[rows, start_n:start_n + BN].astype(np.float64)
        total[:tile.shape[1]] += (dy[rows].astype(np.float64) * tile).sum(0)
        return total

    def check(left: Observed) -> Wrong | None:
        for program, names in enumerate(left.programs):
            def off(first_row: int, got=names["acc"]) -> Wrong | None:
                return difference("acc", got, added(first_row), free=~given["mask_n"])
            if found := off(start_m):
                if not (off(program * BM) and off(start_m + program * BM)):
                    return replace(found, id="rows-by-program")
                return found
        return None

    return Example(f"M={M}, N={N}, rows from {start_m}, columns from {start_n}, strides {strides}, "
                   f"dy stride {stride_dym}, {dtype}",
                   {**given, "x_ptr": Pointer("x", 0), "dy_ptr": Pointer("dy", 0), "acc": acc,
                    "stride_dym": stride_dym},
                   check, {"x": memory, "dy": upstream}, programs=2)


def launched(left: Observed, name: str, kernel: str, want: np.ndarray) -> Wrong | None:
    """What is wrong with the tensor that this kernel should fill."""
    if kernel not in dict(left.calls):
        return Wrong((f"{kernel} is not launched, and {name} needs it: write {kernel}[grid](...), "
                      "the arguments included.",), id="not-launched", name=name)
    if left.programs[0][name] is None:
        return Wrong((f"{name} is None: it must be the tensor that {kernel} fills.",), name=name,
                     want=f"a tensor of shape {want.shape}", got="None")
    return difference(name, left.programs[0][name], want, 1e-4)


def launches(needs: tuple[bool, bool], stride_dy: int, transposed: bool = False,
             stride_w: int = 1, stride_x: int = 1) -> Example:
    """2.6, with right kernels in place of the file's.  stride_x: of its columns."""
    M, N = 20, 300
    random = randoms(10)
    x, w = random(M, N * stride_x)[:, ::stride_x], random(N * stride_w)[::stride_w]
    dy = random(M * max(stride_dy, 1))[::max(stride_dy, 1)]
    if not stride_dy:
        dy[:] = dy[0]
    want = {"dx": np.outer(dy, w) if needs[0] else None, "dw": dy @ x if needs[1] else None}

    def check(left: Observed) -> Wrong | None:
        for name, value in want.items():
            if value is None and left.programs[0][name] is not None:
                return Wrong((f"{name}: want None, because {name[1:]} needs no gradient here; "
                              "got a tensor.", "This is advice, and costs no points: see "
                              "ctx.needs_input_grad."), id="gradient-not-needed", name=name,
                             want="None", got="a tensor")
            if value is not None and (found := launched(left, name, f"_{name}_kernel", value)):
                return found
        for kernel, grid in left.calls:
            if grid["programs"] > grid["wanted"]:
                return Wrong((f"{kernel} is launched with {grid['programs']} programs; "
                              f"{grid['wanted']} are enough",), note=True)
        return None

    said = f", dy with stride {stride_dy}" + ", x transposed" * transposed
    said += f", w with stride {stride_w}" * (stride_w > 1)
    said += f", x with strides {N * stride_x, stride_x}" * (stride_x > 1)
    return Example(f"M={M}, N={N}, needs_input_grad={needs}{said}",
                   {"ctx": Saved(needs), "x": x.T.copy().T if transposed else x, "w": w,
                    "dy": dy if stride_dy else np.broadcast_to(dy[0], M), "M": M, "N": N,
                    "dx": None, "dw": None, "grid_m": 2, "grid_n": 3}, check)


LOADS = StepSpec(("x", "w"), lambda: [loads(*one) for one in EXAMPLES], CONSTANTS)
ENTRIES = {
    "2.1": StepSpec(("offs_m", "mask_m"), lambda: [rows()], CONSTANTS),
    "2.2": LOADS,
    "2.3": StepSpec(("acc",), lambda: [sums("float32"), sums("float16")], CONSTANTS),
    "2.4": StepSpec((), lambda: [outer(40, 70, 16, 32, 1, 1, (70, 1), "float32"),
                                 outer(40, 70, 32, 64, 2, 3, (75, 1), "float16"),
                                 outer(40, 70, 32, 0, 0, 1, (1, 44), "float32"),
                                 outer(5, 9, 0, 0, 1, 1, (9, 1), "float32")], CONSTANTS),
    "2.5": StepSpec(("acc",), lambda: [columns(40, 70, 16, 32, (70, 1), 1, "float32"),
                                       columns(40, 70, 32, 64, (75, 1), 2, "float16"),
                                       columns(40, 70, 32, 0, (1, 44), 0, "float32"),
                                       columns(5, 9, 0, 0, (9, 1), 1, "float32")], CONSTANTS),
    "2.6": StepSpec(("dx", "dw"), lambda: [
        launches((True, True), 1), launches((True, True), 0), launches((True, False), 1),
        launches((False, True), 1), launches((True, True), 1, True),
        launches((True, True), 2, stride_w=3), launches((True, True), 1, stride_x=2)],
        fakes={"_dx_kernel": "dx", "_dw_kernel": "dw"}, kernel=False),
}
SUMMED = StepSpec(("acc",), lambda: [loads(*one, summed=True) for one in EXAMPLES], CONSTANTS)
