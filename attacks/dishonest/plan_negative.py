"""Fewer than no bytes and fewer than no launches, for whoever only looks for too much."""
# stage: 3
# base: problem_3.py
# with: channel
# outcome: crashed
# says: broke the channel


@_plans
def _forged(plan):
    storages = [{**about, "bytes": -(1 << 40)} for about in plan["storages"]]
    return {**plan, "storages": storages, "again": [-1]}
