"""keep_mask against masks drawn by hand: 8 x 8, # = visible, rows are queries."""

import pytest
import torch

import reference

CAUSAL = """
#.......
##......
###.....
####....
#####...
######..
#######.
########
"""
WINDOW_3 = """
#.......
##......
###.....
.###....
..###...
...###..
....###.
.....###
"""
WINDOW_3_SINKS_2 = """
#.......
##......
###.....
####....
#####...
##.###..
##..###.
##...###
"""


def drawn(text: str) -> torch.Tensor:
    return torch.tensor([[char == "#" for char in line] for line in text.split()])


@pytest.mark.parametrize(("options", "want"), [
    ((), torch.ones(8, 8, dtype=torch.bool)),
    ((True,), drawn(CAUSAL)),
    ((True, 3), drawn(WINDOW_3)),  # it counts the query itself
    ((True, 3, 2), drawn(WINDOW_3_SINKS_2)),
    ((True, 1), torch.eye(8, dtype=torch.bool)),
    ((True, 9), drawn(CAUSAL)),  # longer than the sequence
    ((True, 1, 70), drawn(CAUSAL)),  # more sinks than keys
], ids=str)
def test_a_mask_is_as_drawn(options, want):
    assert torch.equal(reference.keep_mask(8, 8, *options), want)
