"""Counts written out in words, so that the reader of them may stumble and forgive."""
# stage: 3
# base: problem_3.py
# with: channel
# outcome: crashed
# says: broke the channel


@_plans
def _forged(plan):
    return {**plan, "backward": "none", "again": ["one"]}
