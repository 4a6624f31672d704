"""The phases of a walk: together they visit what is seen, once; a border elsewhere shows."""

import pytest
import torch

from grader.cases import Case
from grader.inputs import build
from grader.naming.backward import Backward
from grader.naming.mistakes.borders import count
from grader.naming.model import Model
from grader.naming.phases import of_causal, of_whole, pairs
from grader.naming.reading import all_pairs
from grader.naming.table import NotHere

WINDOWED = Case(9, "probe", 300, dtype=torch.float32, is_causal=True, window=70, sinks=5,
                grads=("q", "k", "v"))
WHOLE = Case(8, "probe", 150, dtype=torch.float32, grads=("q", "k", "v"))
NO_WINDOW = Case(4, "probe", 150, dtype=torch.float32, is_causal=True)


def walks(case, BM=32, BN=32):
    kind = Backward if case.grads else Model
    model = kind(build(case, 0), all_pairs(case), BM=BM, BN=BN)
    return [model.fwd, model.dq, model.dkv] if case.grads else [model.fwd]


@pytest.mark.parametrize("case", [WINDOWED, WHOLE, NO_WINDOW])
@pytest.mark.parametrize("BM, BN", [(32, 32), (64, 64)])
def test_right_phases_are_no_mistake(case, BM, BN):
    for walk in walks(case, BM, BN):
        phases = of_causal(walk) if case.is_causal else of_whole(walk)
        with pytest.raises(NotHere):  # each visible pair once, and no other
            count(walk, phases.values())


def test_a_phase_that_ends_a_tile_late_visits_its_last_tile_twice():
    (walk,) = walks(NO_WINDOW)
    phases = of_causal(walk)
    begin, end, _ = phases["interior"]
    phases["interior"] = begin, end + 32, True
    count(walk, phases.values())
    on_diagonal = pairs(walk, "on the diagonal") & walk.rule()
    assert torch.equal(walk.count == 2, on_diagonal)
    assert torch.equal(walk.keep, walk.rule())


def test_phases_lie_apart_and_cover_the_walk():
    names = ("on the diagonal", "before the diagonal", "on the window's left edge",
             "of the sinks' phase")
    walk = walks(WINDOWED)[0]
    times = sum(pairs(walk, name).int() for name in names)
    assert torch.equal(times > 0, walk.walked) and int(times.max()) == 1
    assert int(pairs(walk, "of the sinks' phase").sum()) > 0
    names = ("on the diagonal", "after the diagonal", "on the window's right edge")
    walk = walks(WINDOWED)[2]
    times = sum(pairs(walk, name).int() for name in names)
    assert torch.equal(times > 0, walk.walked_by_keys) and int(times.max()) == 1
    assert bool((walk.walked_by_keys | ~walk.keep).all())


def test_a_phase_that_a_case_does_not_have_is_not_there():
    (walk,) = walks(NO_WINDOW)
    with pytest.raises(NotHere):
        pairs(walk, "on the window's left edge")
    with pytest.raises(NotHere):
        pairs(walk, "that lie inside")
