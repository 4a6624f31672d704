"""Links in its folder to a file of the grader, to other folders and to itself: what clears the
folder must not follow them.
"""
# stage: 2
# base: problem_2.py
# with: in_first_call
# outcome: pass
import os


def attack():
    # Only where following a link would show and do little harm.
    os.symlink(f"/proc/{os.getppid()}/cwd/autograder.py", "link-to-the-grader")
    os.symlink("/proc/self/fd", "link-to-descriptors")
    os.symlink(".", "link-to-itself")
    os.symlink("nowhere", "link-to-nothing")
