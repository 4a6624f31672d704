"""A right answer after 1 GiB of empty lines on stderr."""
# stage: 2
# base: problem_2.py
# outcome: pass
# ruff: noqa: F821
import os

once = []


def attack():
    if once:
        return
    once.append(1)
    data = b"\n" * (1 << 20)
    for _ in range(1 << 10):
        os.write(2, data)


honest = weighted_row_sum_forward


def weighted_row_sum_forward(x, w):
    attack()
    return honest(x, w)
