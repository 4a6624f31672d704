"""Computes the worked examples, with numbers small enough to follow by hand."""

import math
from functools import cache
from typing import NamedTuple

# One row of scores, two keys per tile, and one number of v per key.
SCORES, VALUES, TILE = [1.0, 3.0, 2.0, 5.0, 4.0, 0.0], [1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2

# Six tokens with D = 4, so that the scale is 1/2 and every score a multiple of it.
Q = [[2, 0, 0, 0], [0, 2, 0, 0], [2, 2, 0, 0], [0, 0, 2, 0], [2, 0, 2, 0], [0, 2, 2, 2]]
K = [[1, 0, 0, 0], [0, 1, 0, 0], [1, 1, 0, 0], [0, 0, 3, 0], [2, 0, 1, 0], [0, 1, 1, 1]]
V = [[1, 0], [0, 1], [1, 1], [2, 0], [0, 2], [1, 2]]


class Table(NamedTuple):
    """header, rows: the cells; source: where they come from."""

    header: list[str]
    rows: list[list]
    source: str


def show(x) -> str:
    """A number in a worked example: at most four decimals, and a sign for minus infinity."""
    if isinstance(x, (list, tuple)):
        return "(" + ", ".join(show(one) for one in x) + ")"
    if isinstance(x, float) and math.isinf(x):
        return "-∞" if x < 0 else "∞"
    text = f"{x:.4f}".rstrip("0").rstrip(".") if isinstance(x, float) else str(x)
    return text.replace("-", "−") if text != "-0" else "0"


def naive(q, k, v):
    """q, k, v (N, D) tensors -> o (N, D).  Every line is a kernel of its own, or two."""
    s = q @ k.T  # (N, N), to device memory
    s = s * q.shape[1] ** -0.5  # read, written
    p = s.softmax(dim=1)  # read, written
    return p @ v  # read


def online(scores, values, tile, m=-math.inf, length=0.0, acc=0.0):
    """Yield one dict per tile: the state of problem 1's online softmax after it."""
    for start in range(0, len(scores), tile):
        s, v = scores[start : start + tile], values[start : start + tile]
        m_new = max(m, *s)
        pivot = 0.0 if math.isinf(m_new) else m_new
        p = [math.exp(x - pivot) for x in s]
        alpha = math.exp(m - pivot)
        length = alpha * length + sum(p)
        acc = alpha * acc + sum(a * b for a, b in zip(p, v, strict=True))
        m = m_new
        yield {"tile": start // tile, "s": s, "v": v, "m": m, "p": p, "alpha": alpha,
               "l": length, "acc": acc}


def softmax_row(scores, values):
    """The same without tiles: (o, lse)."""
    weights = [math.exp(x) for x in scores]
    total = sum(weights)
    return sum(w * v for w, v in zip(weights, values, strict=True)) / total, math.log(total)


def online_table() -> Table:
    rows = [["before", "", show(-math.inf), "", "", "0", "0"]]
    rows += [[f"tile {t['tile']}", show(t["s"]), show(t["m"]), show(t["alpha"]), show(t["p"]),
              show(t["l"]), show(t["acc"])] for t in online(SCORES, VALUES, TILE)]
    return Table(["", "s", "m_i", "alpha", "p", "l_i", "acc"], rows, "computed when this was built")


def end_table() -> Table:
    *_, last = online(SCORES, VALUES, TILE)
    o, lse = softmax_row(SCORES, VALUES)
    rows = [["o", "acc / l_i", show(last["acc"] / last["l"]), show(o)],
            ["lse", "m_i + log(l_i)", show(last["m"] + math.log(last["l"])), show(lse)]]
    return Table(["", "formula", "tile by tile", "in one piece"], rows,
                 "computed when this was built")


# ------------------------------------------------------------- stages 2 and 3
def programs_table(N=10, block=4) -> Table:
    rows = []
    for program in range(-(-N // block)):
        offsets = [program * block + i for i in range(block)]
        rows.append([program, show(offsets), "(" + ", ".join(
            "yes" if o < N else "no" for o in offsets) + ")"])
    return Table(["program", "offsets", "inside?"], rows, f"N = {N}, BLOCK = {block}")


def addresses_table(stride_n=8, stride_d=1, start=2, rows=2, columns=4) -> Table:
    return Table(["", *(f"column {j}" for j in range(columns))],
                 [[f"row {start + i}", *((start + i) * stride_n + j * stride_d
                                         for j in range(columns))] for i in range(rows)],
                 f"offsets from the head's first element; stride_n = {stride_n}, "
                 f"stride_d = {stride_d}, start = {start}")


def ragged_table() -> Table:
    """One query, five keys in tiles of four, all scores 1: with and without the mask."""
    N, tile, score = 5, 4, 1.0
    rows = []
    for name, outside in (("masked", -math.inf), ("not masked", 0.0)):
        padded = [score] * N + [outside] * (2 * tile - N)
        *_, last = online(padded, [1.0] * N + [0.0] * (2 * tile - N), tile)
        rows.append([name, show(padded[tile:]), show(last["l"]), show(last["acc"] / last["l"])])
    return Table(["last tile", "its scores", "l_i", "o, want 1"], rows,
                 "computed when this was built")


# ---------------------------------------------------------------- which tiles
def kinds(N, block, *, causal=True, window=None, sinks=0) -> list[list[str]]:
    """The kind of every (query tile, key tile) under the mask: whole, cut or skipped."""
    from reference import keep_mask

    tiles = -(-N // block)
    keep = keep_mask(N, N, causal, window, sinks)
    found = []
    for i in range(tiles):
        row = []
        for j in range(tiles):
            part = keep[i * block : (i + 1) * block, j * block : (j + 1) * block]
            ragged = (j + 1) * block > N
            row.append("skipped" if not part.any() else
                       "whole" if part.all() and not ragged else "cut")
        found.append(row)
    return found


def counted(N, block, **mask) -> dict[str, int]:
    flat = [kind for row in kinds(N, block, **mask) for kind in row]
    return {kind: flat.count(kind) for kind in ("whole", "cut", "skipped")}


def tiles_table() -> Table:
    masks = {"3, no mask": {"causal": False}, "4 and 5, causal": {},
             "6, W = 128": {"window": 128}, "7, W = 128, Z = 4": {"window": 128, "sinks": 4}}
    rows = []
    for name, mask in masks.items():
        n = counted(1024, 64, **mask)
        rows.append([name, n["whole"], n["cut"], n["skipped"], n["whole"] + n["cut"]])
    return Table(["stage", "whole", "cut", "skipped", "visited"], rows,
                 "N = 1024, tiles of 64, from the mask of reference.py")


def causal_table() -> Table:
    rows = []
    for block in (32, 64, 128):
        n = counted(1024, block)
        visited = n["whole"] + n["cut"]
        rows.append([block, n["whole"], n["cut"], n["skipped"],
                     f"{visited / (visited + n['skipped']):.3f}"])
    return Table(["tile", "whole", "cut", "skipped", "visited / all"], rows,
                 "N = 1024, from the mask of reference.py")


def heads_table(HQ=6, HKV=2) -> Table:
    return Table(["query head", *range(HQ)],
                 [["reads `h // (HQ // HKV)`", *(h // (HQ // HKV) for h in range(HQ))],
                  ["interleaved, wrong: `h % HKV`", *(h % HKV for h in range(HQ))]],
                 f"HQ = {HQ}, HKV = {HKV}")


def cache_bytes(heads, N, D, layers=1, size=2) -> int:
    """Bytes of k and v of a sequence: two tensors, `size` bytes per number."""
    return 2 * layers * heads * N * D * size


def cache_table(N=8192, D=128, HQ=32) -> Table:
    rows = [[HKV, HQ // HKV, f"{cache_bytes(HKV, N, D) / 2**20:.0f}"] for HKV in (32, 8, 1)]
    return Table(["HKV", "group", "MiB a layer"], rows,
                 f"HQ = {HQ}, N = {N:,}, D = {D}, bfloat16, one sequence")


def borders(start_m, window, sinks=0, block_m=64, block_n=64) -> dict[str, int]:
    """Steps 6.3 and 7.4, in Python."""
    first = max(start_m - window + 1, 0) // block_n * block_n
    inner = -(-max(start_m + block_m - window, 0) // block_n) * block_n
    return {"sink_end": min(sinks, first), "first": first, "inner": min(inner, start_m),
            "diagonal": start_m, "end": start_m + block_m}


def borders_table(sinks=4) -> Table:
    rows = [[start_m, window, *borders(start_m, window, sinks).values()]
            for start_m, window in ((0, 100), (64, 100), (256, 100), (256, 200), (256, 64))]
    return Table(["start_m", "W", "sink_end", "first", "inner", "diagonal", "end"], rows,
                 f"Z = {sinks}, tiles of 64")


def sinks_table(window=3, sinks=2, queries=(1, 3, 4, 6)) -> Table:
    """The keys that some queries see, from the mask of reference.py."""
    from reference import keep_mask

    keep = keep_mask(8, 8, True, window, sinks)
    rows = []
    for i in queries:
        seen = [j for j in range(8) if keep[i, j]]
        rows.append([i, *(", ".join(map(str, keys)) for keys in (
            [j for j in seen if i - j < window], [j for j in seen if j < sinks])), len(seen)])
    return Table(["query", "in the window", "sinks", "keys it sees"], rows,
                 f"W = {window}, Z = {sinks}, from the mask of reference.py")


# ------------------------------------------------------------- the sink logit
def sink_table(scores=(1.0, 0.0, 2.0), logits=(-math.inf, 0.0, 2.0, 5.0)) -> Table:
    rows = []
    for logit in logits:
        lse = math.log(math.exp(logit) + sum(math.exp(s) for s in scores))
        p = [math.exp(s - lse) for s in scores]
        rows.append([show(logit), show(lse), show(p), show(sum(p)), show(math.exp(logit - lse))])
    return Table(["sink logit", "lse", "P", "row sum", "the sink's weight"], rows,
                 f"scores {show(scores)}; −∞ is no sink logit")


# ---------------------------------------------------------------- the backward
def backward_example() -> dict:
    """All numbers of the backward of a row: one query, three keys, D = 1, scale 1."""
    s, v, do = [0.0, 1.0, 2.0], [1.0, 3.0, 2.0], 2.0
    lse = math.log(sum(math.exp(x) for x in s))
    p = [math.exp(x - lse) for x in s]
    o = sum(a * b for a, b in zip(p, v, strict=True))
    dp = [do * x for x in v]
    delta = do * o
    ds = [a * (b - delta) for a, b in zip(p, dp, strict=True)]
    return {"s": s, "v": v, "do": do, "lse": lse, "p": p, "o": o, "dp": dp, "delta": delta,
            "rowsum": sum(a * b for a, b in zip(p, dp, strict=True)), "ds": ds,
            "dv": [a * do for a in p]}


def backward_table() -> Table:
    x = backward_example()
    words = {"s": "given", "v": "given", "do": "given", "lse": "log of the sum of exp(s)",
             "p": "exp(s − lse)", "o": "p · v", "dp": "do v", "delta": "do o",
             "rowsum": "p · dp, the same", "ds": "p (dp − delta)", "dv": "p do"}
    rows = [[f"`{name}`", words[name], show(value)] for name, value in x.items()]
    rows.append(["`sum(ds)`", "a shift of the scores changes nothing", show(abs(round(
        sum(x["ds"]), 12)))])
    return Table(["", "how", "value"], rows, "computed when this was built")


# ------------------------------------------------------------ the walk to watch
@cache
def causal_frames(tile: int = 2) -> list[dict]:
    """All steps of a causal forward of six tokens in tiles of two, for the interactive walk."""
    frames = []
    for start_m in range(0, len(Q), tile):
        rows = [{"m": -math.inf, "l": 0.0, "acc": [0.0, 0.0]} for _ in range(tile)]
        for start_n in range(0, start_m + tile, tile):
            state, scores, weights, alphas = [], [], [], []
            for r, old in enumerate(rows):
                i = start_m + r
                s = [sum(a * b for a, b in zip(Q[i], K[j], strict=True)) / 2 if j <= i
                     else -math.inf for j in range(start_n, start_n + tile)]
                m = max(old["m"], *s)
                p = [math.exp(x - m) for x in s]
                alpha = math.exp(old["m"] - m)
                acc = [alpha * a + sum(p[j] * V[start_n + j][d] for j in range(tile))
                       for d, a in enumerate(old["acc"])]
                state.append({"m": m, "l": alpha * old["l"] + sum(p), "acc": acc})
                scores.append(s)
                weights.append(p)
                alphas.append(alpha)
            rows = state
            last = start_n == start_m
            frames.append({
                "query_tile": start_m // tile, "key_tile": start_n // tile,
                "phase": "diagonal" if last else "whole", "s": [show(s) for s in scores],
                "p": [show(p) for p in weights], "alpha": [show(a) for a in alphas],
                "m": [show(r["m"]) for r in rows], "l": [show(r["l"]) for r in rows],
                "acc": [show(r["acc"]) for r in rows],
                "o": [show([a / r["l"] for a in r["acc"]]) for r in rows] if last else None,
                "lse": [show(r["m"] + math.log(r["l"])) for r in rows] if last else None})
    return frames


# ------------------------------------------------------------------- to play with
ROWS = {"the row above": SCORES, "growing": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0],
        "largest first": [5.0, 3.0, 2.0, 1.0, 4.0, 0.0]}


def bars(scores, tile) -> list[dict]:
    """For every tile: the weights of the keys so far, as in l_i, and the state after it."""
    frames = []
    for state in online(scores, VALUES, tile):
        seen = scores[: (state["tile"] + 1) * tile]
        frames.append({"weights": [math.exp(s - state["m"]) for s in seen],
                       "new": len(state["s"]), **{name: show(state[name])
                                                  for name in ("s", "m", "alpha", "l", "acc")}})
    return frames


def dq_walk(start_m, N, block, window, sinks) -> list[tuple[int, str]]:
    """(start_n, phase) of the key tiles that the query tile at start_m visits, in order."""
    x = borders(start_m, window, sinks, block, block)
    return [(start, phase) for phase, a, b in (
        ("sinks", 0, x["sink_end"]), ("left edge", x["first"], x["inner"]),
        ("interior", x["inner"], start_m), ("diagonal", start_m, start_m + block))
        for start in range(a, b, block)]


def column_borders(start_n, N, window, sinks, block_m=64, block_n=64) -> dict[str, int]:
    """Step 9.16, in Python: where dkdv's loop over queries changes."""
    inner = start_n + block_n
    last = N if start_n < sinks else min(inner - 1 + window, N)
    outer = N if inner <= sinks else min(start_n + window, N)
    return {"first": start_n, "inner": inner, "outer": max(outer // block_m * block_m, inner),
            "last": last}


def dkdv_walk(start_n, N, block, window, sinks) -> list[tuple[int, str]]:
    """(start_m, phase) of the query tiles that the key tile at start_n visits, in order."""
    x = column_borders(start_n, N, window, sinks, block, block)
    return [(start, phase) for phase, a, b in (
        ("interior", x["inner"], x["outer"]), ("right edge", x["outer"], x["last"]),
        ("diagonal", x["first"], x["inner"])) for start in range(a, b, block)]


WALKED = {"causal": (24, 0), "window, W = 10": (10, 0), "W = 10 and two sinks": (10, 2)}


def played() -> dict[str, object]:
    """The data of the interactive figures, by name; the pages only draw it.  "mask" has none: the
    page counts its tiles itself, and a test compares that with `counted`."""
    N, block = 24, 4
    starts = range(0, N, block)
    return {"mask": None,
            "bars": {name: {tile: bars(row, tile) for tile in (1, 2, 3)}
                     for name, row in ROWS.items()},
            "walks": {name: {"kinds": kinds(N, block, window=window, sinks=sinks),
                             "dq": [dq_walk(s, N, block, window, sinks) for s in starts],
                             "dkdv": [dkdv_walk(s, N, block, window, sinks) for s in starts]}
                      for name, (window, sinks) in WALKED.items()}}


def six_tokens_table() -> Table:
    rows = [[i, *map(show, (Q[i], K[i], V[i]))] for i in range(len(Q))]
    return Table(["token", "q", "k", "v"], rows, "given")


def walk_table() -> Table:
    rows = []
    for frame in causal_frames():
        for r in range(2):
            rows.append([f"{frame['query_tile']}, {frame['key_tile']}",
                         2 * frame["query_tile"] + r,
                         *(frame[name][r] for name in ("s", "alpha", "p", "m", "l", "acc"))])
    return Table(["tiles", "query", "s", "alpha", "p", "m_i", "l_i", "acc"], rows,
                 "computed when this was built")


TABLES = {name[: -len("_table")].replace("_", "-"): make for name, make in list(globals().items())
          if name.endswith("_table")}
