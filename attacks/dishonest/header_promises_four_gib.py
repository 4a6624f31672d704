"""Announces a header of four GiB, for which the grader would have to make room."""
# stage: 3
# base: problem_3.py
# with: channel
# outcome: crashed
# says: broke the channel
import struct


@_replies("trace")
def _forged(header, pack):
    return struct.pack("!I", 0xFFFFFFFF) + pack(header)[4:]
