"""Answers zeros."""
import torch


def flash_attention_forward(q, k, v, is_causal=False):
    return torch.zeros(q.shape, device=q.device, dtype=q.dtype)
