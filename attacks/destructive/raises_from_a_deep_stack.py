"""An error 100,000 frames deep."""
# stage: 2
# outcome: crashed, timeout
# options: --timeout 5
import sys


def weighted_row_sum_forward(x, w, depth=100_000):
    sys.setrecursionlimit(10**6)
    if depth == 0:
        raise ValueError("from the deep")
    return weighted_row_sum_forward(x, w, depth - 1)
