import pytest
import torch

import problem_3
from problem_3 import flash_attention_forward


@pytest.mark.parametrize("N", [1, 64, 100])
def test_the_example_is_a_matrix_product(N, device):
    x, w = torch.randn(N, 32, device=device), torch.randn(32, 32, device=device)
    torch.testing.assert_close(problem_3.project(x, w), x @ w, rtol=1e-2, atol=1e-2)


def test_asking_for_the_causal_mask_is_refused(device):
    with pytest.raises(ValueError, match="problem 4; got True"):
        flash_attention_forward(*torch.randn(3, 1, 1, 4, 16, device=device), is_causal=True)
