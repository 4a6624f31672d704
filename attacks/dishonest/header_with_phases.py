"""Claims phases that do not exist before it answers, with types nobody expects."""
# stage: 3
# with: channel, zeros
# outcome: crashed, rejected, wrong


@_patch
def _forged(header, pack):
    if "evidence" not in header:
        return pack(header)
    phases = ([], {}, None, 1e300, "start", "x" * 1000)
    claims = [pack({"nonce": header["nonce"], "phase": phase}) for phase in phases]
    return b"".join(claims) + pack(header)
