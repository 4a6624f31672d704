"""Tiles: its formulas are the loops of a kernel, written out."""

import pytest
import torch

from grader.cases import Case
from grader.naming.tiles import Tiles, round_up


def walked(N, BM, BN, window, sinks):
    """(N, N) bool: the pairs in the tiles that a causal kernel visits, tile after tile."""
    seen = torch.zeros(N, N, dtype=torch.bool)
    for start_m in range(0, N, BM):
        first = 0 if window is None else max(start_m - window + 1, 0) // BN * BN
        starts = [*range(0, min(sinks, first), BN)]
        start_n = first
        while start_n < min(start_m + BM, N):
            starts.append(start_n)
            start_n += BN
        for start_n in starts:
            seen[start_m:start_m + BM, start_n:start_n + BN] = True
    return seen


@pytest.mark.parametrize("window, sinks", [(None, 0), (37, 0), (20, 5), (9, 70), (100, 33)])
@pytest.mark.parametrize("BM, BN", [(64, 64), (128, 32), (32, 128), (16, 64)])
def test_the_tiles_that_are_walked_are_those_of_the_loops(window, sinks, BM, BN):
    case = Case(7, "probe", 190, is_causal=True, window=window, sinks=sinks)
    tiles = Tiles(case, torch.arange(190), BM, BN, 0)
    assert torch.equal(tiles.walked, walked(190, BM, BN, window, sinks))
    assert bool((tiles.walked | ~tiles.keep).all())  # what is seen is walked


@pytest.mark.parametrize("window", [None, 1, 37, 64, 150])
def test_between_inner_and_diag_no_mask_is_needed(window):
    case = Case(6, "probe", 190, is_causal=True, window=window)
    tiles = Tiles(case, torch.arange(190), 64, 32, 0)
    interior = (tiles.j >= tiles.inner) & (tiles.j < tiles.diag)
    assert bool((tiles.keep | ~interior).all())


def test_padding_hides_behind_the_mask():
    case = Case(6, "probe", 70, is_causal=True, window=20)
    tiles = Tiles(case, torch.arange(70), 64, 64, -70 % 64)
    assert tiles.keep.shape == (70, 128) and not bool(tiles.keep[:, 70:].any())
    assert bool(tiles.rule(causal=False)[:, 70:].any())  # where a mask lets it in


def test_round_up():
    assert [round_up(n, 16) for n in (0, 1, 16, 17)] == [0, 16, 16, 32]
