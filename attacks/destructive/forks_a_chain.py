"""A chain of 23 forks, each the child of the last, beside a right answer."""
# stage: 2
# base: problem_2.py
# outcome: pass, crashed
# ruff: noqa: F821
import os
import time

once = []


def attack():
    if once:
        return
    once.append(1)
    for depth in range(23):  # twice: the compile check calls it, too
        if os.fork():
            if depth:
                time.sleep(60)
                os._exit(0)
            return
    time.sleep(60)
    os._exit(0)


honest = weighted_row_sum_forward


def weighted_row_sum_forward(x, w):
    attack()
    return honest(x, w)
