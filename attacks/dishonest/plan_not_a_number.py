"""NaN where counts of bytes belong."""
# stage: 3
# base: problem_3.py
# with: channel
# outcome: crashed
# says: broke the channel


@_plans
def _forged(plan):
    storages = [{**about, "bytes": float("nan")} for about in plan["storages"]]
    return {**plan, "storages": storages}
