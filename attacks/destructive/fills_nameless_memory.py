"""Two memory files of 900 MiB without a name, open and not mapped."""
# stage: 2
# base: problem_2.py
# outcome: crashed, pass
# options: --memory 1
# ruff: noqa: F821
import os

hoard = []


def attack():
    while len(hoard) < 2:
        hoard.append(os.memfd_create("attack"))
        for _ in range(900):
            os.write(hoard[-1], bytes(1 << 20))


honest = weighted_row_sum_forward


def weighted_row_sum_forward(x, w):
    attack()
    return honest(x, w)
