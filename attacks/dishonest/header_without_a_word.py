"""Replies with an empty header where an answer was asked for."""
# stage: 3
# with: channel, zeros
# outcome: crashed, rejected, wrong


@_patch
def _forged(header, pack):
    return pack({"nonce": header["nonce"]} if "evidence" in header else header)
