"""Pads its header with spaces to the last byte that is allowed, and one more."""
# stage: 3
# with: channel, zeros
# outcome: crashed, rejected, wrong
import struct


@_patch
def _forged(header, pack):
    if "evidence" not in header:
        return pack(header)
    text = pack(header)[4:].ljust((1 << 20) + 1)
    return struct.pack("!I", len(text)) + text
