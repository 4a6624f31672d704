"""Reports that the stage must be skipped, for a reason it makes up."""
# stage: 3
# base: problem_3.py
# with: channel
# outcome: skipped


@_replies("trace")
def _forged(header, pack):
    return pack({"nonce": header["nonce"], "ok": False, "id": "", "lines": [], "outcome": "skipped",
                 "sentence": "this GPU is too old", "detail": "", "line": None, "fatal": False})
