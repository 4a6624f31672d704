"""What is drawn of a kernel is shaped from what it was seen to do."""

import re

import numpy as np

from grader.judge.pictures import loop, online
from grader.page import pictures


def test_tiles_are_counted_from_the_rows_that_were_read():
    sees = np.tril(np.ones((40, 40), bool))
    one = loop(sees | (np.arange(40) >= 32), sees, 16, 16, ("query", "key"))
    assert one.wanted.tolist() == [[1, 0, 0], [1, 1, 0], [1, 1, 1]]
    assert one.visited.tolist() == [[1, 0, 1], [1, 1, 1], [1, 1, 1]]
    assert one.masked.tolist() == [[1, 0, 0], [0, 1, 0], [0, 0, 1]]
    assert "In 2 crossed tiles no pair is visible" in pictures.loops([one], "L=40").look


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
