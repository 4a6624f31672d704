"""Replaces its process by a program that keeps the socket to the grader open."""
# stage: 2
# outcome: timeout, crashed
# options: --timeout 5
import os
import sys


def weighted_row_sum_forward(x, w):
    for fd in range(3, 256):
        try:
            os.set_inheritable(fd, True)
        except OSError:
            pass
    os.execve(sys.executable, [sys.executable, "-c", "import time; time.sleep(60)",
                               "attack-left-program"], {})
