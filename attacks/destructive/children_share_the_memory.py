"""Four children hold 512 MiB each: none of them passes the limit alone."""
# stage: 2
# base: problem_2.py
# with: in_a_call
# outcome: crashed
# says: memory
# options: --memory 1
import os
import time

hoard = []


def attack():
    if hoard:
        return
    hoard.append(0)
    for _ in range(4):
        if os.fork() == 0:
            hoard.append(b"x" * (512 << 20))
            time.sleep(60)
            os._exit(0)
    time.sleep(3)
