"""Makes every storage claim a size of no bytes, so that there is nothing to hide or to count."""
# stage: 3
# with: fired, copied, by_address
# outcome: crashed
# device: cpu

torch.UntypedStorage.nbytes = lambda self: fired() or 0
