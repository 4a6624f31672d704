"""Two shared anonymous mappings of 1 GiB, written page by page."""
# stage: 2
# base: problem_2.py
# with: in_a_call
# outcome: crashed
# says: memory
# options: --memory 1
import mmap

hoard = []


def attack():
    while len(hoard) < 2:
        hoard.append(mmap.mmap(-1, 1 << 30))
        for page in range(0, 1 << 30, mmap.PAGESIZE):
            hoard[-1][page] = 1
