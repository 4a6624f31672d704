"""What is drawn of a kernel is shaped from what it was seen to do."""

import re
from pathlib import Path

import numpy as np
import pytest

from grader.course.stages import STAGES
from grader.host.options import Options, open_session
from grader.judge.pictures import _tiles, loop, online
from grader.page import pictures

ROOT = Path(__file__).parents[2]


def test_tiles_are_counted_from_the_rows_that_were_read():
    sees = np.tril(np.ones((40, 40), bool))
    read = (sees | (np.arange(40) >= 32)).astype(np.uint8)
    one = loop(read, sees, 16, 16, ("query", "key"), shows_masked=False)
    assert one.wanted.tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert one.visited.tolist() == [[1, 0, 1], [1, 1, 1], [1, 1, 1]]
    assert one.masked.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    look = pictures.loops([one], "L=40", False).look
    assert "Look at the crosses: the loop visits 2 tiles in vain" in look
    assert "Hatched tiles need a mask; the picture cannot show where this file applies one." in look


DIAGONAL = "D, BLOCK_N, MASKED=True)"


@pytest.mark.interpreter
@pytest.mark.parametrize("old, new, masked, said", [
    ("MASKED", "MASKED", 6, "Every tile that has a visible pair is visited, and no other."),
    ("MASKED=False", "MASKED=True", 21, "Every tile that has a visible pair"),
    ("MASKED=False", "MASKED=start_n >= BLOCK_N", 16, "Every tile that has a visible pair"),
    (DIAGONAL, DIAGONAL.replace("True", "False"), 0, "Look at the red rings: MASKED is False in 6"),
    ("MASKED", "HIDES", 6, "the picture cannot show where this file applies one")],
    ids=["solved", "everywhere", "computed", "nowhere", "other_name"])
def test_a_tile_is_hatched_where_the_file_really_passes_masked(old, new, masked, said):
    source = (ROOT / "problem_4.py").read_text("utf-8").replace(old, new)
    with open_session(STAGES[4], Options(ROOT, "cpu", 1, 60.0), source.encode()) as session:
        session.load(STAGES[4].entry, None, STAGES[4].positional)
        [drawn] = _tiles(STAGES[4], 1, session)
    assert drawn.panels[0].drawn.count('class="cut-lines"') == masked and said in drawn.look


def test_the_online_softmax_ends_with_the_weights_of_its_row():
    scores = np.zeros((4, 6))
    scores[2] = [0, 0, 1, 0, 2, -np.inf]
    drawn = pictures.softmax(*online(scores, range(1, 4), [(0, 1), (4, 5), (2, 3)]))
    assert drawn.look.startswith("Query 2, ")
    says = re.search("<desc>(.*?)</desc>", drawn.panels[0].drawn)[1]
    total = 1 + 2 * np.exp(-2) + np.exp(-1) + np.exp(-2)
    assert says.split(". ") == [
        "Keys 0 to 1: m = 0, alpha = 0, l = 2", f"Keys 4 to 5: m = 2, alpha = {np.exp(-2):.3g}, "
        f"l = {1 + 2 * np.exp(-2):.4g}", f"Keys 2 to 3: m = 2, alpha = 1, l = {total:.4g}."]
