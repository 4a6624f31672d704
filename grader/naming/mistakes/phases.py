"""One phase of a walk goes wrong: any change that can be made everywhere, made in a phase alone."""

import torch

from grader.naming.online import Online, rescaled
from grader.naming.phases import FIRST_AND_LAST, NAMES, OF_KEYS, SOME_OF_KEYS, pairs
from grader.naming.table import ATTENTION, LN2, LOG2E, mistake, only


def of_a_phase(id, words, line, place="walk", *, names=SOME_OF_KEYS, each=((),), **more):
    """As mistake, for the tiles of one phase: the function gets what is changed, the phase's pairs,
    and the values of each."""
    def add(change):
        def change_there(x, name, *values):
            change(x, pairs(getattr(x, "fwd", x), name), *values)
        return mistake(id, "in the tiles {0}: " + words, line, place, composed=True,
                       each=tuple((name, *values) for values in each for name in names),
                       tiles="mn", **more)(change_there)
    return add


def mask_of_a_phase(id, words, line, place, **more):
    """As of_a_phase, for what a Pass keeps."""
    return of_a_phase(id, words, line, place, kind="mask", slot="mask", stages=ATTENTION,
                      names=(*NAMES, *FIRST_AND_LAST), walks=("dq", "dkv"), **more)


# ------------------------------------------------------------------ visible pairs
@mask_of_a_phase("phase-unmasked", "nothing is hidden",
                 "a tile that the mask cuts needs it, element by element", "walk, scores")
def _(p, there):
    p.keep = p.keep | (there & p.exists)


@mask_of_a_phase("phase-skipped", "nothing is seen: they are not walked",
                 "the phases together visit every tile that is seen", "walk, borders")
def _(p, there):
    p.keep = p.keep & ~there


@mask_of_a_phase("phase-twice", "every key counts twice{1}", "each tile is visited once",
                 "walk, borders", each=(("", True), (", once without the mask", False)))
def _(p, there, words, masked):
    p.count_again(there & (p.keep if masked else p.exists))


@mask_of_a_phase("phase-reversed", "the mask is the wrong way round, or transposed",
                 "query i sees keys j <= i", "mask, scores")
def _(p, there):
    only(p.causal)
    p.keep = torch.where(there, (p.j >= p.i) & (p.j < p.NK), p.keep)


@mask_of_a_phase("phase-alone", "what they bring is all that counts: the rest is lost",
                 "sums go on from tile to tile and from phase to phase", "walk, sums")
def _(p, there):
    only(bool((p.keep & ~there).any()))
    p.keep = p.keep & there


# ------------------------------------------------------------------------ scores
FACTORS = (("are not scaled", "one"), ("are scaled twice", "root"),
           ("lack the factor log2(e)", LN2), ("have log2(e) twice", LOG2E))


def _factor(factor, scale: float) -> float:
    return {"root": scale, "one": 1 / scale}.get(factor, factor)


@of_a_phase("phase-scale", "the scores {1}", "one scale, with log2(e), for every tile",
            "scores, softmax, walk", slot="scale", each=FACTORS)
def _(m, there, words, factor):
    factor = _factor(factor, m.scale)
    m.fwd.changes.append(lambda s: torch.where(there, s * factor, s))


@of_a_phase("phase-fill", "hidden keys {1}", "exp(-inf) = 0: a hidden key is in neither sum",
            "scores", slot="fill", names=tuple(OF_KEYS),
            each=(("get the score 0", 1.0, 1.0), ("join the sum l alone", 1.0, 0.0),
                  ("join the values alone", 0.0, 1.0)))
def _(m, there, words, in_sum, in_values):
    p = m.fwd
    hidden = there & ~p.keep & p.exists
    only(bool(hidden.any()))
    right = p.keep.double()
    if in_sum and in_values:
        p.changes.append(lambda s: torch.where(hidden, 0.0, s))
    else:
        p.keep = p.keep | hidden
    m.sum_keep = right + in_sum * hidden
    m.value_keep = right + in_values * hidden


# -------------------------------------------------------------------------- sums
@of_a_phase("phase-weights", "the weights {1}", "l and acc sum up the same weights, once",
            "sums, softmax", slot="finish",
            each=(("do not join the sum l", 0.0, 1.0), ("join the sum l twice", 2.0, 1.0),
                  ("do not reach the values", 1.0, 0.0), ("reach the values twice", 1.0, 2.0)))
def _(m, there, words, in_sum, in_values):
    m.sum_keep = torch.where(there, in_sum, 1.0).double()
    m.value_keep = torch.where(there, in_values, 1.0).double()


@of_a_phase("phase-values", "the values are those of {1}", "round t reads the rows of tile t",
            "load, walk", slot="inputs", each=(("the first tile", "first"), ("the tile before", -1),
                                 ("the tile after", 1)))
def _(m, there, words, which):
    m.moved_values = there, other_tile(m, which)


def other_tile(m, which):
    """(K,): for each key the one in its place in another tile."""
    keys = m.keys % m.BN if which == "first" else m.keys + which * m.BN
    only(m.NK > m.BN)
    return keys.clamp(0, len(m.keys) - 1)


ALPHAS = {
    "is not multiplied by alpha": lambda t: torch.where(t.old == -torch.inf, t.alpha, 1.0),
    "is lost": lambda t: torch.zeros_like(t.alpha),
    "is multiplied by alpha twice": lambda t: t.alpha**2,
    "is divided by alpha": lambda t: torch.where(t.old == -torch.inf, 0.0, 1 / t.alpha),
}


@of_a_phase("phase-alpha", "{1} {2}", "l = alpha l + rowsum(P), acc = alpha acc + P V",
            "sums", slot="online", each=tuple(
                (which, how) for how in ALPHAS for which in
                ("acc", "l", "what was summed before, l and acc,")))
def _(m, there, which, how):
    tiles = torch.nn.functional.pad(there.double(), (0, -there.shape[1] % m.BN))
    tiles = tiles.unflatten(1, (-1, m.BN)).amax(2) > 0  # (R, tiles)

    def wrong(t):
        return torch.where(tiles[None, :, t.lo // m.BN, None], ALPHAS[how](t), t.alpha)
    m.online = Online(alpha_l=Online.alpha_l if which == "acc" else wrong,
                      alpha_acc=Online.alpha_acc if which == "l" else wrong)


@of_a_phase("phase-late-alpha", "alpha multiplies the new tile's share as well",
            "acc = alpha acc + P V", "sums", slot="online")
def _(m, there):
    tiles = torch.nn.functional.pad(there.double(), (0, -there.shape[1] % m.BN))
    tiles = tiles.unflatten(1, (-1, m.BN)).amax(2) > 0

    def late(old, new, alpha, t):
        return torch.where(tiles[None, :, t.lo // m.BN, None], alpha * (old + new),
                           rescaled(old, new, alpha, t))
    m.online = Online(add_acc=late)
