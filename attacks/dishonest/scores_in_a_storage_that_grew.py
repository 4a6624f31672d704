"""Its N x N scratch is an empty tensor, whose storage is made larger afterwards."""
# stage: 3
# with: scores
# outcome: rejected


def flash_attention_forward(q, k, v, is_causal=False):
    B, H, N, D = q.shape
    scratch = torch.empty(0, device=q.device, dtype=torch.float32)
    scratch.untyped_storage().resize_(4 * B * H * N * N)
    q, k, v = (x.reshape(B * H, N, D) for x in (q, k, v))
    return _attend(q, k, v, scratch.as_strided((B * H * N * N,), (1,))).view(B, H, N, D)
