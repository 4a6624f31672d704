"""A right answer after 1 GiB on stdout without one newline: read, counted and left out, so it
passes.
"""
# stage: 2
# base: problem_2.py
# with: in_first_call
# outcome: pass
import os


def attack():
    data = b"x" * (1 << 20)
    for _ in range(1 << 10):
        os.write(1, data)
