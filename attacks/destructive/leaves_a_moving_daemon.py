"""A daemon that forks every 50 ms and dies, so that its number is never the one just read."""
# stage: 2
# base: problem_2.py
# with: in_first_call, daemon
# outcome: pass


PROGRAM = """
import os, time
for _ in range(200):
    time.sleep(0.05)
    if os.fork():
        os._exit(0)
    os.setsid()
"""


def attack():
    leave(PROGRAM)
