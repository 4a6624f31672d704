"""SystemExit and an error in threads beside a right answer: they end the threads alone, so it
passes.
"""
# stage: 2
# base: problem_2.py
# with: in_a_call
# outcome: pass
import sys
import threading


def fail():
    raise RuntimeError("in a thread")


def attack():
    threading.Thread(target=sys.exit).start()
    threading.Thread(target=fail).start()
