"""Folders nested 2000 deep, more than one path or one recursion can name."""
# stage: 2
# base: problem_2.py
# with: in_first_call
# outcome: pass
import os


def attack():
    home = os.getcwd()
    for _ in range(2000):
        os.mkdir("d")
        os.chdir("d")
    with open("file", "w") as file:
        file.write("deep")
    os.chdir(home)
