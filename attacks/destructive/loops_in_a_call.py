"""Loops in a call and swallows every exception that could end the loop."""
# stage: 2
# outcome: timeout
# says: in a call
# options: --timeout 5
import signal
import time


def weighted_row_sum_forward(x, w):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    end = time.monotonic() + 60
    while time.monotonic() < end:
        try:
            while time.monotonic() < end:
                pass
        except BaseException:
            continue
    return x[:, 0]
