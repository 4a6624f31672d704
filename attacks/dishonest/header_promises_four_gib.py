"""Announces a header of four GiB, for which the grader would have to make room."""
# stage: 3
# with: channel, zeros
# outcome: crashed, rejected, wrong
import struct


@_patch
def _forged(header, pack):
    if "evidence" not in header:
        return pack(header)
    return struct.pack("!I", 0xFFFFFFFF) + pack(header)[4:]
