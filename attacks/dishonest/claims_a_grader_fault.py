"""Reports that the grader is at fault, which would not be the file's own doing."""
# stage: 3
# with: channel, zeros
# outcome: crashed, rejected, wrong


@_patch
def _forged(header, pack):
    if "evidence" in header:
        header = {"nonce": header["nonce"], "ok": False, "outcome": "grader_fault", "detail": "",
                  "sentence": "no space left on device", "line": None, "fatal": True}
    return pack(header)
