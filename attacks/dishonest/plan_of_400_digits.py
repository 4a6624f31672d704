"""Sizes as integers of 400 digits: no division of them fits a float."""
# stage: 3
# base: problem_3.py
# with: channel
# outcome: crashed
# says: broke the channel


@_plans
def _forged(plan):
    storages = [{**about, "bytes": 10 ** 400} for about in plan["storages"]]
    return {**plan, "storages": storages}
