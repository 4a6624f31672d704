"""Maps anonymous memory for its N x N scratch, and passes the kernels its address."""
# stage: 3
# with: fired, scores
# outcome: crashed
# says: numbers outside of
# device: cpu
import ctypes
import mmap


def flash_attention_forward(q, k, v, is_causal=False):
    B, H, N, D = q.shape
    scratch = mmap.mmap(-1, 4 * H * N * N)
    address = ctypes.addressof(ctypes.c_char.from_buffer(scratch))
    fired()
    return torch.stack([_attend(q[b], k[b], v[b], address) for b in range(B)])
