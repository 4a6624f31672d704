"""Replaces its process by another program, which ignores SIGTERM and sleeps."""
# stage: 2
# outcome: crashed
import os
import sys

PROGRAM = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); time.sleep(60)"


def weighted_row_sum_forward(x, w):
    os.execve(sys.executable, [sys.executable, "-c", PROGRAM, "attack-left-program"], {})
