import os


def double(x):
    os.closerange(3, 64)
    return x * 2
