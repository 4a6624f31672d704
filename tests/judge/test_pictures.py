"""What is drawn of a kernel is shaped from what it was seen to do."""

import re
from pathlib import Path

import numpy as np
import pytest

from grader.course.stages import STAGES
from grader.host.options import Options, open_session
from grader.judge.pictures import _mask, _tiles, loop, online
from grader.page import pictures
from grader.sandbox.wire import AGAIN

ROOT = Path(__file__).parents[2]


def test_tiles_are_counted_from_the_rows_that_were_read():
    sees = np.tril(np.ones((40, 40), bool))
    read = (sees | (np.arange(40) >= 32)).astype(np.uint8)
    one = loop(read, sees, 16, 16, ("query", "key"), shows_masked=False)
    assert one.wanted.tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert one.visits.tolist() == [[1, 0, 1], [1, 1, 1], [1, 1, 1]]
    assert one.masked.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    look = pictures.loops([one], "L=40", False).look
    assert "Look at the crosses: the loop visits 2 tiles in vain" in look
    assert "Hatched tiles need a mask; the picture cannot show where this file applies one." in look


def test_a_pair_that_is_read_twice_or_never_is_no_tile_that_is_as_it_should_be():
    sees = np.ones((32, 32), bool)
    read = sees.astype(np.uint8)
    read[:16, 20:] |= AGAIN
    read[16:, 30:] = 0
    one = loop(read, sees, 16, 16, ("query", "key"), shows_masked=False)
    assert one.visits.tolist() == [[1, 2], [1, 1]] and one.missed.tolist() == [[0, 0], [0, 1]]
    drawn = pictures.loops([one], "L=32", False)
    assert drawn.is_wrong and "Every tile" not in drawn.look
    assert ("red rings: the loop misses visible pairs of 1 tile. Look at the 2×: the loop visits "
            "1 tile more than once, and each of their pairs may count once.") in drawn.look
    assert {"ring", "2×"} <= {kind for kind, _ in drawn.key}
    svg = drawn.panels[0].drawn
    assert "0, tile 1: visited more than once; 1, tile 1: its visit, or MASKED=True, is" in svg


def made(make, number: int, old: str = "", new: str = "") -> list[pictures.Picture]:
    """The pictures of a solved file with a change."""
    stage, source = STAGES[number], (ROOT / f"problem_{number}.py").read_text("utf-8")
    assert old in source
    source = source.replace(old, new).encode()
    with open_session(stage, Options(ROOT, "cpu", 1, 60.0), source) as session:
        session.load(stage.entry, stage.attribute, stage.positional)
        return make(stage, 1, session)


DIAGONAL = "D, BLOCK_N, MASKED=True)"


@pytest.mark.interpreter
@pytest.mark.parametrize("old, new, masked, said", [
    ("MASKED", "MASKED", 6, "Every tile that has a visible pair is visited once, and no other."),
    ("MASKED=False", "MASKED=True", 21, "Every tile that has a visible pair"),
    ("MASKED=False", "MASKED=start_n >= BLOCK_N", 16, "Every tile that has a visible pair"),
    (DIAGONAL, DIAGONAL.replace("True", "False"), 0, "Look at the red rings: MASKED is False in 6"),
    ("MASKED", "HIDES", 6, "the picture cannot show where this file applies one")],
    ids=["solved", "everywhere", "computed", "nowhere", "other_name"])
def test_a_tile_is_hatched_where_the_file_really_passes_masked(old, new, masked, said):
    drawn, _ = made(_tiles, 4, old, new)
    assert drawn.panels[0].drawn.count('class="cut-lines"') == masked and said in drawn.look


@pytest.mark.interpreter
@pytest.mark.parametrize("number, old, new, said", [
    (7, "sink_end = tl.minimum(sink_size, first)", "sink_end = sink_size",
     "Look at the 2×: the loop visits 5 tiles more than once, "),
    (8, "outer = tl.maximum(N // BLOCK_M * BLOCK_M, inner)",
     "outer = tl.maximum(N - BLOCK_M, inner)", "Look at the 2×: the loop visits 4 tiles more"),
    (4, "range(0, start_m, BLOCK_N)", "range(0, start_m - BLOCK_N, BLOCK_N)",
     "Look at the red rings: the loop misses visible pairs of 5 tiles.")],
    ids=["sinks_twice", "overlapping", "one_too_few"])
def test_a_loop_that_is_wrong_is_not_called_right_and_the_softmax_beside_it_is(
        number, old, new, said):
    drawn, softmax = made(_tiles, number, old, new)
    assert said in drawn.look and "Every tile" not in drawn.look and drawn.is_wrong
    assert not softmax.is_wrong and "of a right loop, whatever yours does" in softmax.look
    _, right = made(_tiles, number)
    assert softmax == right


@pytest.mark.interpreter
@pytest.mark.parametrize("number, old, new", [
    (3, 's = tl.where(keep, s, float("-inf"))', "s = tl.where(keep, s, 0.0)"),
    (6, "h // (HQ // HKV)", "h // HKV"), (6, "h // (HQ // HKV)", "h % HKV")],
    ids=["padded_keys_weigh", "divides_by_the_heads", "interleaves"])
def test_the_mask_is_read_where_tiles_are_ragged_and_heads_are_grouped(number, old, new):
    [drawn] = made(_mask, number, old, new)
    assert drawn.is_wrong and "Look at query " in drawn.look
    [drawn] = made(_mask, number)
    assert not drawn.is_wrong and drawn.look.endswith("All weights are right.")


@pytest.mark.interpreter
def test_the_mask_of_a_backward_says_that_it_is_not_drawn():
    [drawn] = made(_mask, 8)
    assert drawn.look == ("This call: HQ=6, HKV=3, L=168, D=64, query head 4. All weights are "
                          "right. This is the forward; the backward is not drawn.")


def test_the_online_softmax_ends_with_the_weights_of_its_row():
    scores = np.zeros((4, 6))
    scores[2] = [0, 0, 1, 0, 2, -np.inf]
    drawn = pictures.softmax("L=6", *online(scores, range(1, 4), [(0, 1), (4, 5), (2, 3)]))
    assert drawn.look.startswith("This call: L=6. Query 2, ")
    says = re.search("<desc>(.*?)</desc>", drawn.panels[0].drawn)[1]
    total = 1 + 2 * np.exp(-2) + np.exp(-1) + np.exp(-2)
    assert says.split(". ") == [
        "Keys 0 to 1: m = 0, alpha = 0, l = 2", f"Keys 4 to 5: m = 2, alpha = {np.exp(-2):.3g}, "
        f"l = {1 + 2 * np.exp(-2):.4g}", f"Keys 2 to 3: m = 2, alpha = 1, l = {total:.4g}."]
