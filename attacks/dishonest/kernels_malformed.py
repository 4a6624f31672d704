"""Describes its compiled kernels with numbers and names that the grader cannot convert."""
# stage: 3
# base: problem_3.py
# with: channel
# outcome: crashed
# says: broke the channel
# device: cpu


@_replies("kernels")
def _forged(header, pack):
    return pack({**header, "kernels": [{
        "name": None, "shared_bytes": "many", "seconds": [1],
        "warnings": [[1, 2, 3], "x", {"line": float("inf")}]}]})
