"""Replies with an empty header where an answer was asked for."""
# stage: 3
# base: problem_3.py
# with: channel
# outcome: crashed
# says: broke the channel


@_replies("trace")
def _forged(header, pack):
    return pack({"nonce": header["nonce"]})
