"""Which tiles the backward walks over."""

import torch

from grader.naming.table import backward, only
from grader.naming.tiles import round_up


@backward("dq-of-the-last-tile", "dq is overwritten by every key tile", "dQ adds up over all key "
          "tiles", "dq products, dq walk", "dq", tiles="mn",
          each=(("of the row",), ("of the query tile",)))
def _(m, which):
    p = m.dq
    last = torch.where(p.keep, p.j, 0).amax(1, keepdim=True) // m.BN * m.BN
    p.keep = p.keep & (p.j >= (last if which == "of the row" else p.end - m.BN))


@backward("dq-no-sink-phase", "in dq, the sinks before the window's first tile are not walked",
          "dQ sums over every key that the query sees, sinks too", "dq sink walk", "dq", tiles="mn")
def _(m):
    p = m.dq
    only(p.window is not None and p.sinks)
    p.keep = p.keep & (p.j >= p.first)


@backward("dkdv-of-the-last-tile", "dk and dv are overwritten by every query tile",
          "dK and dV add up over all query tiles", "dkdv products, dkdv calls", "dkdv", tiles="m")
def _(m):
    p = m.dkv
    last = torch.where(p.keep, p.i, 0).amax(0, keepdim=True)
    p.keep = p.keep & (p.i >= last // m.BM * m.BM)


def query_walk(id, words, line, tiles="mn", **more):
    """As backward, for the walk of dk and dv over the queries of a key tile.

    The function gets the walk, and start (1, K): the first key of each key's tile.
    """
    def add(change):
        def change_walk(m, *values):
            change(m.dkv, m.dkv.j // m.BN * m.BN, *values)
        return backward(id, words, line, "dkdv walk", "dkdv mask", tiles=tiles, **more)(change_walk)
    return add


@query_walk("dkdv-last-query-tile-forgotten", "a ragged last query tile gives nothing to dk and dv",
            "the walk over queries ends at N", each=((False,), (True,)))
def _(p, start, own_spared):
    whole = p.N // p.BM * p.BM
    only(whole != p.N)
    p.keep = p.keep & ((p.i < whole) | ((start + p.BN > whole) & own_spared))


@query_walk("dkdv-one-query-tile", "one query tile is walked on the diagonal of a key tile that "
            "holds several", "the diagonal of a key tile takes all query tiles in which some see "
            "some")
def _(p, start):
    only(p.BM < p.BN and p.causal)
    p.keep = p.keep & ((p.i < start + p.BM) | (p.i >= start + p.BN))


@query_walk("dkdv-ragged-diagonal-forgotten", "the diagonal of a ragged last key tile is not "
            "walked", "the walk over queries begins at the key tile's first row",
            each=((False,), (True,)))
def _(p, start, part):
    tile = p.BM if part else p.BN
    whole = p.N // tile * tile
    only(whole != p.N)
    p.keep = p.keep & ~((start + p.BN > p.N) & (p.i >= whole))


@query_walk("dkdv-diagonal-twice", "the diagonal is walked twice, once unmasked",
            "each query tile belongs to one phase")
def _(p, start):
    only(p.causal)
    again = (p.i >= start) & (p.i < start + p.BN)
    if p.window is not None:
        again = again & ((p.i - p.j < p.window) | (p.j < p.sinks))
    p.count_again(again)


@query_walk("dkdv-ragged-diagonal-twice", "in the last, ragged tile of keys the diagonal is walked "
            "twice", "each query tile belongs to one phase")
def _(p, start):
    only(p.causal and p.N % p.BN)
    p.count_again((start + p.BN > p.N) & p.keep)


@query_walk("dkdv-diagonal-skipped", "the walk over queries begins after the diagonal",
            "the walk over queries begins at the key tile's first row")
def _(p, start):
    only(p.causal)
    p.keep = p.keep & (p.i >= start + p.BN)


@query_walk("dkdv-from-the-diagonal", "without a causal mask dk and dv still begin at the diagonal",
            "is_causal=False: the walk over queries begins at 0")
def _(p, start):
    only(not p.causal)
    p.keep = p.keep & (p.i >= start)


NO_END = 1 << 30  # tiles with sinks are walked to the last query


@query_walk("dkdv-walk-too-short", "the walk over queries ends too early: {0}",
            "the tile's last key is seen until its own window ends", stages=(9,),
            each=(("with the window of the first key",), ("a query short",),
                  ("the right edge is left out",), ("the right edge is left out, of sinks too",),
                  ("tiles of sinks end with their window",),
                  ("tiles that are only partly sinks end with their window",)))
def _(p, start, how):
    only(p.window is not None)
    last_key, sunk = (start + p.BN - 1).clamp(max=p.N - 1), start < p.sinks
    of_first_key = round_up(start + p.window, p.BM)
    of_last_key = round_up(start + p.BN - 1 + p.window, p.BM)
    right_edge = torch.maximum((start + p.window) // p.BM * p.BM, start + p.BN)
    end = {"with the window of the first key": torch.where(sunk, NO_END, of_first_key),
           "a query short": torch.where(
               sunk, NO_END, round_up(start + p.BN - 1 + p.window - 1, p.BM)),
           "the right edge is left out": torch.where(sunk, NO_END, right_edge),
           "the right edge is left out, of sinks too": right_edge,
           "tiles of sinks end with their window": torch.where(sunk, of_last_key, NO_END),
           "tiles that are only partly sinks end with their window":
               torch.where(sunk & (last_key >= p.sinks), of_last_key, NO_END)}[how]
    p.keep = p.keep & (p.i < end)


@query_walk("dkdv-walk-too-long", "queries that no longer see a key are walked without a mask: {0}",
            "the walk without a mask ends where the tile's first key leaves a window", stages=(9,),
            each=(("one query",), ("a tile of sinks to its end",)))
def _(p, start, how):
    only(p.window is not None)
    more = {"one query": p.i < (start + p.window + 1) // p.BM * p.BM,
            "a tile of sinks to its end": start < p.sinks}[how]
    p.keep = p.keep | (more & (p.i >= start + p.BN) & p.exists & (p.j <= p.i))
