"""Stage 2's gradients: dx = outer(dy, w), dw = sum_i dy_i x_i."""

import torch

from grader.naming.mistakes.row_sum import strided
from grader.naming.rounding import CHOPPED, to_16_bits
from grader.naming.table import mistake, only


def gradient(id, words, line, place, tiles="", **more):
    """As mistake, for stage 2's gradients: place is "dx" or "dw"."""
    slot = more.pop("slot", place.split(", ")[0])
    return mistake(id, words, line, place, kind="backward", slot=slot, stages=(2,), tiles=tiles,
                   **more)


DX, DW = "dx_ij = dy_i w_j", "dw_j = sum_i dy_i x_ij"

# RowSum, dy (M,), w (N,) -> dx (M, N).
DX_OF = {
    "lacks dy: every row is w": lambda m, dy, w: w[None, :].expand(m.M, -1),
    "lacks w: every column is dy": lambda m, dy, w: dy[:, None].expand(-1, m.N),
    "has w twice": lambda m, dy, w: dy[:, None] * w[None, :]**2,
    "has dy twice": lambda m, dy, w: dy[:, None]**2 * w[None, :],
    "is dy x, not dy w": lambda m, dy, w: dy[:, None] * m.x,
    "is w x, not dy w": lambda m, dy, w: w[None, :] * m.x,
    "has dy w x": lambda m, dy, w: dy[:, None] * w[None, :] * m.x,
    "is dy + w": lambda m, dy, w: dy[:, None] + w[None, :],
    "is divided by M": lambda m, dy, w: dy[:, None] * w[None, :] / m.M,
    "is divided by N": lambda m, dy, w: dy[:, None] * w[None, :] / m.N,
    "has the wrong sign": lambda m, dy, w: -dy[:, None] * w[None, :],
    "is zero": lambda m, dy, w: torch.zeros(m.M, m.N, dtype=torch.float64),
    "takes the sum of dy for every row": lambda m, dy, w: dy.sum() * w[None, :].expand(m.M, -1),
}


@gradient("dx-of", "dx {0}", DX, "dx", each=tuple((how,) for how in DX_OF))
def _(m, how):
    m.dx_of = lambda dy, w: DX_OF[how](m, dy, w)


# RowSum, dy (M,) -> what is summed over rows, (M, N).
DW_OF = {
    "lacks dy: it sums the rows of x": lambda m, dy: m.x,
    "lacks x: it sums dy": lambda m, dy: dy[:, None].expand(-1, m.N),
    "has dy twice": lambda m, dy: dy[:, None]**2 * m.x,
    "has x twice": lambda m, dy: dy[:, None] * m.x**2,
    "has w, too": lambda m, dy: dy[:, None] * m.x * m.w[None, :],
    "sums dy w, not dy x": lambda m, dy: dy[:, None] * m.w[None, :],
    "is divided by M": lambda m, dy: dy[:, None] * m.x / m.M,
    "is divided by N": lambda m, dy: dy[:, None] * m.x / m.N,
    "has the wrong sign": lambda m, dy: -dy[:, None] * m.x,
    "is zero": lambda m, dy: m.x * 0,
    "takes y for dy": lambda m, dy: (m.x @ m.w)[:, None] * m.x,
}


@gradient("dw-of", "dw {0}", DW, "dw", each=tuple((how,) for how in DW_OF))
def _(m, how):
    m.dw_terms = lambda dy, x: DW_OF[how](m, dy)


ROWS = {
    "the last, ragged tile of rows is left out": lambda m, i: i < m.M // m.BM * m.BM,
    "the last tile of rows is left out": lambda m, i: i < (m.M - 1) // m.BM * m.BM,
    "only the last tile of rows counts: acc is assigned, not added to":
        lambda m, i: i >= (m.M - 1) // m.BM * m.BM,
    "only the first tile of rows counts": lambda m, i: i < m.BM,
    "the first tile of rows is left out": lambda m, i: i >= m.BM,
    "the last row is left out": lambda m, i: i < m.M - 1,
    "rows after the first N are left out": lambda m, i: i < m.N,
    "the first row is left out": lambda m, i: i > 0,
    "every other tile of rows is left out": lambda m, i: i // m.BM % 2 == 0,
    "the first tile of rows counts in every round":
        lambda m, i: (i < m.BM) * -(-m.M // m.BM),
    "only the rows of the program's number count":
        lambda m, i: i < m.BM,
}


@gradient("dw-rows", "dw: {0}", "dw_j sums over all rows i < M", "dw", tiles="m",
          each=tuple((how,) for how in ROWS))
def _(m, how):
    m.dw_rows = (torch.ones(m.M) * ROWS[how](m, torch.arange(m.M))).double()
    only(bool((m.dw_rows != 1).any()))


@gradient("dw-step", "dw: the walk steps by the wrong block: {0}", "for start_m in range(0, M, "
          "BLOCK_M)", "dw", tiles="mn", each=(("rows are summed several times", "small"),
                                              ("rows between the tiles are left out", "large")))
def _(m, words, how):
    only(m.BN < m.BM if how == "small" else m.BN > m.BM)
    starts, i = torch.arange(0, m.M, m.BN)[:, None], torch.arange(m.M)
    m.dw_rows = ((i >= starts) & (i < starts + m.BM)).sum(0).double()
    only(bool((m.dw_rows != 1).any()))


@gradient("dw-tile-of-the-program", "dw: a program takes the rows of its own number in every round",
          "the row tile is that of the loop, start_m + arange", "dw", tiles="mn",
          each=(("every round",), ("once",)))
def _(m, how):
    i, program = torch.arange(m.M), torch.arange(m.N) // m.BN
    rounds = -(-m.M // m.BM) if how == "every round" else 1
    own = (i[:, None] // m.BM == program[None, :]).double() * rounds
    m.dw_terms = lambda dy, x: dy[:, None] * x * own


@gradient("dw-tile-of-another", "dw: dy is read from the {0}", "row i of x goes with dy_i", "dw",
          tiles="m", each=(("first tile of rows in every round", "first"),
                           ("tile after", 1), ("tile before", -1), ("row after", "next")))
def _(m, words, how):
    i = torch.arange(m.M)
    at = {"first": i % m.BM, 1: i + m.BM, -1: i - m.BM, "next": i + 1}[how]
    dy = m.dy[at.clamp(0, m.M - 1)] * ((at >= 0) & (at < m.M))
    m.dw_terms = lambda _, x: dy[:, None] * x


@gradient("dw-x-of-another", "dw: x is read from the first tile of rows in every round",
          "row i of x goes with dy_i", "dw", tiles="m")
def _(m):
    only(m.M > m.BM)
    m.x = m.x[torch.arange(m.M) % m.BM]


@gradient("gradients-rounded", "{0} is made of numbers rounded to {1}", "widen to float32 before "
          "multiplying", "dx, dw", slot="dx and dw", tiles="m", rounds=True,
          each=tuple((what, words, dtype) for what in ("dw's product", "dw's sum", "dx's product")
                     for words, dtype in (("the dtype of x", None), ("float16", torch.float16),
                                          ("bfloat16", torch.bfloat16),
                                          ("bfloat16, chopped", CHOPPED))))
def _(m, what, words, dtype):
    dtype = dtype or m.case.dtype
    only(dtype != torch.float32)
    if what == "dw's product":
        m.dw_terms = lambda dy, x: to_16_bits(dy[:, None] * x, dtype)
    elif what == "dw's sum":
        m.dw_acc = lambda x: to_16_bits(x, dtype)
    else:
        m.dx_of = lambda dy, w: to_16_bits(dy[:, None] * w[None, :], dtype)


@gradient("dx-not-written", "dx: {0} are never written", "dx is M times N, tile by tile",
          "dx, launch", tiles="mn", each=(
              ("the columns after the first tile",), ("the rows after the first tile",),
              ("the last columns, after whole tiles,",), ("the last rows, after whole tiles,",),
              ("the tiles past the first cdiv(M, BLOCK_M)",),
              ("the tiles past the first cdiv(N, BLOCK_N)",), ("the last column",),
              ("the last row",), ("the tiles past cdiv(M N, BLOCK_M BLOCK_N)",),
              ("the tiles past whole rows times cdiv(N, BLOCK_N)",)))
def _(m, what):
    i, j = torch.arange(m.M)[:, None], torch.arange(m.N)[None, :]
    rows, columns = -(-m.M // m.BM), -(-m.N // m.BN)
    tile = i // m.BM * columns + j // m.BN
    never = {
        "the columns after the first tile": j >= m.BN, "the rows after the first tile": i >= m.BM,
        "the last columns, after whole tiles,": j >= m.N // m.BN * m.BN,
        "the last rows, after whole tiles,": i >= m.M // m.BM * m.BM,
        "the tiles past the first cdiv(M, BLOCK_M)": tile >= rows,
        "the tiles past the first cdiv(N, BLOCK_N)": tile >= columns,
        "the last column": j == m.N - 1, "the last row": i == m.M - 1,
        "the tiles past cdiv(M N, BLOCK_M BLOCK_N)": tile >= -(-m.M * m.N // (m.BM * m.BN)),
        "the tiles past whole rows times cdiv(N, BLOCK_N)":
            tile >= m.M // m.BM * columns}[what].expand(m.M, m.N)
    only(bool(never.any()) and not bool(never.all()))
    m.after_gradients = lambda out: out | (
        {"d_x": out["d_x"].masked_fill(never, torch.nan)} if "d_x" in out else {})


@gradient("dx-tiles-exchanged", "dx: tiles are numbered down the columns, {0}",
          "tile t lies at row t // num_n, column t % num_n", "dx, launch", tiles="mn",
          each=(("t // num_m, t % num_m",), ("t % num_n, t // num_n",)))
def _(m, how):
    rows, columns = -(-m.M // m.BM), -(-m.N // m.BN)
    t = torch.arange(rows * columns)
    there = ((t % rows, t // rows) if how.startswith("t // num_m") else (t % columns, t // columns))
    hit = torch.zeros(max(rows, columns) + 1, max(rows, columns) * 2 + 1, dtype=torch.bool)
    inside = (there[0] < hit.shape[0]) & (there[1] < hit.shape[1])
    hit[there[0][inside], there[1][inside]] = True
    never = ~hit[torch.arange(m.M) // m.BM][:, torch.arange(m.N) // m.BN]
    only(bool(never.any()))
    m.after_gradients = lambda out: out | (
        {"d_x": out["d_x"].masked_fill(never, torch.nan)} if "d_x" in out else {})


@gradient("dx-read-at-the-tile", "dx: {0} from the start of the tile, whatever the program",
          "index = program's tile * BLOCK + arange", "dx", tiles="mn",
          each=(("dy is read", "dy"), ("w is read", "w")))
def _(m, words, which):
    i, j = torch.arange(m.M) % m.BM, torch.arange(m.N) % m.BN
    m.dx_of = (lambda dy, w: dy[i][:, None] * w[None, :]) if which == "dy" else (
        lambda dy, w: dy[:, None] * w[j][None, :])


@gradient("dw-not-written", "dw: {0} are never written", "dw has N numbers, BLOCK_N a program",
          "dw, launch", tiles="mn", each=(
              ("the columns after the first tile",), ("the last columns, after whole tiles,",),
              ("the columns past cdiv(M, BLOCK_M) tiles",), ("the last column",),
              ("the columns past M",)))
def _(m, what):
    j = torch.arange(m.N)
    never = {"the columns after the first tile": j >= m.BN,
             "the last columns, after whole tiles,": j >= m.N // m.BN * m.BN,
             "the columns past cdiv(M, BLOCK_M) tiles": j >= -(-m.M // m.BM) * m.BN,
             "the last column": j == m.N - 1, "the columns past M": j >= m.M}[what]
    only(bool(never.any()) and not bool(never.all()))
    m.after_gradients = lambda out: out | (
        {"d_w": out["d_w"].masked_fill(never, torch.nan)} if "d_w" in out else {})


@gradient("gradient-strides", "{0} is read {1} for {2}", "each tensor's own strides", "dx, dw",
          slot="dx and dw", each=tuple(
              (name, how, of) for name, of in (("dy", "dx"), ("dy", "dw"), ("dy", "dx and dw"),
                                               ("w", "dx"), ("x", "dw"))
              for how in (("as if 1 apart",) if name != "x" else (
                  "rows as if N apart", "columns as if 1 apart", "rows and columns exchanged",
                  "as if contiguous"))), spoils=lambda name, how, of: {
                      "d_" + one[1:] for one in of.split(" and ")})
def _(m, name, how, of):
    sent = m.built.call.douts["y"] if name == "dy" else m.built.call.inputs[name]
    if name == "x":
        stride = {"rows as if N apart": (m.N, sent.stride[1]),
                  "columns as if 1 apart": (sent.stride[0], 1),
                  "rows and columns exchanged": sent.stride[::-1],
                  "as if contiguous": (m.N, 1)}[how]
    else:
        stride = (1,)
    read = strided(sent, stride)
    if name == "x":
        m.x = read
    elif name == "w":
        m.dx_of = lambda dy, w: dy[:, None] * read[None, :]
    else:
        if "dx" in of:
            m.dx_of = lambda dy, w: read[:, None] * w[None, :]
        if "dw" in of:
            m.dw_terms = lambda dy, x: read[:, None] * x


@gradient("gradients-exchanged", "a gradient is missing: {0} is left out where it is asked for",
          "dx where x needs it, dw where w does", "launch", slot="dx and dw",
          each=(("dx",), ("dw",)))
def _(m, which):
    name = "d_" + which[1:]
    m.after_gradients = lambda out: out | (
        {name: torch.full_like(out[name], torch.nan)} if name in out else {})
