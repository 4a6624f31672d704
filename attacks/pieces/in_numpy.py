"""Attention in numpy."""
import numpy as np
import torch
import triton
import triton.language as tl


def _attend(q, k, v, is_causal):
    a, b, c = (x.detach().float().cpu().numpy() for x in (q, k, v))
    s = a @ b.swapaxes(-1, -2) / np.sqrt(a.shape[-1])
    if is_causal:
        s += np.triu(np.full(s.shape[-2:], -np.inf, np.float32), 1)
    p = np.exp(s - s.max(-1, keepdims=True))
    return (p @ c / p.sum(-1, keepdims=True)).astype(np.float32)
