"""Replies with a hundred thousand brackets, too deep for a parser to descend."""
# stage: 3
# base: problem_3.py
# with: channel
# outcome: crashed
# says: broke the channel
import struct


@_replies("trace")
def _forged(header, pack):
    text = b"[" * 100_000 + b"]" * 100_000
    return struct.pack("!I", len(text)) + text
