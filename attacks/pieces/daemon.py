"""Leaves a daemon."""
import os
import sys


def leave(program):
    """A process of a session of its own, without environment or parent, that runs this text."""
    child = os.fork()
    if child == 0:
        try:
            os.setsid()
            if os.fork() == 0:
                os.chdir("/")
                os.execve(sys.executable, [sys.executable, "-I", "-c", program,
                                           "attack-left-daemon"], {})
        finally:
            os._exit(0)
    os.waitpid(child, 0)
