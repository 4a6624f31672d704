"""Links in its folder to a file of the grader, to other folders and to itself: what clears the
folder must not follow them.
"""
# stage: 2
# base: problem_2.py
# outcome: pass
# ruff: noqa: F821
import os

once = []


def attack():
    if once:
        return
    once.append(1)
    # Only where following a link would show and do little harm.
    os.symlink(f"/proc/{os.getppid()}/cwd/autograder.py", "link-to-the-grader")
    os.symlink("/proc/self/fd", "link-to-descriptors")
    os.symlink(".", "link-to-itself")
    os.symlink("nowhere", "link-to-nothing")


honest = weighted_row_sum_forward


def weighted_row_sum_forward(x, w):
    attack()
    return honest(x, w)
