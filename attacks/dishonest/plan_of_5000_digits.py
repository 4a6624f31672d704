"""A number with more digits than Python agrees to read."""
# stage: 3
# base: problem_3.py
# with: channel
# outcome: crashed
# says: broke the channel


@_replies("trace")
def _forged(header, pack):
    plan = header["trace"].replace('"backward": ', '"backward": ' + "9" * 5000)
    return pack({**header, "trace": plan})
