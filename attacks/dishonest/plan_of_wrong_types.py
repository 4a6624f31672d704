"""A number for a list of steps, and true for a count."""
# stage: 3
# base: problem_3.py
# with: channel
# outcome: crashed
# says: broke the channel


@_plans
def _forged(plan):
    return {**plan, "steps": 7, "backward": True}
