"""Two shared anonymous mappings of 1 GiB, written page by page."""
# stage: 2
# base: problem_2.py
# outcome: crashed
# says: memory
# options: --memory 1
# ruff: noqa: F821
import mmap

hoard = []


def attack():
    while len(hoard) < 2:
        hoard.append(mmap.mmap(-1, 1 << 30))
        for page in range(0, 1 << 30, mmap.PAGESIZE):
            hoard[-1][page] = 1


honest = weighted_row_sum_forward


def weighted_row_sum_forward(x, w):
    attack()
    return honest(x, w)
