"""A daemon that keeps its environment and forbids everyone to read it."""
# stage: 2
# base: problem_2.py
# with: in_first_call
# outcome: pass
import ctypes
import os
import time

PR_SET_DUMPABLE = 4


def attack():
    child = os.fork()
    if child == 0:
        os.setsid()
        ctypes.CDLL(None).prctl(PR_SET_DUMPABLE, 0)
        if os.fork() == 0:
            time.sleep(60)
        os._exit(0)
    os.waitpid(child, 0)
