"""NaN, and a negative number, where counts of launches and bytes belong."""
# stage: 3
# with: channel, zeros
# outcome: crashed, rejected, wrong


@_patch
def _forged(header, pack):
    if "evidence" in header:
        seen = header["evidence"]
        header = {**header, "evidence": {**seen, "launches": float("nan"), "peak_bytes": -5}}
    return pack(header)
