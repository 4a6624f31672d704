"""Leaves the plan out of the reply, as if the request had asked for none."""
# stage: 3
# base: problem_3.py
# with: channel
# outcome: crashed
# says: broke the channel


@_replies("plan")
def _forged(header, pack):
    return pack({key: value for key, value in header.items() if key != "plan"})
