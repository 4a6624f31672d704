"""Which program does what: which tile of which head it takes, and where it writes what it made."""

import torch

from grader.naming.table import ATTENTION, GROUPED, OF_A_GROUP, mistake, only

FROM_2 = tuple(stage for stage in ATTENTION if stage > 1)


# ------------------------------------------------------------------ what is written where
# Model and head bh, row of the sequence, column (each broadcastable) -> flat address in o.
ADDRESSES = {
    "without the head: at row * D":
        lambda m, bh, row, j: row * m.D + j,
    "without N: at (bh + row) * D":
        lambda m, bh, row, j: (bh + row) * m.D + j,
    "without the row: at bh * N * D":
        lambda m, bh, row, j: bh * m.N * m.D + j + row * 0,
    "without D: at bh * N + row":
        lambda m, bh, row, j: bh * m.N + row + j,
    "with D on the head alone: at bh * N * D + row":
        lambda m, bh, row, j: bh * m.N * m.D + row + j,
    "with D on the row alone: at bh * N + row * D":
        lambda m, bh, row, j: bh * m.N + row * m.D + j,
    "with rows counted from the start of the tile":
        lambda m, bh, row, j: (bh * m.N + row % m.BM) * m.D + j,
    "at head h of the first batch entry":
        lambda m, bh, row, j: (bh % m.HQ * m.N + row) * m.D + j,
    "at head 0 of batch entry b":
        lambda m, bh, row, j: (bh // m.HQ * m.HQ * m.N + row) * m.D + j,
    "at the batch entry alone: b * N + row":
        lambda m, bh, row, j: (bh // m.HQ * m.N + row) * m.D + j,
    "with the batch stride of k and v: at b * HKV + h":
        lambda m, bh, row, j: ((bh // m.HQ * m.HKV + bh % m.HQ) * m.N + row) * m.D + j,
    "at the key/value head":
        lambda m, bh, row, j: (bh // m.group * m.N + row) * m.D + j,
    "at the key/value head of the first batch entry":
        lambda m, bh, row, j: (bh % m.HQ // m.group * m.N + row) * m.D + j,
    "as if batch entries came after heads: at h * B + b":
        lambda m, bh, row, j: ((bh % m.HQ * m.B + bh // m.HQ) * m.N + row) * m.D + j,
    "as if heads lay inside rows, (B, N, H, D)":
        lambda m, bh, row, j: ((bh // m.HQ * m.N + row) * m.HQ + bh % m.HQ) * m.D + j,
    "with rows and columns exchanged":
        lambda m, bh, row, j: bh * m.N * m.D + j * m.N + row,
    "with rows as far apart as the padded width":
        lambda m, bh, row, j: (bh * m.N + row) * _width(m) + j,
    "a row late":
        lambda m, bh, row, j: (bh * m.N + row + 1) * m.D + j,
    "in the reverse order of rows":
        lambda m, bh, row, j: (bh * m.N + m.N - 1 - row) * m.D + j,
    "in the reverse order of tiles":
        lambda m, bh, row, j: (bh * m.N + _mirrored(m, row)) * m.D + j,
}


OF_GROUPS = [address for how, address in ADDRESSES.items() if "key/value" in how or "of k" in how]


def _width(m) -> int:
    return max(16, 1 << (m.D - 1).bit_length())


def _mirrored(m, row):
    """The same place in the tile that is as far from the end."""
    return (-(-m.N // m.BM) - 1 - row // m.BM) * m.BM + row % m.BM


def in_order(m, reverse: bool):
    """(B * HQ * N,): heads and rows in the order in which programs write them, tile by tile."""
    bh, row = torch.meshgrid(torch.arange(m.B * m.HQ), torch.arange(m.N), indexing="ij")
    tile = row // m.BM
    key = bh * (m.N + m.BM) + (tile.max() - tile if reverse else tile) * m.BM + row % m.BM
    return key.flatten().argsort()


def possible(m, address) -> None:
    """Go on only where poison is left, or every row has a place of its own."""
    only(m.group > 1 or address not in OF_GROUPS)
    if all(bool(torch.isfinite(x).all()) for x in m.got.values()):
        bh, row = torch.arange(m.B * m.HQ)[:, None], torch.arange(m.N)[None, :]
        at = address(m, bh, row, 0).expand(len(bh), m.N).flatten()
        only(len(at.unique()) == len(at))


def written(m, x, address, reverse: bool):
    """x (P, N, D or 1) as it lies where it was written by address(m, bh, row, column)."""
    only(len(m.pairs) == m.B * m.HQ and len(m.rows) == m.N)
    only(m.group > 1 or address not in OF_GROUPS)
    bh, row = torch.arange(m.B * m.HQ)[:, None, None], torch.arange(m.N)[None, :, None]
    at = address(m, bh, row, torch.arange(x.shape[2])[None, None, :]).expand(x.shape)
    there = (row < m.N).expand(x.shape) & (at >= 0)
    only(int(at.max()) < x.numel() and bool(there.all()))
    order = in_order(m, reverse)
    out = torch.full((x.numel(),), torch.nan, dtype=x.dtype)
    at, values = at.flatten(0, 1)[order].flatten(), x.flatten(0, 1)[order].flatten()
    last = torch.full((x.numel(),), -1).scatter_reduce(0, at, torch.arange(len(at)), "amax")
    hit = last >= 0
    out[hit] = values[last[hit]]
    return out.view(x.shape)


@mistake("stored-elsewhere", "o is stored {0}", "row i of head bh is row bh * N + i, D wide",
         "store, normalise", slot="output", stages=FROM_2, tiles="m", whole="all", composed=True,
         each=tuple((how, reverse) for how in ADDRESSES for reverse in (True, False)))
def _(m, how, reverse):
    possible(m, ADDRESSES[how])
    m.after = lambda out: out | {"o": written(m, out["o"], ADDRESSES[how], reverse)}


@mistake("stored-in-part", "{0} of o are never written", "every row of every head is stored, all D "
         "columns of it", "store, rows", slot="output", stages=ATTENTION, tiles="m", composed=True,
         each=(("the first query tile's rows",), ("the last query tile's rows",),
               ("the first row of each tile",), ("the last row of each tile",), ("the first row",),
               ("the last row",), ("the last two rows",), ("the second half of each tile's rows",),
               ("odd rows",), ("the first column",), ("the last column",),
               ("the columns after the sixteenth",), ("the second half of the columns",),
               ("the heads after the first",), ("the last head",), ("the last batch entry",),
               ("the batch entries after the first",), ("the heads after HKV",),
               ("all but the first head of a group",), ("the rows of ragged tiles",),
               ("the rows of whole tiles",), ("the rows after the first tile",)))
def _(m, what):
    row, column = m.rows[None, :, None], torch.arange(m.D)[None, None, :]
    b, h = m.b[:, None, None], m.h[:, None, None]
    tile, tiles = row // m.BM, -(-m.N // m.BM)
    never = {
        "the first query tile's rows": tile == 0, "the last query tile's rows": tile == tiles - 1,
        "the first row of each tile": row % m.BM == 0,
        "the last row of each tile": row % m.BM == m.BM - 1,
        "the first row": row == 0, "the last row": row == m.N - 1,
        "the last two rows": row >= m.N - 2,
        "the second half of each tile's rows": row % m.BM >= m.BM // 2, "odd rows": row % 2 == 1,
        "the first column": column == 0, "the last column": column == m.D - 1,
        "the columns after the sixteenth": column >= 16,
        "the second half of the columns": column >= m.D // 2,
        "the heads after the first": h > 0, "the last head": h == m.HQ - 1,
        "the last batch entry": b == m.B - 1, "the batch entries after the first": b > 0,
        "the heads after HKV": h >= m.HKV,
        "all but the first head of a group": h % m.group > 0,
        "the rows of ragged tiles": row >= m.N // m.BM * m.BM,
        "the rows of whole tiles": row < m.N // m.BM * m.BM,
        "the rows after the first tile": tile > 0}[what]
    never = never.expand(len(m.pairs), len(m.rows), m.D)
    only(bool(never.any()) and not bool(never.all()))
    m.after = lambda out: out | {"o": out["o"].masked_fill(never, torch.nan)}


# --------------------------------------------------------- which rows and heads a program takes
# Heads bh, sizes -> batch entry and head that are read, (P,); the output stays at bh.
SPLITS = {
    f"b = {b}, h = {h}": (b, h) for b, h in (
        ("bh // HQ", "bh % HKV"), ("bh // HKV", "bh % HKV"), ("bh // HKV", "bh % HQ"),
        ("bh % HQ", "bh // HQ"), ("bh % B", "bh // B"), ("bh // B", "bh % B"),
        ("bh // N", "bh % HQ"), ("bh // HQ", "bh"), ("bh", "bh % HQ"), ("bh // HQ", "bh % B"),
        ("bh // HQ", "bh % N"), ("bh // HQ", "bh // HQ"), ("bh % HQ", "bh % HQ"),
        ("0", "bh % HQ"), ("0", "bh"), ("bh // HQ", "0"), ("bh // D", "bh % HQ"),
        ("bh % B", "bh % HQ"), ("bh // HQ", "bh % D"), ("bh // HQ", "HQ - 1 - bh % HQ"))}


def _evaluated(text: str, m, bh):
    head, *rest = text.split()
    sizes = {"HQ": m.HQ, "HKV": m.HKV, "B": m.B, "N": m.N, "D": m.D}
    if text.startswith("HQ"):
        return m.HQ - 1 - bh % m.HQ
    if head == "0":
        return bh * 0
    if not rest:
        return bh
    return bh // sizes[rest[1]] if rest[0] == "//" else bh % sizes[rest[1]]


def read_at(m, b, h, name: str):
    """(entry, head) of one of q, k, v by its address: past the last head comes the next entry."""
    heads = m.HQ if name == "q" else m.HKV
    inside = int(b.max()) < m.B and int(h.max()) < heads
    if inside:
        return b, h
    stride = m.built.call.inputs[name].stride
    only(stride[0] == heads * stride[1])
    flat = b * heads + h
    only(int(flat.max()) < m.B * heads)
    return flat // heads, flat % heads


@mistake("heads-split-wrongly", "a program takes {0}", "head bh of all belongs to batch entry "
         "floor(bh / HQ), and is head bh mod HQ there", "rows", slot="heads", stages=FROM_2,
         composed=True, each=tuple((how,) for how in SPLITS))
def _(m, how):
    bh = m.b * m.HQ + m.h
    b, h = (_evaluated(text, m, bh) for text in SPLITS[how])
    m.q_at = read_at(m, b, h, "q")
    m.fwd.k_at = read_at(m, b, h // m.group, "k")
    m.fwd.v_at = read_at(m, b, h // m.group, "v")


# Query head, group and heads -> key/value head.
KV_HEADS = {
    "h % HKV": lambda m: m.h % m.HKV, "h": lambda m: m.h, "h // HKV": lambda m: m.h // m.HKV,
    "h % group": lambda m: m.h % m.group, "h * group": lambda m: m.h * m.group, "0": lambda m:
    m.h * 0, "(h + 1) // group": lambda m: (m.h + 1) // m.group,
    "cdiv(h, group)": lambda m: -(-m.h // m.group), "HKV - 1 - h // group":
    lambda m: m.HKV - 1 - m.h // m.group, "h // 2": lambda m: m.h // 2,
    "h // B": lambda m: m.h // m.B, "bh // group": lambda m: (m.b * m.HQ + m.h) // m.group,
    "bh % HKV": lambda m: (m.b * m.HQ + m.h) % m.HKV, "b": lambda m: m.b,
    "h // (group + 1)": lambda m: m.h // (m.group + 1),
    "h // group // group": lambda m: m.h // m.group // m.group,
    "h // group + 1": lambda m: m.h // m.group + 1,
}


@mistake("kv-head-wrong", "query head h reads {1} at head {0}", OF_A_GROUP, "kv head", slot="heads",
         stages=GROUPED, composed=True,
         each=tuple((how, names) for how in KV_HEADS for names in ("k and v", "k", "v")))
def _(m, how, names):
    h = KV_HEADS[how](m)
    m.fwd.k_at = read_at(m, m.b, h, "k") if "k" in names else m.fwd.k_at
    m.fwd.v_at = read_at(m, m.b, h, "v") if "v" in names else m.fwd.v_at


@mistake("rows-of-another-tile", "{0} {1}", "row r of a tile is query start + r", "rows, load",
         slot="rows", tiles="mn", composed=True, stages=FROM_2, each=tuple(
             (who, how) for who in ("q is read", "the mask counts queries") for how in
             ("from the start of the tile, without start_m", "a tile early", "a tile late",
              "from the other end of the sequence, tile by tile", "a row late", "a row early",
              "at the number of the tile")))
def _(m, who, how):
    i = m.rows
    at = {"from the start of the tile, without start_m": i % m.BM,
          "a tile early": i - m.BM, "a tile late": i + m.BM,
          "from the other end of the sequence, tile by tile": _mirrored(m, i),
          "a row late": i + 1, "a row early": i - 1,
          "at the number of the tile": i // m.BM + i % m.BM}[how]
    if who == "q is read":
        only(int(at.min()) >= 0)
        inside = at < m.N
        m.q_rows = at.clamp(max=m.N - 1)
        m.q_factor = inside.double()[:, None]
        return
    p = m.fwd
    only(p.causal)
    keep = p.j <= at[:, None]
    if p.window is not None:
        keep = keep & ((at[:, None] - p.j < p.window) | (p.j < p.sinks))
    edge = p.walked & ((p.j >= p.diag) | (p.j < p.inner)) & p.exists
    p.keep = torch.where(edge, keep, p.keep)


@mistake("reads-zero", "{0} of {1} reads 0", "rows i < N and columns d < D exist, all of them",
         "load", slot="inputs", composed=True, stages=FROM_2, tiles="m", each=tuple(
             (what, names) for what in ("the last row", "the last column", "the first row",
                                        "the last row of each tile", "row 0 of each tile",
                                        "the last, ragged tile", "the second half of the columns",
                                        "every column after the sixteenth", "the first column")
             for names in ("q, k and v", "q", "k", "v", "k and v")))
def _(m, what, names):
    wrong = {}
    for name in "qkv":
        if name not in names.replace("and", ""):
            continue
        x = m.inputs[name]
        i, d = torch.arange(x.shape[2])[:, None], torch.arange(m.D)[None, :]
        zero = {"the last row": i == len(i) - 1, "the last column": d == m.D - 1,
                "the first row": i == 0, "the last row of each tile": i % m.BM == m.BM - 1,
                "row 0 of each tile": i % m.BM == 0, "the first column": d == 0,
                "the last, ragged tile": i >= len(i) // m.BM * m.BM,
                "the second half of the columns": d >= m.D // 2,
                "every column after the sixteenth": d >= 16}[what]
        only(bool(zero.any()))
        wrong[name] = x.masked_fill(zero.expand(x.shape[2], m.D), 0.0)
    m.inputs = m.inputs | wrong


@mistake("whole-tile-elsewhere", "a program's rows are {0} for the mask and the store", "one start "
         "for all: what is read, what is masked and what is stored", "rows", slot="output",
         tiles="mn", whole="all", composed=True, stages=FROM_2, each=(
             ("counted from the other end, tile by tile", True),
             ("counted from the start of the tile", True),
             ("counted from the start of the tile", False),
             ("a tile late", True), ("a tile early", True), ("a row late", True)))
def _(m, how, reverse):
    only(len(m.rows) == m.N and len(m.pairs) == m.B * m.HQ)
    m.take_rows(torch.arange(-(-m.N // m.BM) * m.BM))  # with those past the end, which score 0
    i, p = m.rows, m.fwd
    at = {"counted from the other end, tile by tile": _mirrored(m, i),
          "counted from the start of the tile": i % m.BM, "a tile late": i + m.BM,
          "a tile early": i - m.BM, "a row late": i + 1}[how]
    if p.causal:
        keep = p.j <= at[:, None]
        if p.window is not None:
            keep = keep & ((at[:, None] - p.j < p.window) | (p.j < p.sinks))
        edge = p.walked & ((p.j >= p.diag) | (p.j < p.inner)) & p.exists
        p.keep = torch.where(edge, keep, p.keep)

    def stored(out):
        x = out["o"]
        y = torch.full((len(x), m.N, m.D), torch.nan, dtype=x.dtype)
        tiles = list(range(0, len(i), m.BM))
        for lo in reversed(tiles) if reverse else tiles:  # later programs write over earlier ones
            rows = torch.arange(lo, lo + m.BM)
            rows = rows[(at[rows] >= 0) & (at[rows] < m.N)]
            y[:, at[rows]] = x[:, rows]
        return {"o": y}
    m.after = stored
