"""Prints 2 GiB from four processes as fast as it can and never answers."""
# stage: 2
# outcome: timeout
# options: --timeout 5
import os
import time


def weighted_row_sum_forward(x, w):
    os.fork()
    os.fork()
    data = b"y\n" * (1 << 15)
    for _ in range(1 << 13):  # 512 MiB from each
        os.write(1, data)
    time.sleep(55)
    os._exit(0)
