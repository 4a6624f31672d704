"""One long call into C, which answers no signal and no other Python thread."""
# stage: 2
# outcome: timeout
# options: --timeout 5


def weighted_row_sum_forward(x, w):
    return pow(7, POWER)


POWER = 25_000_000  # most of a minute
