"""Reports its own outcome: pass, and in another field a grader fault."""
# stage: 3
# with: channel, zeros
# outcome: crashed, rejected, wrong


@_patch
def _forged(header, pack):
    if "evidence" in header:
        header = {"nonce": header["nonce"], "ok": False, "outcome": "pass", "sentence": None,
                  "detail": "grader_fault", "line": True, "fatal": False}
    return pack(header)
