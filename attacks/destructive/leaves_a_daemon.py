"""A daemon in a session of its own, without environment, that holds the pipe of the output."""
# stage: 2
# base: problem_2.py
# with: in_first_call, daemon
# outcome: pass


PROGRAM = """import time; time.sleep(60)"""


def attack():
    leave(PROGRAM)
