import pytest
import torch

from problem_3 import _small_strides, flash_attention_forward


def test_asking_for_the_causal_mask_is_refused(device):
    with pytest.raises(ValueError, match="problem 4; got True"):
        flash_attention_forward(*torch.randn(3, 1, 1, 4, 16, device=device), is_causal=True)


def test_an_offset_within_a_tile_fits_into_32_bits():
    step = 2**24 - 1  # of the rows and of the columns
    x = torch.empty(191 * step, device="meta").as_strided((1, 1, 64, 128), (0, 0, step, step))
    row, column = _small_strides(x).stride()[2:]
    assert 63 * row + 127 * column < 2**31
