"""Candidates: every mistake of a stage with what it is tried with, tile sizes that may differ."""

import pytest
import torch

from grader.cases import Case
from grader.inputs import build
from grader.naming.candidates import Candidate, double, single
from grader.naming.mistakes import TABLE
from grader.naming.model import Model
from grader.naming.reading import all_pairs
from grader.naming.table import NotHere


def of(id, stage, part="forward"):
    return next(c for c in single(stage, part) if c.mistake.id == id)


def test_only_mistakes_that_a_stage_can_make_are_tried():
    names = {c.mistake.id for c in single(3, "forward")}
    assert "no-scale" in names and "causal-ignored" not in names and "dq-unscaled" not in names
    assert {c.walk for c in single(8, "backward")} == {"", "dq", "dkv", "backward"}
    known = {m.id for m in TABLE}
    for stage in range(1, 10):
        assert {c.mistake.id for c in single(stage, "forward")} <= known


def test_tile_sizes_that_come_to_the_same_are_tried_once():
    short = of("acc-not-rescaled", 3).sizes(Case(3, "probe", 60))
    assert len(short) == 3 and [(64, 64), (64, 128)] in short.values()
    assert len(of("acc-not-rescaled", 3).sizes(Case(3, "probe", 200))) == 4
    assert of("no-scale", 3).sizes(Case(3, "probe", 200)) == {(64, 64): [(64, 64)]}


def test_two_mistakes_are_of_two_kinds():
    pairs = double(6)
    assert pairs and all(c.mistake.slot != c.second.mistake.slot for c in pairs)
    assert len({c.id for c in pairs}) > 100


def test_of_two_mistakes_what_can_be_made_is_made():
    case = Case(4, "probe", 40, dtype=torch.float32, is_causal=True)
    built, both = build(case, 0), None
    for c in double(4):
        if {c.mistake.id, c.second.mistake.id} == {"no-scale", "batch-ignored"}:
            both = c
    model = Model(built, all_pairs(case))
    both.apply(model)  # one batch entry: only the scale can be wrong
    assert model.fwd.scale == 1.0
    alone = of("batch-ignored", 4)
    with pytest.raises(NotHere):
        alone.apply(Model(built, all_pairs(case)))
    with pytest.raises(NotHere):
        Candidate(alone.mistake, alone.more, second=alone).apply(Model(built, all_pairs(case)))
