"""A daemon that forks 200 times without any pause and then sleeps."""
# stage: 2
# base: problem_2.py
# with: in_first_call, daemon
# outcome: pass


PROGRAM = """
import os, time
for _ in range(200):
    if os.fork():
        os._exit(0)
time.sleep(50)
"""


def attack():
    leave(PROGRAM)
