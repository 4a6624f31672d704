"""A finding whose sentence is a list, its line a float and its detail a number."""
# stage: 3
# base: problem_3.py
# with: channel
# outcome: wrong


@_replies("trace")
def _forged(header, pack):
    return pack({"nonce": header["nonce"], "ok": False, "id": "", "lines": [], "outcome": "wrong",
                 "sentence": [["\ud800"]], "detail": float("inf"), "line": 1e300, "fatal": "no"})
