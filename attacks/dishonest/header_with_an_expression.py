"""Replies with an expression, in the hope that somebody evaluates it."""
# stage: 3
# base: problem_3.py
# with: channel
# outcome: crashed
# says: broke the channel
import struct


@_replies("plan")
def _forged(header, pack):
    text = b"__import__('os')._exit(0)"
    return struct.pack("!I", len(text)) + text
