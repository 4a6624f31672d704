"""Deletes the folder it runs in, the file under test included."""
# stage: 2
# base: problem_2.py
# with: in_a_call
# outcome: pass, crashed
import os
import shutil

once = []


def attack():
    if not once and "grader-" in os.getcwd():  # nowhere but in a copy
        once.append(1)
        shutil.rmtree(os.getcwd())
