"""Replies with a million minus signs before a one, for a parser that recurses."""
# stage: 3
# with: channel, zeros
# outcome: crashed, rejected, wrong
import struct


@_patch
def _forged(header, pack):
    if "evidence" not in header:
        return pack(header)
    text = b"-" * 1_000_000 + b"1"
    return struct.pack("!I", len(text)) + text
