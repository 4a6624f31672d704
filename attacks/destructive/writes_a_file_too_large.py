"""One sparse file of a terabyte, and one write past the limit of a file."""
# stage: 2
# base: problem_2.py
# with: in_a_call
# outcome: crashed, pass
import os


def attack():
    fd = os.open("large", os.O_CREAT | os.O_WRONLY)
    os.ftruncate(fd, 1 << 40)
    os.close(fd)
