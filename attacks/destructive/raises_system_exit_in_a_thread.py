"""SystemExit and an error in threads beside a right answer: they end the threads alone, so it
passes.
"""
# stage: 2
# base: problem_2.py
# outcome: pass
# ruff: noqa: F821
import sys
import threading


def fail():
    raise RuntimeError("in a thread")


def attack():
    threading.Thread(target=sys.exit).start()
    threading.Thread(target=fail).start()


honest = weighted_row_sum_forward


def weighted_row_sum_forward(x, w):
    attack()
    return honest(x, w)
