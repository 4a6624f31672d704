import pytest
import torch

from problem_5 import flash_attention_forward


@pytest.mark.parametrize(("HQ", "HKV"), [(6, 2), (6, 3), (4, 1), (3, 3)])
def test_query_heads_are_grouped_contiguously(HQ, HKV, device):
    q, k = torch.randn(1, HQ, 5, 16, device=device), torch.randn(1, HKV, 5, 16, device=device)
    number = torch.arange(HKV, dtype=torch.float32, device=device)
    v = number.view(1, HKV, 1, 1).expand(1, HKV, 5, 16)
    o = flash_attention_forward(q, k, v)
    want = torch.arange(HQ, dtype=torch.float32, device=device) // (HQ // HKV)
    assert torch.allclose(o, want.view(1, HQ, 1, 1).expand_as(o), atol=1e-2)
