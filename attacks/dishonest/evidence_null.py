"""Sends null for all of the evidence."""
# stage: 3
# with: channel, zeros
# outcome: crashed, rejected, wrong


@_patch
def _forged(header, pack):
    if "evidence" in header:
        seen = header["evidence"]
        header = {**header, "evidence": None if seen else {}}
    return pack(header)
