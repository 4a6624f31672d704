"""A daemon that stops itself: it answers nothing until somebody lets it go on."""
# stage: 2
# base: problem_2.py
# with: in_first_call, daemon
# outcome: pass


PROGRAM = """
import os, signal, time
stopped = os.getpid()
if os.fork() == 0:
    time.sleep(55)
    if os.getppid() == stopped:
        os.kill(stopped, signal.SIGKILL)
    os._exit(0)
os.kill(stopped, signal.SIGSTOP)
"""


def attack():
    leave(PROGRAM)
