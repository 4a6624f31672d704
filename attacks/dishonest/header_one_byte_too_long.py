"""Pads its header with spaces to the last byte that is allowed, and one more."""
# stage: 3
# base: problem_3.py
# with: channel
# outcome: crashed
# says: broke the channel
import struct


@_replies("trace")
def _forged(header, pack):
    text = pack(header)[4:].ljust((64 << 20) + 1)
    return struct.pack("!I", len(text)) + text
