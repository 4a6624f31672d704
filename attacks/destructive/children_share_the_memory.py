"""Four children hold 512 MiB each: none of them passes the limit alone."""
# stage: 2
# base: problem_2.py
# outcome: crashed
# says: memory
# options: --memory 1
# ruff: noqa: F821
import os
import time

hoard = []


def attack():
    if hoard:
        return
    hoard.append(0)
    for _ in range(4):
        if os.fork() == 0:
            hoard.append(b"x" * (512 << 20))
            time.sleep(60)
            os._exit(0)
    time.sleep(3)


honest = weighted_row_sum_forward


def weighted_row_sum_forward(x, w):
    attack()
    return honest(x, w)
