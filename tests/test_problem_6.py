import pytest
import torch

from problem_6 import flash_attention_forward


@pytest.mark.parametrize("window_size", [0, -3, 2.0, None])
def test_a_window_that_is_no_positive_integer_is_refused(window_size, device):
    q, k, v = torch.randn(3, 1, 1, 4, 16, device=device)
    with pytest.raises(ValueError, match="want an integer window_size >= 1; got"):
        flash_attention_forward(q, k, v, window_size=window_size)
