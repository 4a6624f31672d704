import math

import pytest
import torch

from tests import kernel_checks
from tests.kernel_checks import CPU_AXES, Setting, error_over_limit, place, settings

ONE = Setting(4, 33, 16, heads=(2, 2))


def test_axes_that_a_stage_does_not_have_are_fixed():
    assert {(s.window_size, s.sink_size, s.causal) for s in settings(4, CPU_AXES)} \
        == {(None, 0, True)}
    assert all(s.window_size for s in settings(7, CPU_AXES))
    assert all(s.causal or s.window_size is None for s in settings(9, CPU_AXES))


@pytest.mark.parametrize("layout", ["dense", "strided", "columns"])
def test_a_layout_changes_no_value(layout):
    x = torch.randn(2, 3, 5, 4)
    assert torch.equal(place(x, layout), x)
    assert place(x, layout).is_contiguous() == (layout == "dense")


def test_an_expanded_gradient_is_one_number():
    x = place(torch.randn(2, 3, 5, 4), "expanded")
    assert x.shape == (2, 3, 5, 4) and not any(x.stride()) and len(x.unique()) == 1


@pytest.mark.parametrize("change, least", [
    (lambda o: o, 0), (lambda o: o * 1.5, 10), (lambda o: o * math.nan, math.inf),
])
def test_the_error_is_measured_in_limits(change, least, monkeypatch):
    def call(setting, q, k, v):
        hidden = torch.ones(setting.N, setting.N, dtype=torch.bool).triu(1)
        scores = (q @ k.mT / setting.D**0.5).masked_fill(hidden, -math.inf)
        return change(scores.softmax(-1) @ v)

    monkeypatch.setattr(kernel_checks, "call", call)
    worst = error_over_limit(ONE, "cpu")
    assert worst.keys() == {"o", "d_q", "d_k", "d_v"}
    assert all(times >= least and (least or times <= 1) for times in worst.values())
