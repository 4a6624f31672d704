"""Tensors that fill 2 GiB in a call, kept in a global."""
# stage: 2
# base: problem_2.py
# outcome: crashed
# says: memory
# options: --memory 1
# ruff: noqa: F821
hoard = []


def attack():
    while len(hoard) < 8:
        hoard.append(torch.ones(64 << 20, dtype=torch.float32, device="cpu"))


honest = weighted_row_sum_forward


def weighted_row_sum_forward(x, w):
    attack()
    return honest(x, w)
