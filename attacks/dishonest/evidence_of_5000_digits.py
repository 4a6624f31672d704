"""A number with more digits than Python agrees to read."""
# stage: 3
# with: channel, zeros
# outcome: crashed, rejected, wrong
import re
import struct


@_patch
def _forged(header, pack):
    if "evidence" not in header:
        return pack(header)
    text = re.sub(rb"(peak_bytes.: )", rb"\g<1>" + b"9" * 5000, pack(header)[4:])
    return struct.pack("!I", len(text)) + text
