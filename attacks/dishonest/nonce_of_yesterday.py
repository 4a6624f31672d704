"""Answers under a nonce that belongs to no request."""
# stage: 3
# with: channel, zeros
# outcome: crashed, rejected, wrong


@_patch
def _forged(header, pack):
    return pack({**header, "nonce": "0" * 32} if "evidence" in header else header)
