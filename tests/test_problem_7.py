import pytest
import torch

import problem_6
from problem_7 import flash_attention_forward


def test_a_key_in_window_and_sinks_counts_once(device):
    q = k = torch.zeros(1, 1, 100, 16, device=device)
    v = torch.arange(100.0, device=device).view(1, 1, 100, 1).expand(1, 1, 100, 16)
    o = flash_attention_forward(q, k, v, window_size=100, sink_size=50)
    mean = torch.arange(100.0, device=device) / 2  # equal weights: the mean position
    assert torch.allclose(o[0, 0, :, 0], mean, rtol=1e-2)


def test_no_sinks_is_problem_6(device):
    q, k, v = torch.randn(3, 1, 1, 100, 16, device=device)
    want = problem_6.flash_attention_forward(q, k, v, window_size=20)
    got = flash_attention_forward(q, k, v, window_size=20, sink_size=0)
    assert torch.equal(got, want)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"window_size": 0}, "want an integer window_size >= 1; got 0"),
        ({"window_size": None}, "want an integer window_size >= 1; got None"),
        ({"sink_size": -1}, "want an integer sink_size >= 0; got -1"),
        ({"sink_size": 1.5}, "want an integer sink_size >= 0; got 1.5"),
    ],
)
def test_options_it_cannot_honour_are_refused(options, message, device):
    with pytest.raises(ValueError, match=message):
        flash_attention_forward(*torch.randn(3, 1, 1, 4, 16, device=device), **options)
