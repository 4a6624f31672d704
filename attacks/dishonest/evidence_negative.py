"""A negative peak and fewer than no launches, for whoever only looks for too much."""
# stage: 3
# with: channel, zeros
# outcome: crashed, rejected, wrong


@_patch
def _forged(header, pack):
    if "evidence" in header:
        seen = header["evidence"]
        header = {**header, "evidence": {**seen, "launches": -1, "peak_bytes": -(1 << 40)}}
    return pack(header)
