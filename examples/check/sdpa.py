"""PyTorch's scaled_dot_product_attention, for python -m grader.check."""

import torch.nn.functional as F

align = "top-left"


def attention(q, k, v, *, is_causal, scale=None):
    groups = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(
        q, k, v, is_causal=is_causal, scale=scale, enable_gqa=groups)
