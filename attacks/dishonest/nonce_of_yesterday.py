"""Answers under a nonce that belongs to no request."""
# stage: 3
# base: problem_3.py
# with: channel
# outcome: crashed
# says: broke the channel


@_replies("trace")
def _forged(header, pack):
    return pack({**header, "nonce": "0" * 32})
