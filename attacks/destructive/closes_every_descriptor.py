"""Closes every file descriptor, its own channel and output included, and sleeps."""
# stage: 2
# outcome: crashed
# options: --timeout 5
import os
import time


def weighted_row_sum_forward(x, w):
    os.closerange(0, 1 << 16)
    time.sleep(60)
