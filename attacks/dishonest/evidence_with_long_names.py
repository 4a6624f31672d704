"""A hundred thousand names of operations, every one of them with control characters."""
# stage: 3
# with: channel, zeros
# outcome: crashed, rejected, wrong


@_patch
def _forged(header, pack):
    if "evidence" in header:
        seen = header["evidence"]
        header = {**header, "evidence": {**seen, "torch_ops": ["\x1b[2J\r"] * 100_000}}
    return pack(header)
