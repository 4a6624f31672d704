"""A list that grows to 2 GiB; the answer beside it is right."""
# stage: 2
# base: problem_2.py
# outcome: crashed
# says: memory
# options: --memory 1
# ruff: noqa: F821
hoard = []


def attack():
    while len(hoard) < 128:
        hoard.append(b"x" * (16 << 20))


honest = weighted_row_sum_forward


def weighted_row_sum_forward(x, w):
    attack()
    return honest(x, w)
