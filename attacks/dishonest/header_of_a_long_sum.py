"""Replies with a sum of hundreds of thousands of terms."""
# stage: 3
# base: problem_3.py
# with: channel
# outcome: crashed
# says: broke the channel
import struct


@_replies("plan")
def _forged(header, pack):
    text = b"1" + b"+1j" * 300_000
    return struct.pack("!I", len(text)) + text
