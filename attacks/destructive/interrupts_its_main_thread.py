"""A thread that raises KeyboardInterrupt in the main thread between two calls."""
# stage: 2
# base: problem_2.py
# outcome: crashed
# ruff: noqa: F821
import _thread
import signal
import threading

signal.signal(signal.SIGINT, signal.default_int_handler)


def attack():
    threading.Timer(0.02, _thread.interrupt_main).start()


honest = weighted_row_sum_forward


def weighted_row_sum_forward(x, w):
    attack()
    return honest(x, w)
