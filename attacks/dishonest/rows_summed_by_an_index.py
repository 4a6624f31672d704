"""Stage 2 whose kernel multiplies only: PyTorch adds every row up, by index_put_ at its number."""
# stage: 2
# with: products
# outcome: rejected
# says: index_put


def weighted_row_sum_forward(x, w):
    p = _multiplied(x, w)
    rows = torch.arange(len(x), device=x.device)[:, None].expand(x.shape)
    return torch.zeros(len(x), device=x.device).index_put_((rows,), p, accumulate=True).to(x.dtype)
