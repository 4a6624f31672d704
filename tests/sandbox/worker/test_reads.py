"""A walk is counted as it was made, however the kernels come by their rows."""

import pytest
import torch

from grader.course.cases import Case
from grader.course.inputs import build
from grader.judge import wasted_tiles
from grader.sandbox.wire import AGAIN
from tests.sessions import open_session

QUERIES, KEYS = wasted_tiles.QUERIES, wasted_tiles.KEYS
pytestmark = pytest.mark.interpreter


@pytest.fixture(scope="module")
def walks():
    with open_session("walks.py") as session:
        yield session


def flags(session, entry: str, N: int = 56, heads: tuple[int, int] = (1, 1), D: int = 16):
    session.load(entry, None, ("q", "k", "v"))
    case = Case(3, "walk", N, HQ=heads[0], HKV=heads[1], D=D, dtype=torch.float32)
    call = build(case, 0).call
    call.kwargs.clear()
    return session.walk(call)


def counted(session, entry: str, heads: tuple[int, int] = (1, 1), **sizes):
    read, together, tiles = flags(session, entry, heads=heads, **sizes)
    assert heads != (1, 1) or not (read & AGAIN).any()
    return read > 0, together, tiles


def tiles_of(N: int, late: int = 0) -> torch.Tensor:
    """(N, N): key tiles up to that of the query's."""
    tile = torch.arange(N) // 16
    return tile[None, :] <= tile[:, None] + late


@pytest.mark.parametrize("heads", [(1, 1), (6, 2)], ids=["a_head", "groups"])
@pytest.mark.parametrize("entry", ["by_tile", "axes_swapped", "one_program", "persistent",
                                   "masked_off", "copied", "scaled", "in_pytorch"])
def test_the_keys_that_a_query_tile_reads(walks, entry, heads):
    read, together, tiles = counted(walks, entry, heads=heads)
    assert torch.equal(read[QUERIES], tiles_of(56)) and not read[KEYS].any()
    tile = torch.arange(56) // 16
    assert torch.equal(together[QUERIES], tile[None, :] == tile[:, None])
    assert tiles == (16, 16)


def test_products_without_a_matrix_product_count(walks):
    read, _, tiles = counted(walks, "summed_in_pytorch")
    assert torch.equal(read[QUERIES], tiles_of(56)) and tiles == (16, 56)


@pytest.mark.parametrize("heads", [(1, 1), (6, 2)], ids=["a_head", "groups"])
def test_the_queries_that_a_key_tile_walks(walks, heads):
    read, together, tiles = counted(walks, "keys_lead", heads=heads)
    assert torch.equal(read[KEYS], tiles_of(56).T) and not read[QUERIES].any()
    tile = torch.arange(56) // 16
    assert torch.equal(together[KEYS], tile[None, :] == tile[:, None]) and tiles == (16, 16)


def test_two_tiles_more_are_seen(walks):
    read, _, _ = counted(walks, "late", N=128)
    assert torch.equal(read[QUERIES], tiles_of(128, late=2))


@pytest.mark.parametrize("entry", ["visited_again", "visited_again_in_pytorch"])
def test_a_second_visit_of_a_tile_is_told_from_a_second_load_in_a_turn(walks, entry):
    read, *_ = flags(walks, entry)
    again = torch.zeros(56, 56, dtype=torch.bool)
    again[:, :16] = True
    assert torch.equal(read[QUERIES] & AGAIN > 0, again)
    assert torch.equal(read[QUERIES] > 0, tiles_of(56))


def test_a_number_that_is_equal_by_chance_is_no_row(walks):
    read, _, tiles = counted(walks, "scaled", N=352, D=64)  # so many that some are
    assert torch.equal(read[QUERIES], tiles_of(352)) and tiles == (16, 16)


def test_what_is_not_recognised_is_not_counted(walks):
    read, together, _ = counted(walks, "shifted_beyond_recognition")
    assert not read.any() and not together.any()
