"""A number for a list of names, and true for a count."""
# stage: 3
# with: channel, zeros
# outcome: crashed, rejected, wrong


@_patch
def _forged(header, pack):
    if "evidence" in header:
        seen = header["evidence"]
        header = {**header, "evidence": {**seen, "torch_ops": 7, "launches": True}}
    return pack(header)
