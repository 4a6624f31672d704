"""Says that the attack took place, where attacks/run.py hears it."""
import os


def fired():
    os.write(1, b"\nthe attack fired\n")
