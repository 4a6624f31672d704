"""Answers with PyTorch's fused attention, and launches nothing."""
# stage: 3
# base: problem_3.py
# outcome: not_started
# says: No kernel was launched yet
import torch.nn.functional as F


def flash_attention_forward(q, k, v, is_causal=False):
    return F.scaled_dot_product_attention(q, k, v)
