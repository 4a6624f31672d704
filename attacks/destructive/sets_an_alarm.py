"""An alarm without a handler ends the process between two calls."""
# stage: 2
# base: problem_2.py
# outcome: crashed
# says: SIGALRM
# ruff: noqa: F821
import signal


def attack():
    signal.setitimer(signal.ITIMER_REAL, 0.02)


honest = weighted_row_sum_forward


def weighted_row_sum_forward(x, w):
    attack()
    return honest(x, w)
