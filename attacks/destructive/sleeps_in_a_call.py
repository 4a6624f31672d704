"""Sleeps in a call, in the second case of the stage only: the first is right."""
# stage: 2
# base: problem_2.py
# with: in_a_call
# outcome: timeout
# options: --timeout 5
import time

calls = []


def attack():
    calls.append(1)
    if len(calls) == 2:
        time.sleep(60)
