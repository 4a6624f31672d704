"""Ends its process with exit code 3 after a right answer; 3 is a fault of the grader."""
# stage: 2
# base: problem_2.py
# outcome: crashed
# says: exit code 3
# ruff: noqa: F821
import os

calls = []


def attack():
    calls.append(1)
    if len(calls) == 2:
        os._exit(3)


honest = weighted_row_sum_forward


def weighted_row_sum_forward(x, w):
    attack()
    return honest(x, w)
