"""Sends SIGSTOP to its own process in a call: alive, and deaf to all but SIGKILL."""
# stage: 2
# outcome: timeout
# options: --timeout 5
import os
import signal


def weighted_row_sum_forward(x, w):
    os.kill(os.getpid(), signal.SIGSTOP)
