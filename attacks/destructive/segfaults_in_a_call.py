"""Reads address zero through ctypes."""
# stage: 2
# outcome: crashed
# says: segmentation fault
import ctypes


def weighted_row_sum_forward(x, w):
    return ctypes.string_at(0)
