"""A daemon without environment, in a session of its own, holds the 2 GiB."""
# stage: 2
# base: problem_2.py
# outcome: crashed
# says: memory
# options: --memory 1
# ruff: noqa: F821
import os
import sys
import time

PROGRAM = """
import time
hoard = [b"x" * (64 << 20) for _ in range(32)]
time.sleep(50)
"""
once = []


def attack():
    if once:
        return
    once.append(1)
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                os.chdir("/")
                os.execve(sys.executable, [sys.executable, "-I", "-c", PROGRAM,
                                           "attack-left-daemon"], {})
        finally:
            os._exit(0)
    os.waitpid(child, 0)
    time.sleep(4)


honest = weighted_row_sum_forward


def weighted_row_sum_forward(x, w):
    attack()
    return honest(x, w)
