"""Replies with bytes that are no text in any encoding."""
# stage: 3
# with: channel, zeros
# outcome: crashed, rejected, wrong
import struct


@_patch
def _forged(header, pack):
    if "evidence" not in header:
        return pack(header)
    text = b"\xff\xfe\xfd" + str(header).encode("utf-16")[1:]
    return struct.pack("!I", len(text)) + text
