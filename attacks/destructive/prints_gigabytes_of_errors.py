"""A right answer after 1 GiB of empty lines on stderr."""
# stage: 2
# base: problem_2.py
# with: in_first_call
# outcome: pass
import os


def attack():
    data = b"\n" * (1 << 20)
    for _ in range(1 << 10):
        os.write(2, data)
