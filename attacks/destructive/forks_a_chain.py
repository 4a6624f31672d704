"""A chain of 23 forks, each the child of the last, beside a right answer."""
# stage: 2
# base: problem_2.py
# with: in_first_call
# outcome: pass, crashed
import os
import time


def attack():
    for depth in range(23):  # twice: the compile check calls it, too
        if os.fork():
            if depth:
                time.sleep(60)
                os._exit(0)
            return
    time.sleep(60)
    os._exit(0)
