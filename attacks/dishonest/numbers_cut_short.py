"""Closes the channel in the middle of the numbers it has announced."""
# stage: 3
# with: channel, zeros
# outcome: crashed, rejected, wrong
import socket


@_patch
def _forged(header, pack):
    if "evidence" in header:
        channel = _channel()
        channel.socket.sendall(pack(header) + bytes(100))
        channel.socket.shutdown(socket.SHUT_RDWR)
    return pack(header)
