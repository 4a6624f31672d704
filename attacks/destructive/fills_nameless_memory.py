"""Two memory files of 900 MiB without a name, open and not mapped."""
# stage: 2
# base: problem_2.py
# with: in_a_call
# outcome: crashed, pass
# options: --memory 1
import os

hoard = []


def attack():
    while len(hoard) < 2:
        hoard.append(os.memfd_create("attack"))
        for _ in range(900):
            os.write(hoard[-1], bytes(1 << 20))
