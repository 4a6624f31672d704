"""Which gradients are wrong says which steps are left, where the outputs are right."""

from math import inf

import pytest

from grader.course.stages import STAGES
from grader.diagnosis.deduce import deduce


def steps(stage: int, wrong: str, outputs=("o",), right=True) -> list[str]:
    answer = {name: 0.3 if right else 2.0 for name in outputs}
    answer |= {f"d_{name}": 2.0 if name in wrong else 0.3 for name in ("q", "k", "v")}
    return STAGES[stage].steps_of(deduce(STAGES[stage], answer)[1])


@pytest.mark.parametrize("stage, wrong, left", [
    (1, "q", ["1.8"]), (1, "qk", ["1.6", "1.8"]), (1, "qkv", ["1.7", "1.8"]),
    (3, "qkv", ["3.3", "3.2"]), (6, "q", ["6.5", "6.4"]),
    (8, "k", ["8.17", "8.9", "8.15"]), (8, "v", ["8.17"]),
    (8, "qk", ["8.9", "8.12", "8.17"]), (9, "v", ["9.19"]), (9, "kv", []), (8, "q", []),
    (8, "qkv", ["8.4", "8.11", "8.16"]), (8, "", [])])
def test_the_steps_that_are_left(stage, wrong, left):
    assert steps(stage, wrong) == left


def test_nothing_follows_where_an_output_is_wrong():
    assert deduce(STAGES[8], {"o": 2.0, "d_q": 2.0, "d_k": 0.3, "d_v": 0.3}) == ("", ())


@pytest.mark.parametrize("near", ["o", "d_v"])
def test_nothing_follows_from_a_tensor_that_is_barely_right(near):
    answer = {"o": 0.3, "d_q": 1.2, "d_k": 1.1, "d_v": 0.3}
    assert "v.grad is right" in deduce(STAGES[8], answer)[0]
    assert deduce(STAGES[8], answer | {near: 0.96}) == ("", ())


def test_in_stage_2_every_gradient_has_a_kernel():
    assert STAGES[2].steps_of(deduce(STAGES[2], {"d_x": 2.0, "d_w": 0.3})[1]) == ["2.4", "2.6"]
    assert STAGES[2].steps_of(deduce(STAGES[2], {"d_x": 0.3, "d_w": 2.0})[1]) == ["2.5", "2.6"]


def test_the_sinks_gradient_alone_is_its_own_step():
    wrong = {"o": 0.3, "d_q": 0.3, "d_k": 0.3, "d_v": 0.3, "d_sink_logits": inf}
    assert STAGES[9].steps_of(deduce(STAGES[9], wrong)[1]) == ["9.11"]
    without_v = wrong | {"d_q": 2.0, "d_k": 2.0}  # not every gradient is wrong
    assert deduce(STAGES[9], without_v) == ("", ())
    everything = wrong | {"d_q": 2.0, "d_k": 2.0, "d_v": 2.0}
    assert STAGES[9].steps_of(deduce(STAGES[9], everything)[1]) == ["9.5", "9.13", "9.18"]
