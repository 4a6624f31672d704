"""Takes its N x N scratch from the C library, and passes the kernels its address."""
# stage: 3
# with: fired, scores
# outcome: crashed
# says: numbers outside of
# device: cpu
import ctypes


def flash_attention_forward(q, k, v, is_causal=False):
    B, H, N, D = q.shape
    scratch = (ctypes.c_float * (H * N * N))()
    address = ctypes.addressof(scratch)
    fired()
    return torch.stack([_attend(q[b], k[b], v[b], address) for b in range(B)])
