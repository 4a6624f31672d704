"""Leaves the evidence out of the reply, as if the request had asked for none."""
# stage: 3
# with: channel, zeros
# outcome: crashed, rejected, wrong


@_patch
def _forged(header, pack):
    header.pop("evidence", None)
    return pack(header)
