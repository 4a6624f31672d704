"""Which keys a query sees, without a window: the causal mask, hidden keys, whole tiles."""

import torch

from grader.naming.table import CAUSAL, count_pairs, mistake, only
from grader.naming.walks import INF, NotHere, round_up


# ------------------------------------------------------------- the causal mask
@mistake("causal-ignored", "keys after the query are seen: there is no causal mask",
         "query i sees keys j <= i", "mask", kind="mask", stages=CAUSAL)
def _(p):
    only(p, p.model.causal)
    p.keep = p.rule(causal=False)


@mistake("causal-always", "the causal mask is there though is_causal is False",
         "is_causal=False: every query sees every key", "mask", kind="mask", stages=(1, 8, 9))
def _(p):
    only(p, not p.model.causal)
    p.keep = p.rule(causal=True)


@mistake("strictly-causal", "a query does not see its own key: j < i",
         "query i sees keys j <= i", "mask", kind="mask", stages=CAUSAL, tiles="mn",
         each=(("every row",), ("row 0 spared",), ("row 0 unmasked",)))
def _(p, how):
    only(p, p.model.causal)
    p.keep = p.keep & ((p.j < p.i) | ((p.i == 0) & (how != "every row")))
    if how == "row 0 unmasked":
        p.keep = p.keep | ((p.i == 0) & p.walked & (p.j < p.model.NK))


@mistake("next-key-visible", "a query sees the key after it: j <= i + 1",
         "query i sees keys j <= i", "mask", kind="mask", stages=CAUSAL, tiles="mn")
def _(p):
    only(p, p.model.causal)
    p.keep = p.keep | ((p.j == p.i + 1) & p.exists & p.walked)


@mistake("mask-reversed", "the mask is the wrong way round, or transposed: j >= i where it is made",
         "query i sees keys j <= i", "mask", kind="mask", stages=CAUSAL, tiles="mn",
         each=(("tile",), ("walk",), ("NaN",), ("all",)))
def _(p, where):
    only(p, p.model.causal)
    later = (p.j >= p.i) & p.exists
    if where == "tile":
        p.keep = (p.keep & (p.j < p.diag)) | (later & (p.j >= p.diag) & p.walked)
        return
    p.keep = later if where == "all" else later & p.walked
    if where == "NaN":  # -inf - (-inf), where a row's first tile has nothing to see
        only(p, p.model.case.stage == 1)
        blind = ~(p.keep & (p.j < p.first + p.model.BN)).any(1, keepdim=True)
        p.count = torch.where(blind, torch.nan, p.keep.double())


@mistake("diagonal-unmasked", "keys after the query are seen up to the end of its tile: the tiles "
         "on the diagonal enter whole", "query i sees keys j <= i, not j // T <= i // T", "mask",
         kind="mask", stages=CAUSAL, tiles="mn", each=((0,), (16,), (32,)))
def _(p, block):
    only(p, p.model.causal)
    reach = p.i // block * block + block if block else p.end
    p.keep = p.keep | ((p.j >= p.diag) & (p.j < reach) & p.walked & p.exists)


@mistake("diagonal-skipped", "nothing is seen on the diagonal: the walk stops before it, or the "
         "mask counts query positions from the start of the tile",
         "the walk ends with the query's own tile; row r of it is query start_m + r", "mask",
         kind="mask", stages=CAUSAL, tiles="mn", each=((False,), (True,)))
def _(p, first_spared):
    only(p, p.model.causal)
    p.keep = p.keep & ((p.j < p.diag) | ((p.tile_start == 0) & first_spared))


@mistake("last-tile-only", "only the last tiles count: those before are skipped, or what they "
         "summed is lost", "l = alpha l + ..., acc = alpha acc + ...: both go on from tile to tile",
         "mask", kind="mask", tiles="mn", each=(("diagonal",), ("tile",)))
def _(p, what):
    if what == "diagonal":
        only(p, p.model.causal)
        p.keep = p.keep & (p.j >= p.diag)
    else:
        last = torch.where(p.keep, p.j, 0).amax(1, keepdim=True)
        p.keep = p.keep & (p.j >= last // p.model.BN * p.model.BN)


@mistake("last-full-tile-skipped", "the walk before the diagonal ends a tile early",
         "phase 1 walks the keys 0 ... diag - 1", "mask", kind="mask", stages=CAUSAL, tiles="mn")
def _(p):
    only(p, p.model.causal)
    p.keep = p.keep & ~((p.j < p.diag) & (p.j >= p.diag - p.model.BN))


@mistake("phase-1-in-tiles", "the walk before the diagonal counts tiles where it should count keys",
         "phase 1 walks the keys 0 ... diag - 1", "mask", kind="mask", stages=CAUSAL, tiles="mn")
def _(p):
    only(p, p.model.causal)
    end = round_up(p.diag // p.model.BN, p.model.BN)
    p.keep = p.keep & ((p.j < end) | (p.j >= p.diag))


@mistake("diagonal-twice", "the tiles on the diagonal are walked twice, once unmasked",
         "each key tile belongs to one phase", "mask", kind="mask", stages=CAUSAL, tiles="mn",
         each=(("one",), ("all",), ("masked",)))
def _(p, which):
    only(p, p.model.causal)
    on_diag = (p.j >= p.diag) & (p.j < (p.diag + p.model.BN if which == "one" else p.end))
    on_diag = on_diag & p.exists
    if which == "masked":
        count_pairs(p, p.keep.double() + (on_diag & p.keep))
    else:
        count_pairs(p, p.keep.double() + on_diag)


@mistake("phase-1-past-the-diagonal", "the unmasked walk ends at the first row, not at a tile's "
         "border, and its last tile reaches past the diagonal",
         "diag = start_m // BLOCK_N * BLOCK_N", "mask", kind="mask", stages=CAUSAL, tiles="mn",
         each=((False,), (True,)))
def _(p, up):
    only(p, p.model.causal and p.model.BN > p.model.BM)
    m = p.model
    border = round_up(p.tile_start, m.BN)
    start = border if up else p.tile_start
    inner = torch.zeros_like(start)  # where the walk without a mask begins
    if m.window is not None:
        inner = torch.minimum(round_up((p.tile_start + m.BM - m.window).clamp(min=0), m.BN), start)
    unmasked = (p.j >= inner) & (p.j < inner + round_up(start - inner, m.BN)) & p.exists
    masked = p.rule() & (p.j >= start) & (p.j < p.tile_start + max(m.BM, m.BN))
    edge = p.rule() & p.walked & (p.j < round_up(inner, m.BN))
    count_pairs(p, unmasked.double() + masked + edge)


@mistake("walk-ends-by-the-wrong-block", "the walk ends BLOCK_N keys after the tile's first row, "
         "not BLOCK_M: of several tiles on the diagonal only the first is walked",
         "end = start_m + BLOCK_M", "mask", kind="mask", stages=CAUSAL, tiles="mn")
def _(p):
    only(p, p.model.causal and p.model.BM > p.model.BN)
    p.keep = p.keep & (p.j < p.diag + p.model.BN)


@mistake("walk-ends-a-key-early", "the walk ends at N - 1: a tile that begins there is left out",
         "the last key is N - 1, so the walk ends at N", "tail", kind="mask", tiles="mn")
def _(p):
    m = p.model
    only(p, (m.NK - 1) % m.BN == 0 or (m.causal and (m.N - 1) % m.BM == 0))
    p.keep = p.keep & (p.j < m.NK - 1)


@mistake("query-positions-of-the-tile", "the mask counts query positions from the start of the "
         "tile", "row r of the tile at start_m is query start_m + r", "mask", kind="mask",
         stages=CAUSAL, tiles="mn", each=(("diag",), ("all",)))
def _(p, where):
    only(p, p.model.causal)
    _shifted_mask(p, p.i - p.tile_start, p.j, where)


@mistake("key-positions-of-the-tile", "the mask counts key positions from the start of the tile",
         "column c of the tile at start_n is key start_n + c", "mask", kind="mask", stages=CAUSAL,
         tiles="mn", each=(("diag",), ("all",)))
def _(p, where):
    only(p, p.model.causal)
    _shifted_mask(p, p.i, p.j % p.model.BN, where)


@mistake("both-positions-of-the-tile", "the mask counts queries and keys from the start of their "
         "tiles", "positions count from the start of the sequence", "mask", kind="mask",
         stages=CAUSAL, tiles="mn", each=(("diag",), ("all",)))
def _(p, where):
    only(p, p.model.causal)
    _shifted_mask(p, p.i - p.tile_start, p.j % p.model.BN, where)


def _shifted_mask(p, i, j, where):
    m = p.model
    skipped = p.keep & ((p.j < p.diag) | (p.tile_start == 0))
    keep = j <= i
    if m.window is not None:
        keep = keep & ((i - j < m.window) | (j < m.sinks))
    reach = (p.j < p.tile_start + m.BM) | (p.j < p.end)
    if where == "diag":
        keep = torch.where(p.j < p.diag, p.keep, keep)
    p.keep = keep & reach & p.exists & p.walked
    if torch.equal(p.keep, skipped):  # another name's
        raise NotHere


@mistake("only-first-tile-masked", "the mask is made in the first query tile only",
         "every tile that the diagonal cuts needs the mask", "mask", kind="mask", stages=CAUSAL,
         tiles="mn")
def _(p):
    only(p, p.model.causal)
    p.keep = torch.where(p.tile_start == 0, p.keep, p.walked & p.exists)


@mistake("first-key-hidden", "key 0 is hidden from every query but the first",
         "query i sees keys 0 ... i", "mask", kind="mask", stages=CAUSAL, tiles="mn",
         each=((False,), (True,)))
def _(p, in_diagonal):
    keys = (p.j == 0) & (p.i > 0)
    p.keep = p.keep & ~(keys & (p.j >= p.diag) if in_diagonal else keys)


@mistake("row-0-sees-key-1", "the first query sees the key after it", "query 0 sees key 0 alone",
         "mask", kind="mask", stages=CAUSAL)
def _(p):
    only(p, p.model.causal)
    p.keep = p.keep | ((p.i == 0) & (p.j == 1) & p.exists)

# ------------------------------------------------------- what hidden keys get
@mistake("hidden-scores-zero", "hidden keys get the score 0, not -inf",
         "softmax(S with -inf where hidden), for exp(-inf) = 0 and exp(0) = 1", "mask",
         slot="fill", tiles="mn")
def _(m):
    _fillable(m)
    m.fwd.fill = 0.0


@mistake("hidden-scores-finite", "hidden keys get a finite score, {fill} after scaling, and not "
         "-inf", "exp(-inf) is 0 whatever the other scores are", "overflow", slot="fill",
         tiles="mn", fitted=True)
def _(m):
    """x (l + t n) = acc + t sum(hidden v) is linear in t = exp(fill)."""
    p, x = m.fwd, m.got
    if x is None:
        raise NotHere
    hidden = (~p.keep & p.walked).double()
    rows = (hidden.sum(1) > 0)[None] & torch.isfinite(x).all(-1)
    if not bool(rows.any()):
        raise NotHere
    acc, total, top = m._whole()
    count, values = hidden.sum(1)[:, None], hidden @ p.values()
    toward = x * count - values
    t = ((acc - x * total) * toward).sum(-1) / toward.square().sum(-1)
    t = torch.where((x == 0).all(-1) & (values == 0).all(-1), 1e26, t)  # only zeros are left
    log_t = torch.log(t.clamp(max=1e26)) + top[..., 0]  # beyond that nothing else is left
    heavy = torch.where(rows & torch.isfinite(log_t), (t * count[:, 0] / total[..., 0]), -INF)
    at = heavy.flatten().topk(min(9, heavy.numel())).indices
    most = float(heavy.flatten()[at].median())
    fill = float(log_t.flatten()[at[heavy.flatten()[at] > 0]].median()) if bool(
        (heavy > 0).any()) else 0.0
    if abs(fill) < 1e-3 or fill != fill:
        raise NotHere
    m.found["fill"] = f"about {fill:.3g}"
    if most > (1e4 if m.case.dtype == torch.float32 else 50):  # nothing else can be seen
        m.found["fill"] = f"{fill:.3g} or more"
        fill = float(top.max()) + 60
    p.fill = fill


def _fillable(m) -> None:
    p = m.fwd
    if bool((p.keep | ~p.walked | (p.j >= m.NK)).all()):  # only keys past the end: another name's
        raise NotHere


@mistake("hidden-keys-in-denominator", "hidden keys leave the values but stay in the denominator",
         "softmax comes after the mask: hidden keys are in neither sum", "mask", slot="fill",
         tiles="mn")
def _(m):
    p = m.fwd
    _fillable(m)
    m.value_keep, everything = p.keep.double(), p.walked & p.exists
    p.keep = everything
    m.sum_keep = None


@mistake("hidden-keys-in-values", "hidden keys leave the denominator but not the values",
         "hidden keys are in neither sum", "mask", slot="fill", tiles="mn")
def _(m):
    p = m.fwd
    m.sum_keep, everything = p.keep.double(), p.walked & p.exists
    if bool((p.keep == everything).all()):
        raise NotHere
    p.keep = everything

# ------------------------------------------------------------ tiles of the keys
@mistake("tail-unmasked", "keys past the end of the sequence count, with the score 0",
         "a key j >= N does not exist: its score is -inf", "tail", kind="mask", tiles="n",
         each=((0,), (1,)))
def _(p, count):
    m = p.model
    only(p, not m.causal and m.pad)
    extra = p.j >= m.NK
    p.keep = p.keep | (extra & (p.j < m.NK + count) if count else extra)


@mistake("last-key-dropped", "the last key is never seen", "keys 0 ... N - 1", "tail",
         kind="mask")
def _(p):
    only(p, p.model.NK > 1)
    p.keep = p.keep & (p.j != p.model.NK - 1)


@mistake("first-key-dropped", "key 0 is never seen", "keys 0 ... N - 1", "mask", kind="mask")
def _(p):
    p.keep = p.keep & (p.j != 0)


@mistake("ragged-tail-skipped", "keys after the last whole tile are skipped",
         "the walk ends at N, not at N // BLOCK_N * BLOCK_N", "tail", kind="mask", tiles="n",
         each=((False,), (True,)))
def _(p, spared):
    m = p.model
    whole = m.NK // m.BN * m.BN
    only(p, whole < m.NK and (whole or not spared))
    p.keep = p.keep & (p.j < whole)


@mistake("last-key-tile-skipped", "the last tile of keys is skipped",
         "the walk takes cdiv(N, BLOCK_N) tiles", "tail", kind="mask", tiles="n", padded=True,
         each=((False,), (True,)))
def _(p, even):
    m = p.model
    start = (m.NK - 1) // m.BN * m.BN
    only(p, m.NK % m.BN == 0 if even else start > 0)
    p.keep = p.keep & (p.j < start)


@mistake("first-key-tile-only", "only the first tile of keys is walked",
         "the walk goes on over all tiles: start_n += BLOCK_N", "tail", kind="mask", tiles="n",
         each=((False,), (True,)))
def _(p, and_tail):
    m = p.model
    only(p, m.NK > m.BN)
    whole = m.NK // m.BN * m.BN
    p.keep = p.keep & ((p.j < m.BN) | ((p.j >= whole) & and_tail))


@mistake("first-key-tile-skipped", "the first tile of keys is skipped",
         "the walk begins at key 0", "mask", kind="mask", tiles="mn",
         each=(("always",), ("if more",), ("not diagonal",)))
def _(p, when):
    m = p.model
    only(p, m.NK > m.BN)
    drop = p.j < m.BN
    if when == "not diagonal":
        only(p, m.causal)
        drop = drop & (p.j < p.diag)
    elif when == "if more" and m.NK < 2 * m.BN:
        raise NotHere
    p.keep = p.keep & ~drop


@mistake("ragged-tail-twice", "the last, ragged tile of keys is walked twice, once unmasked",
         "each key tile is walked once", "tail", kind="mask", tiles="n",
         )
def _(p):
    m = p.model
    whole = m.NK // m.BN * m.BN
    only(p, whole < m.NK and not m.causal)
    count_pairs(p, p.keep.double() + (p.j >= whole))


@mistake("first-keys-repeated", "every round of the walk reads the first tile of keys",
         "round t reads the keys from t * BLOCK_N on", "tail", slot="inputs", tiles="n")
def _(m):
    if m.NK <= m.BN:
        raise NotHere
    m.fwd.k_rows = m.keys % m.BN


@mistake("first-values-repeated", "every round of the walk reads the first tile of values",
         "round t reads the values from t * BLOCK_N on", "tail", slot="inputs", tiles="n")
def _(m):
    if m.NK <= m.BN:
        raise NotHere
    m.fwd.v_rows = m.keys % m.BN


@mistake("keys-counted-by-queries", "the walk has as many keys as there are queries",
         "the keys end at NK, not at NQ", "tail", kind="mask", stages=(1,), tiles="n",
         each=((False,), (True,)))
def _(p, whole_tiles):
    only(p, p.model.N < p.model.NK)
    p.keep = p.keep & (p.j < (round_up(p.model.N, p.model.BN) if whole_tiles else p.model.N))
