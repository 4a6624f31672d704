"""A hundred thousand names of operations, every one of them with control characters."""
# stage: 3
# base: problem_3.py
# with: channel
# outcome: rejected
# says: \x1b[2J\x0d


@_plans
def _forged(plan):
    return {**plan, "steps": plan["steps"] + [["op", "\x1b[2J\r", [], {"dict": []}, []]] * 100_000}
