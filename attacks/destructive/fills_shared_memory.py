"""Two files of 900 MiB in /dev/shm, which is memory that no process seems to hold."""
# stage: 2
# base: problem_2.py
# outcome: crashed, pass
# options: --memory 1
# ruff: noqa: F821
import os

once = []


def attack():
    if once or not os.path.isdir("/dev/shm"):
        return
    once.append(1)
    for i in range(2):
        with open(f"/dev/shm/attack-left-{os.getpid()}-{i}", "wb") as file:
            for _ in range(900):
                file.write(bytes(1 << 20))


honest = weighted_row_sum_forward


def weighted_row_sum_forward(x, w):
    attack()
    return honest(x, w)
