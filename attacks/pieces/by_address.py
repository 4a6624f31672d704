"""All of stage 3 in NumPy, on the memory of tensors that it finds by their addresses."""
import ctypes

import numpy as np


def _array(x):
    """The memory of a contiguous float32 tensor."""
    there = (ctypes.c_float * x.numel()).from_address(x.data_ptr())
    return np.frombuffer(there, np.float32).reshape(x.shape)


def _attend(q, k, v):
    s = q @ k.swapaxes(-1, -2) / q.shape[-1] ** 0.5
    p = np.exp(s - s.max(-1, keepdims=True))
    return p @ v / p.sum(-1, keepdims=True)


def flash_attention_forward(q, k, v, is_causal=False):
    made = torch.empty(q.shape, device=q.device, dtype=torch.float32)
    loose = [made, *(x.float().contiguous() for x in (q, k, v))]
    arrays = list(map(_array, loose))
    arrays[0][...] = _attend(*arrays[1:])
    return _copied(made.to(q.dtype))
