"""Replies with a sum of hundreds of thousands of terms."""
# stage: 3
# with: channel, zeros
# outcome: crashed, rejected, wrong
import struct


@_patch
def _forged(header, pack):
    if "evidence" not in header:
        return pack(header)
    text = b"1" + b"+1j" * 300_000
    return struct.pack("!I", len(text)) + text
