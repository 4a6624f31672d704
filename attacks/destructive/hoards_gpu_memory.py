"""Keeps 4 GiB more of the GPU at every call, up to 40 GiB, beside right answers: all of it goes
with the worker, so a smaller GPU runs out and a larger one passes.
"""
# stage: 2
# base: problem_2.py
# outcome: pass, crashed
# device: cuda
# ruff: noqa: F821
hoard = []


def attack():
    if len(hoard) < 10:
        hoard.append(torch.ones(1 << 30, device="cuda"))


honest = weighted_row_sum_forward


def weighted_row_sum_forward(x, w):
    attack()
    return honest(x, w)
