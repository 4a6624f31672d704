"""Numbers as float32 and 16 bits hold them, in float64."""

import torch

LARGEST = 65519.0  # above it float16 rounds to infinity
CHOPPED = "bfloat16, chopped"


def to_32_bits(x: torch.Tensor) -> torch.Tensor:
    """x rounded to float32, with its overflow and underflow."""
    return x.float().double()


def to_16_bits(x: torch.Tensor, dtype: torch.dtype | str) -> torch.Tensor:
    """x rounded to dtype; CHOPPED: to bfloat16, towards zero, as Triton's interpreter does."""
    if dtype != CHOPPED:
        return x.to(dtype).double()
    bits = x.float().contiguous().view(torch.int32) & -0x10000
    return bits.view(torch.float32).double()


def held(x: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """x, not rounded, but infinite where it is too large for a dtype of float16."""
    if dtype != torch.float16 or not float(x.abs().max()) > LARGEST:
        return x
    return torch.where(x.abs() > LARGEST, torch.copysign(torch.full_like(x, torch.inf), x), x)
