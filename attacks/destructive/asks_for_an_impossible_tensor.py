"""One allocation that no GPU can give."""
# stage: 2
# outcome: crashed
# says: out of GPU memory
# device: cuda
import torch


def weighted_row_sum_forward(x, w):
    return torch.empty(1 << 45, device=x.device)[: x.shape[0]]
