"""The worked examples compute what the text says of them, against reference.py."""

import math

import pytest
import torch

import reference
from guide import excerpts, measured, worked


def test_the_online_softmax_ends_where_the_softmax_in_one_piece_does():
    for tile in (1, 2, 3, 6):
        *_, last = worked.online(worked.SCORES, worked.VALUES, tile)
        o, lse = worked.softmax_row(worked.SCORES, worked.VALUES)
        assert math.isclose(last["acc"] / last["l"], o)
        assert math.isclose(last["m"] + math.log(last["l"]), lse)


def test_the_walk_to_watch_ends_in_causal_attention():
    q, k, v = (torch.tensor(x, dtype=torch.float64)[None, None] for x in (
        worked.Q, worked.K, worked.V))
    v = torch.nn.functional.pad(v, (0, 2))  # the reference wants k and v of one width
    want = reference.attention(q, k, v, is_causal=True)
    ends = [frame for frame in worked.causal_frames() if frame["o"]]
    shown = [[float(x) for x in o.strip("()").replace("−", "-").split(", ")]
             for frame in ends for o in frame["o"]]
    o = want["o"][0, 0, :, :2].float()
    torch.testing.assert_close(torch.tensor(shown), o, atol=6e-5, rtol=0)
    lse = [float(x) for frame in ends for x in frame["lse"]]
    torch.testing.assert_close(torch.tensor(lse), want["lse"][0, 0].float(), atol=6e-5, rtol=0)


def test_the_walk_visits_the_tiles_on_and_below_the_diagonal_once():
    visited = [(frame["query_tile"], frame["key_tile"]) for frame in worked.causal_frames()]
    assert visited == [(i, j) for i in range(3) for j in range(i + 1)]


@pytest.mark.parametrize("N, block", [(24, 8), (22, 8), (24, 4), (7, 16)])
def test_tiles_are_counted_as_the_causal_walk_visits_them(N, block):
    tiles = -(-N // block)
    found = worked.counted(N, block)
    assert found["whole"] + found["cut"] == tiles * (tiles + 1) // 2
    assert found["cut"] == tiles


def test_the_backward_of_the_example_is_that_of_the_reference():
    x = worked.backward_example()
    # D = 1, scale 1, q = 1: the scores are the keys.
    q, k, v, do = (torch.tensor(one, dtype=torch.float64).reshape(1, 1, -1, 1)
                   for one in ([1.0], x["s"], x["v"], [x["do"]]))
    want = reference.attention(q, k, v, dout=do, scale=1.0)
    assert math.isclose(x["o"], want["o"].item()) and math.isclose(x["lse"], want["lse"].item())
    torch.testing.assert_close(torch.tensor(x["ds"], dtype=torch.float64), want["k"].flatten())
    torch.testing.assert_close(torch.tensor(x["dv"], dtype=torch.float64), want["v"].flatten())
    assert math.isclose(x["delta"], x["rowsum"])


@pytest.mark.parametrize("window, sinks", [(100, 0), (64, 4), (1, 0), (200, 70), (300, 4)])
def test_the_borders_split_the_walk_as_the_mask_does(window, sinks):
    kinds = worked.kinds(448, 64, window=window, sinks=sinks)
    for tile, row in enumerate(kinds):
        edge = worked.borders(64 * tile, window, sinks)
        for j, kind in enumerate(row):
            start = 64 * j
            if edge["inner"] <= start < edge["diagonal"]:
                assert kind == "whole"
            elif start < edge["sink_end"] or edge["first"] <= start < edge["end"]:
                assert kind != "skipped"
            else:
                assert kind == "skipped"


def test_a_sink_logit_takes_what_the_row_lacks():
    for row in worked.sink_table().rows:
        assert math.isclose(float(row[3]) + float(row[4]), 1.0, abs_tol=2e-4)


def test_the_scores_of_the_memory_chapter_are_those_of_the_results():
    for label, record in measured.records().items():
        assert measured.WORK[label].flops() == record["flops"]
        assert measured.WORK[label].bytes() == record["bytes"]
    assert measured.value("ms stage 4, D=64, forward | stages") == "0.676 ms"


def test_plain_triton_goes_half_the_way_from_a_stage_to_flash_attention_4():
    for stage, plain, best in zip((3, 4), measured.gluon().rows[0][1:], measured.flash_4(),
                                  strict=True):
        first = measured.entry(f"stage {stage}, D=128, forward", "stages")["ms"]
        assert 0.4 < (first - float(plain)) / (first - best) < 0.6


def test_a_time_of_wrong_answers_is_not_shown():
    head, rows, _ = measured.ladder("backward")
    row = next(row for row in rows if row[0] == "stage 8, original shape")
    assert row[head.index("fa4")] == "wrong" and row[head.index("cudnn")] == "0.271"
    with pytest.raises(LookupError, match="right answer"):
        measured.value("ms stage 8, original shape, backward | fa4")


def test_a_number_that_was_not_measured_is_an_error():
    for text in ("ms stage 4, D=64, forward | nobody", "ms nothing | stages", "years", "ms",
                 "ms stage 3, original shape, forward | gluon"):
        with pytest.raises(LookupError):
            measured.value(text)


def test_naive_attention_of_the_guide_is_attention():
    q, k, v = torch.randn(3, 20, 8, dtype=torch.float64)
    want = reference.attention(q[None, None], k[None, None], v[None, None])["o"][0, 0]
    torch.testing.assert_close(worked.naive(q, k, v), want)


def test_a_tile_of_rows_asks_for_as_many_flop_a_byte():
    for rows, _, intensity, _ in measured.asked().rows:
        assert float(intensity) == pytest.approx(rows, rel=0.01)
    label = "stage 3, D=64, forward"
    assert measured.asked_bytes(label, 64) * 64 == measured.asked_bytes(label, 1)


class Integers:
    """What the borders of problem 9 ask of tl, for Python's integers."""

    maximum, minimum = staticmethod(max), staticmethod(min)
    cdiv = staticmethod(lambda a, b: -(-a // b))
    where = staticmethod(lambda condition, a, b: a if condition else b)


def left_by_step(number, **given) -> dict:
    """What the solution of a step leaves, run on these integers."""
    names = {"tl": Integers, "CAUSAL": True, **given}
    exec(excerpts.step(number), names)
    return names


MASKS = [(N, block, window, sinks) for N in (8, 24, 30) for block in (2, 4, 8)
         for window in (1, block, block + 1, 10, N) for sinks in (0, 1, block, 9)]


def test_the_two_walks_are_the_solutions_and_visit_what_is_visible_once():
    for N, block, window, sinks in MASKS:
        given = {"N": N, "BLOCK_M": block, "BLOCK_N": block, "window_size": window,
                 "sink_size": sinks}
        found = worked.kinds(N, block, window=window, sinks=sinks)
        rows, columns = [set() for _ in found], [set() for _ in found]
        for t, start in enumerate(range(0, N, block)):
            x = left_by_step("9.20", start_m=start, **given)
            mine = worked.borders(start, window, sinks, block, block)
            assert [mine[name] for name in ("sink_end", "first", "inner", "diagonal")] == [
                x[name] for name in ("sink_end", "first", "inner", "edge")]
            y = left_by_step("9.16", start_n=start, **given)
            assert worked.column_borders(start, N, window, sinks, block, block) == {
                name: y[name] for name in ("first", "inner", "outer", "last")}
            for visited, walk in ((rows[t], worked.dq_walk(start, N, block, window, sinks)),
                                  (columns[t], worked.dkdv_walk(start, N, block, window, sinks))):
                tiles = [at // block for at, _ in walk]
                assert len(set(tiles)) == len(tiles)
                visited.update(tile for tile in tiles if tile < len(found))
                for tile, (_, phase) in zip(tiles, walk, strict=True):
                    kind = found[t][tile] if visited is rows[t] else found[tile][t]
                    assert phase != "interior" or kind == "whole"
        shown = {(t, u) for t, row in enumerate(found) for u, kind in enumerate(row)
                 if kind != "skipped"}
        assert shown == {(t, u) for t, row in enumerate(rows) for u in row}
        assert shown == {(t, u) for u, column in enumerate(columns) for t in column}


def test_bars_add_up_to_the_sum_that_the_walk_keeps():
    for row in worked.ROWS.values():
        for tile in (1, 2, 3):
            for frame, state in zip(worked.bars(row, tile), worked.online(row, worked.VALUES, tile),
                                    strict=True):
                assert sum(frame["weights"]) == pytest.approx(state["l"])
                assert max(frame["weights"]) == 1
