"""Writes 1.5 GiB into two files that it has deleted and keeps open."""
# stage: 2
# base: problem_2.py
# with: in_a_call
# outcome: pass, crashed
import os

hoard = []


def attack():
    while len(hoard) < 2:
        hoard.append(open(f"file-{len(hoard)}", "wb"))
        os.unlink(hoard[-1].name)
        for _ in range(48):
            hoard[-1].write(bytes(16 << 20))
