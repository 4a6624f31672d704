"""Peak memory as an integer of 400 digits: no division of it fits a float."""
# stage: 3
# with: channel, zeros
# outcome: crashed, rejected, wrong


@_patch
def _forged(header, pack):
    if "evidence" in header:
        seen = header["evidence"]
        header = {**header, "evidence": {**seen, "peak_bytes": 10 ** 400}}
    return pack(header)
