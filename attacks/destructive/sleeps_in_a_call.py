"""Sleeps in a call, in the second case of the stage only: the first is right."""
# stage: 2
# base: problem_2.py
# outcome: timeout
# options: --timeout 5
# ruff: noqa: F821
import time

calls = []


def attack():
    calls.append(1)
    if len(calls) == 2:
        time.sleep(60)


honest = weighted_row_sum_forward


def weighted_row_sum_forward(x, w):
    attack()
    return honest(x, w)
