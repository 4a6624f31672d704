"""Names of operations as lists in lists, and a list where a count should be."""
# stage: 3
# base: problem_3.py
# with: channel
# outcome: crashed
# says: broke the channel


@_plans
def _forged(plan):
    steps = [["op", [[["mm"]]], [], {"dict": []}, []], *plan["steps"]]
    return {**plan, "steps": steps, "backward": [[1]]}
