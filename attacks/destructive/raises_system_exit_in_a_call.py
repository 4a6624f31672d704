"""Raises SystemExit in a call."""
# stage: 2
# outcome: crashed
# says: sys.exit
import sys


def weighted_row_sum_forward(x, w):
    sys.exit(0)
