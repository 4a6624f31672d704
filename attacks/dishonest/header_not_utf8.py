"""Replies with bytes that are no text in any encoding."""
# stage: 3
# base: problem_3.py
# with: channel
# outcome: crashed
# says: broke the channel
import struct


@_replies("trace")
def _forged(header, pack):
    text = b"\xff\xfe\xfd" + str(header).encode("utf-16")[1:]
    return struct.pack("!I", len(text)) + text
