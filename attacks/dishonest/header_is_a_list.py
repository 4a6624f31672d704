"""Replies with a list, of which nobody can ask for a key."""
# stage: 3
# base: problem_3.py
# with: channel
# outcome: crashed
# says: broke the channel


@_replies("trace")
def _forged(header, pack):
    return pack([header, header["nonce"]])
