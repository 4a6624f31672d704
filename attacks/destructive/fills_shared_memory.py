"""Two files of 900 MiB in /dev/shm, which is memory that no process seems to hold."""
# stage: 2
# base: problem_2.py
# with: in_a_call
# outcome: crashed, pass
# options: --memory 1
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
