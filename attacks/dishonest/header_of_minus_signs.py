"""Replies with a million minus signs before a one, for a parser that recurses."""
# stage: 3
# base: problem_3.py
# with: channel
# outcome: crashed
# says: broke the channel
import struct


@_replies("plan")
def _forged(header, pack):
    text = b"-" * 1_000_000 + b"1"
    return struct.pack("!I", len(text)) + text
