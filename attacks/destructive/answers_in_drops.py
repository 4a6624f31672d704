"""Sends its reply a byte a second, so that every single wait is short."""
# stage: 2
# outcome: timeout, crashed
# options: --timeout 5
import sys
import time


def send(channel, header, tensors=()):
    channel.socket.sendall(b"\0\0\x10\0")  # the length of a header, 4096
    for _ in range(60):
        channel.socket.sendall(b" ")
        time.sleep(1)


def weighted_row_sum_forward(x, w):
    frame = sys._getframe()
    while "channel" not in getattr(frame.f_locals.get("self"), "__dict__", {}):
        frame = frame.f_back
    type(frame.f_locals["self"].channel).send = send
    return x[:, 0]
