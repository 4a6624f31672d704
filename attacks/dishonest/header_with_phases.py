"""Claims phases that do not exist before it answers, with types nobody expects."""
# stage: 3
# with: channel, fired, zeros
# outcome: wrong


@_replies("trace")
def _forged(header, pack):
    fired()
    phases = ([], {}, None, 1e300, "start", "x" * 1000)
    claims = [pack({"nonce": header["nonce"], "phase": phase}) for phase in phases]
    return b"".join(claims) + pack(header)
