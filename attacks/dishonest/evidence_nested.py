"""Names of operations as lists in lists, and a list where a count should be."""
# stage: 3
# with: channel, zeros
# outcome: crashed, rejected, wrong


@_patch
def _forged(header, pack):
    if "evidence" in header:
        seen = header["evidence"]
        header = {**header, "evidence": {**seen, "torch_ops": [[["mm"]]], "launches": [[1]]}}
    return pack(header)
