"""Stage 2 whose kernel multiplies only: PyTorch adds every row up, by scatter_add."""
# stage: 2
# with: products
# outcome: rejected
# says: scatter_add


def weighted_row_sum_forward(x, w):
    rows = torch.zeros(x.shape, dtype=torch.int64, device=x.device)
    summed = torch.zeros(len(x), 1, device=x.device).scatter_add(1, rows, _multiplied(x, w))
    return summed[:, 0].to(x.dtype)
