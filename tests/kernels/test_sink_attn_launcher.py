"""What is launched: the grid, the order of the arguments, and the parts of a loop over sinks."""

import pytest
import torch

from sink_attn import kept, launcher, policy


def tensors(N: int = 2000, HQ: int = 4, HKV: int = 2, D: int = 64) -> list[torch.Tensor]:
    q, k, v = (torch.empty(1, heads, N, D, dtype=torch.float16) for heads in (HQ, HKV, HKV))
    return [q, k, v]


@pytest.fixture
def launched(monkeypatch) -> list[tuple]:
    """-> kernel's name, grid and arguments by name, of every launch."""
    found = []

    def launch(key, function, grid, *args, **options):
        found.append((key[0].__name__, grid, dict(zip(function.arg_names, args, strict=True)),
                      options))

    monkeypatch.setattr(kept, "launch", launch)
    monkeypatch.setattr(kept, "_plans", {})
    return found


def test_every_argument_of_the_forward_stands_under_its_own_name(launched):
    q, k, v = tensors(300)
    sinks = torch.empty(4)
    o, lse = launcher.forward(q, k, v, sinks, None, None, True, 100, 0, 0.125)
    (name, grid, given, options), = launched
    assert name == "_fwd_kernel" and (o.shape, lse.shape) == (q.shape, q.shape[:3])
    assert (o.dtype, lse.dtype) == (torch.float16, torch.float32)
    assert given["HQ"] == 4 and given["HKV"] == 2 and given["N"] == 300 and given["D"] == 64
    assert given["window_size"] == 100 and given["sink_size"] == 0 and given["HAS_SINK_LOGITS"]
    assert abs(given["scale_log2e"] - 0.125 * 1.442695) < 1e-6
    assert "num_warps" in options and not options.keys() & given.keys()


@pytest.mark.parametrize("HQ, options", [(4, (False, None, 0)), (4, (True, None, 0)),
                                         (16, (True, 128, 0))])
def test_the_grid_covers_every_row_of_every_head_once(launched, HQ, options):
    q, k, v = (x.expand(3, -1, -1, -1) for x in tensors(300, HQ))
    launcher.forward(q, k, v, None, None, None, *options, 0.125)
    (_, grid, given, _), = launched
    rows = given["BLOCK_M"] * (1 + given["TWO_TILES"])
    assert grid == (-(-300 // rows) * 3 * HQ // given["HEADS"], 1, 1)


@pytest.mark.parametrize("S, tiles", [(None, 5), (1, 5), (7, 11)])
def test_each_packed_sequence_has_one_tile_more_for_its_last_rows(S, tiles):
    assert launcher._tiles(300, 64, S) == tiles
    assert launcher._tiles(256, 64, None) == 4


def test_unpacked_rows_are_known_when_compiled_and_packed_ones_are_not():
    borders = torch.tensor([0, 100, 300], dtype=torch.int32)
    assert launcher._packing(300, None, None) == (300, None, 300)
    assert launcher._packing(300, borders, 200) == (200, 2, None)


def parts(N: int, window: int | None, sinks: int) -> tuple[list[tuple], int]:
    """-> first tile, number, parts of every launch of dkdv; the size of a tile."""
    q, k, v = tensors(N)
    *_, launches = launcher._plan_backward(q, k, v, q, None, None, True, window, sinks,
                                           (True,) * 4)
    rows = {one[3] // one[1] for one in launches}
    assert len(rows) == 1
    return [one[:3] for one in launches], rows.pop()


@pytest.mark.parametrize("N, window, sinks, is_cut", [
    (4000, 100, 4, True), (4000, 100, 0, False), (4000, None, 4, False), (4000, 3900, 4, False),
    (4000, 100, 1000, False), (200, 100, 4, False)])
def test_the_loop_over_a_sinks_queries_is_cut_only_where_it_is_long(N, window, sinks, is_cut):
    found, rows = parts(N, window, sinks)
    tiles = -(-N // rows)
    assert sorted(tile for first, number, _ in found for tile in range(first, first + number)) == [
        *range(tiles)]
    assert [one[2] > 1 for one in found] == ([False, True] if is_cut else [False])
    if is_cut:
        (_, _, one), (first, number, many) = found
        assert (first, number) == (0, -(-sinks // rows))
        assert many == min(N // (window + rows), 32)


def test_a_backward_launches_what_is_wanted_and_dq_always(launched):
    q, k, v = tensors(300)
    o, lse = launcher.forward(q, k, v, None, None, None, True, 100, 0, 0.125)
    for needs, names in (((True, False, False, False), ["_dq_kernel"]),
                         ((False, False, True, False), ["_dq_kernel", "_dkdv_kernel"])):
        launched.clear()
        dq, dk, dv, dsink = launcher.backward(q, k, v, None, None, o, lse, o, None, None, True, 100,
                                              0, 0.125, needs)
        assert [one[0] for one in launched] == names and dsink is None
        assert (dv is not None) == needs[2] and dq.shape == q.shape
    assert dk.shape == dv.shape == k.shape
    given, rows = launched[1][2], launched[0][2]["BLOCK_M"]
    assert launched[0][1] == (-(-300 // rows) * 4, 1, 1) and not launched[0][2]["WANT_DSINK"]
    assert launched[1][1] == (-(-300 // given["BLOCK_N"]) * 2, 1, 1)
    assert given["HQ"] == 4 and given["HKV"] == 2 and given["window_size"] == 100
    assert given["scale"] == 0.125 and given["N"] == 300


def test_sink_logits_get_a_gradient_per_head_in_their_own_dtype(launched):
    q, k, v = tensors(300)
    sinks = torch.zeros(4, dtype=torch.float64)
    o, lse = launcher.forward(q, k, v, sinks, None, None, True, 100, 0, 0.125)
    dsink = launcher.backward(q, k, v, sinks, None, o, lse, o, None, None, True, 100, 0, 0.125,
                              (True,) * 4)[3]
    assert (dsink.shape, dsink.dtype) == ((4,), torch.float64)
    assert launched[1][2]["WANT_DSINK"]


def test_the_parts_of_a_sinks_loop_are_added_up(launched, monkeypatch):
    q, k, v = tensors(4000)
    o, lse = launcher.forward(q, k, v, None, None, None, True, 100, 4, 0.125)
    launch, sums = kept.launch, []

    def fill(key, function, grid, *args, **options):
        launch(key, function, grid, *args, **options)
        if outs := [x for x in args if isinstance(x, torch.Tensor) and x.dim() == 5]:
            sums.append((grid, [x.fill_(1.0).shape for x in outs]))

    monkeypatch.setattr(kept, "launch", fill)
    dk, dv = launcher.backward(q, k, v, None, None, o, lse, o, None, None, True, 100, 4, 0.125,
                               (True,) * 3 + (False,))[1:3]
    (grid, shapes), = sums
    parts, rows = grid[1], shapes[0][3]
    assert parts > 1 and shapes == [(parts, 1, 2, rows, 64)] * 2
    assert (dk[:, :, :rows] == parts).all() and (dv[:, :, :rows] == parts).all()


def test_tensors_that_the_copy_engine_cannot_take_have_no_descriptors():
    q, k, v = tensors(300)
    described = launcher._plan_forward(q, k, v, None, None, None, False, None, 0)[1]
    assert described is not None and described[0][1] == described[1][1] == 64
    odd = torch.empty(q.numel() + 1, dtype=q.dtype)[1:].view(q.shape)
    assert launcher._plan_forward(odd, k, v, None, None, None, False, None, 0)[1] is None
    borders = torch.tensor([0, 300], dtype=torch.int32)
    assert launcher._plan_forward(q, k, v, None, borders, 300, False, None, 0)[1] is None
    assert policy.can_describe(9, q, k, v) and not policy.can_describe(9, odd, k, v)
