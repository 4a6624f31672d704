"""An error with a message of 100 MB in one line."""
# stage: 2
# outcome: crashed
# says: ValueError


def weighted_row_sum_forward(x, w):
    raise ValueError("\x1b[31m" + "m" * 10**8)
