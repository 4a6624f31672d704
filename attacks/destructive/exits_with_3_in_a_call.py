"""Ends its process with exit code 3 after a right answer; 3 is a fault of the grader."""
# stage: 2
# base: problem_2.py
# with: in_a_call
# outcome: crashed
# says: exit code 3
import os

calls = []


def attack():
    calls.append(1)
    if len(calls) == 2:
        os._exit(3)
