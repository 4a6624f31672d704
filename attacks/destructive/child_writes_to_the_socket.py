"""A child that writes garbage to the socket of a worker that answers right."""
# stage: 2
# base: problem_2.py
# with: in_first_call
# outcome: crashed, timeout
import os
import socket
import stat
import time


def attack():
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
