"""A daemon in process and user namespaces of its own, where that is allowed."""
# stage: 2
# base: problem_2.py
# with: in_first_call
# outcome: pass
import ctypes
import os
import sys

CLONE_NEWUSER, CLONE_NEWPID = 0x10000000, 0x20000000


def attack():
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            ctypes.CDLL(None).unshare(CLONE_NEWUSER | CLONE_NEWPID)
            if os.fork() == 0:
                os.execve(sys.executable, [sys.executable, "-I", "-c",
                                           "import time; time.sleep(60)", "attack-left-daemon"], {})
        finally:
            os._exit(0)
    os.waitpid(child, 0)
