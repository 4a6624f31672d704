"""A right answer on the way out, held up by the __del__ of a local."""
# stage: 2
# base: problem_2.py
# outcome: timeout
# options: --timeout 5
import time


class Sticky:
    def __del__(self):
        time.sleep(60)


honest = weighted_row_sum_forward


def weighted_row_sum_forward(x, w):
    sticky = Sticky()
    sticky.answer = honest(x, w)
    return sticky.answer
