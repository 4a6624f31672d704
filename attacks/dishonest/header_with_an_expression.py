"""Replies with an expression, in the hope that somebody evaluates it."""
# stage: 3
# with: channel, zeros
# outcome: crashed, rejected, wrong
import struct


@_patch
def _forged(header, pack):
    if "evidence" not in header:
        return pack(header)
    text = b"__import__('os')._exit(0)"
    return struct.pack("!I", len(text)) + text
