"""Two kernels with all the N x N scores between them: naive attention, written in Triton."""
# stage: 3
# with: scores
# outcome: rejected
# says: grows with N x N


def flash_attention_forward(q, k, v, is_causal=False):
    B, H, N, D = q.shape
    scratch = torch.empty(H, N, N, device=q.device, dtype=torch.float32)
    return torch.stack([_attend(q[b], k[b], v[b], scratch) for b in range(B)])
