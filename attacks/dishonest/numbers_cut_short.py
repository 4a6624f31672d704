"""Closes the channel in the middle of the numbers it has announced."""
# stage: 3
# base: problem_3.py
# with: channel
# outcome: crashed
# says: during a call
import socket


@_replies("trace")
def _forged(header, pack):
    channel = _worker().channel
    channel.socket.sendall(pack(header) + bytes(100))
    channel.socket.shutdown(socket.SHUT_RDWR)
    return pack(header)
