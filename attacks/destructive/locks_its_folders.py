"""Folders without any permission, in a folder that may not be changed; an account that is held to
permissions cannot even go on itself."""
# stage: 2
# base: problem_2.py
# with: in_first_call
# outcome: pass, crashed
import os


def attack():
    for i in range(5):
        os.makedirs(f"locked-{i}/inner")
        open(f"locked-{i}/inner/file", "w").close()
        os.chmod(f"locked-{i}/inner/file", 0)
        os.chmod(f"locked-{i}/inner", 0)
        os.chmod(f"locked-{i}", 0)
    os.chmod(".", 0)
    if os.path.basename(os.path.dirname(os.path.dirname(__file__))).startswith("grader-"):
        os.chmod("..", 0)
