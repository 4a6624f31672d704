"""A process cloned as a child of its own parent, so that it is no descendant of the worker."""
# stage: 2
# base: problem_2.py
# with: in_a_call
# outcome: pass
import ctypes
import os
import platform
import signal
import sys

CLONE_PARENT = 0x8000
NUMBERS = {"x86_64": 56, "aarch64": 220}  # of the system call clone
once = []


def attack():
    if once or platform.machine() not in NUMBERS:
        return
    once.append(1)
    flags = CLONE_PARENT | signal.SIGCHLD
    if ctypes.CDLL(None).syscall(NUMBERS[platform.machine()], flags, 0, 0, 0, 0) == 0:
        try:
            os.setsid()
            os.execve(sys.executable, [sys.executable, "-I", "-c", "import time; time.sleep(60)",
                                       "attack-left-sibling"], {})
        finally:
            os._exit(0)
