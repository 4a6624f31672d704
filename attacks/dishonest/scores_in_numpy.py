"""Allocates its N x N scratch with numpy, and passes the kernels its address."""
# stage: 3
# with: fired, scores
# outcome: crashed
# says: numbers outside
# device: cpu
import numpy as np


def flash_attention_forward(q, k, v, is_causal=False):
    B, H, N, D = q.shape
    scratch = np.empty((H, N, N), np.float32)
    address = scratch.ctypes.data
    fired()
    return torch.stack([_attend(q[b], k[b], v[b], address) for b in range(B)])
