"""Endless recursion through C, with no limit of its own left."""
# stage: 2
# outcome: crashed
import sys


class Deep:
    def __repr__(self):
        return "".join(map(repr, [Deep()]))


def weighted_row_sum_forward(x, w):
    sys.setrecursionlimit(2**31 - 1)
    return repr(Deep())
