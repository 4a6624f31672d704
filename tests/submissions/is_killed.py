import os
import signal


def double(x):
    os.kill(os.getpid(), signal.SIGKILL)
