"""Leaves two children behind: one in its session, one that left it, both holding its pipes."""

import os
import time


def double(x):
    for leave in (False, True):
        if os.fork() == 0:
            if leave:
                os.setsid()
            while True:
                time.sleep(1)
    os._exit(3)
