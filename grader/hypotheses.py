"""The mistakes the grader knows by name: what each does to the right computation.

One entry a mistake: a stable id, words, the line of mathematics it comes down to, the symptom whose
step and hint fit, and a function that changes a Model (model.py) as the mistake would.  Where the
outcome depends on something the grader cannot see (tile sizes, a constant), the entry is tried with
each of several values.  A forward mistake is looked for in the outputs, a backward one in the
gradients once the outputs are right.  docs/diagnoses.md is the table for readers.
"""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass

import torch

from grader.model import INF, Model, NotHere, Pass, _up

LN2, LOG2E = math.log(2), math.log2(math.e)
TILE_SIZES = (64, 128, 32, 16)
ATTENTION, LATER = tuple(n for n in range(1, 10) if n != 2), tuple(range(3, 10))
CAUSAL, GROUPED = (1, 4, 5, 6, 7, 8, 9), (5, 6, 7, 8, 9)
WINDOWED, SINKS, BACKWARD = (6, 7, 9), (7, 9), (8, 9)


@dataclass(frozen=True)
class Hypothesis:
    """One mistake.  kind: "forward", "mask" (also tried in the gradients' own walks), "lse", "row
    sum" or "backward".  slot: two mistakes of one slot are not tried together.  tiles: which tile
    sizes it depends on, "m", "n", both or "".  each: further values it is tried with."""

    id: str
    words: str
    line: str
    symptom: str
    kind: str
    slot: str
    stages: tuple[int, ...]
    change: Callable
    tiles: str = ""
    each: tuple = ((),)
    whole: str = ""  # "rows" where rows depend on one another, "all" where heads do, too
    padded: bool = False  # a tile larger than the sequence still matters
    fitted: bool = False  # with a number found from the answer itself: named where nothing else fits

    def sizes(self) -> tuple[tuple[int, int], ...]:
        """(BM, BN) to try: a submission may use any, and others for another case."""
        return {"": ((64, 64),), "n": tuple((64, n) for n in TILE_SIZES),
                "m": tuple((m, 64) for m in TILE_SIZES),
                "mn": tuple(itertools.product((*TILE_SIZES, 256), TILE_SIZES))}[self.tiles]


TABLE: list[Hypothesis] = []


def mistake(id, words, line, symptom="numbers", *, kind="forward", slot="", stages=ATTENTION,
            tiles="", each=((),), whole="", padded=False, fitted=False):
    """Put the decorated change into TABLE."""
    def add(change):
        TABLE.append(Hypothesis(id, words, line, symptom, kind, slot or symptom, stages, change,
                                tiles, tuple(each), whole, padded, fitted))
        return change
    return add


# -------------------------------------------------------------------- scores
@mistake("no-scale", "the scores are not divided by sqrt(D)", "S = Q K^T / sqrt(D)", slot="scale")
def _(m):
    m.set_scale(1.0)


@mistake("scale-twice", "the scores are divided by D: the scale is applied twice",
         "S = Q K^T / sqrt(D), not / D", slot="scale")
def _(m):
    m.set_scale(m.scale**2)


@mistake("scale-of-padded-width", "the scale is that of D rounded up to a power of two",
         "scale = 1 / sqrt(D), with D and not BLOCK_D", slot="scale")
def _(m):
    if m.D & (m.D - 1) == 0 and m.D >= 16:
        raise NotHere
    m.set_scale(max(16, 1 << (m.D - 1).bit_length()) ** -0.5)


@mistake("scale-hard-coded", "the scale is a fixed number that fits one head dimension only",
         "scale = 1 / sqrt(D), for the D of this call", slot="scale",
         each=((16,), (32,), (64,), (128,)))
def _(m, width):
    if m.D == width:
        raise NotHere
    m.set_scale(width**-0.5)


@mistake("own-scale-ignored", "the scale that the caller gave is not used",
         "S = softmax_scale * Q K^T", slot="scale", stages=BACKWARD)
def _(m):
    if m.case.scale is None:
        raise NotHere
    m.set_scale(m.D**-0.5)


@mistake("no-log2e", "exp2 is used without log2(e): softmax(S ln 2)",
         "exp(x) = exp2(x * log2(e))", slot="scale")
def _(m):
    m.set_scale(m.scale * LN2)


@mistake("log2e-twice", "log2(e) counts twice, or stands inside exp: softmax(S log2(e))",
         "exp(x) = exp2(x * log2(e)); exp itself wants no log2(e)", slot="scale")
def _(m):
    m.set_scale(m.scale * LOG2E)


@mistake("scores-off-by-a-factor", "every score is multiplied by {factor:.4g}",
         "S = scale * Q K^T, nothing else", slot="scale", each=((1.0,), (2.0,), (0.5,)),
         fitted=True)
def _(m, start):
    """The factor by Gauss-Newton steps, from start."""
    if m.got is None:
        raise NotHere
    x, right, factor = m.got, m.scale, start
    for _ in range(6):
        m.fwd.scale = right * factor
        acc, total, _top = m._whole()
        o = acc / total
        m.fwd.scale = right * factor * 1.001
        acc, total, _top = m._whole()
        slope = (acc / total - o) / (0.001 * factor)
        good = torch.isfinite(x) & torch.isfinite(slope)
        step = float(((x - o) * slope)[good].sum() / slope.square()[good].sum().clamp_min(1e-30))
        factor = min(max(factor + step, factor / 2), factor * 2)
    if factor == 1.0 or start == 1.0 and abs(factor - 1) > 0.5:
        raise NotHere
    m.set_scale(right * factor)
    m.found["factor"] = factor


@mistake("scale-differs-by-phase", "the scores of one phase are scaled unlike those of the other",
         "one scale, with log2(e), for every tile", slot="scale", stages=CAUSAL, tiles="mn",
         each=tuple((phase, factor) for phase in (1, 2) for factor in (LN2, LOG2E, "root", "one")))
def _(m, phase, factor):
    _only(m.fwd, m.causal)
    factor = {"root": m.scale, "one": 1 / m.scale}.get(factor, factor)
    scores, before = m.fwd.scores, m.fwd.j < m.fwd.diag
    there = before if phase == 1 else ~before
    m.fwd.scores = lambda: torch.where(there, scores() * factor, scores())


@mistake("scale-by-keys", "the scores are divided by the root of the number of keys in the tile",
         "S = Q K^T / sqrt(D): D is the width of a row, not the number of rows", slot="scale",
         tiles="n")
def _(m):
    count = (m.NK - m.keys // m.BN * m.BN).clamp(max=m.BN).double()
    m.q_factor = 1.0 / m.scale  # the usual one is taken out
    m.inputs = {**m.inputs, "k": m.inputs["k"] / count.sqrt()[:, None]}


@mistake("k-reshaped", "k is reshaped to (D, BLOCK_N), not transposed", "S = Q K^T",
         slot="inputs", tiles="n", padded=True)
def _(m):
    k = m.inputs["k"]
    if m.D & (m.D - 1):
        raise NotHere
    m_keys = _up(m.NK, m.BN)
    padded = torch.cat([k, k.new_zeros(*k.shape[:2], m_keys - m.NK, m.D)], 2)
    tiles = padded.unflatten(2, (-1, m.BN))
    if m.case.stage == 1 and m.NK % m.BN:
        raise NotHere
    mixed = tiles.reshape(*tiles.shape[:3], m.D, m.BN).mT.flatten(2, 3)
    m.inputs = {**m.inputs, "k": mixed[:, :, :m.NK]}


@mistake("scores-transposed", "the tile of scores is transposed: K Q^T", "S = Q K^T",
         slot="inputs", tiles="n", whole="rows")
def _(m):
    if m.NK != m.N:
        raise NotHere
    p, n = m.fwd, _up(m.N, m.BN)
    more = torch.nn.functional.pad
    q, k = more(m.q, (0, 0, 0, n - m.N)), more(m.take("k", p.k_at), (0, 0, 0, n - m.N))
    tiles = (k @ q.mT * p.scale).view(-1, n // m.BN, m.BN, n // m.BN, m.BN)
    s = tiles.permute(0, 3, 2, 1, 4).reshape(-1, n, n)[:, :m.N, :m.N]
    p.scores = lambda: s.masked_fill(~p.keep, -INF)


@mistake("q-k-swapped", "q and k change places: softmax(S^T) V", "S = Q K^T", slot="inputs")
def _(m):
    _swap(m, "q", "k")


@mistake("k-v-swapped", "k and v change places", "O = softmax(Q K^T) V", slot="inputs")
def _(m):
    _swap(m, "k", "v")


@mistake("q-v-swapped", "q and v change places", "O = softmax(Q K^T) V", slot="inputs")
def _(m):
    _swap(m, "q", "v")


@mistake("values-are-keys", "the values are read from k: softmax(S) K", "O = softmax(S) V",
         slot="inputs")
def _(m):
    m.inputs = {**m.inputs, "v": m.inputs["k"]}


@mistake("keys-are-values", "the keys are read from v: S = Q V^T", "S = Q K^T", slot="inputs")
def _(m):
    m.inputs = {**m.inputs, "k": m.inputs["v"]}


@mistake("keys-are-queries", "the keys are read from q: S = Q Q^T", "S = Q K^T", slot="inputs")
def _(m):
    if m.inputs["q"].shape != m.inputs["k"].shape:
        raise NotHere
    m.inputs = {**m.inputs, "k": m.inputs["q"]}


def _swap(m, a, b):
    if m.inputs[a].shape != m.inputs[b].shape:
        raise NotHere
    m.inputs = {**m.inputs, a: m.inputs[b], b: m.inputs[a]}


# ------------------------------------------------------------- the causal mask
def _only(p: Pass, condition) -> None:
    if not condition:
        raise NotHere


@mistake("causal-ignored", "keys after the query are seen: there is no causal mask",
         "query i sees keys j <= i", "mask", kind="mask", stages=CAUSAL)
def _(p):
    _only(p, p.model.causal)
    p.keep = p.rule(causal=False)


@mistake("causal-always", "the causal mask is there though is_causal is False",
         "is_causal=False: every query sees every key", "mask", kind="mask", stages=(1, 8, 9))
def _(p):
    _only(p, not p.model.causal)
    p.keep = p.rule(causal=True)


@mistake("strictly-causal", "a query does not see its own key: j < i",
         "query i sees keys j <= i", "mask", kind="mask", stages=CAUSAL, each=((0,), (1,)))
def _(p, spared):
    _only(p, p.model.causal)
    p.keep = p.keep & ((p.j < p.i) | (p.i < spared))


@mistake("next-key-visible", "a query sees the key after it: j <= i + 1",
         "query i sees keys j <= i", "mask", kind="mask", stages=CAUSAL, tiles="mn")
def _(p):
    _only(p, p.model.causal)
    p.keep = p.keep | ((p.j == p.i + 1) & p.exists & p.walked)


@mistake("mask-reversed", "the mask is the wrong way round, or transposed: j >= i where it is made",
         "query i sees keys j <= i", "mask", kind="mask", stages=CAUSAL, tiles="mn",
         each=(("tile",), ("all",)))
def _(p, where):
    _only(p, p.model.causal)
    later = (p.j >= p.i) & p.exists
    p.keep = later if where == "all" else (p.keep & (p.j < p.diag)) | (
        later & (p.j >= p.diag) & p.walked)


@mistake("diagonal-unmasked", "keys after the query are seen up to the end of its tile: the tiles "
         "on the diagonal enter whole", "query i sees keys j <= i, not j // T <= i // T", "mask",
         kind="mask", stages=CAUSAL, tiles="mn")
def _(p):
    _only(p, p.model.causal)
    p.keep = p.keep | ((p.j >= p.diag) & (p.j < p.end) & p.exists)


@mistake("diagonal-skipped", "nothing is seen on the diagonal: the walk stops before it, or the "
         "mask counts query positions from the start of the tile",
         "the walk ends with the query's own tile; row r of it is query start_m + r", "mask", kind="mask",
         stages=CAUSAL, tiles="mn", each=((False,), (True,)))
def _(p, first_spared):
    _only(p, p.model.causal)
    p.keep = p.keep & ((p.j < p.diag) | ((p.tile_start == 0) & first_spared))


@mistake("last-tile-only", "only the last tiles count: those before are skipped, or what they "
         "summed is lost", "l = alpha l + ..., acc = alpha acc + ...: both go on from tile to tile",
         "mask", kind="mask", tiles="mn", each=(("diagonal",), ("tile",)))
def _(p, what):
    if what == "diagonal":
        _only(p, p.model.causal)
        p.keep = p.keep & (p.j >= p.diag)
    else:
        last = torch.where(p.keep, p.j, 0).amax(1, keepdim=True)
        p.keep = p.keep & (p.j >= last // p.model.BN * p.model.BN)


@mistake("last-full-tile-skipped", "the walk before the diagonal ends a tile early",
         "phase 1 walks the keys 0 ... diag - 1", "mask", kind="mask", stages=CAUSAL, tiles="mn")
def _(p):
    _only(p, p.model.causal)
    p.keep = p.keep & ~((p.j < p.diag) & (p.j >= p.diag - p.model.BN))


@mistake("diagonal-twice", "the tiles on the diagonal are walked twice, once unmasked",
         "each key tile belongs to one phase", "mask", kind="mask", stages=CAUSAL, tiles="mn",
         each=(("one",), ("all",), ("masked",)))
def _(p, which):
    _only(p, p.model.causal)
    on_diag = (p.j >= p.diag) & (p.j < (p.diag + p.model.BN if which == "one" else p.end))
    on_diag = on_diag & p.exists
    if which == "masked":
        _count(p, p.keep.double() + (on_diag & p.keep))
    else:
        _count(p, p.keep.double() + on_diag)


@mistake("phase-1-past-the-diagonal", "the unmasked walk ends at the first row, not at a tile's "
         "border, and its last tile reaches past the diagonal",
         "diag = start_m // BLOCK_N * BLOCK_N", "mask", kind="mask", stages=CAUSAL, tiles="mn",
         each=((False,), (True,)))
def _(p, up):
    _only(p, p.model.causal and p.model.BN > p.model.BM)
    border = _up(p.tile_start, p.model.BN)
    unmasked = (p.j < border) & p.exists
    start = border if up else p.tile_start
    masked = p.rule() & (p.j >= start) & (p.j < p.tile_start + max(p.model.BM, p.model.BN))
    _count(p, unmasked.double() + masked)


@mistake("walk-ends-by-the-wrong-block", "the walk ends BLOCK_N keys after the tile's first row, "
         "not BLOCK_M: of several tiles on the diagonal only the first is walked",
         "end = start_m + BLOCK_M", "mask", kind="mask", stages=CAUSAL, tiles="mn")
def _(p):
    _only(p, p.model.causal and p.model.BM > p.model.BN)
    p.keep = p.keep & (p.j < p.diag + p.model.BN)


@mistake("walk-ends-a-key-early", "the walk ends at N - 1: a tile that begins there is left out",
         "the last key is N - 1, so the walk ends at N", "tail", kind="mask", tiles="mn")
def _(p):
    m = p.model
    _only(p, (m.NK - 1) % m.BN == 0 or (m.causal and (m.N - 1) % m.BM == 0))
    p.keep = p.keep & (p.j < m.NK - 1)


@mistake("query-positions-of-the-tile", "the mask counts query positions from the start of the "
         "tile", "row r of the tile at start_m is query start_m + r", "mask", kind="mask",
         stages=CAUSAL, tiles="mn", each=(("diag",), ("all",)))
def _(p, where):
    _only(p, p.model.causal)
    _shifted_mask(p, p.i - p.tile_start, p.j, where)


@mistake("key-positions-of-the-tile", "the mask counts key positions from the start of the tile",
         "column c of the tile at start_n is key start_n + c", "mask", kind="mask", stages=CAUSAL,
         tiles="mn", each=(("diag",), ("all",)))
def _(p, where):
    _only(p, p.model.causal)
    _shifted_mask(p, p.i, p.j % p.model.BN, where)


@mistake("both-positions-of-the-tile", "the mask counts queries and keys from the start of their "
         "tiles", "positions count from the start of the sequence", "mask", kind="mask",
         stages=CAUSAL, tiles="mn", each=(("diag",), ("all",)))
def _(p, where):
    _only(p, p.model.causal)
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
    _only(p, p.model.causal)
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
    _only(p, p.model.causal)
    p.keep = p.keep | ((p.i == 0) & (p.j == 1) & p.exists)


# ------------------------------------------------------- what hidden keys get
@mistake("hidden-scores-zero", "hidden keys get the score 0, not -inf",
         "softmax(S with -inf where hidden), for exp(-inf) = 0 and exp(0) = 1", "mask",
         slot="fill", tiles="mn")
def _(m):
    _fillable(m)
    m.fwd.fill = 0.0


@mistake("hidden-scores-finite", "hidden keys get a finite score, about {fill:.3g} after scaling, "
         "and not -inf", "exp(-inf) is 0 whatever the other scores are", "overflow", slot="fill",
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
    log_t = torch.log(t) + top[..., 0]
    heavy = torch.where(rows & torch.isfinite(log_t), (t * count[:, 0] / total[..., 0]), -INF)
    at = heavy.flatten().topk(min(9, heavy.numel())).indices
    fill = float(log_t.flatten()[at[heavy.flatten()[at] > 0]].median()) if bool(
        (heavy > 0).any()) else 0.0
    if abs(fill) < 1e-3 or fill != fill:
        raise NotHere
    p.fill = fill
    m.found["fill"] = fill


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


def _count(p: Pass, count) -> None:
    """Pairs seen count times each."""
    p.keep, p.count = count > 0, count


def _in_window(p: Pass):
    m = p.model
    if m.window is None:
        return torch.ones_like(p.keep)
    return (p.i - p.j < m.window) | (p.j < m.sinks)


# ------------------------------------------------------------ tiles of the keys
@mistake("tail-unmasked", "keys past the end of the sequence count, with the score 0",
         "a key j >= N does not exist: its score is -inf", "tail", kind="mask", tiles="n",
         each=((0,), (1,)))
def _(p, only):
    m = p.model
    _only(p, not m.causal and m.pad)
    extra = p.j >= m.NK
    p.keep = p.keep | (extra & (p.j < m.NK + only) if only else extra)


@mistake("last-key-dropped", "the last key is never seen", "keys 0 ... N - 1", "tail",
         kind="mask")
def _(p):
    _only(p, p.model.NK > 1)
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
    _only(p, whole < m.NK and (whole or not spared))
    p.keep = p.keep & (p.j < whole)


@mistake("last-key-tile-skipped", "the last tile of keys is skipped",
         "the walk takes cdiv(N, BLOCK_N) tiles", "tail", kind="mask", tiles="n",
         each=((False,), (True,)))
def _(p, even):
    m = p.model
    start = (m.NK - 1) // m.BN * m.BN
    _only(p, m.NK % m.BN == 0 if even else start > 0)
    p.keep = p.keep & (p.j < start)


@mistake("first-key-tile-only", "only the first tile of keys is walked",
         "the walk goes on over all tiles: start_n += BLOCK_N", "tail", kind="mask", tiles="n",
         each=((False,), (True,)))
def _(p, and_tail):
    m = p.model
    _only(p, m.NK > m.BN)
    whole = m.NK // m.BN * m.BN
    p.keep = p.keep & ((p.j < m.BN) | ((p.j >= whole) & and_tail))


@mistake("first-key-tile-skipped", "the first tile of keys is skipped",
         "the walk begins at key 0", "mask", kind="mask", tiles="mn",
         each=(("always",), ("if more",), ("not diagonal",)))
def _(p, when):
    m = p.model
    _only(p, m.NK > m.BN)
    drop = p.j < m.BN
    if when == "not diagonal":
        _only(p, m.causal)
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
    _only(p, whole < m.NK and not m.causal)
    _count(p, p.keep.double() + (p.j >= whole))


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
         "the keys end at NK, not at NQ", "tail", kind="mask", stages=(1,))
def _(p):
    _only(p, p.model.N < p.model.NK)
    p.keep = p.keep & (p.j < p.model.N)


# ------------------------------------------------------------------- windows
def _windowed(p: Pass) -> None:
    _only(p, p.model.window is not None)


@mistake("window-plus-one", "the window is one key too wide: query i sees W + 1 keys",
         "query i sees keys i - W + 1 ... i", "window", kind="mask", stages=WINDOWED)
def _(p):
    _windowed(p)
    p.keep = p.rule(window=p.model.window + 1)


@mistake("window-minus-one", "the window is one key too narrow: query i sees W - 1 keys",
         "query i sees keys i - W + 1 ... i", "window", kind="mask", stages=WINDOWED)
def _(p):
    _windowed(p)
    p.keep = p.rule(window=p.model.window - 1)


@mistake("window-ignored", "there is no window: query i sees keys 0 ... i",
         "query i sees keys i - W + 1 ... i", "window", kind="mask", stages=WINDOWED)
def _(p):
    _windowed(p)
    p.keep = p.rule(window=None)


@mistake("window-hard-coded", "the window is a fixed number, not window_size",
         "query i sees keys i - window_size + 1 ... i", "window", kind="mask", stages=WINDOWED,
         each=((128,), (64,), (32,), (256,)))
def _(p, size):
    _windowed(p)
    _only(p, size != p.model.window)
    p.keep = p.rule(window=size)


@mistake("window-capped", "a window longer than 128 is cut to 128",
         "query i sees keys i - window_size + 1 ... i", "window", kind="mask", stages=WINDOWED,
         each=((128,), (64,), (256,)))
def _(p, size):
    _windowed(p)
    p.keep = p.rule(window=min(size, p.model.window))


@mistake("window-rounded", "the window is rounded up to a multiple of a tile",
         "query i sees keys i - W + 1 ... i", "window", kind="mask", stages=WINDOWED,
         each=((16,), (32,), (64,), (128,)))
def _(p, step):
    _windowed(p)
    p.keep = p.rule(window=_up(p.model.window, step))


@mistake("no-window-is-a-window", "window_size=None is taken for a number",
         "window_size=None: no window", "window", kind="mask", stages=(9,),
         each=((128,), (1,), (0,), (64,)))
def _(p, size):
    _only(p, p.model.window is None and p.model.causal)
    p.keep = p.rule(window=size)


@mistake("window-symmetric", "the window looks both ways: |i - j| < W",
         "query i sees keys i - W + 1 ... i, none after it", "window", kind="mask",
         stages=WINDOWED, tiles="mn", each=((True,), (False,)))
def _(p, walked):
    _windowed(p)
    near = ((p.i - p.j).abs() < p.model.window) & p.exists
    near = near | (p.keep & (p.j < p.model.sinks))
    p.keep = near & p.walked if walked else near


@mistake("window-without-causal", "the window has no upper end: keys after the query are seen",
         "query i sees keys i - W + 1 ... i, none after it", "window", kind="mask",
         stages=WINDOWED, tiles="mn", each=((True,), (False,)))
def _(p, walked):
    _windowed(p)
    keep = p.rule(causal=False)
    p.keep = keep & p.walked if walked else keep


@mistake("window-one-place-early", "the window is one place too early: keys i - W ... i - 1",
         "query i sees keys i - W + 1 ... i", "window", kind="mask", stages=WINDOWED,
         each=((0,), (1,)))
def _(p, spared):
    _windowed(p)
    keep = (p.j < p.i) & (p.j >= p.i - p.model.window)
    p.keep = keep | ((p.i < spared) & (p.j == p.i)) | (p.keep & (p.j < p.model.sinks))


@mistake("window-by-tiles", "the window has no lower end a row: it begins with the tile",
         "the left edge needs the mask, row by row", "window", kind="mask", stages=WINDOWED,
         tiles="mn")
def _(p):
    _windowed(p)
    p.keep = p.keep | (p.rule(window=None) & p.walked)


@mistake("left-edge-unmasked", "the tiles on the window's left edge enter whole",
         "a tile that the window's edge cuts needs the mask", "window", kind="mask",
         stages=WINDOWED, tiles="mn")
def _(p):
    _windowed(p)
    p.keep = p.keep | ((p.j >= p.first) & (p.j < p.inner) & p.exists)


@mistake("first-window-tile-skipped", "the walk begins one tile after the window's first",
         "first = max(start_m - W + 1, 0) // BLOCK_N * BLOCK_N", "window", kind="mask",
         stages=WINDOWED, tiles="mn", each=(("tile",), ("tile, but from 0",), ("up",)))
def _(p, how):
    _windowed(p)
    m = p.model
    start = p.first + m.BN
    if how == "tile, but from 0":
        start = torch.where(p.first > 0, start, 0)
    elif how == "up":
        start = _up((p.tile_start - m.window + 1).clamp(min=0), m.BN)
    start = torch.minimum(start, p.diag)
    sunk = p.j < torch.minimum(_up(p.first.clamp(max=m.sinks), m.BN), start)
    p.keep = p.keep & ((p.j >= start) | sunk)


@mistake("window-walk-off-by-one", "the walk's first tile is found with a key too late: start_m - W"
         " + 2", "first = max(start_m - W + 1, 0) // BLOCK_N * BLOCK_N", "window", kind="mask",
         stages=WINDOWED, tiles="mn")
def _(p):
    _windowed(p)
    m = p.model
    start = (p.tile_start - m.window + 2).clamp(min=0) // m.BN * m.BN
    sunk = p.j < _up(start.clamp(max=m.sinks), m.BN)
    p.keep = p.keep & ((p.j >= start) | sunk)


@mistake("interior-too-early", "tiles that the window leaves halfway are walked without a mask",
         "inner = cdiv(max(start_m + BLOCK_M - W, 0), BLOCK_N) * BLOCK_N", "window", kind="mask",
         stages=WINDOWED, tiles="mn", each=(("one",), ("down",), ("first row",)))
def _(p, how):
    _windowed(p)
    m = p.model
    last = p.tile_start + m.BM - m.window
    inner = {"one": _up((last - 1).clamp(min=0), m.BN),
             "down": last.clamp(min=0) // m.BN * m.BN,
             "first row": _up((p.tile_start - m.window + 1).clamp(min=0), m.BN)}[how]
    inner = torch.minimum(torch.maximum(inner, p.first), p.diag)
    p.keep = p.keep | ((p.j >= inner) & (p.j < p.diag))


@mistake("interior-skipped", "the tiles that need no mask are left out",
         "three walks: left edge, interior, diagonal", "window", kind="mask", stages=WINDOWED,
         tiles="mn")
def _(p):
    _windowed(p)
    p.keep = p.keep & ~((p.j >= torch.maximum(p.inner, p.first)) & (p.j < p.diag))


@mistake("left-edge-past-the-diagonal", "with a short window the left edge runs into the diagonal, "
         "whose tiles count twice", "inner = min(inner, diag)", "window", kind="mask",
         stages=WINDOWED, tiles="mn")
def _(p):
    _windowed(p)
    m = p.model
    inner = _up((p.tile_start + m.BM - m.window).clamp(min=0), m.BN)
    again = p.keep & (p.j >= p.diag) & (p.j < inner)
    _count(p, p.keep.double() + again)


# --------------------------------------------------------------------- sinks
def _sunk(p: Pass) -> None:
    _only(p, p.model.window is not None and p.model.sinks > 0)


@mistake("sinks-ignored", "the sinks are hidden: only the window is seen",
         "keys j < S stay visible to every later query", "sinks", kind="mask", stages=SINKS)
def _(p):
    _sunk(p)
    p.keep = p.rule(sinks=0)


@mistake("sinks-plus-one", "there is one sink too many: key S is one, too",
         "keys j < S stay visible", "sinks", kind="mask", stages=SINKS)
def _(p):
    _windowed(p)
    p.keep = p.rule(sinks=p.model.sinks + 1)


@mistake("sinks-minus-one", "there is one sink too few: key S - 1 is none",
         "keys j < S stay visible", "sinks", kind="mask", stages=SINKS)
def _(p):
    _sunk(p)
    p.keep = p.rule(sinks=p.model.sinks - 1)


@mistake("first-key-is-no-sink", "key 0 is no sink", "keys 0 ... S - 1 stay visible", "sinks",
         kind="mask", stages=SINKS)
def _(p):
    _sunk(p)
    p.keep = p.keep & ((p.j > 0) | (p.i - p.j < p.model.window))


@mistake("sinks-not-causal", "sinks are seen by queries that come before them",
         "a sink is visible to later queries only", "sinks", kind="mask", stages=SINKS,
         tiles="mn")
def _(p):
    _sunk(p)
    p.keep = p.keep | ((p.j < p.model.sinks) & p.exists & p.walked)


@mistake("gap-between-sinks-and-window", "a sink is hidden from the query that stands W after it",
         "key < S or query - key < W, without a gap", "sinks", kind="mask", stages=SINKS)
def _(p):
    _sunk(p)
    p.keep = p.keep & (p.i - p.j != p.model.window)


@mistake("sinks-or-window-not-both", "a key that is a sink and in the window is hidden",
         "a union: a key in both is simply visible", "sinks", kind="mask", stages=SINKS,
         each=((False,), (True,)))
def _(p, spared):
    _sunk(p)
    p.keep = p.keep & ~((p.j < p.model.sinks) & (p.i - p.j < p.model.window)
                        & ((p.j != p.i) | (not spared)))


@mistake("sinks-and-window", "only keys that are both sinks and in the window are seen",
         "a union, not an intersection", "sinks", kind="mask", stages=SINKS)
def _(p):
    _sunk(p)
    p.keep = p.keep & (p.j < p.model.sinks) & (p.i - p.j < p.model.window)


@mistake("sinks-twice", "a key that is a sink and in the window counts twice",
         "a union: a key in both counts once", "sinks", kind="mask", stages=SINKS, tiles="mn",
         each=(("window",), ("walk",), ("always",), ("one",)))
def _(p, how):
    _sunk(p)
    m = p.model
    if how == "one":  # the sinks' walk takes in the tile that the window's begins with
        reach = _up(torch.minimum(p.first + 1, torch.tensor(m.sinks)), m.BN)
        again = p.keep & (p.j < reach) & (p.j >= p.first)
    elif how == "walk":  # the sinks' walk reaches into the window's tiles, whole
        reach = _up(torch.full_like(p.i, min(m.sinks, m.NK)), m.BN)
        again = p.keep & (p.j < reach) & (p.j >= p.first)
    else:
        again = p.keep & (p.j < m.sinks)
        if how == "window":
            again = again & (p.i - p.j < m.window)
    _count(p, p.keep.double() + again)


@mistake("sink-walk-twice", "the walk over the sinks is taken twice",
         "each key counts once", "sinks", kind="mask", stages=SINKS, tiles="mn")
def _(p):
    _sunk(p)
    _count(p, p.keep.double() + (p.keep & (p.j < p.sink_end)))


@mistake("sinks-of-the-window", "the sinks are counted among the W keys of the window",
         "a window of W keys, and S sinks beside it", "sinks", kind="mask", stages=SINKS)
def _(p):
    _sunk(p)
    p.keep = p.rule(window=p.model.window - p.model.sinks)


@mistake("sinks-rounded", "the sinks are rounded up to a whole tile or a multiple of 16",
         "keys j < S stay visible, no more", "sinks", kind="mask", stages=SINKS,
         each=((16,), (32,), (64,), (128,)))
def _(p, step):
    _windowed(p)
    p.keep = p.rule(sinks=_up(p.model.sinks, step))


@mistake("sink-phase-unmasked", "the last tile of the walk over the sinks enters whole",
         "the sinks' last tile needs the mask", "sinks", kind="mask", stages=SINKS, tiles="mn")
def _(p):
    _sunk(p)
    p.keep = p.keep | ((p.j < p.sink_end) & p.exists)


@mistake("window-and-sinks-swapped", "window and sinks change places", "window_size is W, "
         "sink_size is S", "sinks", kind="mask", stages=SINKS)
def _(p):
    _windowed(p)
    m = p.model
    if m.sinks == m.window:
        raise NotHere
    p.keep = p.rule(window=max(m.sinks, 1), sinks=m.window)


@mistake("sinks-hard-coded", "the number of sinks is a fixed number, not sink_size",
         "keys j < sink_size stay visible", "sinks", kind="mask", stages=SINKS,
         each=((4,), (1,), (8,), (16,)))
def _(p, count):
    _windowed(p)
    _only(p, count != p.model.sinks)
    p.keep = p.rule(sinks=count)


@mistake("no-sinks-is-default", "sink_size=0 is taken for the default", "sink_size=0: no sinks",
         "sinks", kind="mask", stages=SINKS, each=((4,), (1,)))
def _(p, count):
    _windowed(p)
    p.keep = p.rule(sinks=p.model.sinks or count)


@mistake("sinks-capped", "there are no more sinks than the window is long",
         "keys j < S stay visible, whatever W", "sinks", kind="mask", stages=SINKS)
def _(p):
    _sunk(p)
    p.keep = p.rule(sinks=min(p.model.sinks, p.model.window))


@mistake("no-sink-phase", "sinks before the window's first tile are not seen: their walk is "
         "missing, too short, or its sums are lost", "sinks before the window's first tile need a "
         "walk of their own; m, l and acc go on from it", "sinks", kind="mask",
         stages=SINKS, tiles="mn", each=(("all",), ("S=1",), ("short",), ("down",), ("one tile",)))
def _(p, how):
    _sunk(p)
    m = p.model
    end = p.sink_end
    if how == "S=1" or how == "short":
        end = _up((torch.minimum(p.first, torch.tensor(m.sinks)) - 1).clamp(min=0), m.BN)
    elif how == "down":
        end = torch.minimum(p.first, torch.tensor(m.sinks)) // m.BN * m.BN
    elif how == "one tile":
        end = end.clamp(max=m.BN)
    else:
        end = torch.zeros_like(end)
    p.keep = p.keep & ((p.j >= p.first) | (p.j < end))


@mistake("two-softmaxes", "sinks and window each have a softmax of their own, and are added "
         "without rescaling", "one maximum and one sum over both walks", "sinks", slot="online",
         stages=SINKS, tiles="mn")
def _(m):
    p = m.fwd
    _sunk(p)
    before = p.keep & (p.j < p.first)
    s = p.scores()
    tops = [s.masked_fill(~part, -INF).amax(-1, keepdim=True) for part in (before, ~before)]
    pivot = torch.where(before, tops[0], tops[1])
    shift = torch.where(pivot > -INF, torch.maximum(*tops) - pivot, 0.0)
    scores = p.scores
    p.scores = lambda: scores() + shift


# -------------------------------------------------------------------- softmax
@mistake("acc-not-rescaled", "acc is not multiplied by alpha when the maximum grows",
         "acc = alpha acc + P V, alpha = exp(m_old - m_new)", "rescale", slot="online", tiles="n",
         each=((None,), ("phase 2",)))
def _(m, where):
    _alpha(m, lambda a, old, new, lo: (_first(a, old), a), where)


@mistake("l-not-rescaled", "l is not multiplied by alpha when the maximum grows",
         "l = alpha l + rowsum(P), alpha = exp(m_old - m_new)", "rescale", slot="online",
         tiles="n")
def _(m):
    _alpha(m, lambda a, old, new, lo: (a, _first(a, old)))


@mistake("nothing-rescaled", "neither acc nor l is multiplied by alpha",
         "alpha = exp(m_old - m_new) for both", "rescale", slot="online", tiles="mn",
         each=((None,), ("phase 2",)))
def _(m, where):
    _alpha(m, lambda a, old, new, lo: (_first(a, old), _first(a, old)), where)


@mistake("alpha-inverted", "alpha is upside down: exp(m_new - m_old)",
         "alpha = exp(m_old - m_new), never above 1", "rescale", slot="online", tiles="n")
def _(m):
    def inverted(a, old, new, lo):
        a = torch.where(old == -INF, 0.0, torch.exp(new - old).float().double())
        return a, a
    _alpha(m, inverted)


@mistake("alpha-in-another-base", "alpha and the weights use different bases",
         "exp2 for both, or exp for both", "rescale", slot="online", tiles="n",
         each=((LN2,), (LOG2E,)))
def _(m, factor):
    def other(a, old, new, lo):
        a = torch.where(old == -INF, 0.0, torch.exp((old - new) * factor))
        return a, a
    _alpha(m, other)


@mistake("small-rescales-skipped", "alpha is left out where the maximum grows only little",
         "alpha = exp(m_old - m_new) every time", "rescale", slot="online", tiles="n",
         each=((0.01,), (0.01 * LN2,), (0.1,), (1.0,)))
def _(m, below):
    def skip(a, old, new, lo):
        a = torch.where(new - old < below, 1.0, a)
        return a, a
    _alpha(m, skip)


@mistake("rescaled-after-adding", "alpha multiplies the new tile's share as well",
         "acc = alpha acc + P V", "rescale", slot="online", tiles="n")
def _(m):
    m.online["late_alpha"] = True


def _first(alpha, old):
    """1, but for the first tile, where there is nothing to rescale."""
    return torch.where(old == -INF, alpha, torch.ones_like(alpha))


def _alpha(m: Model, change, where=None) -> None:
    p = m.fwd
    if m.NK + m.pad <= m.BN and m.sink is None:
        raise NotHere
    if where == "phase 2":
        if not m.causal:
            raise NotHere

        def some(a, old, new, tile):
            changed = change(a, old, new, tile)
            on = (tile * m.BN >= p.diag)[None]
            return tuple(torch.where(on, c, a) for c in changed)
        m.online["alpha"] = some
    else:
        m.online["alpha"] = change


@mistake("max-not-running", "the maximum is that of the tile, not the largest so far",
         "m_new = max(m_old, rowmax(S_tile))", "overflow", slot="online", tiles="mn",
         each=(("tile", None), ("tile", "none"), ("carry", None)))
def _(m, kind, alpha):
    m.online["max"] = kind
    if alpha:
        m.online["alpha"] = lambda a, old, new, lo: (_first(a, old), _first(a, old))


@mistake("max-of-the-first-tile", "the maximum stays that of the first tile",
         "m_new = max(m_old, rowmax(S_tile))", "overflow", slot="online", tiles="mn")
def _(m):
    m.online["max"] = "first"


@mistake("max-over-the-block", "one maximum serves all rows of the tile",
         "m is one number a row", "overflow", slot="online", tiles="mn", whole="rows")
def _(m):
    m.online["max"] = "block"


@mistake("max-of-magnitudes", "the maximum is that of |S|", "m = max(S), which may be negative",
         "overflow", slot="online", tiles="n")
def _(m):
    m.online["max"] = "abs"


@mistake("max-not-scaled", "the maximum of the raw scores is subtracted from the scaled ones",
         "both in the same units: scale them first", "overflow", slot="online", tiles="n",
         each=(("unscaled",), ("unscaled2",)))
def _(m, kind):
    m.online["max"] = kind


@mistake("max-of-hidden-keys", "the maximum is taken before the mask",
         "mask first, then the maximum", "overflow", slot="online", tiles="mn",
         each=(("hidden",), ("exist",), ("zero",)))
def _(m, kind):
    m.online["max"] = kind


@mistake("no-max", "no maximum is subtracted before exp", "P = exp(S - m)", "overflow",
         slot="online", tiles="n")
def _(m):
    m.online["max"] = "none"


@mistake("max-starts-at-zero", "m starts at 0 instead of -inf", "m = -inf before the first key",
         "overflow", slot="online", tiles="n")
def _(m):
    m.online["max"] = "start0"


@mistake("no-pivot", "-inf - (-inf) is NaN for a row that has seen no key yet",
         "subtract 0 where m is still -inf", "nan", slot="online", stages=WINDOWED, tiles="mn")
def _(m):
    m.online["pivot"] = False

    def alpha(a, old, new, tile):
        bad = torch.where((old == -INF) & (new == -INF), torch.nan, a)
        return bad, bad
    m.online["alpha"] = alpha


@mistake("weights-of-the-old-max", "the weights are taken against the old maximum",
         "P = exp(S - m_new)", "rescale", slot="online", tiles="n")
def _(m):
    m.online["weights"] = "old"


@mistake("mean-of-values", "all weights are alike: the output is the mean of the values",
         "P = softmax(S)", slot="scale")
def _(m):
    m.set_scale(0.0)


@mistake("not-normalised", "the output is not divided by l", "O = acc / l", slot="finish")
def _(m):
    m.finish = lambda acc, l, top: acc


@mistake("l-plus-something", "something is added to l before the division: {extra:.2g}",
         "O = acc / l", slot="finish")
def _(m):
    if m.got is None:
        raise NotHere

    def finish(acc, total, top):
        x = m.got
        good = torch.isfinite(x)
        extra = float(((acc - x * total) * x)[good].sum() / x.square()[good].sum())
        m.found["extra"] = extra
        return acc / (total + extra)
    m.finish = finish


@mistake("output-off-by-a-factor", "the output is {factor:.4g} times what it should be",
         "O = acc / l, nothing else", slot="finish", fitted=True)
def _(m):
    if m.got is None:
        raise NotHere

    def finish(acc, total, top):
        o = acc / total
        good = torch.isfinite(m.got) & torch.isfinite(o)
        factor = float((m.got * o)[good].sum() / o.square()[good].sum().clamp_min(1e-30))
        m.found["factor"] = factor
        return o * (factor if factor else 1.0)
    m.finish = finish


@mistake("values-scaled", "the values are multiplied by the scale as well: O / sqrt(D)",
         "O = softmax(S) V", slot="finish")
def _(m):
    m.value_factor = m.scale


@mistake("zeros", "the output is zero", "O = softmax(S) V", slot="finish")
def _(m):
    m.value_factor = 0.0


@mistake("copy-of-values", "row i of the output is value i: each query sees itself alone",
         "O = softmax(S) V", slot="mask", kind="mask")
def _(p):
    _only(p, p.model.N == p.model.NK)
    p.keep = p.keep & (p.i == p.j)


@mistake("some-sums-left-out", "l leaves out some columns of the tile", "l adds up every weight",
         slot="finish", each=((8, 7),))
def _(m, every, left):
    columns = torch.arange(m.NK) % every != left
    m.sum_keep = columns[None].double().expand(len(m.rows), -1)


@mistake("small-weights-dropped", "small weights do not reach the values", "O = sum_j P_ij v_j",
         "rescale", slot="online", tiles="n", each=((0.01,), (0.001,)))
def _(m, below):
    m.online["drop"] = below


# ------------------------------------------------------------------- rounding
@mistake("acc-in-16-bits", "acc is kept in 16 bits", "acc and l in float32, rounded once at the "
         "store", "numbers", slot="online", tiles="n",
         each=((torch.float16,), (torch.bfloat16,)))
def _(m, dtype):
    m.online["round_acc"] = dtype


@mistake("l-in-16-bits", "l is kept in 16 bits", "acc and l in float32", "numbers", slot="online",
         tiles="n", each=((torch.float16,), (torch.bfloat16,)))
def _(m, dtype):
    m.online["round_l"] = dtype


@mistake("weights-in-16-bits", "the weights are rounded to 16 bits or fewer, though v has more",
         "round P to the dtype of v, no further", "numbers", slot="online", tiles="n",
         each=((torch.float16,), (torch.bfloat16,), (256,)))
def _(m, dtype):
    if dtype == 256:
        m.online["round_p"] = lambda w: torch.round(w * 256) / 256
    elif m.case.dtype != torch.float32:
        raise NotHere
    else:
        m.online["round_p"] = lambda w: w.to(dtype).double()


@mistake("scores-in-16-bits", "the scores are rounded to 16 bits before the softmax",
         "S in float32", "numbers", slot="scale",
         each=((torch.float16, True), (torch.float16, False), (torch.bfloat16, False)))
def _(m, dtype, raw):
    scores, unit = m.fwd.scores, m.scale if raw else 1.0
    m.fwd.scores = lambda: (scores() / unit).to(dtype).double() * unit


@mistake("inputs-in-fewer-bits", "inputs are rounded to fewer bits than they have",
         "tiles keep the dtype they were loaded in", "numbers", slot="inputs",
         each=(("v", torch.float16), ("qk", torch.float8_e4m3fn), ("v", torch.bfloat16),
               ("qk", torch.float16), ("qk", torch.bfloat16), ("qkv", torch.float16)))
def _(m, names, dtype):
    if m.case.dtype != torch.float32 and dtype != torch.float8_e4m3fn:
        raise NotHere
    m.inputs = m.inputs | {n: m.inputs[n].to(dtype).double() for n in names}


# --------------------------------------------------------- heads and batches
@mistake("heads-interleaved", "query head h reads key/value head h % HKV",
         "query head h reads h // (HQ // HKV)", "head", slot="heads", stages=GROUPED,
         each=(("kv",), ("k",), ("v",)))
def _(m, which):
    _heads(m, lambda h: h % m.HKV, which)


@mistake("one-kv-head-for-all", "every query head reads the same key/value head",
         "query head h reads h // (HQ // HKV)", "head", slot="heads", stages=GROUPED,
         each=(("kv", 0), ("kv", -1), ("k", 0), ("v", 0)))
def _(m, which, head):
    _heads(m, lambda h: torch.full_like(h, head % m.HKV), which)


@mistake("heads-not-mapped", "query head h reads key/value head h", "query head h reads "
         "h // (HQ // HKV)", "head", slot="heads", stages=GROUPED,
         each=(("kv", "clip"), ("kv", "on"), ("k", "on"), ("v", "on"), ("k", "clip"),
               ("v", "clip")))
def _(m, which, how):
    _heads(m, (lambda h: h.clamp(max=m.HKV - 1)) if how == "clip" else lambda h: h, which)


@mistake("heads-multiplied", "query head h reads h * group instead of h // group",
         "query head h reads h // (HQ // HKV)", "head", slot="heads", stages=GROUPED,
         each=((True,), (False,)))
def _(m, wrapped):
    _heads(m, lambda h: h * m.group % (m.HKV if wrapped else 1 << 30))


@mistake("heads-divided-by-hkv", "query head h reads h // HKV, not h // group",
         "query head h reads h // (HQ // HKV)", "head", slot="heads", stages=GROUPED,
         each=((True,), (False,)))
def _(m, clipped):
    _heads(m, lambda h: (h // m.HKV).clamp(max=m.HKV - 1 if clipped else 1 << 30))


@mistake("group-hard-coded", "the group is a fixed number of heads",
         "a group has HQ // HKV query heads", "head", slot="heads", stages=GROUPED,
         each=((2, 0), (4, 0), (8, 0), (2, 1), (4, 1), (8, 1)))
def _(m, size, least):
    size = max(size, m.group) if least else size
    if size == m.group:
        raise NotHere
    _heads(m, lambda h: h // size)


@mistake("groups-shifted", "the groups begin a head late", "query head h reads h // (HQ // HKV)",
         "head", slot="heads", stages=GROUPED, each=((1,), (-1,)))
def _(m, by):
    _heads(m, lambda h: ((h + by) // m.group).clamp(0, m.HKV - 1))


@mistake("groups-reversed", "the first group reads the last key/value head",
         "query head h reads h // (HQ // HKV)", "head", slot="heads", stages=GROUPED)
def _(m):
    _heads(m, lambda h: m.HKV - 1 - h // m.group)


@mistake("heads-counted-over-batches", "the key/value head counts on over batch entries",
         "kv_head = h // group, with h inside its batch entry", "head", slot="heads",
         stages=GROUPED)
def _(m):
    if m.B == 1:
        raise NotHere
    b, h = m.pairs.unbind(1)
    _address(m, b, b * m.HKV + h // m.group, "kv")


@mistake("q-at-the-kv-head", "the queries are read at the key/value head",
         "q and o at head h, k and v at h // group", "head", slot="heads", stages=GROUPED)
def _(m):
    if m.group == 1:
        raise NotHere
    b, h = m.pairs.unbind(1)
    m.q_at = (b, h // m.group)


@mistake("output-at-the-kv-head", "the output is stored at the key/value head",
         "q and o at head h, k and v at h // group", "head", slot="output", stages=GROUPED,
         each=(("last",), ("first",)))
def _(m, which):
    if m.group == 1:
        raise NotHere
    b, h = m.pairs.unbind(1)
    other = h * m.group + (m.group - 1 if which == "last" else 0)
    there = h < m.HKV
    other = torch.where(there, other, h)
    m.q_at = (b, other)
    m.fwd.k_at = m.fwd.v_at = (b, other // m.group)
    _never(m, ~there[:, None].expand(-1, len(m.rows)))


def _heads(m: Model, map_of, which="kv") -> None:
    b, h = m.pairs.unbind(1)
    _address(m, b, map_of(h), which)


def _address(m: Model, b, h, which) -> None:
    """Head h of k or v, by its address: one past the last is the next batch entry's first."""
    flat = b * m.HKV + h
    if int(flat.max()) >= m.B * m.HKV or int(flat.min()) < 0 or not m.dense:
        raise NotHere
    at = flat // m.HKV, flat % m.HKV
    m.fwd.k_at = at if "k" in which else m.fwd.k_at
    m.fwd.v_at = at if "v" in which else m.fwd.v_at


@mistake("batch-ignored", "every batch entry reads entry 0", "the address holds b * stride_b",
         "batch", slot="heads", each=(("qkv",), ("kv",), ("k",), ("v",), ("q",)))
def _(m, which):
    if m.B == 1:
        raise NotHere
    b, h = m.pairs.unbind(1)
    zero = torch.zeros_like(b)
    m.q_at = (zero, h) if "q" in which else m.q_at
    m.fwd.k_at = (zero, h // m.group) if "k" in which else m.fwd.k_at
    m.fwd.v_at = (zero, h // m.group) if "v" in which else m.fwd.v_at


@mistake("head-ignored", "every head reads head 0", "the address holds h * stride_h", "head",
         slot="heads", each=(("qkv",), ("k",), ("v",), ("q",), ("kv",)))
def _(m, which):
    if m.HQ == 1:
        raise NotHere
    b, h = m.pairs.unbind(1)
    zero = torch.zeros_like(h)
    m.q_at = (b, zero) if "q" in which else m.q_at
    m.fwd.k_at = (b, zero) if "k" in which else m.fwd.k_at
    m.fwd.v_at = (b, zero) if "v" in which else m.fwd.v_at


@mistake("batch-and-head-mixed", "batch entry and head are split by the wrong number",
         "b = bh // HQ, h = bh % HQ", "batch", slot="heads",
         each=(("swapped",), ("tiles", 64), ("tiles", 128), ("tiles", 32), ("hkv",), ("kv",)))
def _(m, how, size=64):
    b, h = m.pairs.unbind(1)
    bh = b * m.HQ + h
    if how == "swapped":
        b, h = bh % m.HQ, bh // m.HQ
    elif how == "tiles":
        b = bh // -(-m.N // size)
    elif how == "hkv":
        b, h = bh // m.HKV, bh % m.HKV
    else:
        b = bh // m.HKV
    if int(b.max()) >= m.B or int(h.max()) >= m.HQ:
        flat = (b * m.HQ + h)
        if int(flat.max()) >= m.B * m.HQ or not m.dense or m.group > 1:
            raise NotHere
        b, h = flat // m.HQ, flat % m.HQ
    m.q_at, m.fwd.k_at = (b, h), (b, h // m.group)
    m.fwd.v_at = m.fwd.k_at


@mistake("heads-past-sixteen", "heads are numbered within their group of 16 programs only",
         "the number of the first head of the group is added", "head", slot="output",
         stages=(4, 5, 6, 7, 8, 9), each=(("repeat",), ("full",)))
def _(m, how):
    b, h = m.pairs.unbind(1)
    bh = b * m.HQ + h
    if m.B * m.HQ <= 16:
        raise NotHere
    if how == "repeat":
        _never(m, (bh >= 16)[:, None].expand(-1, len(m.rows)))
    else:
        _never(m, ((bh >= m.B * m.HQ // 16 * 16))[:, None] & (m.rows >= 64)[None])


# ---------------------------------------------------- what is written, and where
def _never(m: Model, rows) -> None:
    """Rows (P, R) keep what the memory held: the grader's NaN."""
    if not bool(rows.any()):
        raise NotHere

    def poison(out):
        return {name: x.masked_fill(rows[..., None] if x.dim() == 3 else rows, torch.nan)
                for name, x in out.items()}
    m.after = poison


@mistake("last-rows-not-written", "the rows after the last whole query tile are never written",
         "the grid has cdiv(N, BLOCK_M) programs a head", "tail", slot="output", tiles="m",
         each=((1,), (2,)))
def _(m, tiles):
    size = m.BM * tiles
    whole = max(m.N // size, 1) * size
    _never(m, (m.rows >= whole)[None].expand(len(m.pairs), -1))


@mistake("last-row-not-written", "the last row is never written", "rows < N are stored", "tail",
         slot="output")
def _(m):
    _never(m, (m.rows == m.N - 1)[None].expand(len(m.pairs), -1))


@mistake("some-tiles-not-written", "some query tiles are never written: programs work on the same "
         "rows", "start_m = tile * BLOCK_M, every tile once", "nan", slot="output", tiles="m",
         each=(("first only", 1), ("last only", 1), ("overlap", 1), ("not first", 1),
               ("second of two", 2), ("first only", 2)))
def _(m, how, width):
    size = m.BM * width
    tile, tiles = m.rows // size, -(-m.N // size)
    never = {
        "first only": tile > 0, "last only": tile < tiles - 1, "not first": tile == 0,
        "overlap": m.rows >= (tiles - 1) * (size // 2) + size,
        "second of two": m.rows % size >= m.BM}[how]
    _never(m, never[None].expand(len(m.pairs), -1))


@mistake("some-heads-not-written", "there are too few programs: the last heads are never written",
         "the grid has a program for every tile of all B * H heads", "nan", slot="output",
         tiles="m", each=(("batch",), ("hkv",), ("tiles",)))
def _(m, how):
    b, h = m.pairs.unbind(1)
    bh, total = b * m.HQ + h, m.B * m.HQ
    tiles = -(-m.N // m.BM)
    if how == "tiles":  # the kernel counts tiles of BM rows, the launch of 2 BM
        programs = -(-m.N // (2 * m.BM)) * total
        number = bh[:, None] * tiles + (m.rows // m.BM)[None]
        start = m.rows // m.BM
        reached = torch.zeros(len(bh), len(m.rows), dtype=torch.bool)
        for first in (0, 1):  # a program at tile t writes t and t + 1
            previous = bh[:, None] * tiles + (start - first)[None]
            reached |= (previous < programs) & ((start - first) >= 0)[None]
        del number
        _never(m, ~reached)
    else:
        count = m.HQ if how == "batch" else m.B * m.HKV
        _never(m, (bh >= count)[:, None].expand(-1, len(m.rows)))


@mistake("second-tile-is-the-first", "the second query tile of a program reads the first one's "
         "rows", "q2 begins BLOCK_M rows after q", "tail", slot="rows", tiles="m", stages=(3,))
def _(m):
    m.q_rows = torch.where(m.rows % (2 * m.BM) >= m.BM, m.rows - m.BM, m.rows)


@mistake("unwritten", "nothing is written: the memory holds what it held before",
         "the kernel stores every row of o", "nan", slot="output")
def _(m):
    _never(m, torch.ones(len(m.pairs), len(m.rows), dtype=torch.bool))


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


@mistake("wrong-strides", "{0} is read with other strides than its own: {1} as if {2}",
         "address = base + b stride_b + h stride_h + row stride_n + column stride_d, its own four",
         "stride", slot="strides", each=tuple(_stride_variants()))
def _(m, name, axes, other):
    wrong = {}
    for n in name:
        try:
            wrong[n] = _restrided(m, n, axes, other).double()
        except NotHere:
            continue
    if not wrong or len(wrong) == 1 < len(name):
        raise NotHere
    m.inputs = m.inputs | wrong


def _restrided(m: Model, name: str, axes: str, other: str):
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
    if all(s == t or n == 1 for s, t, n in zip(stride, own.stride, own.shape, strict=True)):
        raise NotHere
    last = own.offset + sum(s * (n - 1) for s, n in zip(stride, own.shape, strict=True))
    if last >= own.storage.numel() or min(stride) < 0:
        raise NotHere
    return own.storage.as_strided(own.shape, stride, own.offset)


@mistake("output-strides", "the output is allocated like {0}, and then filled as if it were "
         "contiguous", "o = torch.empty(...), or pass o's own strides", "stride", slot="strides",
         each=(("q",),), whole="all")
def _(m, like):
    sent = m.built.call.inputs[like]
    view = sent.storage.as_strided(sent.shape, sent.stride, sent.offset)
    stride = torch.empty_like(view).stride()
    if stride == torch.empty(sent.shape).stride() or len(m.pairs) != m.B * m.HQ:
        raise NotHere

    def after(out):
        x = out["o"].contiguous().flatten().as_strided(sent.shape, stride)
        return out | {"o": x.flatten(0, 1)}
    m.after = after


@mistake("padded-columns", "columns past D are read: the next row's numbers join the scores",
         "columns d >= D do not exist: mask them at the load", "stride", slot="strides",
         each=(("in", 0), ("in", 16), ("in", 32), ("in", 64), ("in", 128)))
def _(m, how, width):
    width = width or max(16, 1 << (m.D - 1).bit_length())
    if width <= m.D:
        raise NotHere
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


# ----------------------------------------------------------------------- lse
def lse(id, words, line="lse = m + log(l)", each=((),), **more):
    """As mistake, for stage 1's second output."""
    return mistake(id, words, line, "lse", kind="lse", stages=(1,), each=each, **more)


@lse("lse-is-the-max", "lse is the maximum alone, without the sum")
def _(m):
    m.lse_of = lambda top, total: top


@lse("lse-without-the-max", "lse is log(l) alone, without the maximum")
def _(m):
    m.lse_of = lambda top, total: torch.log(total)


@lse("lse-without-log", "lse is m + l: the logarithm is missing")
def _(m):
    m.lse_of = lambda top, total: top + total


@lse("lse-in-another-base", "log(l) is taken in another base",
     "lse = m + ln(l), a natural logarithm", each=((2,), (10,)))
def _(m, base):
    m.lse_of = lambda top, total: top + torch.log(total) / math.log(base)


@lse("lse-in-base-2", "all of lse is in base 2: it is multiplied by log2(e)",
     "lse = m + ln(l), a natural logarithm", each=((LOG2E,), (LN2,)))
def _(m, factor):
    m.lse_of = lambda top, total: (top + torch.log(total)) * factor


@lse("lse-minus-the-log", "lse is m - log(l)")
def _(m):
    m.lse_of = lambda top, total: top - torch.log(total)


@lse("lse-negative", "lse has the wrong sign")
def _(m):
    m.lse_of = lambda top, total: -(top + torch.log(total))


@lse("lse-of-the-sum-plus-something", "something is added to l before the logarithm",
     each=tuple((e,) for e in (1.0, 1e-2, 1e-3, 1e-4, 1e-5, 1e-6)))
def _(m, extra):
    m.lse_of = lambda top, total: top + torch.log(total + extra)


@lse("lse-of-the-last-tile", "lse has the sum of the last tile alone", tiles="mn")
def _(m):
    p, s = m.fwd, m.fwd.scores()
    start = torch.where(p.keep, p.j, 0).amax(1, keepdim=True) // m.BN * m.BN
    later = s.masked_fill(p.j < start, -INF)
    m.lse_of = lambda top, total: torch.logsumexp(later, -1, keepdim=True)


@lse("lse-of-one-head", "every head gets the lse of head 0", whole="all")
def _(m):
    if m.HQ == 1:
        raise NotHere
    first = m.pairs[:, 0] * m.HQ
    m.after = lambda out: out | {"lse": out["lse"][first]}


@lse("lse-in-16-bits", "lse is rounded to 16 bits on its way", "lse in float32",
     each=((torch.float16,), (torch.bfloat16,)))
def _(m, dtype):
    m.lse_of = lambda top, total: (top + torch.log(total)).to(dtype).double()


@lse("lse-of-scaled-rows", "lse lacks a part: it is m + log(l) of the unscaled maximum")
def _(m):
    m.lse_of = lambda top, total: top / m.scale + torch.log(total)


# ------------------------------------------------------------------- row sum
def row_sum(id, words, line="y_i = sum_j x_ij w_j", symptom="numbers", **more):
    """As mistake, for stage 2."""
    return mistake(id, words, line, symptom, kind="row sum", stages=(2,), **more)


@row_sum("w-ignored", "w is left out", slot="weights")
def _(m):
    m.w = torch.ones_like(m.w)


@row_sum("w-squared", "w counts twice", slot="weights")
def _(m):
    m.w = m.w**2


@row_sum("mean-not-sum", "the sum is divided by N", slot="finish")
def _(m):
    m.factor = 1.0 / m.N


@row_sum("divided-by-tiles", "the sum is divided by the number of tiles", slot="finish", tiles="n")
def _(m):
    m.factor = m.BN / m.N if m.N > m.BN else 1.0


@row_sum("divided-by-weights", "the sum is divided by the sum of the weights", slot="finish")
def _(m):
    m.factor = 1.0 / float(m.w.sum())


@row_sum("zeros", "the output is zero", slot="finish")
def _(m):
    m.factor = 0.0


@row_sum("output-off-by-a-factor", "the output is {factor:.4g} times what it should be",
         slot="finish", fitted=True)
def _(m):
    m.fit = True


@row_sum("last-tile-only", "what earlier tiles summed is lost: acc is assigned, not added to",
         "acc += sum over the tile", slot="columns", tiles="n")
def _(m):
    m.columns = m.columns * (m.j >= (m.N - 1) // m.BN * m.BN)


@row_sum("last-column-tile-dropped", "the last tile of columns is skipped",
         "the walk takes cdiv(N, BLOCK_N) tiles", "tail", slot="columns", tiles="n",
         each=((False,), (True,)))
def _(m, ragged):
    end = m.N // m.BN * m.BN if ragged else (m.N - 1) // m.BN * m.BN
    m.columns = m.columns * (m.j < end)


@row_sum("walk-ends-a-column-early", "the walk ends at N - 1: a tile that begins there is left out",
         "the walk ends at N", "tail", slot="columns", tiles="n")
def _(m):
    if (m.N - 1) % m.BN:
        raise NotHere
    m.columns = m.columns * (m.j < m.N - 1)


@row_sum("first-column-tile-only", "only the first tile of columns is walked",
         "the walk goes on to N", "tail", slot="columns", tiles="n")
def _(m):
    m.columns = m.columns * (m.j < m.BN)


@row_sum("first-column-tile-repeated", "every round reads the first tile of columns",
         "offs_n = start_n + arange", "tail", slot="columns", tiles="n")
def _(m):
    m.columns = m.columns * (m.j < m.BN) * -(-m.N // m.BN)


@row_sum("step-of-the-wrong-block", "the walk steps by the wrong block: columns are summed several "
         "times", "for start_n in range(0, N, BLOCK_N)", slot="columns", tiles="mn")
def _(m):
    if m.BM >= m.BN:
        raise NotHere
    starts = torch.arange(0, m.N, m.BM)[:, None]
    m.columns = m.columns * ((m.j >= starts) & (m.j < starts + m.BN)).sum(0)


@row_sum("last-column-dropped", "the last column is masked away", "columns 0 ... N - 1 exist",
         "tail", slot="columns")
def _(m):
    m.columns = m.columns * (m.j < m.N - 1)


@row_sum("columns-masked-by-rows", "columns are masked by the number of rows",
         "columns j < N exist, rows i < M", "tail", slot="columns")
def _(m):
    if m.M >= m.N:
        raise NotHere
    m.columns = m.columns * (m.j < m.M)


@row_sum("masked-lanes-not-zero", "lanes past N read 1, not 0", "masked lanes leave the sum alone: "
         "other=0", "tail", slot="finish", tiles="n")
def _(m):
    m.extra = float(-m.N % m.BN)


@row_sum("first-weights-repeated", "every tile is weighted with the first weights",
         "w at offs_n, with start_n", slot="weights", tiles="n")
def _(m):
    m.w = m.w[m.j % m.BN]


@row_sum("one-row-tile-read-by-all", "every program reads the first rows",
         "row = program_id * BLOCK_M + arange", "tail", slot="rows", tiles="m")
def _(m):
    m.x = m.x[torch.arange(m.M) % m.BM]


@row_sum("rows-not-written", "some rows are never written", "the grid has cdiv(M, BLOCK_M) "
         "programs of BLOCK_M rows each", "nan", slot="rows", tiles="mn",
         each=(("first only",), ("overlap",), ("last row",), ("ragged",), ("by columns",)))
def _(m, how):
    i, tiles = torch.arange(m.M), -(-m.M // m.BM)
    m.never = {"first only": i >= m.BM, "last row": i == m.M - 1,
               "overlap": i >= (tiles - 1) * (m.BM - 1) + m.BM,
               "ragged": i >= m.M // m.BM * m.BM,
               "by columns": i >= -(-m.N // m.BN) * m.BM}[how]
    if not bool(m.never.any()):
        raise NotHere


@row_sum("product-in-16-bits", "the product is rounded to 16 bits before it is summed",
         "widen to float32 before multiplying", slot="rounding",
         each=((None,), (torch.float16,), (torch.bfloat16,)))
def _(m, dtype):
    dtype = dtype or m.case.dtype
    if dtype == torch.float32:
        raise NotHere
    m.round_product = lambda x: x.to(dtype).double()


@row_sum("acc-in-16-bits", "acc is kept in 16 bits", "acc in float32, rounded once at the store",
         slot="rounding", tiles="n", each=((torch.float16,), (torch.bfloat16,)))
def _(m, dtype):
    m.round_acc = lambda x: x.to(dtype).double()


@row_sum("wrong-strides", "{0} is read with other strides than its own: {1}",
         "address = base + row stride_m + column stride_n, its own two", "stride", slot="strides",
         each=(("x", "rows as if N apart"), ("x", "columns as if 1 apart"),
               ("x", "rows and columns exchanged"), ("x", "as if contiguous"),
               ("w", "as if contiguous"), ("w", "as if x's columns")))
def _(m, name, how):
    own = m.built.call.inputs[name]
    stride = {"rows as if N apart": (m.N, own.stride[-1]),
              "columns as if 1 apart": (own.stride[0], 1),
              "rows and columns exchanged": own.stride[::-1],
              "as if contiguous": (m.N, 1) if name == "x" else (1,),
              "as if x's columns": (m.built.call.inputs["x"].stride[1],)}[how]
    last = own.offset + sum(s * (n - 1) for s, n in zip(stride, own.shape, strict=True))
    if stride == tuple(own.stride) or last >= own.storage.numel():
        raise NotHere
    setattr(m, name, own.storage.as_strided(own.shape, stride, own.offset).double())


# ------------------------------------------------------------------ backward
def backward(id, words, line, symptom, slot="", stages=BACKWARD, **more):
    """As mistake, for gradients where the outputs are right."""
    return mistake(id, words, line, symptom, kind="backward", slot=slot or id, stages=stages,
                   **more)


D_NAMES = {"q": "dq", "k": "dk", "v": "dv", "sink_logits": "d sink_logits"}
for _name in "qk":
    @backward(f"d{_name}-unscaled", f"d{_name} lacks the factor scale",
              f"d{_name} = scale * dS{'' if _name == 'q' else '^T'} "
              f"{'K' if _name == 'q' else 'Q'}", f"d_{_name}", f"factor d{_name}")
    def _(m, name=_name):
        m.factor[name] = 1.0

    @backward(f"d{_name}-scaled-twice", f"d{_name} has the factor scale twice",
              "the scale comes in once, after dS", f"d_{_name}", f"factor d{_name}")
    def _(m, name=_name):
        m.factor[name] = m.scale**2

    @backward(f"d{_name}-in-base-2", f"d{_name} is multiplied by scale * log2(e)",
              "log2(e) belongs to the exponent, not to the gradient", f"d_{_name}",
              f"factor d{_name}", each=((LOG2E,), (LN2,)))
    def _(m, factor, name=_name):
        m.factor[name] = m.scale * factor

    @backward(f"d{_name}-with-the-default-scale", f"d{_name}'s last factor is 1 / sqrt(D), though "
              "the caller gave a scale", "the caller's scale, wherever there is a scale",
              f"d_{_name}", f"factor d{_name}")
    def _(m, name=_name):
        if m.case.scale is None:
            raise NotHere
        m.factor[name] = m.D**-0.5


@backward("dv-scaled", "dv is multiplied by the scale", "dV = P^T dO", "d_v", "factor dv")
def _(m):
    m.factor["v"] = m.scale


for _name in ("q", "k", "v", "sink_logits"):
    @backward(f"{D_NAMES[_name].replace(' ', '-')}-off-by-a-factor",
              D_NAMES[_name] + " is {factor:.4g} times what it should be",
              "every gradient has its one scale, and no other factor", f"d_{_name}",
              f"factor {D_NAMES[_name]}", fitted=True)
    def _(m, name=_name):
        if "d_" + name not in m.all_got:
            raise NotHere
        m.fit = name

    @backward(f"{D_NAMES[_name].replace(' ', '-')}-zero", f"{D_NAMES[_name]} is zero",
              "each gradient has its own sum", f"d_{_name}", f"factor {D_NAMES[_name]}")
    def _(m, name=_name):
        m.factor[name] = 0.0


@backward("own-scale-ignored-in-backward", "the backward takes 1 / sqrt(D), though the caller gave "
          "a scale", "one scale in forward and backward", "numbers", "P")
def _(m):
    if m.case.scale is None:
        raise NotHere
    m.factor |= {"q": m.D**-0.5, "k": m.D**-0.5}
    m.dq.scale = m.dkv.scale = m.D**-0.5


@backward("no-delta", "delta is left out: dS = P * dP{0}", "dS = P * (dP - delta)", "d_q", "delta",
          each=((" in dq and dk", "dqk"), (" in dq", "dq"), (" in dk", "dk")))
def _(m, words, where):
    for name in ("dq", "dk"):
        if name == where or where == "dqk":
            m.delta[name] = 0.0


@backward("delta-added", "delta is added, not subtracted: dS = P * (dP + delta){0}",
          "dS = P * (dP - delta)", "d_q", "delta",
          each=(("", "dqk"), (", in dq", "dq"), (", in dk", "dk"), (", everywhere", "all")))
def _(m, words, where):
    if where == "all":
        m.delta_of = lambda m, o, do: -(do * o).sum(-1, keepdim=True)
    for name in ("dq", "dk"):
        if name == where or where == "dqk":
            m.delta[name] = -1.0


@backward("delta-of-something-else", "delta is {0}, not rowsum(dO * O)", "delta = rowsum(dO * O)",
          "d_q", "delta", each=(("rowsum(dO)",), ("rowmean(dO * O)",), ("rowsum(O)",),
                                ("rowsum(dO * O) with the scale",), ("rowsum(O * O)",)))
def _(m, what):
    m.delta_of = {
        "rowsum(dO)": lambda m, o, do: do.sum(-1, keepdim=True),
        "rowmean(dO * O)": lambda m, o, do: (do * o).mean(-1, keepdim=True),
        "rowsum(O)": lambda m, o, do: o.sum(-1, keepdim=True),
        "rowsum(O * O)": lambda m, o, do: (o * o).sum(-1, keepdim=True),
        "rowsum(dO * O) with the scale":
            lambda m, o, do: (do * o).sum(-1, keepdim=True) * m.scale}[what]


@backward("delta-of-another-row", "dk takes the delta of another query{0}",
          "delta_i belongs to query i", "d_k", "delta",
          each=((", the one before", 1, "first"), (", the one after", -1, "last"),
                (", the one before", 1, "wrap"), (", the one after", -1, "wrap"),
                (", the one before", 1, "zero"), (", the one after", -1, "zero"),
                (", the one before", 1, "flat"), (", the one after", -1, "flat")))
def _(m, words, by, edge):
    def moved(delta, m):
        index = torch.arange(m.N) - by
        if edge == "flat":  # over the borders of heads
            flat = delta.flatten()
            return flat[(torch.arange(len(flat)) - by).clamp(0, len(flat) - 1)].view_as(delta)
        if edge == "wrap":
            return delta[:, index % m.N]
        out = delta[:, index.clamp(0, m.N - 1)]
        if edge == "zero":
            out = out * ((index >= 0) & (index < m.N))[None, :, None]
        return out
    m.delta_at = moved


@backward("delta-of-another-head", "dk takes the delta of the group's first query head for all",
          "delta belongs to the query head, not to the group", "d_k", "delta")
def _(m):
    if m.group == 1:
        raise NotHere
    first = torch.arange(len(m.pairs)) // m.group * m.group
    m.delta_at = lambda delta, m: delta[first]


@backward("delta-without-the-sink", "delta is divided by the weight that the sink logit left over",
          "delta = rowsum(dO * O), sink logit or not", "d_q", "delta", stages=(9,))
def _(m):
    if m.sink is None:
        raise NotHere
    lse = m.fwd.scores().logsumexp(-1, keepdim=True)
    part = torch.exp(lse - torch.logaddexp(lse, m.sink[:, None, None]))
    m.delta_of = lambda m, o, do: (do * o).sum(-1, keepdim=True) / part


@backward("statistics-of-another-head", "lse and delta of (b, h) are looked up at b * HKV + h",
          "lse and delta have HQ heads a batch entry", "d_k", "P",
          each=(("dkv", "both"), ("all", "both"), ("dkv", "lse"), ("dkv", "delta")))
def _(m, where, which):
    if m.B == 1 or m.group == 1:
        raise NotHere
    b, h = m.pairs.unbind(1)
    at = b * m.HKV + h
    raise_lse = which in ("both", "lse")
    if which in ("both", "delta"):
        m.delta_at = lambda delta, m: delta[at]
    if raise_lse:
        scores, right = m.dkv.scores, {}
        saved = m.saved_lse

        def remember(top, total, value):
            right["lse"] = value
            return saved(top, total, value)
        m.saved_lse = remember
        m.dkv.scores = lambda: scores() + right["lse"] - right["lse"][at]


def saved(id, words, line, each=((),), **more):
    """As backward, for what is wrong in the saved log-sum-exp."""
    return backward(id, words, line, "numbers", "P", each=each, **more)


@saved("lse-in-two-bases", "the backward reads lse in another base than the forward wrote it",
       "P = exp(S - lse), all in one base", each=((LN2,), (LOG2E,)))
def _(m, factor):
    m.saved_lse = lambda top, total, lse: lse * factor


@saved("lse-half-in-another-base", "the maximum in base 2 plus log(l) in base e",
       "lse2 = m + log2(l)", each=((LN2,), (LOG2E,)))
def _(m, factor):
    m.saved_lse = lambda top, total, lse: top + torch.log(total) * factor


@saved("saved-lse-is-the-max", "lse leaves the sum out: P in the backward is not normalised",
       "lse = m + log(l)")
def _(m):
    m.saved_lse = lambda top, total, lse: top


@saved("saved-lse-without-the-max", "lse leaves the maximum out", "lse = m + log(l)")
def _(m):
    m.saved_lse = lambda top, total, lse: torch.log(total)


@saved("saved-lse-in-16-bits", "lse is saved in 16 bits", "lse in float32",
       each=((torch.float16, LOG2E), (torch.float16, 1.0), (torch.bfloat16, LOG2E)))
def _(m, dtype, unit):
    m.saved_lse = lambda top, total, lse: (lse * unit).to(dtype).double() / unit


@saved("saved-lse-without-the-sink", "the saved lse leaves the sink logit out",
       "lse = log(exp(sink) + sum_j exp(S_ij))", stages=(9,))
def _(m):
    if m.sink is None:
        raise NotHere
    m.saved_lse = lambda top, total, lse: m.fwd.scores().logsumexp(-1, keepdim=True)


@saved("backward-scores-unscaled", "{0} recomputes P without the scale",
       "P = exp(scale * Q K^T - lse)", each=(("dq",), ("dk and dv",), ("the backward",)))
def _(m, where):
    for name, walk in (("dq", m.dq), ("dk and dv", m.dkv)):
        if where in (name, "the backward"):
            walk.scale = 1.0


@saved("backward-in-two-bases", "{0} recomputes P with exp where exp2 belongs, or the other way",
       "exp(x) = exp2(x * log2(e))",
       each=tuple((w, f) for w in ("dq", "dk and dv", "the backward") for f in (LOG2E, LN2)))
def _(m, where, factor):
    for name, walk in (("dq", "dq"), ("dk and dv", "dkv")):
        if where in (name, "the backward"):
            m.exp_base[walk] = factor


@backward("dv-not-normalised", "dv is made of exp(S), not of P", "dV = P^T dO", "d_v", "dv")
def _(m):
    m.dv_from = "exp"


@backward("dv-from-ds", "dv is made of dS, not of P", "dV = P^T dO", "d_v", "dv")
def _(m):
    m.dv_from = "ds"


@backward("dv-unmasked", "dv counts hidden queries: the mask is applied to dS alone",
          "P is 0 where hidden, before dV", "d_v", "dv", tiles="mn")
def _(m):
    m.dv_from = "unmasked"


@backward("dk-from-p", "dk is made of P, not of dS", "dK = scale * dS^T Q", "d_k", "dk")
def _(m):
    m.dk_from = "p"


@backward("dk-from-do", "dk is made with dO in the place of Q", "dK = scale * dS^T Q", "d_k", "dk",
          each=(("ds*do",), ("p*do",)))
def _(m, what):
    m.dk_from = what


@backward("dq-from-p", "dq is made of P, not of dS", "dQ = scale * dS K", "d_q", "dq")
def _(m):
    m.dq_from = "p"


@backward("dq-in-16-bits", "the sum of dq is kept in 16 bits", "dQ adds up in float32", "d_q", "dq",
          tiles="n", each=((torch.float16,), (torch.bfloat16,)))
def _(m, dtype):
    m.round_dq = dtype


@backward("dk-not-transposed", "dk is made with dS, not its transpose", "dK = scale * dS^T Q", "d_k",
          "dk", tiles="n")
def _(m):
    m.dk_from = "tiles"


@backward("o-strides", "the backward reads o with strides not its own: {0}",
          "o is contiguous: its own strides, not those of q", "numbers", "o",
          each=(("those of q", "q"), ("those of k", "k")))
def _(m, words, other):
    sent = m.built.call.inputs[other]
    shape = (m.B, m.HQ, m.N, m.D)
    if sent.stride == torch.empty(shape, device="meta").stride():
        raise NotHere

    def misread(o):
        flat = o.contiguous().flatten()
        last = sum(s * (n - 1) for s, n in zip(sent.stride, shape, strict=True))
        if last >= len(flat):
            raise NotHere
        return flat.as_strided(shape, sent.stride).flatten(0, 1)
    m.o_of = misread


@backward("dk-without-dq", "where q needs no gradient, delta is not computed, and dk needs it",
          "delta is for dq and dk alike", "d_k", "delta")
def _(m):
    if "q" in m.case.grads:
        raise NotHere
    m.delta_of = lambda m, o, do: torch.full_like(o[..., :1], torch.nan)


@backward("dq-of-the-last-tile", "dq is overwritten by every key tile", "dQ adds up over all key "
          "tiles", "d_q", "dq", tiles="n")
def _(m):
    p = m.dq
    last = torch.where(p.keep, p.j, 0).amax(1, keepdim=True)
    p.keep = p.keep & (p.j >= last // m.BN * m.BN)


@backward("dkdv-of-the-last-tile", "dk and dv are overwritten by every query tile",
          "dK and dV add up over all query tiles", "d_k", "dkdv", tiles="m")
def _(m):
    p = m.dkv
    last = torch.where(p.keep, p.i, 0).amax(0, keepdim=True)
    p.keep = p.keep & (p.i >= last // m.BM * m.BM)


def query_walk(id, words, line, tiles="mn", each=((),), stages=BACKWARD):
    """As backward, for the walk of dk and dv over the queries of a key tile."""
    return backward(id, words, line, "d_k", "dkdv mask", tiles=tiles, each=each, stages=stages)


def _key_tile(p: Pass):
    return p.j // p.model.BN * p.model.BN


@query_walk("dkdv-last-query-tile-forgotten", "a ragged last query tile gives nothing to dk and dv",
            "the walk over queries ends at N", each=((False,), (True,)))
def _(m, own_spared):
    p, whole = m.dkv, m.N // m.BM * m.BM
    if whole == m.N:
        raise NotHere
    p.keep = p.keep & ((p.i < whole) | ((_key_tile(p) + m.BN > whole) & own_spared))


@query_walk("dkdv-one-query-tile", "one query tile is walked on the diagonal, where BLOCK_N holds "
            "several", "the diagonal of BLOCK_N keys takes BLOCK_N / BLOCK_M query tiles")
def _(m):
    p = m.dkv
    if m.BM >= m.BN or not m.causal:
        raise NotHere
    inside = (p.i >= _key_tile(p) + m.BM) & (p.i < _key_tile(p) + m.BN)
    p.keep = p.keep & ~inside


@query_walk("dkdv-ragged-diagonal-forgotten", "the diagonal of a ragged last key tile is not "
            "walked", "the walk over queries begins at the key tile's first row",
            each=((False,), (True,)))
def _(m, part):
    p, whole = m.dkv, m.N // (m.BM if part else m.BN) * (m.BM if part else m.BN)
    if whole == m.N:
        raise NotHere
    p.keep = p.keep & ~((_key_tile(p) + m.BN > m.N) & (p.i >= whole))


@query_walk("dkdv-diagonal-twice", "the diagonal is walked twice, once unmasked",
            "each query tile belongs to one phase")
def _(m):
    p = m.dkv
    if not m.causal:
        raise NotHere
    start = _key_tile(p)
    again = (p.i >= start) & (p.i < start + m.BN) & _in_window(p)
    _count(p, p.keep.double() + again)


@query_walk("dkdv-diagonal-skipped", "the walk over queries begins after the diagonal",
            "the walk over queries begins at the key tile's first row")
def _(m):
    p = m.dkv
    if not m.causal:
        raise NotHere
    p.keep = p.keep & (p.i >= _key_tile(p) + m.BN)


@query_walk("dkdv-from-the-diagonal", "without a causal mask dk and dv still begin at the diagonal",
            "is_causal=False: the walk over queries begins at 0")
def _(m):
    p = m.dkv
    if m.causal:
        raise NotHere
    p.keep = p.keep & (p.i >= _key_tile(p))


@query_walk("dkdv-walk-too-short", "the walk over queries ends too early: {0}",
            "the tile's last key is seen until its own window ends", stages=(9,),
            each=(("with the window of the first key",), ("a query short",),
                  ("the right edge is left out",), ("tiles that are only partly sinks end with "
                                                    "their window",)))
def _(m, how):
    p = m.dkv
    if m.window is None:
        raise NotHere
    start = _key_tile(p)
    last_key = (start + m.BN - 1).clamp(max=m.N - 1)
    if how == "with the window of the first key":
        end = _up(start + m.window, m.BM)
    elif how == "a query short":
        end = _up(start + m.BN - 1 + m.window - 1, m.BM)
    elif how == "the right edge is left out":
        end = torch.maximum((start + m.window) // m.BM * m.BM, start + m.BN)
    else:
        end = torch.where((start < m.sinks) & (last_key >= m.sinks),
                          _up(start + m.BN - 1 + m.window, m.BM), 1 << 30)
        p.keep = p.keep & (p.i < end)
        return
    end = torch.where(start < m.sinks, 1 << 30, end)
    p.keep = p.keep & (p.i < end)


@query_walk("dkdv-walk-too-long", "queries that no longer see a key are walked without a mask: {0}",
            "the walk without a mask ends where the tile's first key leaves a window", stages=(9,),
            each=(("one query",), ("a tile of sinks to its end",)))
def _(m, how):
    p = m.dkv
    if m.window is None:
        raise NotHere
    start = _key_tile(p)
    if how == "one query":
        outer = torch.maximum((start + m.window + 1) // m.BM * m.BM, start + m.BN)
        more = (p.i < outer) & (p.i >= start + m.BN)
    else:
        more = (start < m.sinks) & (p.i >= start + m.BN)
    p.keep = p.keep | (more & p.exists & (p.j <= p.i))


@backward("group-sum-missing", "dk and dv are those of one query head of the group: {0}",
          "dK and dV are summed over the query heads of the group", "d_k", "group",
          each=(("the first", 0), ("the last", -1)))
def _(m, words, which):
    if m.group == 1:
        raise NotHere
    m.over_group = lambda parts: parts[:, :, which]


@backward("group-mean", "dk and dv are means over the group",
          "dK and dV are summed over the query heads of the group", "d_k", "group")
def _(m):
    if m.group == 1:
        raise NotHere
    m.over_group = lambda parts: parts.mean(2)


@backward("diagonal-of-one-head", "on the diagonal only the group's first head gives to dk and dv",
          "every head of the group has a diagonal", "d_k", "group", tiles="n")
def _(m):
    if m.group == 1 or not m.causal:
        raise NotHere
    walk, scores = m.dkv, m.dkv.scores
    start = walk.j // m.BN * m.BN
    on = (walk.i < start + m.BN)[None] & (torch.arange(len(m.pairs)) % m.group > 0)[:, None, None]
    walk.scores = lambda: scores().masked_fill(on, -INF)


@backward("dkdv-heads-interleaved", "dk and dv add up query heads h, h + HKV, ...",
          "key/value head g serves the query heads g * group ... g * group + group - 1", "d_k",
          "group")
def _(m):
    if m.group == 1 or m.HKV == 1:
        raise NotHere
    b, h = m.pairs.unbind(1)
    m.dkv.k_at = m.dkv.v_at = (b, h % m.HKV)
    m.over_group = lambda parts: parts.flatten(1, 2).unflatten(1, (m.group, m.HKV)).sum(1)


@backward("dq-heads-interleaved", "dq reads key/value head h % HKV", "query head h reads "
          "h // (HQ // HKV), in the backward too", "d_q", "dq")
def _(m):
    if m.group == 1 or m.HKV == 1:
        raise NotHere
    b, h = m.pairs.unbind(1)
    m.dq.k_at = m.dq.v_at = (b, h % m.HKV)


@backward("dkdv-batch-miscounted", "the batch entry of dk and dv is found with the wrong number of "
          "heads", "b = bh // HKV where bh counts key/value heads", "d_k", "group",
          each=(("hq",), ("zero",)))
def _(m, how):
    if m.B == 1:
        raise NotHere
    b, kv = torch.cartesian_prod(torch.arange(m.B), torch.arange(m.HKV)).unbind(1)
    other = (b * m.HKV + kv) // m.HQ if how == "hq" else torch.zeros_like(b)
    if bool((other == b).all()):
        raise NotHere
    if how == "zero":
        m.dkv.k_at = m.dkv.v_at = (other.repeat_interleave(m.group), m.pairs[:, 1] // m.group)
        return
    # Everything that the walk of (b, kv) reads is that of the other entry.
    flat = (b * m.HKV + kv) % m.HQ % m.HKV
    same = other * m.HKV + flat
    m.over_group = lambda parts: parts.sum(2).flatten(0, 1)[same].unflatten(0, (m.B, m.HKV))


@backward("gradients-in-the-wrong-order", "gradients come back in another order: {0}",
          "one gradient an argument, in the order of forward's arguments", "numbers", "order",
          each=(("dq, dv, dk", ("q", "v", "k")), ("dk, dq, dv", ("k", "q", "v")),
                ("dv, dk, dq", ("v", "k", "q"))))
def _(m, words, order):
    if m.group > 1 and order != ("q", "v", "k"):
        raise NotHere
    m.order = order


@backward("do-strides", "the gradient that arrives is read with strides not its own: {0}",
          "dO may be expanded or transposed: pass its strides on", "numbers", "do",
          each=(("as if contiguous", "contiguous"), ("those of q", "q")))
def _(m, words, other):
    m.dout = _restrided(m, "o", "all axes", other).double()


@backward("sink-gradient-positive", "the gradient of sink_logits lacks its minus sign",
          "d sink = -sum_i exp(sink - lse_i) delta_i", "d_sink_logits", "d sink", stages=(9,))
def _(m):
    m.factor["sink_logits"] = -1.0


@backward("sink-gradient-wrong", "the gradient of sink_logits {0}",
          "d sink = -sum over batch and queries of exp(sink - lse) delta", "d_sink_logits",
          "d sink", stages=(9,), tiles="m",
          each=(("leaves out the weight exp(sink - lse)",), ("has the factor scale",),
                ("is a mean over queries",), ("is a mean over the batch",),
                ("is that of the first batch entry",), ("is that of the last query tile",),
                ("takes the logit to be in base 2",), ("is a mean over batch and queries",)))
def _(m, how):
    if m.sink is None:
        raise NotHere
    shape = (m.B, m.HQ, m.N)
    m.sink_of = {
        "leaves out the weight exp(sink - lse)":
            lambda m, each, delta: delta.view(shape).sum((0, 2)),
        "has the factor scale": lambda m, each, delta: each.sum((0, 2)) * m.scale,
        "is a mean over queries": lambda m, each, delta: each.mean(2).sum(0),
        "is a mean over the batch": lambda m, each, delta: each.sum(2).mean(0),
        "is a mean over batch and queries": lambda m, each, delta: each.mean((0, 2)),
        "is that of the first batch entry": lambda m, each, delta: each[0].sum(-1),
        "is that of the last query tile":
            lambda m, each, delta: each[..., (m.N - 1) // m.BM * m.BM:].sum((0, 2)),
        "takes the logit to be in base 2":
            lambda m, each, delta: (each * torch.exp(m.sink * (LN2 - 1)).view(
                m.B, m.HQ, 1)).sum((0, 2))}[how]


# ----------------------------------------------------------------- sink logits
@mistake("sink-logits-ignored", "the sink logits have no effect",
         "lse = log(exp(sink) + sum_j exp(S_ij))", "numbers", slot="sink logits", stages=(9,))
def _(m):
    _has_logits(m)
    m.sink = None


@mistake("sink-logit-wrong", "the sink logit {0}", "exp(sink_h) joins the denominator, once",
         "numbers", slot="sink logits", stages=(9,),
         each=(("is taken to be in base 2",), ("counts eight times",), ("is multiplied by the "
               "scale",), ("moves the maximum but does not join the sum",),
               ("is that of the key/value head",), ("is that of head 0",),
               ("has the wrong sign",)))
def _(m, how):
    _has_logits(m)
    b, h = m.pairs.unbind(1)
    logits = m.built.tensors["sink_logits"].double()
    if how == "is taken to be in base 2":
        m.sink = m.sink * LN2
    elif how == "counts eight times":
        m.sink = m.sink + math.log(8)
    elif how == "is multiplied by the scale":
        m.sink = m.sink * m.scale
    elif how == "has the wrong sign":
        m.sink = -m.sink
    elif how == "moves the maximum but does not join the sum":
        m.sink = None
    else:
        m.sink = logits[h // m.group if "key" in how else torch.zeros_like(h)]


@mistake("sink-logits-strides", "sink_logits are read as if they lay side by side",
         "a column of a matrix has a stride", "stride", slot="sink logits", stages=(9,))
def _(m):
    _has_logits(m)
    sent = m.built.call.inputs["sink_logits"]
    if sent.stride == (1,):
        raise NotHere
    near = sent.storage.as_strided(sent.shape, (1,), sent.offset).double()
    m.sink = near[m.pairs[:, 1]]


def _has_logits(m: Model) -> None:
    if m.sink is None:
        raise NotHere
