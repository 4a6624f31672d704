"""Candidates: every mistake of a stage with what it is tried with, tile sizes that may differ."""

from grader.cases import Case
from grader.naming.candidates import single
from grader.naming.mistakes import TABLE


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
