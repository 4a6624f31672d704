"""Replies with a list, of which nobody can ask for a key."""
# stage: 3
# with: channel, zeros
# outcome: crashed, rejected, wrong


@_patch
def _forged(header, pack):
    return pack([header, header["nonce"]] if "evidence" in header else header)
