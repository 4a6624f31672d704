"""Dies in a call and leaves a child that keeps the socket to the grader open."""
# stage: 2
# outcome: crashed
import os
import time


def weighted_row_sum_forward(x, w):
    if os.fork() == 0:
        os.setsid()
        time.sleep(60)
        os._exit(0)
    os._exit(0)
