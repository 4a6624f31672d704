"""Gives its folder another name and leaves a link in its place."""
# stage: 2
# base: problem_2.py
# with: in_first_call
# outcome: pass, crashed
import os


def attack():
    own = os.path.dirname(os.getcwd())
    if not os.path.basename(own).startswith("grader-"):
        own = os.getcwd()
    moved = os.path.join(os.path.dirname(own), f"attack-left-{os.getpid()}")
    os.rename(own, moved)
    os.symlink(moved, own)
