"""Pass: what is hidden, what counts twice, and the facts of its tiles."""

import copy
import math

import pytest
import torch

from grader.cases import Case
from grader.inputs import build
from grader.naming.reading import Reading, all_pairs
from grader.naming.walks import Pass

CASE = Case(4, "probe", 40, dtype=torch.float32, is_causal=True)


@pytest.fixture
def walk():
    return Pass(Reading(build(CASE, 0), all_pairs(CASE), BM=16, BN=16))


def test_hidden_keys_have_no_score_or_that_which_they_are_filled_with(walk):
    hidden = walk.scores() == -torch.inf
    assert torch.equal(hidden[0], ~walk.keep)
    walk.fill = 0.0
    filled = walk.scores()
    assert torch.equal((filled == 0.0)[0], ~walk.keep & walk.walked)
    assert torch.equal((filled == -torch.inf)[0], ~walk.walked)


def test_a_pair_that_counts_twice_has_twice_the_weight(walk):
    right = walk.scores()
    walk.count_again(walk.j == 0)
    twice = walk.scores()
    assert torch.allclose(twice[..., 0], right[..., 0] + math.log(2))
    assert torch.equal(twice[..., 1:], right[..., 1:])


def test_a_walk_has_the_facts_of_its_tiles(walk):
    assert walk.N == walk.NK == 40 and walk.causal and walk.window is None
    assert copy.copy(walk).diag is walk.tiles.diag
    assert not hasattr(walk, "no_such_fact")
