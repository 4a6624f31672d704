"""Sends null for all of the plan."""
# stage: 3
# base: problem_3.py
# with: channel
# outcome: crashed
# says: broke the channel


@_plans
def _forged(plan):
    return None
