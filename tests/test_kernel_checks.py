import itertools
import math

import pytest
import torch

from tools import kernel_checks
from tools.kernel_checks import CPU_AXES, Setting, all_pairs, error_over_limit, place, settings

ONE = Setting(4, 33, 16, heads=(2, 2))


def test_every_two_values_of_two_axes_meet():
    axes = {"a": (1, 2, 3), "b": (1, 2), "c": (True, False, None)}
    cover = all_pairs(axes)
    for x, y in itertools.combinations(axes, 2):
        assert {(row[x], row[y]) for row in cover} == set(itertools.product(axes[x], axes[y]))
    assert len(cover) < 3 * 2 * 3


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


@pytest.mark.parametrize("error, code", [(0.5, 0), (1.5, 1)])
def test_the_command_says_where_the_worst_error_is(error, code, monkeypatch, capsys):
    def error_over_limit(setting, device):
        return {"o": 0.1, "d_q": error if setting == worst else 0.2}

    worst = settings(4, CPU_AXES)[0]
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["kernel_checks", "4"])
    monkeypatch.setattr(kernel_checks, "error_over_limit", error_over_limit)
    assert kernel_checks.main() == code
    rows = capsys.readouterr().out.splitlines()[1:]
    assert len(rows) == len(CPU_AXES["dtype"])
    assert f"  {error:.2f}  d_q {worst}" in "\n".join(rows)
