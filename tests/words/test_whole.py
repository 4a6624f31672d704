"""The whole computation: right without a mistake, and every mistake has its words and places."""

from dataclasses import replace

import numpy as np
import pytest

from grader.course.case_table import listed
from grader.course.correctness import answer
from grader.course.stages import STAGES
from grader.lights import known, named
from grader.words import probes, whole

PARTS = {stage: ("forward",) if stage == 2 else ("forward", "lse", "backward") for stage in STAGES}


def cases(stage):
    """Different ones, in the order of the table."""
    return list(dict.fromkeys(probes.general(case) for case in listed(stage, "cpu", False)
                              if case.grads))


@pytest.mark.parametrize("stage", STAGES)
def test_every_mistake_that_is_tried_is_known_and_stands_in_a_step(stage):
    for case in cases(stage):
        built = probes.build_probe(case, 1)
        for part in PARTS[stage]:
            for (id, *more), _ in whole.answers(built, part):
                assert known.said(id, *more) and known.of(id).rule
                places = tuple(known.of(id).places)
                bare = known.plain(id) != id and id not in known.known()
                assert bare or part == "backward" or STAGES[stage].steps_of(places), id


@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage != 2])
def test_the_computation_that_mistakes_are_put_into_is_right(stage):
    for case in cases(stage):
        built = probes.build_probe(replace(case, grads=()), 1)
        one, truth = whole.Whole(built), answer(built, "cpu").truth["o"].numpy()
        for found in (one.o(one.scores(), one.keep)["o"],
                      *(one.online(one.scores(), {}, BM, 64)["o"] for BM in (case.N, 32))):
            assert np.allclose(found, truth, atol=1e-5)


def test_its_gradients_are_right_but_for_the_mistake():
    case = next(case for case in cases(8) if {"q", "k", "v"} <= {*case.grads})
    built = probes.build_probe(case, 1)
    truth = {n: x.numpy() for n, x in answer(built, "cpu").truth.items()}
    made = {tried: make() for tried, make in whole.Whole(built).gradients()}
    for tried, wrong in ((("dq-unscaled",), {"d_q"}), (("dv-from-ds",), {"d_v"}),
                         (("no-delta", ", in dk"), {"d_k"}), (("group-mean",), {"d_k", "d_v"})):
        assert {name for name in ("d_q", "d_k", "d_v")
                if not np.allclose(made[tried][name], truth[name], atol=1e-5)} == wrong


def test_a_wrong_mask_lets_in_the_zeros_of_the_last_tile():
    case = next(case for case in cases(3))
    found = [make()["o"] for (id, *_), make in whole.Whole(
        probes.build_probe(replace(case, grads=()), 1)).outputs() if id == "tail-unmasked"]
    right = answer(probes.build_probe(replace(case, grads=()), 1), "cpu").truth["o"].numpy()
    assert any(not np.allclose(o, right, atol=1e-3) for o in found)


def test_every_name_of_a_step_is_known():
    ids = {*named.UPDATES, *(id for masks in named.MASKS.values() for id in masks)}
    assert all(known.said(*(id if isinstance(id, tuple) else (id,))) for id in ids)
    assert known.said("sink-logit-wrong", "has no name") == "the sink logit has no name"
