"""Which keys a query sees, without a window: the causal mask, hidden keys, whole tiles."""

import torch

from grader.naming.table import CAUSAL, mask, mistake, only
from grader.naming.tiles import round_up


# ------------------------------------------------------------- the causal mask
def causal(id, words, line, **more):
    """As mask, where there is a causal mask."""
    return mask(id, words, line, here=lambda p: p.causal, stages=CAUSAL, **more)


@causal("causal-ignored", "keys after the query are seen: there is no causal mask",
        "query i sees keys j <= i", place="mask, walk, borders")
def _(p):
    p.keep = p.rule(causal=False)


@mask("causal-always", "the causal mask is there though is_causal is False",
      "is_causal=False: every query sees every key", "mask, borders", stages=(1, 8, 9))
def _(p):
    only(not p.causal)
    p.keep = p.rule(causal=True)


@causal("strictly-causal", "a query does not see its own key: j < i",
        "query i sees keys j <= i", tiles="mn",
        each=(("every row",), ("row 0 spared",), ("row 0 unmasked",)))
def _(p, how):
    p.keep = p.keep & ((p.j < p.i) | ((p.i == 0) & (how != "every row")))
    if how == "row 0 unmasked":
        p.keep = p.keep | ((p.i == 0) & p.walked & (p.j < p.NK))


@causal("next-key-visible", "a query sees the key after it: j <= i + 1",
        "query i sees keys j <= i", tiles="mn")
def _(p):
    p.keep = p.keep | ((p.j == p.i + 1) & p.exists & p.walked)


@causal("mask-reversed", "the mask is the wrong way round, or transposed: j >= i where it is made",
        "query i sees keys j <= i", place="mask, scores", tiles="mn",
        each=(("tile",), ("walk",), ("NaN",), ("all",)))
def _(p, where):
    later = (p.j >= p.i) & p.exists
    if where == "tile":
        p.keep = (p.keep & (p.j < p.diag)) | (later & (p.j >= p.diag) & p.walked)
        return
    p.keep = later if where == "all" else later & p.walked
    if where == "NaN":  # -inf - (-inf), where a row's first tile has nothing to see
        only(p.stage == 1)
        blind = ~(p.keep & (p.j < p.first + p.BN)).any(1, keepdim=True)
        p.count = torch.where(blind, torch.nan, p.keep.double())


@causal("diagonal-unmasked", "keys after the query are seen up to the end of its tile: the tiles "
        "on the diagonal enter whole", "query i sees keys j <= i, not those to the end of its tile",
        place="walk, mask, scores", tiles="mn", each=((0,), (16,), (32,)))
def _(p, block):
    reach = p.i // block * block + block if block else p.end
    p.keep = p.keep | ((p.j >= p.diag) & (p.j < reach) & p.walked & p.exists)


@causal("diagonal-skipped", "nothing is seen on the diagonal: the walk stops before it, or the "
        "mask counts query positions from the start of the tile", "the walk ends with the query's "
        "own tile; row r of a tile is query start + r", place="walk, mask", tiles="mn",
        each=((False,), (True,)))
def _(p, first_spared):
    p.keep = p.keep & ((p.j < p.diag) | ((p.tile_start == 0) & first_spared))


@mask("last-tile-only", "only the last tiles count: those before are skipped, or what they "
      "summed is lost", "l = alpha l + ..., acc = alpha acc + ...: both go on from tile to tile",
      "walk, sums", tiles="mn", each=(("diagonal",), ("tile",)))
def _(p, what):
    if what == "diagonal":
        only(p.causal)
        p.keep = p.keep & (p.j >= p.diag)
    else:
        last = torch.where(p.keep, p.j, 0).amax(1, keepdim=True)
        p.keep = p.keep & (p.j >= last // p.BN * p.BN)


@causal("last-full-tile-skipped", "the walk before the diagonal ends a tile early", "every key "
        "before the diagonal is visited", place="walk, borders", tiles="mn")
def _(p):
    p.keep = p.keep & ~((p.j < p.diag) & (p.j >= p.diag - p.BN))


@causal("phase-1-in-tiles", "the walk before the diagonal counts tiles where it should count keys",
        "every key before the diagonal is visited", place="borders, walk", tiles="mn")
def _(p):
    end = round_up(p.diag // p.BN, p.BN)
    p.keep = p.keep & ((p.j < end) | (p.j >= p.diag))


@causal("diagonal-twice", "the tiles on the diagonal are walked twice, once unmasked",
        "each key tile belongs to one phase", place="walk, borders", tiles="mn",
        each=(("one",), ("all",), ("masked",)))
def _(p, which):
    on_diag = (p.j >= p.diag) & (p.j < (p.diag + p.BN if which == "one" else p.end))
    p.count_again(on_diag & (p.keep if which == "masked" else p.exists))


@causal("phase-1-past-the-diagonal", "the unmasked walk ends at the first row, not at a tile's "
        "border, and its last tile reaches past the diagonal", "a tile without a mask holds no key "
        "after any of its queries", place="borders, walk", tiles="mn", walks=("dq",),
        each=((False,), (True,)))
def _(p, up):
    only(p.BN > p.BM)
    start = round_up(p.tile_start, p.BN) if up else p.tile_start
    inner = torch.zeros_like(start)  # where the walk without a mask begins
    if p.window is not None:
        inner = torch.minimum(round_up((p.tile_start + p.BM - p.window).clamp(min=0), p.BN), start)
    unmasked = (p.j >= inner) & (p.j < inner + round_up(start - inner, p.BN)) & p.exists
    masked = p.rule() & (p.j >= start) & (p.j < p.tile_start + max(p.BM, p.BN))
    edge = p.rule() & p.walked & (p.j < round_up(inner, p.BN))
    p.count_pairs(unmasked.double() + masked + edge)


@causal("walk-ends-by-the-wrong-block", "the walk ends a key tile after the tile's first row, not "
        "after its last: of several tiles on the diagonal only the first is walked", "the walk "
        "ends after the last query's own key", place="walk", tiles="mn")
def _(p):
    only(p.BM > p.BN)
    p.keep = p.keep & (p.j < p.diag + p.BN)


@mask("walk-ends-a-key-early", "the walk ends at N - 1: a tile that begins there is left out",
      "the last key is N - 1, so the walk ends at N", "walk, borders", slot="tail", tiles="mn")
def _(p):
    only((p.NK - 1) % p.BN == 0 or (p.causal and (p.N - 1) % p.BM == 0))
    p.keep = p.keep & (p.j < p.NK - 1)


@causal("query-positions-of-the-tile", "the mask counts query positions from the start of the tile",
        "row r of a tile is query start + r", tiles="mn", each=(("diag",), ("all",)))
def _(p, where):
    _shifted_mask(p, p.i - p.tile_start, p.j, where)


@causal("key-positions-of-the-tile", "the mask counts key positions from the start of the tile",
        "column c of a tile is key start + c", tiles="mn", each=(("diag",), ("all",)))
def _(p, where):
    _shifted_mask(p, p.i, p.j % p.BN, where)


@causal("both-positions-of-the-tile", "the mask counts queries and keys from the start of their "
        "tiles", "positions count from the start of the sequence",
        tiles="mn", each=(("diag",), ("all",)))
def _(p, where):
    _shifted_mask(p, p.i - p.tile_start, p.j % p.BN, where)


def _shifted_mask(p, i, j, where):
    skipped = p.keep & ((p.j < p.diag) | (p.tile_start == 0))
    keep = j <= i
    if p.window is not None:
        keep = keep & ((i - j < p.window) | (j < p.sinks))
    reach = (p.j < p.tile_start + p.BM) | (p.j < p.end)
    if where == "diag":
        keep = torch.where(p.j < p.diag, p.keep, keep)
    p.keep = keep & reach & p.exists & p.walked
    only(not torch.equal(p.keep, skipped))  # else another name's


@causal("only-first-tile-masked", "the mask is made in the first query tile only",
        "every tile that the diagonal cuts needs the mask", place="mask, walk", tiles="mn")
def _(p):
    p.keep = torch.where(p.tile_start == 0, p.keep, p.walked & p.exists)


@mask("first-key-hidden", "key 0 is hidden from every query but the first",
      "query i sees keys 0 ... i", stages=CAUSAL, tiles="mn", each=((False,), (True,)))
def _(p, in_diagonal):
    keys = (p.j == 0) & (p.i > 0)
    p.keep = p.keep & ~(keys & (p.j >= p.diag) if in_diagonal else keys)


@causal("row-0-sees-key-1", "the first query sees the key after it", "query 0 sees key 0 alone")
def _(p):
    p.keep = p.keep | ((p.i == 0) & (p.j == 1) & p.exists)

# ------------------------------------------------------- what hidden keys get
@mistake("hidden-scores-zero", "hidden keys get the score 0, not -inf",
         "softmax(S with -inf where hidden), for exp(-inf) = 0 and exp(0) = 1", "scores",
         slot="fill", tiles="mn")
def _(m):
    _hidden(m.fwd)
    m.fwd.fill = 0.0


@mistake("hidden-scores-finite", "hidden keys get a finite score, {fill} after scaling, and not "
         "-inf", "exp(-inf) is 0 whatever the other scores are", "scores", shows="overflow",
         slot="fill", tiles="mn", fitted=True)
def _(m):
    """x (l + t n) = acc + t sum(hidden v) is linear in t = exp(fill)."""
    p, x = m.fwd, m.got.get("o")
    only(x is not None)
    hidden = (~p.keep & p.walked).double()
    rows = (hidden.sum(1) > 0)[None] & torch.isfinite(x).all(-1)
    only(bool(rows.any()))
    acc, total, top = m.sums()
    count, values = hidden.sum(1)[:, None], hidden @ p.v()
    toward = x * count - values
    t = ((acc - x * total) * toward).sum(-1) / toward.square().sum(-1)
    t = torch.where((x == 0).all(-1) & (values == 0).all(-1), 1e26, t)  # only zeros are left
    log_t = torch.log(t.clamp(max=1e26)) + top[..., 0]  # beyond that nothing else is left
    heavy = torch.where(rows & torch.isfinite(log_t), (t * count[:, 0] / total[..., 0]), -torch.inf)
    at = heavy.flatten().topk(min(9, heavy.numel())).indices
    most = float(heavy.flatten()[at].median())
    fill = float(log_t.flatten()[at[heavy.flatten()[at] > 0]].median()) if bool(
        (heavy > 0).any()) else 0.0
    only(abs(fill) >= 1e-3)  # and is a number
    m.found["fill"] = f"about {fill:.3g}"
    if most > (1e4 if m.case.dtype == torch.float32 else 50):  # nothing else can be seen
        m.found["fill"] = f"{fill:.3g} or more"
        fill = float(top.max()) + 60
    p.fill = fill


def _hidden(p) -> None:
    """Some keys are walked and hidden; if only keys past the end are, it is another name's."""
    only(bool((~p.keep & p.walked & (p.j < p.NK)).any()))


@mistake("hidden-keys-in-denominator", "hidden keys leave the values but stay in the denominator",
         "softmax comes after the mask: hidden keys are in neither sum", "scores, sums",
         slot="fill", tiles="mn")
def _(m):
    p = m.fwd
    _hidden(p)
    m.value_keep, m.sum_keep = p.keep.double(), None
    p.keep = p.walked & p.exists


@mistake("hidden-keys-in-values", "hidden keys leave the denominator but not the values",
         "hidden keys are in neither sum", "scores, sums", slot="fill", tiles="mn")
def _(m):
    p = m.fwd
    m.sum_keep, everything = p.keep.double(), p.walked & p.exists
    only(not torch.equal(p.keep, everything))
    p.keep = everything

# ------------------------------------------------------------ tiles of the keys
@mask("tail-unmasked", "keys past the end of the sequence count, with the score 0",
      "a key j >= N does not exist: its score is -inf", "mask, scores, borders", slot="tail",
      tiles="n", each=((0,), (1,)))
def _(p, count):
    only(not p.causal and p.pad)
    extra = p.j >= p.NK
    p.keep = p.keep | (extra & (p.j < p.NK + count) if count else extra)


@mask("last-key-dropped", "the last key is never seen", "keys 0 ... N - 1", "mask, scores",
      slot="tail")
def _(p):
    only(p.NK > 1)
    p.keep = p.keep & (p.j != p.NK - 1)


@mask("first-key-dropped", "key 0 is never seen", "keys 0 ... N - 1")
def _(p):
    p.keep = p.keep & (p.j != 0)


@mask("ragged-tail-skipped", "keys after the last whole tile are skipped", "the walk ends at N, "
      "not with the last whole tile", "walk, borders", slot="tail", tiles="n",
      each=((False,), (True,)))
def _(p, spared):
    whole = p.NK // p.BN * p.BN
    only(whole < p.NK and (whole or not spared))
    p.keep = p.keep & (p.j < whole)


@mask("last-key-tile-skipped", "the last tile of keys is skipped", "the walk takes every tile that "
      "holds a key, ceil(N / tile) of them", "walk, borders", slot="tail", tiles="n", padded=True,
      each=((False,), (True,)))
def _(p, even):
    start = (p.NK - 1) // p.BN * p.BN
    only(p.NK % p.BN == 0 if even else start > 0)
    p.keep = p.keep & (p.j < start)


@mask("first-key-tile-only", "only the first tile of keys is walked", "the walk goes on over all "
      "tiles", "walk, borders", slot="tail", tiles="n", each=((False,), (True,)))
def _(p, and_tail):
    only(p.NK > p.BN)
    whole = p.NK // p.BN * p.BN
    p.keep = p.keep & ((p.j < p.BN) | ((p.j >= whole) & and_tail))


@mask("first-key-tile-skipped", "the first tile of keys is skipped",
      "the walk begins at key 0", "walk, borders", tiles="mn",
      each=(("always",), ("if more",), ("not diagonal",)))
def _(p, when):
    only(p.NK > p.BN and (p.NK >= 2 * p.BN or when != "if more"))
    only(p.causal or when != "not diagonal")
    p.keep = p.keep & ((p.j >= p.BN) | ((p.j >= p.diag) & (when == "not diagonal")))


@mask("ragged-tail-twice", "the last, ragged tile of keys is walked twice, once unmasked",
      "each key tile is walked once", "walk", slot="tail", tiles="n")
def _(p):
    whole = p.NK // p.BN * p.BN
    only(whole < p.NK and not p.causal)
    p.count_again(p.j >= whole)


@mask("walk-in-tiles", "the walk counts tiles where it should count keys", "the whole tiles hold "
      "N // BLOCK_N * BLOCK_N keys", "walk", slot="tail", tiles="n", each=((False,), (True,)))
def _(p, loop_alone):
    tiles = p.NK // p.BN
    only(tiles > 1 and not p.causal)
    last = p.NK // p.BN * p.BN if loop_alone else tiles
    p.count_pairs(p.keep * ((p.j < round_up(tiles, p.BN)).double()
                            + ((p.j >= last) & (p.j < last + p.BN))))


@mistake("first-keys-repeated", "every round of the walk reads the first tile of keys", "round t "
         "reads the keys of tile t", "walk", slot="inputs", tiles="n")
def _(m):
    only(m.NK > m.BN)
    m.fwd.k_rows = m.keys % m.BN


@mistake("first-values-repeated", "every round of the walk reads the first tile of values",
         "round t reads the values of tile t", "", slot="inputs", tiles="n")
def _(m):
    only(m.NK > m.BN)
    m.fwd.v_rows = m.keys % m.BN


@mask("keys-counted-by-queries", "the walk has as many keys as there are queries",
      "the keys end at NK, not at NQ", "borders", slot="tail", stages=(1,), tiles="n",
      each=((False,), (True,)))
def _(p, whole_tiles):
    only(p.N < p.NK)
    p.keep = p.keep & (p.j < (round_up(p.N, p.BN) if whole_tiles else p.N))
