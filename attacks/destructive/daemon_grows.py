"""A daemon without environment, in a session of its own, holds the 2 GiB, and the call waits."""
# stage: 2
# base: problem_2.py
# with: in_first_call, daemon
# outcome: crashed
# says: memory
# options: --memory 1
import signal

PROGRAM = """
import time
hoard = [b"x" * (64 << 20) for _ in range(32)]
time.sleep(50)
"""


def attack():
    leave(PROGRAM)
    signal.pause()
