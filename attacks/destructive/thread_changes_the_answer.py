"""A thread that goes on writing to an output after the function has returned it."""
# stage: 2
# base: problem_2.py
# outcome: wrong
import threading
import time

honest = weighted_row_sum_forward


def spoil(y):
    for _ in range(100):
        time.sleep(0.005)
        y += 1


def weighted_row_sum_forward(x, w):
    y = honest(x, w)
    threading.Thread(target=spoil, args=(y,), daemon=True).start()
    return y
