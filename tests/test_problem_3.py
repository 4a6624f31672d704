import pytest
import torch

from problem_3 import flash_attention_forward


def test_asking_for_the_causal_mask_is_refused(device):
    with pytest.raises(ValueError, match="problem 4; got True"):
        flash_attention_forward(*torch.randn(3, 1, 1, 4, 16, device=device), is_causal=True)
