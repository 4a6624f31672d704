"""Reports its own outcome: pass, and in another field a grader fault."""
# stage: 3
# base: problem_3.py
# with: channel
# outcome: crashed
# says: broke the channel


@_replies("trace")
def _forged(header, pack):
    return pack({"nonce": header["nonce"], "ok": False, "id": "", "lines": [], "outcome": "pass",
                 "sentence": None, "detail": "grader_fault", "line": True, "fatal": False})
