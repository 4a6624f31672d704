"""What is read and written where: heads, batch entries, rows, strides."""

import torch

from grader.naming.model import Model
from grader.naming.table import GROUPED, OF_A_GROUP, NotHere, mistake, only


# --------------------------------------------------------- heads and batches
@mistake("heads-interleaved", "query head h reads key/value head h % HKV", OF_A_GROUP, "kv head",
         slot="heads", stages=GROUPED, each=(("kv",), ("k",), ("v",)))
def _(m, which):
    _heads(m, lambda h: h % m.HKV, which)


@mistake("one-kv-head-for-all", "every query head reads the same key/value head", OF_A_GROUP,
         "kv head", slot="heads", stages=GROUPED, each=(("kv", 0), ("kv", -1), ("k", 0), ("v", 0)))
def _(m, which, head):
    _heads(m, lambda h: torch.full_like(h, head % m.HKV), which)


@mistake("heads-not-mapped", "query head h reads key/value head h", OF_A_GROUP, "kv head",
         slot="heads", stages=GROUPED,
         each=(("kv", "clip"), ("kv", "on"), ("k", "on"), ("v", "on"), ("k", "clip"),
               ("v", "clip")))
def _(m, which, how):
    _heads(m, (lambda h: h.clamp(max=m.HKV - 1)) if how == "clip" else lambda h: h, which)


@mistake("heads-multiplied", "query head h reads key/value head h * group", OF_A_GROUP, "kv head",
         slot="heads", stages=GROUPED, each=((True,), (False,)))
def _(m, wrapped):
    _heads(m, lambda h: h * m.group % (m.HKV if wrapped else 1 << 30))


@mistake("heads-divided-by-hkv", "query head h reads key/value head h // HKV", OF_A_GROUP,
         "kv head", slot="heads", stages=GROUPED, each=((True,), (False,)))
def _(m, clipped):
    _heads(m, lambda h: (h // m.HKV).clamp(max=m.HKV - 1 if clipped else 1 << 30))


@mistake("group-hard-coded", "the group is a fixed number of heads", "a group has HQ / HKV query "
         "heads", "kv head", slot="heads", stages=GROUPED,
         each=tuple((size, how) for how in ("", "at least", "clipped") for size in (2, 4, 8)))
def _(m, size, how):
    size = max(size, m.group) if how == "at least" else size
    only(size != m.group and (size < m.HQ or m.HKV > 1))
    _heads(m, lambda h: (h // size).clamp(max=m.HKV - 1 if how == "clipped" else 1 << 30))


@mistake("head-in-its-group", "query head h reads h % group, its place within the group",
         OF_A_GROUP, "kv head", slot="heads", stages=GROUPED, each=((True,), (False,)))
def _(m, wrapped):
    _heads(m, lambda h: h % m.group % (m.HKV if wrapped else 1 << 30))


@mistake("groups-shifted", "the groups begin a head late", OF_A_GROUP, "kv head", slot="heads",
         stages=GROUPED, each=((1,), (-1,)))
def _(m, by):
    _heads(m, lambda h: ((h + by) // m.group).clamp(0, m.HKV - 1))


@mistake("groups-reversed", "the first group reads the last key/value head", OF_A_GROUP, "kv head",
         slot="heads", stages=GROUPED)
def _(m):
    _heads(m, lambda h: m.HKV - 1 - h // m.group)


@mistake("heads-counted-over-batches", "the key/value head counts on over batch entries", "the "
         "key/value head is that of a query head within its batch entry", "kv head", slot="heads",
         stages=GROUPED)
def _(m):
    only(m.B > 1)
    _address(m, m.b, m.b * m.HKV + m.h // m.group, "kv")


@mistake("q-at-the-kv-head", "the queries are read at the key/value head", "q and o at the query "
         "head, k and v at that of its group", "", slot="heads", stages=GROUPED)
def _(m):
    only(m.group > 1)
    m.q_at = (m.b, m.h // m.group)


@mistake("output-at-the-kv-head", "the output is stored at the key/value head", "q and o at the "
         "query head, k and v at that of its group", "normalise", slot="output", stages=GROUPED,
         each=(("last",), ("first",)))
def _(m, which):
    only(m.group > 1)
    other = m.h * m.group + (m.group - 1 if which == "last" else 0)
    there = m.h < m.HKV
    _all_from(m, m.b, torch.where(there, other, m.h), "qkv")
    _never(m, ~there[:, None])


def _heads(m: Model, map_of, which="kv") -> None:
    _address(m, m.b, map_of(m.h), which)


def _address(m: Model, b, h, which) -> None:
    """Head h of k or v, by its address: one past the last is the next batch entry's first."""
    flat = b * m.HKV + h
    inside = 0 <= int(h.min()) and int(h.max()) < m.HKV
    only(0 <= int(flat.min()) and int(flat.max()) < m.B * m.HKV and (inside or m.dense))
    at = flat // m.HKV, flat % m.HKV
    m.fwd.k_at = at if "k" in which else m.fwd.k_at
    m.fwd.v_at = at if "v" in which else m.fwd.v_at


def _whose(which, *_) -> str:
    """Who reads another entry: what the rows are read with, or only the keys and values."""
    return "rows" if "q" in which else "kv head"


@mistake("batch-ignored", "every batch entry reads entry 0", "batch entry b begins b batch strides "
         "after entry 0", _whose, slot="heads", each=(("qkv",), ("kv",), ("k",), ("v",), ("q",)))
def _(m, which):
    only(m.B > 1)
    _all_from(m, torch.zeros_like(m.b), m.h, which)


@mistake("head-ignored", "every head reads head 0", "head h begins h head strides after head 0",
         _whose, slot="heads", each=(("qkv",), ("k",), ("v",), ("q",), ("kv",)))
def _(m, which):
    only(m.HQ > 1)
    only("q" in which or m.case.stage not in GROUPED)  # else another name's
    _all_from(m, m.b, torch.zeros_like(m.h), which)


def _all_from(m: Model, b, h, which: str) -> None:
    """q, k or v of query head (b, h), each (P,)."""
    m.q_at = (b, h) if "q" in which else m.q_at
    m.fwd.k_at = (b, h // m.group) if "k" in which else m.fwd.k_at
    m.fwd.v_at = (b, h // m.group) if "v" in which else m.fwd.v_at


@mistake("batch-and-head-mixed", "batch entry and head are split by the wrong number", "head bh of "
         "all belongs to batch entry floor(bh / HQ), and is head bh mod HQ there", "rows, kv head",
         slot="heads",
         each=(("swapped",), ("tiles", 64), ("tiles", 128), ("tiles", 32), ("hkv",), ("kv",)))
def _(m, how, size=64):
    b, h = m.pairs.unbind(1)
    bh = b * m.HQ + h
    b, h = {"swapped": (bh % m.HQ, bh // m.HQ), "tiles": (bh // -(-m.N // size), h),
            "hkv": (bh // m.HKV, bh % m.HKV), "kv": (bh // m.HKV, h)}[how]
    if int(b.max()) >= m.B or int(h.max()) >= m.HQ:
        flat = b * m.HQ + h
        only(int(flat.max()) < m.B * m.HQ and m.dense and m.group == 1)
        b, h = flat // m.HQ, flat % m.HQ
    _all_from(m, b, h, "qkv")


@mistake("heads-past-sixteen", "heads are numbered within their group of 16 only", "the number of "
         "the first head of the group is added", "rows", slot="output", stages=(4, 5, 6, 7, 8, 9),
         each=(("repeat",), ("full",)))
def _(m, how):
    bh = (m.b * m.HQ + m.h)[:, None]
    only(m.B * m.HQ > 16)
    _never(m, bh >= 16 if how == "repeat"
           else (bh >= m.B * m.HQ // 16 * 16) & (m.rows >= 64))


# ---------------------------------------------------- what is written, and where
def _never(m: Model, rows) -> None:
    """Rows (P or 1, R or 1) keep what the memory held: the grader's NaN."""
    only(bool(rows.any()))
    rows = rows.expand(len(m.pairs), len(m.rows))

    def poison(out):
        return {name: x.masked_fill(rows[..., None] if x.dim() == 3 else rows, torch.nan)
                for name, x in out.items()}
    m.after = poison


@mistake("last-rows-not-written", "the rows after the last whole query tile are never written",
         "every row i < N is written", "rows, store", slot="output", tiles="m",
         each=((1, 1), (2, 1), (1, 0)))
def _(m, tiles, least):
    size = m.BM * tiles
    whole = max(m.N // size, least) * size
    _never(m, (m.rows >= whole)[None])


@mistake("last-row-not-written", "the last row is never written", "every row i < N is written",
         "store", slot="output")
def _(m):
    _never(m, (m.rows == m.N - 1)[None])


@mistake("some-tiles-not-written", "some query tiles are never written: others are written in "
         "their place", "query tile t has the rows from t times its height on, every tile once",
         "rows, store", shows="nan", slot="output", tiles="m",
         each=(("first only", 1), ("last only", 1), ("overlap", 1), ("not first", 1),
               ("second of two", 2), ("first only", 2)))
def _(m, how, width):
    size = m.BM * width
    tile, tiles = m.rows // size, -(-m.N // size)
    _never(m, {
        "first only": tile > 0, "last only": tile < tiles - 1, "not first": tile == 0,
        "overlap": m.rows >= (tiles - 1) * (size // 2) + size,
        "second of two": m.rows % size >= m.BM}[how][None])


@mistake("some-heads-not-written", "the last tiles or heads are never written: there are too few "
         "turns", "every tile of every head of every batch entry is written",
         "rows, normalise, store", shows="nan", slot="output", tiles="m",
         each=(("batch",), ("hkv",), ("tiles",), ("rounded down",),
               ("rounded down, a group each",), ("rounded down, by heads",)))
def _(m, how):
    bh, total = (m.b * m.HQ + m.h)[:, None], m.B * m.HQ
    tile, tiles = (m.rows // m.BM)[None], -(-m.N // m.BM)
    programs = max(m.N // m.BM, 1) * total  # for a kernel that counts cdiv(N, BM) tiles a head
    half = -(-m.N // (2 * m.BM)) * total  # for one whose program t writes tiles t and t + 1
    number = bh * tiles + tile
    _never(m, {
        "batch": bh >= m.HQ, "hkv": bh >= m.B * m.HKV,
        "rounded down": number >= programs,
        "rounded down, a group each": bh // m.group * tiles + tile >= programs // m.group,
        "rounded down, by heads": bh >= programs // tiles,
        "tiles": (number >= half) & ((number > half) | (tile == 0))}[how])


@mistake("second-tile-is-the-first", "the second of two query tiles reads the first one's rows",
         "the second tile begins where the first ends", "rows", slot="rows", tiles="m", stages=(3,))
def _(m):
    m.q_rows = torch.where(m.rows % (2 * m.BM) >= m.BM, m.rows - m.BM, m.rows)


# ------------------------------------------------------------------- strides
AXES = ("batch entries", "heads", "rows", "columns")


def _stride_variants():
    for name in "qkv":
        for other in ("contiguous", *"qkv"):
            if other == name:
                continue
            yield name, "all axes", other
            for axis in range(4):
                yield name, AXES[axis], other
        yield name, "batch entries", "heads"
    for axis in ("rows", "heads", "columns", "batch entries", "all axes"):
        yield "qkv", axis, "contiguous"


def _strided(name, axes, _) -> str:
    """Strides of heads and batch entries are used where a head is found, the others at the load."""
    if axes in ("batch entries", "heads"):
        return "" if name == "q" else "kv head"
    return "kv head, load" if name in ("k", "v") else "load"


@mistake("wrong-strides", "{0} is read with other strides than its own: {1} as if {2}",
         "the address of an element adds up index times stride, over its tensor's own four strides",
         _strided, slot="strides", each=tuple(_stride_variants()))
def _(m, name, axes, other):
    wrong = {}
    for n in name:
        try:
            wrong[n] = restrided(m, n, axes, other).double()
        except NotHere:
            continue
    only(wrong and (len(wrong) > 1 or len(name) == 1))
    m.inputs = m.inputs | wrong


def restrided(m: Model, name: str, axes: str, other: str):
    """The tensor as it is read through wrong strides, from the storage as it was sent."""
    sent = m.built.call.inputs | m.built.call.douts
    own = sent[name]
    if other == "contiguous":
        wrong = torch.empty(own.shape, device="meta").stride()
    elif other == "heads":
        wrong = (own.stride[1] * own.shape[1], *own.stride[1:])
    else:
        wrong = sent[other].stride
    chosen = range(4) if axes == "all axes" else (AXES.index(axes),)
    stride = [wrong[a] if a in chosen else own.stride[a] for a in range(4)]
    only(any(s != t and n > 1 for s, t, n in zip(stride, own.stride, own.shape, strict=True)))
    last = own.offset + sum(s * (n - 1) for s, n in zip(stride, own.shape, strict=True))
    only(last < own.storage.numel() and min(stride) >= 0)
    return own.storage.as_strided(own.shape, stride, own.offset)


@mistake("output-strides", "the output is allocated like {0}, and then filled as if it were "
         "contiguous", "what is filled as if contiguous is allocated contiguous", "store",
         slot="strides", each=(("q",),), whole="all")
def _(m, like):
    sent = m.built.call.inputs[like]
    view = sent.storage.as_strided(sent.shape, sent.stride, sent.offset)
    stride = torch.empty_like(view).stride()
    only(stride != torch.empty(sent.shape).stride() and len(m.pairs) == m.B * m.HQ)

    def after(out):
        x = out["o"].contiguous().flatten().as_strided(sent.shape, stride)
        return out | {"o": x.flatten(0, 1)}
    m.after = after


@mistake("padded-columns", "columns past D are read: the next row's numbers join the scores",
         "columns d >= D do not exist: mask them at the load", "load", slot="strides",
         each=(("in", 0), ("in", 16), ("in", 32), ("in", 64), ("in", 128)))
def _(m, how, width):
    width = width or max(16, 1 << (m.D - 1).bit_length())
    only(width > m.D)
    wide = {}
    for name in "qkv":
        own = m.built.call.inputs[name]
        shape = (*own.shape[:3], width)
        last = own.offset + sum(s * (n - 1) for s, n in zip(own.stride, shape, strict=True))
        storage = own.storage
        if last >= storage.numel():
            more = storage.new_full((last + 1 - storage.numel(),), torch.nan)
            storage = torch.cat([storage, more])
        wide[name] = storage.as_strided(shape, own.stride, own.offset).double()
    m.inputs = m.inputs | wide
    m.after = lambda out: out | {"o": out["o"][..., :m.D]}
