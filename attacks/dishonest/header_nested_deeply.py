"""Replies with a hundred thousand brackets, too deep for a parser to descend."""
# stage: 3
# with: channel, zeros
# outcome: crashed, rejected, wrong
import struct


@_patch
def _forged(header, pack):
    if "evidence" not in header:
        return pack(header)
    text = b"[" * 100_000 + b"]" * 100_000
    return struct.pack("!I", len(text)) + text
