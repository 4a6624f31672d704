"""An error whose text never comes."""
# stage: 2
# outcome: timeout
# options: --timeout 5
import time


class SleepyError(Exception):
    def __str__(self):
        time.sleep(60)
        return ""


def weighted_row_sum_forward(x, w):
    raise SleepyError
